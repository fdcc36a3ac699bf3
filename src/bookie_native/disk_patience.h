/*
 * disk_patience.h - disk calls at start, tried again for a while before they count as failed.
 *
 * A disk that answers an error for a moment must not keep a broker from starting, and what could
 * not be read must not be taken for damaged or missing. The pauses double, and all attempts of one
 * call together take no more than about two seconds. These functions sleep: they are for the thread
 * that opens a storage.
 */
#ifndef PYXBROKER_DISK_PATIENCE_H
#define PYXBROKER_DISK_PATIENCE_H

#include "disk.h"

/* Begins as {0}; one for each call that may be repeated. */
typedef struct disk_patience {
    uint64_t until_ns;
    unsigned pause_ms;
} disk_patience;

/* Told the result of an attempt. 1, after a pause, when the call is to be made again; 0 when it
 * went well, when time does not help (a missing file, no permission), or when there was enough. */
int disk_patience_again(disk_patience *patience, const disk_calls *disk, int64_t result);

int disk_open_patiently(const disk_calls *disk, int directory_fd, const char *name, int flags);
int disk_open_direct_patiently(const disk_calls *disk, int directory_fd, const char *name,
                               int flags);
int64_t disk_file_bytes_patiently(const disk_calls *disk, int fd);
ssize_t disk_read_patiently(const disk_calls *disk, int fd, void *buffer, size_t bytes,
                            int64_t offset);

#endif
