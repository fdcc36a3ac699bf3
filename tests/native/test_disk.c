/* test_disk.c - calls of the system, as the storage makes them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"
#include "disk.h"

enum { PARTS = 2500, PART_BYTES = 3 };

/* The system takes 1,024 parts at once. */
static void test_any_number_of_parts_is_written(void) {
    char name[] = "/tmp/pyxbroker-parts-XXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    CHECK(unlink(name) == 0);
    static uint8_t data[PARTS * PART_BYTES], found[PARTS * PART_BYTES + 1];
    static struct iovec parts[PARTS];
    for (int i = 0; i < PARTS; i++) {
        memset(data + i * PART_BYTES, i % 251, PART_BYTES);
        parts[i] = (struct iovec){.iov_base = data + i * PART_BYTES, .iov_len = PART_BYTES};
    }
    CHECK(disk_write_parts(disk_system(), fd, parts, PARTS, 0) == 0);
    CHECK(pread(fd, found, sizeof found, 0) == (ssize_t)sizeof data);
    CHECK(memcmp(found, data, sizeof data) == 0);
    CHECK(close(fd) == 0);
}

static const check_test tests[] = {
    {"disk_any_number_of_parts_is_written", test_any_number_of_parts_is_written},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
