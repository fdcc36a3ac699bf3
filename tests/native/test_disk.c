/* test_disk.c - calls of the system, as the storage makes them. */
#include <errno.h>
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

/* So a sync that did not take place is never taken for one that did. */
static void test_a_call_that_the_system_refuses_has_failed(void) {
    const disk_calls *system = disk_system();
    int fd = open("/tmp", O_RDONLY | O_DIRECTORY);
    CHECK(fd >= 0 && system->sync_directory(NULL, fd) == 0 && system->close(NULL, fd) == 0);
    CHECK(system->sync_directory(NULL, fd) == -EBADF);
    CHECK(system->fdatasync(NULL, fd) == -EBADF);
    CHECK(system->lock_directory(NULL, fd) == -EBADF);
    CHECK(system->drop_direct(NULL, fd) == -EBADF);
    CHECK(system->file_bytes(NULL, fd) == -EBADF);
    CHECK(system->fallocate(NULL, fd, 0, 0, 1) == -EBADF);
    CHECK(system->open(NULL, fd, "name", O_RDONLY) == -EBADF);
    CHECK(system->rename(NULL, fd, "from", "to") == -EBADF);
    CHECK(system->unlink(NULL, fd, "name") == -EBADF);
    CHECK(system->close(NULL, fd) == -EBADF);
}

typedef struct short_read {
    int direct; /* which takes no offset inside of a block */
    int reads;
} short_read;

static ssize_t read_a_byte_first(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    short_read *file = ctx;
    (void)fd;
    file->reads++;
    if (file->direct && offset % 512 != 0)
        return -EINVAL;
    size_t count = file->direct ? 1 : bytes;
    memset(buffer, 'a', count);
    return (ssize_t)count;
}

static int drop_direct(void *ctx, int fd) {
    short_read *file = ctx;
    (void)fd;
    file->direct = 0;
    return 0;
}

/* However short it was: a file may end one byte behind a block. */
static void test_what_follows_a_short_direct_read_is_read_otherwise(void) {
    short_read file = {.direct = 1};
    disk_calls calls = *disk_system();
    calls.ctx = &file;
    calls.pread = read_a_byte_first;
    calls.drop_direct = drop_direct;
    char found[8] = "";
    CHECK(disk_read_all(&calls, 0, found, sizeof found, 512) == sizeof found);
    CHECK(memcmp(found, "aaaaaaaa", sizeof found) == 0);
    CHECK(file.reads == 3 && !file.direct);
    /* An offset that was refused before anything was read is the caller's mistake. */
    file = (short_read){.direct = 1};
    CHECK(disk_read_all(&calls, 0, found, sizeof found, 1) == -EINVAL && file.direct);
}

static const check_test tests[] = {
    {"disk_any_number_of_parts_is_written", test_any_number_of_parts_is_written},
    {"disk_a_call_that_the_system_refuses_has_failed",
     test_a_call_that_the_system_refuses_has_failed},
    {"disk_what_follows_a_short_direct_read_is_read_otherwise",
     test_what_follows_a_short_direct_read_is_read_otherwise},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
