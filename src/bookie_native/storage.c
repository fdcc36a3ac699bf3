/* storage.c - opening and closing the storage, and its statistics. */
#define _GNU_SOURCE
#include "storage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "bytes.h"
#include "disk_retry.h"
#include "replay.h"
#include "storage_parts.h"

enum {
    SEGMENT_BYTES_MAX = 8 << 20,
    SEGMENT_BYTES_MIN = 64 << 10,
    SEGMENTS_MIN = 4, /* one active, one being flushed, two spare */
    ENTRY_BYTES_MIN = 64
};

/* Returns the size of segments, or 0 if the options contradict each other. A generation has several
 * segments. Each has room for a group with the largest entry, and none exceeds a journal file. */
static uint64_t storage_segment_bytes(const storage_options *options) {
    uint64_t needed =
        round_up(GROUP_HEADER_BYTES + record_bytes(options->entry_bytes_max), BLOCK_BYTES);
    uint64_t bytes = round_up(options->dirty_bytes_max / 2, BLOCK_BYTES);
    if (bytes > SEGMENT_BYTES_MAX)
        bytes = SEGMENT_BYTES_MAX;
    if (bytes < SEGMENT_BYTES_MIN)
        bytes = SEGMENT_BYTES_MIN;
    uint64_t room = options->journal_file_bytes - BLOCK_BYTES;
    if (bytes > room)
        bytes = room;
    if (bytes < needed)
        bytes = needed;
    return bytes <= room ? bytes : 0;
}

static int storage_check(const storage_options *options, char *error, size_t error_bytes) {
    const char *wrong = NULL;
    if (options->journal_file_bytes % BLOCK_BYTES != 0 ||
        options->journal_file_bytes < 4 * BLOCK_BYTES)
        wrong = "the journal file size must be a multiple of 4096 and at least 16384 bytes";
    else if (options->entry_bytes_max < ENTRY_BYTES_MIN)
        wrong = "the largest entry size is less than 64 bytes";
    else if (storage_segment_bytes(options) == 0)
        wrong = "the journal files are too small for the largest entry";
    if (wrong == NULL)
        return 0;
    snprintf(error, error_bytes, "%s", wrong);
    return -EINVAL;
}

/* Signals that a segment was returned after a refusal. */
static void storage_notify(void *arg) {
    event_ring(((storage *)arg)->event_fd);
}

/* Takes a row of an entry log, at open. */
static int storage_on_row(void *arg, const log_row *row) {
    storage *s = arg;
    ledger_state *ledger = storage_ledger(s, row->ledger_id);
    if (ledger == NULL)
        return -ENOMEM;
    if (row->entry_count > 0 && row->last_entry > ledger->last_entry)
        ledger->last_entry = ledger->last_evicted = row->last_entry;
    if (row->flags & LOG_FENCED)
        ledger->fenced = 1;
    if ((row->flags & LOG_HAS_KEY) && !ledger->has_key) {
        ledger->has_key = 1;
        memcpy(ledger->key, row->key, MASTER_KEY_BYTES);
    }
    return 0;
}

/* Adds a replayed entry to the generation. Returns 0 or -ENOMEM. */
static int storage_replay_entry(storage *s, ledger_state *ledger, cache_ledger *part, segment *from,
                                const record *r) {
    generation *g = s->active;
    cache_entry entry = {.entry_id = r->entry_id};
    if (from != NULL) {
        entry.data = r->payload;
        entry.length = r->length;
        if (g->segment_count == 0 || g->segments[g->segment_count - 1] != from) {
            if (generation_add_segment(g, from) < 0)
                return -ENOMEM;
            pin_hold(&from->pin, 1);
        }
        entry.segment = (uint32_t)g->segment_count - 1;
    }
    cache_entry *present = cache_find(part, r->entry_id);
    if (present != NULL) {
        if (present->data == NULL)
            *present = entry;
        return 0;
    }
    if (cache_reserve(part) < 0)
        return -ENOMEM;
    cache_insert(part, &entry);
    g->entries++;
    if (r->entry_id > ledger->last_entry)
        ledger->last_entry = r->entry_id;
    return 0;
}

/* Takes a record of the journal, at open. */
static int storage_on_record(void *arg, segment *from, const record *r, int intact) {
    storage *s = arg;
    if (!intact && r->type == RECORD_MASTER_KEY)
        return 0; /* the key is lost; the next writer sends it again */
    ledger_state *ledger = storage_ledger(s, r->ledger_id);
    cache_ledger *part = ledger == NULL ? NULL : generation_ledger(s->active, r->ledger_id);
    if (part == NULL)
        return -ENOMEM;
    s->replayed += (uint64_t)intact;
    switch (r->type) {
    case RECORD_FENCE:
        part->fenced = ledger->fenced = 1;
        break;
    case RECORD_MASTER_KEY:
        part->has_key = ledger->has_key = 1;
        memcpy(part->key, r->payload, MASTER_KEY_BYTES);
        memcpy(ledger->key, r->payload, MASTER_KEY_BYTES);
        break;
    default:
        return storage_replay_entry(s, ledger, part, intact ? from : NULL, r);
    }
    return 0;
}

static int storage_on_name(void *arg, const char *name) {
    (void)name;
    *(int *)arg = 0;
    return 0;
}

/* Opens a directory, creating it if needed, and syncs it: a killed process may have left names that
 * are not durable, and from now on they must be. */
static int storage_directory_once(const disk_calls *disk, const char *path, int *fd) {
    int empty = 1;
    int status = *fd = disk->open_directory(disk->ctx, path);
    if (status >= 0)
        status = disk->list(disk->ctx, *fd, storage_on_name, &empty);
    /* The first file is created only after the directory is durable, so that only an empty
     * directory may be undurable itself. */
    if (status == -ENOENT || (status >= 0 && empty)) {
        if (*fd >= 0)
            disk->close(disk->ctx, *fd);
        *fd = -1;
        status = disk_make_directories(disk, path);
        if (status == 0)
            status = *fd = disk->open_directory(disk->ctx, path);
    }
    if (status >= 0)
        status = disk->sync_directory(disk->ctx, *fd);
    if (status < 0 && *fd >= 0) {
        disk->close(disk->ctx, *fd);
        *fd = -1;
    }
    return status;
}

/* Opens a directory, with retries while the disk fails. */
static int storage_directory(storage *s, const char *path, int *fd, char *error,
                             size_t error_bytes) {
    disk_retry retry = {0};
    int status;
    do
        status = storage_directory_once(s->disk, path, fd);
    while (disk_retry_again(&retry, s->disk, status));
    if (status < 0)
        snprintf(error, error_bytes, "directory %s cannot be used: %s", path, strerror(-status));
    return status < 0 ? status : 0;
}

static int storage_directories(storage *s, const storage_options *options, char *error,
                               size_t error_bytes) {
    int status = storage_directory(s, options->journal_directory, &s->journal_fd, error,
                                   error_bytes);
    if (status == 0)
        status = storage_directory(s, options->ledger_directory, &s->ledger_fd, error,
                                   error_bytes);
    if (status < 0)
        return status;
    status = s->disk->lock_directory(s->disk->ctx, s->journal_fd);
    if (status == -EWOULDBLOCK)
        snprintf(error, error_bytes, "journal directory %s is in use by another process",
                 options->journal_directory);
    else if (status < 0)
        snprintf(error, error_bytes, "journal directory %s cannot be locked: %s",
                 options->journal_directory, strerror(-status));
    return status;
}

/* Reads the entry logs and the journal. Returns 0 or an error. */
static int storage_recover(storage *s, replay_result *found, char *error, size_t error_bytes) {
    int status = log_list_open(&s->logs, s->disk, &s->events, s->ledger_fd, storage_on_row, s,
                               error, error_bytes);
    if (status < 0)
        return status;
    replay_options options = {.disk = s->disk,
                              .events = &s->events,
                              .directory_fd = s->journal_fd,
                              .files = &s->files,
                              .checkpoint = s->logs.checkpoint,
                              .unsure = s->logs.unsure,
                              .accept_loss = s->accept_loss};
    replay_sink sink = {.arg = s, .pool = s->pool, .record = storage_on_record};
    return replay_journal(&options, &sink, found, error, error_bytes);
}

/* Starts the threads and hands the replayed generation to the flush thread. */
static int storage_start(storage *s, const storage_options *options,
                         const replay_result *found) {
    int status = journal_files_start(&s->files);
    if (status < 0)
        return status;
    journal_files_checkpoint(&s->files, s->logs.checkpoint);
    journal_options about = {.disk = s->disk,
                             .events = &s->events,
                             .files = &s->files,
                             .event_fd = s->event_fd,
                             .sync_data = options->journal_sync_data,
                             .intact = found->intact,
                             .last_group = found->last_group};
    status = journal_open(&s->journal, &about);
    reader_open(&s->reader, &s->logs, &s->events, s->event_fd);
    flusher_open(&s->flusher, &s->logs, &s->journal, &s->files, &s->reader, &s->events,
                 s->event_fd);
    s->opened = 1;
    if (status == 0)
        status = journal_start(&s->journal);
    if (status == 0)
        status = flusher_start(&s->flusher);
    if (status == 0)
        status = reader_start(&s->reader);
    if (status == 0)
        status = warmer_start(&s->warmer, s->pool);
    if (status == 0 && generation_has_content(s->active))
        status = storage_rotate(s);
    return status;
}

/* Stops the threads in the order of the data flow. Returns the first error. */
static int storage_stop(storage *s, int flush) {
    int error = 0;
    warmer_close(&s->warmer);
    if (s->opened) {
        journal_files_begin_shutdown(&s->files);
        error = journal_close(&s->journal);
        int flush_error = flusher_close(&s->flusher);
        /* An entry log covers the journal up to its checkpoint, so after a failed flush no newer
         * generation may be written. */
        if (flush && error == 0 && flush_error == 0 && !storage_is_flushing(s) &&
            generation_has_content(s->active)) {
            journal_use_segment(&s->journal, NULL, &s->active->last_group);
            flush_error = flusher_write(&s->flusher, s->active);
        }
        if (error == 0)
            error = flush ? flush_error : 0;
        reader_close(&s->reader);
        journal_free(&s->journal);
    }
    journal_files_close(&s->files);
    return error;
}

/* Frees all memory after the threads have ended. */
static void storage_free(storage *s) {
    while (s->oldest != NULL) {
        generation *next = s->oldest->next;
        generation_free(s->oldest);
        s->oldest = next;
    }
    for (size_t i = 0; i < s->ledgers.capacity; i++)
        free(s->ledgers.slots[i].value);
    id_map_free(&s->ledgers);
    if (s->pool != NULL)
        segment_pool_close(s->pool);
    log_list_close(&s->logs);
    events_close(&s->events);
    if (s->journal_fd >= 0)
        s->disk->close(s->disk->ctx, s->journal_fd);
    if (s->ledger_fd >= 0)
        s->disk->close(s->disk->ctx, s->ledger_fd);
    if (s->event_fd >= 0)
        s->disk->close(s->disk->ctx, s->event_fd);
    free(s);
}

int storage_open(const storage_options *options, storage **out, char *error, size_t error_bytes) {
    error[0] = '\0';
    int status = storage_check(options, error, error_bytes);
    if (status < 0)
        return status;
    storage *s = calloc(1, sizeof *s);
    if (s == NULL)
        return -ENOMEM;
    s->disk = options->disk != NULL ? options->disk : disk_system();
    s->dirty_bytes_max = options->dirty_bytes_max;
    s->entry_bytes_max = options->entry_bytes_max;
    s->accept_loss = options->accept_loss;
    s->journal_fd = s->ledger_fd = -1;
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint64_t segment_bytes = storage_segment_bytes(options);
    uint64_t segments = options->cache_bytes_max / segment_bytes;
    s->pool = segment_pool_open(segment_bytes, segments > SEGMENTS_MIN ? segments : SEGMENTS_MIN,
                                storage_notify, s);
    s->oldest = s->active = generation_open(1);
    events_open(&s->events, s->event_fd);
    log_list_prepare(&s->logs);
    s->logs.accept_loss = options->accept_loss;
    replay_result found = {0};
    if (s->event_fd < 0 || s->pool == NULL || s->active == NULL)
        status = -ENOMEM;
    if (status == 0)
        status = storage_directories(s, options, error, error_bytes);
    if (status < 0) {
        if (error[0] == '\0')
            snprintf(error, error_bytes, "out of memory");
        storage_free(s);
        return status;
    }
    journal_files_open(&s->files, s->disk, &s->events, s->journal_fd, s->event_fd,
                       options->journal_file_bytes);
    status = storage_recover(s, &found, error, error_bytes);
    if (status == 0)
        status = storage_start(s, options, &found);
    if (status < 0) {
        if (error[0] == '\0')
            snprintf(error, error_bytes, "the journal in %s cannot be started: %s",
                     options->journal_directory, strerror(-status));
        storage_stop(s, 0);
        storage_free(s);
        return status;
    }
    *out = s;
    return 0;
}

int storage_close(storage *s, int flush) {
    int error = storage_stop(s, flush);
    storage_free(s);
    return error;
}

int storage_event_fd(const storage *s) {
    return s->event_fd;
}

uint64_t storage_durable_sequence(const storage *s) {
    return atomic_load_explicit(&s->journal.durable, memory_order_acquire);
}

int storage_failure(const storage *s) {
    return atomic_load_explicit(&s->journal.failure, memory_order_acquire);
}

int storage_next_event(storage *s, storage_event *out) {
    storage_do_deferred_work(s);
    return events_take(&s->events, out);
}

void storage_get_stats(const storage *constant, storage_stats *out) {
    storage *s = (storage *)(uintptr_t)constant; /* only its locks are modified */
    *out = (storage_stats){.adds = s->adds,
                           .add_bytes = s->add_bytes,
                           .ledgers = s->ledgers.count,
                           .cache_hits = s->cache_hits,
                           .replayed_entries = s->replayed,
                           .trouble = (uint64_t)-storage_trouble(s)};
    journal *j = &s->journal;
    pthread_mutex_lock(&j->lock);
    out->groups = j->groups;
    out->syncs = j->syncs;
    out->sync_ns_total = j->sync_latency.sum_ns;
    out->waiting_groups = j->sealed_count + (uint64_t)j->writing;
    out->sync_ns_max = j->sync_ns_max;
    out->journal_bytes = j->bytes;
    out->queue_adds = j->last_add - atomic_load(&j->durable);
    pthread_mutex_unlock(&j->lock);
    log_list_totals totals = log_list_count(&s->logs);
    out->entry_logs = totals.logs;
    out->entry_log_bytes = totals.bytes;
    out->entries = totals.entries;
    for (const generation *g = s->oldest; g != NULL; g = g->next) {
        uint64_t bytes = generation_bytes(g);
        out->cache_bytes += bytes;
        if (atomic_load(&g->state) != GENERATION_CLEAN) {
            out->dirty_bytes += bytes;
            out->entries += g->entries;
        }
    }
    out->flushes = atomic_load(&s->flusher.flushes);
    out->flush_bytes = atomic_load(&s->flusher.flush_bytes);
    out->disk_reads = atomic_load(&s->reader.disk_reads);
    out->disk_read_bytes = atomic_load(&s->reader.disk_read_bytes);
    out->damaged_entries = atomic_load(&s->reader.damaged_entries);
}

void storage_get_latencies(const storage *constant, storage_latencies *out) {
    storage *s = (storage *)(uintptr_t)constant; /* only its locks are modified */
    pthread_mutex_lock(&s->journal.lock);
    out->add = s->journal.add_latency;
    out->sync = s->journal.sync_latency;
    pthread_mutex_unlock(&s->journal.lock);
    pthread_mutex_lock(&s->reader.lock);
    out->read = s->reader.latency;
    out->failed_read = s->reader.failed_latency;
    pthread_mutex_unlock(&s->reader.lock);
}
