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

static const check_test tests[] = {
    {"disk_any_number_of_parts_is_written", test_any_number_of_parts_is_written},
    {"disk_a_call_that_the_system_refuses_has_failed",
     test_a_call_that_the_system_refuses_has_failed},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
