/*
 * disk_retry.h - disk calls during open that are retried before they count as failed.
 *
 * A disk that fails for a moment must not keep a broker from starting, and unread data must not be
 * taken for damaged or missing. The pauses double. All attempts of one call together take at most
 * about two seconds. These functions sleep: only the thread that opens a storage may call them.
 */
#ifndef PYXBROKER_DISK_RETRY_H
#define PYXBROKER_DISK_RETRY_H

#include "disk.h"

/* State of the retries of one call. Starts as {0}. */
typedef struct disk_retry {
    uint64_t until_ns;
    unsigned pause_ms;
} disk_retry;

/* Takes the result of an attempt. Sleeps and returns 1 when the caller should repeat the call.
 * Returns 0 when the call succeeded, when a retry cannot help (a missing file, no permission), or
 * when the time is up. */
int disk_retry_again(disk_retry *retry, const disk_calls *disk, int64_t result);

int disk_open_retrying(const disk_calls *disk, int directory_fd, const char *name, int flags);
int disk_open_direct_retrying(const disk_calls *disk, int directory_fd, const char *name,
                              int flags);
int64_t disk_file_bytes_retrying(const disk_calls *disk, int fd);
ssize_t disk_read_retrying(const disk_calls *disk, int fd, void *buffer, size_t bytes,
                           int64_t offset);

#endif
