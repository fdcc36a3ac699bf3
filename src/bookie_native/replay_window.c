/* replay_window.c - reading ahead in large pieces, and getting past blocks that cannot be read. */
#include "replay_window.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "bytes.h"

enum { REPLAY_READ_BYTES = 1 << 20 };

void replay_window_open(replay_window *w, const disk_calls *disk, events *events,
                        segment_pool *pool, int fd, uint64_t file_id, uint64_t file_bytes) {
    *w = (replay_window){.disk = disk,
                         .events = events,
                         .pool = pool,
                         .fd = fd,
                         .file_id = file_id,
                         .file_bytes = file_bytes};
}

void replay_window_close(replay_window *w) {
    if (w->segment != NULL)
        pin_drop(&w->segment->pin);
    w->segment = NULL;
}

/* Reads block by block where a large read failed. */
static void replay_window_blocks(replay_window *w, uint8_t *to, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes; done += BLOCK_BYTES) {
        ssize_t got = disk_read_all(w->disk, w->fd, to + done, BLOCK_BYTES, (int64_t)(at + done));
        if (got == BLOCK_BYTES)
            continue;
        memset(to + done, 0, BLOCK_BYTES);
        events_add(w->events, EVENT_ERROR,
                   "journal file %016" PRIx64 ", offset %" PRIu64 ": a block cannot be read: %s",
                   w->file_id, at + done, strerror(got < 0 ? (int)-got : EIO));
    }
}

/* Fills the segment up to at least the given number of bytes. */
static void replay_window_fill(replay_window *w, size_t wanted) {
    while (w->filled < wanted) {
        uint64_t at = w->start + w->filled;
        size_t bytes = w->segment->bytes - w->filled;
        if (bytes > REPLAY_READ_BYTES)
            bytes = REPLAY_READ_BYTES;
        if (bytes > w->file_bytes - at)
            bytes = (size_t)(w->file_bytes - at);
        uint8_t *to = w->segment->base + w->filled;
        if (disk_read_all(w->disk, w->fd, to, bytes, (int64_t)at) != (ssize_t)bytes)
            replay_window_blocks(w, to, bytes, at);
        w->filled += bytes;
    }
}

const uint8_t *replay_window_get(replay_window *w, uint64_t at, uint64_t bytes) {
    bytes = round_up(bytes, BLOCK_BYTES);
    if (at > w->file_bytes || bytes > w->file_bytes - at)
        return NULL;
    if (w->segment == NULL || at < w->start || at + bytes > w->start + w->segment->bytes) {
        replay_window_close(w);
        /* Forced: what was acknowledged is read back whatever the cache's limit is. */
        w->segment = segment_take(w->pool, bytes, 1);
        if (w->segment == NULL) {
            w->error = -ENOMEM;
            return NULL;
        }
        w->start = at;
        w->filled = 0;
    }
    replay_window_fill(w, at + bytes - w->start);
    w->segment->used = w->filled;
    return w->segment->base + (at - w->start);
}
