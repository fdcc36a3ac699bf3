/*
 * replay_window.h - a journal file read into segments, so that its records can be used in place.
 *
 * The window is the part of the file that the current segment holds. When the next range does not
 * fit, the window restarts in a new segment; the sink's holds keep the segments that are needed.
 */
#ifndef PYXBROKER_REPLAY_WINDOW_H
#define PYXBROKER_REPLAY_WINDOW_H

#include "disk.h"
#include "events.h"
#include "segment.h"

typedef struct replay_window {
    const disk_calls *disk;
    events *events;
    segment_pool *pool;
    int fd;
    uint64_t file_id, file_bytes;
    segment *segment;
    uint64_t start; /* offset in the file of the segment's first byte */
    size_t filled;
    int accept_loss;      /* unreadable blocks are reported and read as zeros */
    int error;            /* of a read, or -ENOMEM; permanent */
    uint64_t error_at;    /* offset in the file */
} replay_window;

/* A window starts with disk, events, pool, fd, file_id, file_bytes and accept_loss set, and all
 * other fields zero. Releases its segment. */
void replay_window_close(replay_window *w);

/* Returns the bytes at..at+bytes of the file (at a multiple of 4096, inside the file), valid until
 * the next call unless the segment is held; NULL after an error. */
uint8_t *replay_window_get(replay_window *w, uint64_t at, uint64_t bytes);

#endif
