/* disk_retry.c - retries with growing pauses. */
#include "disk_retry.h"

#include <errno.h>
#include <time.h>

enum { RETRY_PAUSE_MS = 10, RETRY_TOTAL_MS = 2000 };

/* Returns 1 for errors that may be temporary. */
static int disk_error_is_temporary(int64_t error) {
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

int disk_retry_again(disk_retry *retry, const disk_calls *disk, int64_t result) {
    if (!disk_error_is_temporary(result))
        return 0;
    uint64_t now = disk->clock_ns(disk->ctx);
    if (retry->until_ns == 0) {
        retry->until_ns = now + RETRY_TOTAL_MS * 1000000ull;
        retry->pause_ms = RETRY_PAUSE_MS;
    }
    if (now >= retry->until_ns)
        return 0;
    uint64_t pause = retry->pause_ms * 1000000ull;
    if (pause > retry->until_ns - now)
        pause = retry->until_ns - now;
    retry->pause_ms *= 2;
    struct timespec sleep = {.tv_sec = (time_t)(pause / 1000000000u),
                             .tv_nsec = (long)(pause % 1000000000u)};
    nanosleep(&sleep, NULL);
    return 1;
}

int disk_open_retrying(const disk_calls *disk, int directory_fd, const char *name, int flags) {
    disk_retry retry = {0};
    int fd;
    do
        fd = disk->open(disk->ctx, directory_fd, name, flags);
    while (disk_retry_again(&retry, disk, fd));
    return fd;
}

int disk_open_direct_retrying(const disk_calls *disk, int directory_fd, const char *name,
                              int flags) {
    disk_retry retry = {0};
    int fd;
    do
        fd = disk_open_direct(disk, directory_fd, name, flags);
    while (disk_retry_again(&retry, disk, fd));
    return fd;
}

int64_t disk_file_bytes_retrying(const disk_calls *disk, int fd) {
    disk_retry retry = {0};
    int64_t bytes;
    do
        bytes = disk->file_bytes(disk->ctx, fd);
    while (disk_retry_again(&retry, disk, bytes));
    return bytes;
}

ssize_t disk_read_retrying(const disk_calls *disk, int fd, void *buffer, size_t bytes,
                           int64_t offset) {
    disk_retry retry = {0};
    ssize_t count;
    do
        count = disk_read_all(disk, fd, buffer, bytes, offset);
    while (disk_retry_again(&retry, disk, count));
    return count;
}
