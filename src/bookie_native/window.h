/*
 * window.h - ranges of entry logs read into memory, as the source of entries for readers.
 *
 * The read thread loads a range of a log with one direct read and returns slices of it. The range
 * also contains what follows the requested entries, so that a reader that continues finds it
 * there. The memory comes from a pool and is reused. This avoids page faults and the page cache,
 * and limits the memory for reading old data. The latest ranges are held; pins keep others while
 * they are being sent.
 *
 * All functions belong to the read thread. Pins may be dropped on any thread.
 */
#ifndef PYXBROKER_WINDOW_H
#define PYXBROKER_WINDOW_H

#include "entry_log.h"

enum {
    WINDOW_ALIGNMENT = 4096, /* of the start and end of a direct read */
    WINDOW_BYTES = SEGMENT_PIECE_BYTES, /* per read: one huge page, which the kernel pins in one
                                           step and the disk fills in one transfer */
    WINDOW_FIRST_BYTES = 256 << 10, /* per read, when the log is not being read sequentially yet */
    WINDOWS_HELD = 8,          /* latest ranges that are held */
    WINDOWS_POOLED_MAX = 16,   /* windows in use and free ones kept for reuse */
    WINDOW_FILES = 8           /* open descriptors of logs */
};

typedef struct window {
    segment *memory; /* NULL: none */
    uint64_t log_id;
    uint64_t from, to; /* offsets in the file */
} window;

typedef struct window_file {
    int fd; /* -1: none */
    uint64_t log_id;
} window_file;

typedef struct windows {
    const disk_calls *disk;
    int directory_fd;
    segment_pool *pool;
    window held[WINDOWS_HELD];
    window_file files[WINDOW_FILES];
    unsigned next_held, next_file; /* the next ones to be replaced */
} windows;

/* Returns 0 or -ENOMEM. */
int windows_open(windows *w, const disk_calls *disk, int directory_fd);

/* Releases all memory that is not pinned, and closes the files. */
void windows_close(windows *w);

/* Releases a removed log; an open descriptor would keep its disk space allocated. */
void windows_release_log(windows *w, uint64_t log_id);

/* Returns the end of the held range that contains the byte at offset of a log; 0: none does. */
uint64_t windows_reach(const windows *w, uint64_t log_id, uint64_t offset);

/* Returns the largest size of a window that begins with the byte at offset. */
static inline uint64_t window_room(uint64_t offset) {
    return WINDOW_BYTES - offset % WINDOW_ALIGNMENT;
}

/* Returns bytes from..to of a log of log_bytes in *out, held or read now, with a hold on
 * out->memory for the caller. If ahead, also reads what follows. Returns 0; STORAGE_DAMAGED when
 * the file ends before `to`, so that it was truncated since it was opened; or an error, after which
 * the caller may retry. */
int windows_get(windows *w, uint64_t log_id, uint64_t log_bytes, uint64_t from, uint64_t to,
                int ahead, window *out);

/* Reads like windows_get, but always from the disk: these bytes and the rest of their blocks. */
int windows_get_fresh(windows *w, uint64_t log_id, uint64_t log_bytes, uint64_t from, uint64_t to,
                      window *out);

/* Stops holding any range that overlaps these bytes. */
void windows_drop(windows *w, uint64_t log_id, uint64_t from, uint64_t to);

/* Returns the address of the byte at offset of the log, which must be in the window. */
static inline const uint8_t *window_at(const window *found, uint64_t offset) {
    return found->memory->base + (offset - found->from);
}

#endif
