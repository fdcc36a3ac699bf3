/*
 * window.h - stretches of entry logs, read into memory of our own for readers.
 *
 * The read thread brings a stretch of a log in with one direct read and hands out slices of it;
 * what lies behind the entries that were asked for is in the same stretch, so that a reader that
 * goes on finds it there. The memory comes from a pool and is used again, which costs neither page
 * faults nor the page cache, and bounds what reading old data takes. The latest stretches are held;
 * pins keep any other alive as long as it is being sent.
 *
 * All functions belong to the read thread, but for pins, which any thread drops.
 */
#ifndef PYXBROKER_WINDOW_H
#define PYXBROKER_WINDOW_H

#include "entry_log.h"

enum {
    WINDOW_ALIGNMENT = 4096, /* of what a direct read begins and ends at */
    WINDOW_BYTES = SEGMENT_PIECE_BYTES, /* of a log that one read brings in: one huge page, which
                                           the kernel pins at once and the disk fills in one go */
    WINDOW_FIRST_BYTES = 256 << 10, /* the same, where no reader came along the log before */
    WINDOWS_HELD = 8,          /* latest ones kept */
    WINDOWS_POOLED_MAX = 16,   /* in use and free ones that are kept for reuse */
    WINDOW_FILES = 8           /* open descriptors of logs */
};

typedef struct window {
    segment *memory; /* NULL: none */
    uint64_t log_id;
    uint64_t from, to; /* bytes of the file */
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
    unsigned next_held, next_file; /* to be replaced next */
} windows;

/* Returns 0 or -ENOMEM. */
int windows_open(windows *w, const disk_calls *disk, int directory_fd);

/* Lets go of all memory that nobody pins, and of the files. */
void windows_close(windows *w);

/* Lets go of a log that was removed; an open descriptor would keep its space on the disk. */
void windows_forget(windows *w, uint64_t log_id);

/* Where the held stretch ends that has the byte at offset of a log; 0 when none has it. */
uint64_t windows_reach(const windows *w, uint64_t log_id, uint64_t offset);

/* The most bytes that one window can have which begins with the byte at offset. */
static inline uint64_t window_room(uint64_t offset) {
    return WINDOW_BYTES - offset % WINDOW_ALIGNMENT;
}

/* Bytes from..to of a log of log_bytes: finds them held, or reads them, with what follows them when
 * ahead. Fills in out, with a hold for the caller on out->memory. Returns 0; STORAGE_DAMAGED when
 * the file ends before to, although it did not when it was opened; or an error, after which the
 * same may be tried again. */
int windows_get(windows *w, uint64_t log_id, uint64_t log_bytes, uint64_t from, uint64_t to,
                int ahead, window *out);

/* The same past all that is held: those bytes and the blocks that they lie on come from the disk
 * once more. */
int windows_get_fresh(windows *w, uint64_t log_id, uint64_t log_bytes, uint64_t from, uint64_t to,
                      window *out);

/* Holds no stretch any more that has some of these bytes. */
void windows_drop(windows *w, uint64_t log_id, uint64_t from, uint64_t to);

/* Where the byte at offset of the log lies; it must be in the window. */
static inline const uint8_t *window_at(const window *found, uint64_t offset) {
    return found->memory->base + (offset - found->from);
}

#endif
