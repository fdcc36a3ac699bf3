/* reader.c - the read thread. */
#include "reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"

enum { READ_STEP_ENTRIES = 256 };

static void read_queue_put(read_queue *queue, read_request *request) {
    request->next = NULL;
    *queue->last = request;
    queue->last = &request->next;
}

static read_request *read_queue_take(read_queue *queue) {
    read_request *request = queue->first;
    if (request != NULL) {
        queue->first = request->next;
        if (queue->first == NULL)
            queue->last = &queue->first;
    }
    return request;
}

void reader_open(reader *r, log_list *logs, events *events, int event_fd) {
    memset(r, 0, sizeof *r);
    r->logs = logs;
    r->events = events;
    r->event_fd = event_fd;
    r->requests.last = &r->requests.first;
    r->done.last = &r->done.first;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
}

/* The consecutive entries of one row from number on, as far as the request and one window go.
 * Returns how many places were filled and, in *from and *to, the bytes of the file they span. */
static int reader_run(const reader *r, const read_request *request, int done, const log_row *row,
                      const log_map *map, uint32_t number, uint64_t *bytes, log_place *places,
                      uint64_t *from, uint64_t *to) {
    int count = 0;
    uint64_t limit = UINT64_MAX;
    int64_t entry_id = request->first + done;
    *from = *to = 0;
    while (done + count < request->max && count < READ_STEP_ENTRIES &&
           number < row->entry_count && entry_id <= request->last &&
           (done + count == 0 || *bytes < request->bytes_max)) {
        log_place *place = &places[count];
        if (log_row_entry(row, map, number, place) != entry_id)
            break;
        uint64_t end = place->offset + record_bytes(place->length);
        if (place->length > 0 && *to == 0) {
            *from = place->offset;
            limit = windows_reach(&r->windows, row->log->id, place->offset);
            if (end > limit)
                limit = place->offset + window_room(place->offset);
        } else if (place->length > 0 && (end > limit || place->offset < *from)) {
            break;
        }
        *to = place->length > 0 && end > *to ? end : *to;
        *bytes += place->length;
        count++;
        number++;
        entry_id++;
    }
    return count;
}

static void reader_report(reader *r, const log_row *row, int64_t entry_id) {
    atomic_fetch_add(&r->damaged_entries, 1);
    events_add(r->events, EVENT_ERROR,
               "entry log %016" PRIx64 ".log: entry %" PRId64 " of ledger %" PRId64
               " is damaged and is served to nobody",
               row->log->id, entry_id, row->ledger_id);
}

/* Checks count places in a window and fills in refs; returns how many were good before the first
 * bad one. */
static int reader_check(reader *r, const read_request *request, int done, const log_row *row,
                        const window *in, const log_place *places, int count) {
    for (int i = 0; i < count; i++) {
        int64_t entry_id = request->first + done + i;
        uint32_t length = places[i].length;
        const uint8_t *payload;
        if (length == 0 ||
            !log_record_check(row, entry_id, length, window_at(in, places[i].offset),
                              in->to - places[i].offset, &payload)) {
            reader_report(r, row, entry_id);
            return i;
        }
        request->out[done + i] = (entry_ref){.entry_id = entry_id,
                                             .data = payload,
                                             .length = length,
                                             .from_disk = 1,
                                             .pin = &in->memory->pin};
    }
    return count;
}

/* Brings the span of *count places in. Where the disk cannot read all of it, *count becomes 1 and
 * only the first is tried, so that a bad block costs the entries that lie on it. */
static int reader_fetch(reader *r, const read_request *request, const log_row *row, uint64_t from,
                        uint64_t to, const log_place *places, int *count, window *in) {
    int error = windows_get(&r->windows, row->log->id, row->log->bytes, from, to, request->max > 1,
                            in);
    if (error != -EIO)
        return error;
    *count = 1;
    if (places[0].length == 0)
        return 0;
    return windows_get(&r->windows, row->log->id, row->log->bytes, places[0].offset,
                       places[0].offset + record_bytes(places[0].length), 0, in);
}

/* Reads the span of *count places and checks them; returns how many were good before the first bad
 * one, or an error that says nothing about the entries (no memory, no descriptor). */
static int reader_step(reader *r, const read_request *request, int done, const log_row *row,
                       uint64_t from, uint64_t to, const log_place *places, int *count) {
    window in = {0};
    int error = from < to ? reader_fetch(r, request, row, from, to, places, count, &in) : 0;
    if (error == -EIO) {
        reader_report(r, row, request->first + done);
        return 0;
    }
    if (error < 0)
        return error;
    int good = reader_check(r, request, done, row, &in, places, *count);
    if (in.memory != NULL) {
        pin_hold(&in.memory->pin, (uint32_t)good);
        pin_drop(&in.memory->pin);
    }
    return good;
}

/* Adds the entries that one row has, from first + done on, up to a damaged one, which sets *status
 * to STORAGE_DAMAGED, or up to an error, which is put there. Returns how many. */
static int reader_row(reader *r, const read_request *request, int done, uint64_t *bytes,
                      log_row *row, log_map *map, int *status) {
    log_row_prepare(row, map, r->events);
    uint32_t number = log_row_position(row, map, request->first + done);
    log_place places[READ_STEP_ENTRIES];
    int added = 0;
    for (;;) {
        uint64_t from, to;
        int count = reader_run(r, request, done + added, row, map, number, bytes, places, &from,
                               &to);
        if (count == 0)
            break;
        int good = reader_step(r, request, done + added, row, from, to, places, &count);
        if (good < 0) {
            *status = good;
            break;
        }
        added += good;
        number += (uint32_t)count;
        if (good < count) {
            *status = STORAGE_DAMAGED;
            break;
        }
    }
    return added;
}

static int64_t reader_read(reader *r, const read_request *request) {
    int done = 0, failure = STORAGE_NO_ENTRY;
    uint64_t bytes = 0, before = UINT64_MAX;
    while (done < request->max && request->first + done <= request->last &&
           (done == 0 || bytes < request->bytes_max)) {
        log_map *map;
        log_row *row = log_list_find(r->logs, request->ledger_id, request->first + done, before,
                                     &map);
        if (row == NULL)
            break;
        int status = 0;
        int added = reader_row(r, request, done, &bytes, row, map, &status);
        pin_drop(&map->pin);
        done += added;
        if (status < 0)
            failure = status;
        if (status < 0 && status != STORAGE_DAMAGED)
            break;
        /* Where an entry is missing from this log, or bad in it, an older one may have it. */
        before = status < 0 || added == 0 ? row->log->id : UINT64_MAX;
    }
    atomic_fetch_add(&r->disk_reads, (uint64_t)done);
    return done > 0 ? done : failure;
}

/* Frees removed logs, now that no row is in use. */
static void reader_free_removed(reader *r) {
    entry_log *log = log_list_take_removed(r->logs);
    while (log != NULL) {
        entry_log *next = log->next;
        windows_forget(&r->windows, log->id);
        entry_log_free(log);
        log = next;
    }
}

static void *reader_thread(void *arg) {
    reader *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        read_request *request = read_queue_take(&r->requests);
        int removed = r->removed;
        r->removed = 0;
        if (request == NULL && !removed) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        if (removed)
            reader_free_removed(r);
        if (request != NULL) {
            request->count = reader_read(r, request);
            pthread_mutex_lock(&r->lock);
            read_queue_put(&r->done, request);
            pthread_mutex_unlock(&r->lock);
            event_ring(r->event_fd);
        }
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

int reader_start(reader *r) {
    int error = windows_open(&r->windows, r->logs->disk, r->logs->directory_fd);
    if (error < 0)
        return error;
    error = -pthread_create(&r->thread, NULL, reader_thread, r);
    r->running = error == 0;
    return error;
}

int reader_submit(reader *r, const read_request *request, int answered) {
    read_request *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return -ENOMEM;
    *copy = *request;
    pthread_mutex_lock(&r->lock);
    read_queue_put(answered ? &r->done : &r->requests, copy);
    pthread_mutex_unlock(&r->lock);
    /* After the lock is free: who is woken wants it at once. */
    if (answered)
        event_ring(r->event_fd);
    else
        pthread_cond_signal(&r->work);
    return 0;
}

void reader_forget_removed(reader *r) {
    pthread_mutex_lock(&r->lock);
    r->removed = 1;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
}

int reader_completions(reader *r, read_completion *out, int max) {
    int count = 0;
    pthread_mutex_lock(&r->lock);
    while (count < max && r->done.first != NULL) {
        read_request *request = read_queue_take(&r->done);
        out[count++] = (read_completion){.tag = request->tag, .count = request->count};
        free(request);
    }
    pthread_mutex_unlock(&r->lock);
    return count;
}

void reader_close(reader *r) {
    pthread_mutex_lock(&r->lock);
    r->stopping = 1;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    if (r->running)
        pthread_join(r->thread, NULL);
    r->running = 0;
    read_request *request;
    while ((request = read_queue_take(&r->requests)) != NULL)
        free(request);
    while ((request = read_queue_take(&r->done)) != NULL) {
        if (request->count > 0)
            storage_unpin(request->out, (int)request->count);
        free(request);
    }
    windows_close(&r->windows);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
}
