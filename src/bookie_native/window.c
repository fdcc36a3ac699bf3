/* window.c - ranges of entry logs in memory, and the open files of logs. */
#define _GNU_SOURCE
#include "window.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "bytes.h"

int windows_open(windows *w, const disk_calls *disk, int directory_fd) {
    memset(w, 0, sizeof *w);
    w->disk = disk;
    w->directory_fd = directory_fd;
    for (int i = 0; i < WINDOW_FILES; i++)
        w->files[i].fd = -1;
    w->pool = segment_pool_open(WINDOW_BYTES, WINDOWS_POOLED_MAX, NULL, NULL);
    if (w->pool == NULL)
        return -ENOMEM;
    segment_pool_use_huge(w->pool, 1);
    return 0;
}

void windows_close(windows *w) {
    if (w->pool == NULL)
        return; /* never opened */
    for (int i = 0; i < WINDOWS_HELD; i++)
        if (w->held[i].memory != NULL)
            pin_drop(&w->held[i].memory->pin);
    for (int i = 0; i < WINDOW_FILES; i++)
        if (w->files[i].fd >= 0)
            w->disk->close(w->disk->ctx, w->files[i].fd);
    segment_pool_close(w->pool);
    memset(w->held, 0, sizeof w->held);
    w->pool = NULL;
}

void windows_release_log(windows *w, uint64_t log_id) {
    for (int i = 0; i < WINDOWS_HELD; i++)
        if (w->held[i].memory != NULL && w->held[i].log_id == log_id) {
            pin_drop(&w->held[i].memory->pin);
            w->held[i] = (window){0};
        }
    for (int i = 0; i < WINDOW_FILES; i++)
        if (w->files[i].fd >= 0 && w->files[i].log_id == log_id) {
            w->disk->close(w->disk->ctx, w->files[i].fd);
            w->files[i].fd = -1;
        }
}

uint64_t windows_reach(const windows *w, uint64_t log_id, uint64_t offset) {
    for (int i = 0; i < WINDOWS_HELD; i++) {
        const window *held = &w->held[i];
        if (held->memory != NULL && held->log_id == log_id && held->from <= offset &&
            offset < held->to)
            return held->to;
    }
    return 0;
}

static const window *windows_find(const windows *w, uint64_t log_id, uint64_t from, uint64_t to) {
    for (int i = 0; i < WINDOWS_HELD; i++) {
        const window *held = &w->held[i];
        if (held->memory != NULL && held->log_id == log_id && held->from <= from && to <= held->to)
            return held;
    }
    return NULL;
}

/* Returns the descriptor of a log, opening it if needed, or an error. */
static int windows_file(windows *w, uint64_t log_id) {
    for (int i = 0; i < WINDOW_FILES; i++)
        if (w->files[i].fd >= 0 && w->files[i].log_id == log_id)
            return w->files[i].fd;
    char name[LOG_NAME_BYTES];
    entry_log_name(name, log_id);
    int fd = disk_open_direct(w->disk, w->directory_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return entry_log_error(fd);
    window_file *file = &w->files[w->next_file];
    w->next_file = (w->next_file + 1) % WINDOW_FILES;
    if (file->fd >= 0)
        w->disk->close(w->disk->ctx, file->fd);
    *file = (window_file){.fd = fd, .log_id = log_id};
    return fd;
}

/* Reads up to the end of the file. Returns the number of bytes, or an error. */
static int64_t windows_read(const windows *w, int fd, uint8_t *base, size_t bytes,
                            uint64_t offset) {
    size_t done = 0;
    int direct = 1;
    while (done < bytes) {
        ssize_t got =
            w->disk->pread(w->disk->ctx, fd, base + done, bytes - done, (int64_t)(offset + done));
        if (got == -EINTR)
            continue;
        if (got == -EINVAL && direct) {
            /* The size of a truncated log may be unaligned. */
            direct = 0;
            int error = w->disk->drop_direct(w->disk->ctx, fd);
            if (error < 0)
                return error;
            continue;
        }
        if (got < 0)
            return entry_log_error((int)got);
        /* A direct read can continue only at an aligned offset, so bytes beyond it are read again.
         * Less than one block is the end of the file, or an incomplete read of a failing disk. */
        size_t kept = done + (size_t)got < bytes ? (size_t)got & ~(size_t)(WINDOW_ALIGNMENT - 1)
                                                 : (size_t)got;
        if (kept == 0) {
            int64_t size = w->disk->file_bytes(w->disk->ctx, fd);
            if (size < 0)
                return entry_log_error((int)size);
            if ((int64_t)(offset + done) + got < size)
                return -EIO;
            return (int64_t)(done + (size_t)got);
        }
        done += kept;
    }
    return (int64_t)done;
}

/* Returns the held range that ends at or overlaps `begin` (a sequential reader), or NULL. */
static const window *windows_before(const windows *w, uint64_t log_id, uint64_t begin) {
    for (int i = 0; i < WINDOWS_HELD; i++) {
        const window *held = &w->held[i];
        if (held->memory != NULL && held->log_id == log_id && held->from < begin &&
            begin <= held->to)
            return held;
    }
    return NULL;
}

/* Returns the slot for a range that begins at `begin`. It replaces the range before the preceding
 * one, since readers of one topic are close together, or else the oldest. So a single sequential
 * reader reuses its memory, which is faster than untouched memory. */
static window *windows_place(windows *w, uint64_t log_id, uint64_t begin) {
    const window *before = windows_before(w, log_id, begin);
    if (before != NULL)
        before = windows_before(w, log_id, before->from);
    if (before != NULL)
        return &w->held[before - w->held];
    window *oldest = &w->held[w->next_held];
    w->next_held = (w->next_held + 1) % WINDOWS_HELD;
    return oldest;
}

/* Reads bytes begin..end of a log; those up to `to` are required. */
static int windows_load(windows *w, uint64_t log_id, uint64_t begin, uint64_t end, uint64_t to,
                        window *out) {
    int fd = windows_file(w, log_id);
    if (fd < 0)
        return fd;
    segment *memory = segment_take(w->pool, end - begin, 1);
    if (memory == NULL)
        return -ENOMEM;
    int64_t got = windows_read(w, fd, memory->base, end - begin, begin);
    if (got < 0 || begin + (uint64_t)got < to) {
        pin_drop(&memory->pin);
        return got < 0 ? (int)got : STORAGE_DAMAGED;
    }
    *out = (window){
        .memory = memory, .log_id = log_id, .from = begin, .to = begin + (uint64_t)got};
    return 0;
}

/* Returns `to` rounded up to a whole block, at most log_bytes. */
static uint64_t windows_end(uint64_t log_bytes, uint64_t to) {
    uint64_t end = round_up(to, WINDOW_ALIGNMENT);
    return end > log_bytes ? log_bytes : end;
}

int windows_get(windows *w, uint64_t log_id, uint64_t log_bytes, uint64_t from, uint64_t to,
                int ahead, window *out) {
    const window *held = windows_find(w, log_id, from, to);
    if (held != NULL) {
        *out = *held;
        pin_hold(&out->memory->pin, 1);
        return 0;
    }
    uint64_t begin = round_down(from, WINDOW_ALIGNMENT);
    uint64_t reach = !ahead ? 0 : windows_before(w, log_id, begin) != NULL ? WINDOW_BYTES
                                                                           : WINDOW_FIRST_BYTES;
    uint64_t end = windows_end(log_bytes, to < begin + reach ? begin + reach : to);
    if (to > end)
        return STORAGE_DAMAGED;
    int error = windows_load(w, log_id, begin, end, to, out);
    if (error < 0 || !ahead)
        return error;
    window *place = windows_place(w, log_id, begin);
    if (place->memory != NULL)
        pin_drop(&place->memory->pin);
    *place = *out;
    pin_hold(&out->memory->pin, 1);
    return 0;
}

int windows_get_fresh(windows *w, uint64_t log_id, uint64_t log_bytes, uint64_t from, uint64_t to,
                      window *out) {
    uint64_t end = windows_end(log_bytes, to);
    if (to > end)
        return STORAGE_DAMAGED;
    return windows_load(w, log_id, round_down(from, WINDOW_ALIGNMENT), end, to, out);
}

void windows_drop(windows *w, uint64_t log_id, uint64_t from, uint64_t to) {
    for (int i = 0; i < WINDOWS_HELD; i++) {
        window *held = &w->held[i];
        if (held->memory != NULL && held->log_id == log_id && held->from < to && from < held->to) {
            pin_drop(&held->memory->pin);
            *held = (window){0};
        }
    }
}
