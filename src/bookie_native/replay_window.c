/* replay_window.c - reading ahead in large pieces, and skipping unreadable blocks. */
#include "replay_window.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "bytes.h"
#include "disk_retry.h"

enum { REPLAY_READ_BYTES = 1 << 20 };

void replay_window_close(replay_window *w) {
    if (w->segment != NULL)
        pin_drop(&w->segment->pin);
    w->segment = NULL;
}

/* Reads an unreadable piece block by block. Returns 0, or without accept_loss the error of the
 * first unreadable block. */
static int replay_window_blocks(replay_window *w, uint8_t *to, size_t bytes, uint64_t at) {
    for (size_t done = 0; done < bytes; done += BLOCK_BYTES) {
        ssize_t got = disk_read_all(w->disk, w->fd, to + done, BLOCK_BYTES, (int64_t)(at + done));
        if (got == BLOCK_BYTES)
            continue;
        int error = got < 0 ? (int)got : -EIO;
        if (!w->accept_loss) {
            w->error_at = at + done;
            return error;
        }
        memset(to + done, 0, BLOCK_BYTES);
        events_add(w->events, EVENT_ERROR,
                   "journal file %016" PRIx64 ".journal, offset %" PRIu64
                   ": a block cannot be read (%s); its content is lost (--accept-loss)",
                   w->file_id, at + done, strerror(-error));
    }
    return 0;
}

/* Fills the segment up to at least `wanted` bytes. */
static void replay_window_fill(replay_window *w, size_t wanted) {
    while (w->filled < wanted && w->error == 0) {
        uint64_t at = w->start + w->filled;
        size_t bytes = w->segment->bytes - w->filled;
        if (bytes > REPLAY_READ_BYTES)
            bytes = REPLAY_READ_BYTES;
        if (bytes > w->file_bytes - at)
            bytes = (size_t)(w->file_bytes - at);
        uint8_t *to = w->segment->base + w->filled;
        ssize_t got = disk_read_retrying(w->disk, w->fd, to, bytes, (int64_t)at);
        if (got != (ssize_t)bytes)
            w->error = replay_window_blocks(w, to, bytes, at);
        if (w->error == 0)
            w->filled += bytes;
    }
}

uint8_t *replay_window_get(replay_window *w, uint64_t at, uint64_t bytes) {
    bytes = round_up(bytes, BLOCK_BYTES);
    if (w->error < 0)
        return NULL;
    if (at > w->file_bytes || bytes > w->file_bytes - at)
        return NULL;
    if (w->segment == NULL || at < w->start || at + bytes > w->start + w->segment->bytes) {
        replay_window_close(w);
        /* Forced: acknowledged data is read whatever the limit of the cache is. */
        w->segment = segment_take(w->pool, bytes, 1);
        if (w->segment == NULL) {
            w->error = -ENOMEM;
            w->error_at = at;
            return NULL;
        }
        w->start = at;
        w->filled = 0;
    }
    replay_window_fill(w, at + bytes - w->start);
    if (w->error < 0)
        return NULL;
    w->segment->used = w->filled;
    return w->segment->base + (at - w->start);
}
