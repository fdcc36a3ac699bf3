/* test_segment.c - memory that is touched ahead. */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "bytes.h"
#include "check.h"
#include "segment.h"

static void test_what_is_touched_ahead_ends_with_the_segment(void) {
    enum { BLOCKS = 16, SEGMENT_BLOCKS = 8, FROM = 5 };
    uint8_t *memory = mmap(NULL, BLOCKS * BLOCK_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    segment s = {.base = memory, .bytes = SEGMENT_BLOCKS * BLOCK_BYTES};
    segment_populate(&s, FROM * BLOCK_BYTES, SEGMENT_PIECE_BYTES);
    segment_populate(&s, SEGMENT_BLOCKS * BLOCK_BYTES, BLOCK_BYTES);
    unsigned char there[BLOCKS];
    CHECK(mincore(memory, BLOCKS * BLOCK_BYTES, there) == 0);
    for (int i = 0; i < BLOCKS; i++)
        CHECK((there[i] & 1) == (i >= FROM && i < SEGMENT_BLOCKS));
    CHECK(munmap(memory, BLOCKS * BLOCK_BYTES) == 0);
}

static const check_test tests[] = {
    {"segment_what_is_touched_ahead_ends_with_it",
     test_what_is_touched_ahead_ends_with_the_segment},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
