/* disk_patience.c - retries with growing pauses. */
#include "disk_patience.h"

#include <errno.h>
#include <time.h>

enum { PATIENCE_PAUSE_MS = 10, PATIENCE_MS = 2000 };

/* Returns 1 for errors that may be temporary. */
static int disk_error_passes(int64_t error) {
    switch (error) {
    case -ENOENT:
    case -EACCES:
    case -EPERM:
    case -EROFS:
    case -EISDIR:
    case -ENOTDIR:
    case -ELOOP:
    case -EINVAL:
    case -EBADF: return 0;
    default: return error < 0;
    }
}

int disk_patience_again(disk_patience *patience, const disk_calls *disk, int64_t result) {
    if (!disk_error_passes(result))
        return 0;
    uint64_t now = disk->clock_ns(disk->ctx);
    if (patience->until_ns == 0) {
        patience->until_ns = now + PATIENCE_MS * 1000000ull;
        patience->pause_ms = PATIENCE_PAUSE_MS;
    }
    if (now >= patience->until_ns)
        return 0;
    uint64_t pause = patience->pause_ms * 1000000ull;
    if (pause > patience->until_ns - now)
        pause = patience->until_ns - now;
    patience->pause_ms *= 2;
    struct timespec sleep = {.tv_sec = (time_t)(pause / 1000000000u),
                             .tv_nsec = (long)(pause % 1000000000u)};
    nanosleep(&sleep, NULL);
    return 1;
}

int disk_open_patiently(const disk_calls *disk, int directory_fd, const char *name, int flags) {
    disk_patience patience = {0};
    int fd;
    do
        fd = disk->open(disk->ctx, directory_fd, name, flags);
    while (disk_patience_again(&patience, disk, fd));
    return fd;
}

int disk_open_direct_patiently(const disk_calls *disk, int directory_fd, const char *name,
                               int flags) {
    disk_patience patience = {0};
    int fd;
    do
        fd = disk_open_direct(disk, directory_fd, name, flags);
    while (disk_patience_again(&patience, disk, fd));
    return fd;
}

int64_t disk_file_bytes_patiently(const disk_calls *disk, int fd) {
    disk_patience patience = {0};
    int64_t bytes;
    do
        bytes = disk->file_bytes(disk->ctx, fd);
    while (disk_patience_again(&patience, disk, bytes));
    return bytes;
}

ssize_t disk_read_patiently(const disk_calls *disk, int fd, void *buffer, size_t bytes,
                            int64_t offset) {
    disk_patience patience = {0};
    ssize_t count;
    do
        count = disk_read_all(disk, fd, buffer, bytes, offset);
    while (disk_patience_again(&patience, disk, count));
    return count;
}
