/* reader.c - the read thread: finds, reads and checks entries. */
#include "reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bytes.h"

enum { READ_STEP_ENTRIES = 256, READ_ATTEMPTS_MAX = 3, READ_PAUSE_NS = 1000000 };

static const uint64_t TROUBLE_QUIET_NS = 10000000000u; /* minimum between two reports of one log */

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

/* Collects the places of consecutive entries of one row, from number on, up to the limits of the
 * request and of one window. Returns their count; *from and *to are their bytes in the file. */
static int reader_collect_places(const reader *r, const read_request *request, int done,
                                 const log_row *row, uint32_t number, uint64_t *bytes,
                                 log_place *places, uint64_t *from, uint64_t *to) {
    int count = 0;
    uint64_t limit = UINT64_MAX;
    int64_t entry_id = request->first + done;
    *from = *to = 0;
    while (done + count < request->max && count < READ_STEP_ENTRIES &&
           number < row->entry_count && entry_id <= request->last &&
           (done + count == 0 || *bytes < request->bytes_max)) {
        log_place *place = &places[count];
        if (log_row_entry(row, number, place) != entry_id)
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
               " is damaged and is not served",
               row->log->id, entry_id, row->ledger_id);
}

/* Reports a failed read of the log, rate-limited, and the first success after it. */
static void reader_report_trouble(reader *r, entry_log *log, int error) {
    if (error == 0 && log->troubled) {
        log->troubled = 0;
        events_add(r->events, EVENT_INFO, "entry log %016" PRIx64 ".log can be read again",
                   log->id);
    }
    if (error == 0 || error == STORAGE_DAMAGED)
        return;
    uint64_t now = r->logs->disk->clock_ns(r->logs->disk->ctx);
    if (log->trouble_ns != 0 && now - log->trouble_ns < TROUBLE_QUIET_NS)
        return;
    log->trouble_ns = now;
    log->troubled = 1;
    events_add(r->events, EVENT_ERROR,
               "entry log %016" PRIx64 ".log could not be read (%s); readers retry",
               log->id, strerror(-error));
}

static void reader_ref(const read_request *request, int done, const window *in,
                       const uint8_t *payload, uint32_t length) {
    request->out[done] = (entry_ref){.entry_id = request->first + done,
                                     .data = payload,
                                     .length = length,
                                     .from_disk = 1,
                                     .pin = &in->memory->pin};
}

/* Checks `count` places in a window and fills in refs. Returns how many were good before the first
 * bad one. */
static int reader_check(const read_request *request, int done, const log_row *row,
                        const window *in, const log_place *places, int count) {
    for (int i = 0; i < count; i++) {
        uint32_t length = places[i].length;
        const uint8_t *payload;
        if (length == 0 ||
            !log_record_check(row, request->first + done + i, length,
                              window_at(in, places[i].offset), in->to - places[i].offset,
                              &payload))
            return i;
        reader_ref(request, done + i, in, payload, length);
    }
    return count;
}

/* Returns 1, after a short pause, when a failed read should be retried. The pause is short because
 * this thread serves all reads. While the disk keeps failing there is only one attempt, because the
 * caller retries. */
static int reader_try_again(const reader *r, int error, int attempts) {
    if (error == 0 || error == STORAGE_DAMAGED || r->failing || attempts >= READ_ATTEMPTS_MAX)
        return 0;
    struct timespec pause = {.tv_nsec = READ_PAUSE_NS};
    nanosleep(&pause, NULL);
    return 1;
}

/* Reads the span of *count places. If that fails, *count becomes 1 and only the first is read, so
 * that a bad block costs only the entries on it. That read is retried, so that a momentary error
 * costs nothing. */
static int reader_fetch(reader *r, const read_request *request, const log_row *row, uint64_t from,
                        uint64_t to, const log_place *places, int *count, window *in) {
    entry_log *log = row->log;
    int error = windows_get(&r->windows, log->id, log->bytes, from, to, request->max > 1, in);
    if (error < 0) {
        *count = 1;
        if (places[0].length == 0)
            return 0;
        uint64_t end = places[0].offset + record_bytes(places[0].length);
        int attempts = 0;
        do
            error = windows_get(&r->windows, log->id, log->bytes, places[0].offset, end, 0, in);
        while (reader_try_again(r, error, ++attempts));
    }
    r->failing = error < 0 && error != STORAGE_DAMAGED;
    return error;
}

/* Reads the span of *count places and checks them. Returns how many were good before the first bad
 * one, or an error that says nothing about the entries. */
static int reader_step(reader *r, const read_request *request, int done, const log_row *row,
                       uint64_t from, uint64_t to, const log_place *places, int *count) {
    window in = {0};
    int error = from < to ? reader_fetch(r, request, row, from, to, places, count, &in) : 0;
    if (error == STORAGE_DAMAGED)
        return 0;
    if (error < 0)
        return error;
    int good = reader_check(request, done, row, &in, places, *count);
    if (in.memory != NULL) {
        pin_hold(&in.memory->pin, (uint32_t)good);
        pin_drop(&in.memory->pin);
    }
    return good;
}

/* Reads an entry that failed its check again, bypassing all windows, because the memory may be at
 * fault rather than the disk. Returns 1 when the entry is intact after all, STORAGE_DAMAGED when it
 * is not, or an error. */
static int reader_check_again(reader *r, const read_request *request, int done,
                              const log_row *row, const log_place *place) {
    if (place->length == 0)
        return STORAGE_DAMAGED;
    window in;
    uint64_t id = row->log->id, end = place->offset + record_bytes(place->length);
    int error = windows_get_fresh(&r->windows, id, row->log->bytes, place->offset, end, &in);
    if (error < 0)
        return error;
    if (reader_check(request, done, row, &in, place, 1) == 0) {
        pin_drop(&in.memory->pin);
        return STORAGE_DAMAGED;
    }
    windows_drop(&r->windows, id, place->offset, end);
    events_add(r->events, EVENT_WARNING,
               "entry log %016" PRIx64 ".log: entry %" PRId64 " of ledger %" PRId64
               " had a wrong checksum once and was intact when read again; check the memory",
               id, request->first + done, row->ledger_id);
    return 1;
}

/* Returns the result of a request for an entry that failed with `error`, and reports it. If the
 * ledger was deleted meanwhile there is no damage: its hole was punched or its file removed. */
static int reader_resolve_error(reader *r, const log_row *row, int64_t entry_id, int error) {
    if (!log_list_is_live(r->logs, row))
        return STORAGE_NO_ENTRY;
    if (error == STORAGE_DAMAGED)
        reader_report(r, row, entry_id);
    reader_report_trouble(r, row->log, error);
    return error;
}

static int reader_ensure_index(reader *r, log_row *row) {
    int error, attempts = 0;
    do
        error = log_indexes_ensure(&r->indexes, row);
    while (reader_try_again(r, error, ++attempts));
    r->failing |= error < 0;
    return error;
}

/* Adds the entries of one row, starting at first + done, up to the first failure. *status is then
 * STORAGE_DAMAGED, STORAGE_NO_ENTRY when the ledger was deleted meanwhile, or an error that says
 * nothing about the entry. Returns how many entries were added. */
static int reader_row(reader *r, const read_request *request, int done, uint64_t *bytes,
                      log_row *row, int *status) {
    int error = reader_ensure_index(r, row);
    if (error < 0) {
        *status = reader_resolve_error(r, row, request->first + done, error);
        return 0;
    }
    uint32_t number = log_row_position(row, request->first + done);
    log_place places[READ_STEP_ENTRIES];
    int first = done;
    while (*status == 0) {
        uint64_t from, to;
        int count = reader_collect_places(r, request, done, row, number, bytes, places, &from, &to);
        if (count == 0)
            break;
        int good = reader_step(r, request, done, row, from, to, places, &count);
        int failure = good < 0 ? good : 0;
        if (good >= 0 && good < count) {
            int again = reader_check_again(r, request, done + good, row, &places[good]);
            failure = again < 0 ? again : 0;
            good += again > 0;
        }
        if (good > 0) {
            done += good;
            number += (uint32_t)good;
            reader_report_trouble(r, row->log, 0);
        }
        if (failure < 0)
            *status = reader_resolve_error(r, row, request->first + done, failure);
    }
    return done - first;
}

static uint64_t reader_now_ns(const reader *r) {
    return r->logs->disk->clock_ns(r->logs->disk->ctx);
}

static int64_t reader_read(reader *r, const read_request *request) {
    int done = 0, failure = STORAGE_NO_ENTRY;
    uint64_t bytes = 0, before = UINT64_MAX;
    while (done < request->max && request->first + done <= request->last &&
           (done == 0 || bytes < request->bytes_max)) {
        log_row *row =
            log_list_find(r->logs, request->ledger_id, request->first + done, before);
        if (row == NULL)
            break;
        int status = 0;
        int added = reader_row(r, request, done, &bytes, row, &status);
        done += added;
        if (status < 0)
            failure = status;
        else if (added == 0 && row->lost)
            failure = STORAGE_DAMAGED; /* missing in the index because records were damaged */
        if (status < 0 && status != STORAGE_DAMAGED)
            break;
        /* If the entry is missing or damaged in this log, an older log may contain it. */
        before = status < 0 || added == 0 ? row->log->id : UINT64_MAX;
    }
    atomic_fetch_add(&r->disk_reads, (uint64_t)done);
    atomic_fetch_add(&r->disk_read_bytes, bytes);
    return done > 0 ? done : failure;
}

/* Frees removed logs. No row may be in use. */
static void reader_free_removed(reader *r) {
    entry_log *log = log_list_take_removed(r->logs);
    while (log != NULL) {
        entry_log *next = log->next;
        windows_release_log(&r->windows, log->id);
        log_indexes_release(&r->indexes, log);
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
            uint64_t ns = reader_now_ns(r) - request->submitted_ns;
            pthread_mutex_lock(&r->lock);
            latency_add(request->count > 0 ? &r->latency : &r->failed_latency, ns, 1);
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
    log_indexes_open(&r->indexes, r->logs->disk, r->events, r->logs->directory_fd,
                     LOG_INDEXES_BYTES_MAX);
    error = -pthread_create(&r->thread, NULL, reader_thread, r);
    r->running = error == 0;
    return error;
}

int reader_submit(reader *r, const read_request *request, int answered) {
    read_request *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return -ENOMEM;
    *copy = *request;
    copy->submitted_ns = reader_now_ns(r);
    pthread_mutex_lock(&r->lock);
    read_queue_put(answered ? &r->done : &r->requests, copy);
    pthread_mutex_unlock(&r->lock);
    /* After the unlock, because the woken thread takes the lock. */
    if (answered)
        event_ring(r->event_fd);
    else
        pthread_cond_signal(&r->work);
    return 0;
}

void reader_release_removed(reader *r) {
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
