/* journal.c - the journal thread: collects groups, writes, syncs and completes them. */
#include "journal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "condition.h"
#include "crc32c.h"

static const uint8_t GROUP_MAGIC[4] = {'P', 'B', 'J', 'G'};

enum {
    SEALED_GROUPS_MIN = 64, /* enough for a small number of segments */
    SPACE_RETRY_MS_MIN = 50,
    SPACE_RETRY_MS_MAX = 2000
};

struct journal_batch {
    journal_group groups[JOURNAL_WRITE_GROUPS_MAX];
    struct iovec parts[JOURNAL_WRITE_GROUPS_MAX];
    int count;
};

static uint64_t group_padded(const journal_group *g) {
    return round_up(g->end - g->start, BLOCK_BYTES);
}

int group_header_decode(const uint8_t *block, group_header *out) {
    if (memcmp(block, GROUP_MAGIC, sizeof GROUP_MAGIC) != 0 ||
        crc32c(0, block + 8, GROUP_HEADER_BYTES - 8) != load_le32(block + 4))
        return 0;
    out->file_id = load_le64(block + 8);
    out->sequence = load_le64(block + 16);
    out->write_sequence = load_le64(block + 24);
    out->salt = load_le64(block + 32);
    out->length = load_le32(block + 40);
    out->records = load_le32(block + 44);
    out->previous = load_le64(block + 48);
    out->flags = load_le32(block + 56);
    return out->length >= GROUP_HEADER_BYTES;
}

static void group_header_encode(uint8_t *block, const group_header *h) {
    memcpy(block, GROUP_MAGIC, sizeof GROUP_MAGIC);
    store_le64(block + 8, h->file_id);
    store_le64(block + 16, h->sequence);
    store_le64(block + 24, h->write_sequence);
    store_le64(block + 32, h->salt);
    store_le32(block + 40, h->length);
    store_le32(block + 44, h->records);
    store_le64(block + 48, h->previous);
    store_le32(block + 56, h->flags);
    store_le32(block + 60, 0);
    store_le32(block + 4, crc32c(0, block + 8, GROUP_HEADER_BYTES - 8));
}

/* Seals the open group. Under the lock. Returns 0 or -ENOMEM. */
static int journal_seal(journal *j) {
    if (j->open.records == 0)
        return 0;
    if (j->sealed_count == j->sealed_capacity) {
        size_t capacity = j->sealed_capacity * 2;
        journal_group *ring = malloc(capacity * sizeof *ring);
        if (ring == NULL)
            return -ENOMEM;
        for (size_t i = 0; i < j->sealed_count; i++)
            ring[i] = j->sealed[(j->sealed_first + i) % j->sealed_capacity];
        free(j->sealed);
        j->sealed = ring;
        j->sealed_first = 0;
        j->sealed_capacity = capacity;
    }
    j->open.last_add = j->last_add;
    j->sealed[(j->sealed_first + j->sealed_count++) % j->sealed_capacity] = j->open;
    /* The bytes up to the next block are the group's padding; the thread fills them with zeros. */
    j->open.segment->used = round_up(j->open.end, BLOCK_BYTES);
    j->open.records = 0;
    j->open_committed = 0;
    return 0;
}

/* Opens a group at the end of the active segment. Returns 1, or 0 without room for the record. */
static int journal_open_group(journal *j, uint64_t record_size) {
    segment *s = j->active;
    if (s == NULL || s->used + GROUP_HEADER_BYTES + record_size > s->bytes)
        return 0;
    j->open = (journal_group){.segment = s,
                              .start = s->used,
                              .end = s->used + GROUP_HEADER_BYTES,
                              .sequence = j->next_group++,
                              .seed = record_seed(j->next_group - 1, j->salt),
                              .opened_ns = j->disk->clock_ns(j->disk->ctx)};
    return 1;
}

const uint8_t *journal_append(journal *j, const record *r, const uint8_t *header,
                              uint32_t header_length, const uint8_t *data, uint32_t data_length) {
    uint64_t size = record_bytes(r->length);
    uint8_t *payload = NULL;
    pthread_mutex_lock(&j->lock);
    if (j->open.records == 0 ? journal_open_group(j, size)
                             : j->open.end + size <= j->open.segment->bytes) {
        uint8_t *at = j->open.segment->base + j->open.end;
        payload = at + RECORD_HEADER_BYTES;
        record_encode(at, j->open.seed, r);
        memcpy(payload, header, header_length);
        if (data_length > 0)
            memcpy(payload + header_length, data, data_length);
        memset(payload + r->length, 0, size - RECORD_HEADER_BYTES - r->length);
        j->open.end += size;
        j->open.records++;
        j->last_add++;
    }
    pthread_mutex_unlock(&j->lock);
    return payload;
}

/* Returns 1 when all adds are durable. Under the lock. */
static int journal_idle(const journal *j) {
    return j->open.records == 0 && j->sealed_count == 0 && !j->writing;
}

uint64_t journal_next_sequence(journal *j) {
    pthread_mutex_lock(&j->lock);
    uint64_t sequence = ++j->last_add;
    if (journal_idle(j) && atomic_load(&j->failure) == 0) {
        atomic_store_explicit(&j->durable, sequence, memory_order_release);
        event_ring(j->event_fd);
    }
    pthread_mutex_unlock(&j->lock);
    return sequence;
}

int journal_use_segment(journal *j, segment *s, uint64_t *last_group) {
    pthread_mutex_lock(&j->lock);
    int error = journal_seal(j);
    if (error == 0)
        j->active = s;
    if (last_group != NULL)
        *last_group = j->next_group - 1;
    if (j->sealed_count > 0 && j->sleeping)
        pthread_cond_signal(&j->work);
    pthread_mutex_unlock(&j->lock);
    return error;
}

void journal_commit(journal *j) {
    pthread_mutex_lock(&j->lock);
    if (j->open.records > 0)
        j->open_committed = 1;
    int wake = j->sleeping && (j->open_committed || j->sealed_count > 0);
    pthread_mutex_unlock(&j->lock);
    /* After the unlock, so that the woken thread does not block on the lock. */
    if (wake)
        pthread_cond_signal(&j->work);
}

int journal_wait(journal *j, uint64_t group) {
    pthread_mutex_lock(&j->lock);
    while (j->durable_group < group && atomic_load(&j->failure) == 0)
        pthread_cond_wait(&j->done, &j->lock);
    int error = j->durable_group < group ? atomic_load(&j->failure) : 0;
    pthread_mutex_unlock(&j->lock);
    return error;
}

uint64_t journal_durable_group(journal *j) {
    pthread_mutex_lock(&j->lock);
    uint64_t group = j->durable_group;
    pthread_mutex_unlock(&j->lock);
    return group;
}

static void group_mark_lost(const journal_group *g) {
    if (g->start < g->segment->lost)
        g->segment->lost = g->start;
}

void journal_mark_lost(journal *j) {
    pthread_mutex_lock(&j->lock);
    for (int i = j->unwritten; i < j->batch->count; i++)
        group_mark_lost(&j->batch->groups[i]);
    for (size_t i = 0; i < j->sealed_count; i++)
        group_mark_lost(&j->sealed[(j->sealed_first + i) % j->sealed_capacity]);
    if (j->open.records > 0)
        group_mark_lost(&j->open);
    pthread_mutex_unlock(&j->lock);
}

/* Waits for work and takes as many groups as fit into one write. Under the lock. Returns their
 * number, or 0 when the thread should stop. */
static int journal_collect(journal *j, journal_batch *batch) {
    while (j->sealed_count == 0 && !j->open_committed && !j->stopping) {
        j->sleeping = 1;
        pthread_cond_wait(&j->work, &j->lock);
        j->sleeping = 0;
    }
    /* When the ring is full and there is no memory, the open group joins the next batch. */
    if (j->open_committed || j->stopping)
        journal_seal(j);
    uint64_t bytes = 0;
    batch->count = 0;
    while (j->sealed_count > 0 && batch->count < JOURNAL_WRITE_GROUPS_MAX) {
        const journal_group *g = &j->sealed[j->sealed_first];
        if (batch->count > 0 && bytes + group_padded(g) > JOURNAL_WRITE_BYTES_MAX)
            break;
        bytes += group_padded(g);
        batch->groups[batch->count++] = *g;
        j->sealed_first = (j->sealed_first + 1) % j->sealed_capacity;
        j->sealed_count--;
    }
    j->writing = batch->count > 0;
    return batch->count;
}

/* Fills in the headers of the groups first..first+count-1, which form one write to the current
 * file, and zeroes their padding. Only this thread accesses these bytes. */
static void journal_encode(journal *j, journal_batch *batch, int first, int count) {
    for (int i = first; i < first + count; i++) {
        const journal_group *g = &batch->groups[i];
        uint8_t *base = g->segment->base;
        size_t padded = group_padded(g);
        group_header h = {.file_id = j->file->id,
                          .sequence = g->sequence,
                          .write_sequence = batch->groups[first].sequence,
                          .salt = j->salt,
                          .previous = j->previous_group,
                          .length = (uint32_t)(g->end - g->start),
                          .records = g->records,
                          .flags = j->flags};
        group_header_encode(base + g->start, &h);
        memset(base + g->end, 0, g->start + padded - g->end);
        batch->parts[i] = (struct iovec){.iov_base = base + g->start, .iov_len = padded};
        j->previous_group = g->sequence;
    }
}

/* Reports that a write is being retried because of this error, or (0) that it succeeded. */
static void journal_report_trouble(journal *j, int error) {
    if (atomic_exchange_explicit(&j->trouble, error, memory_order_release) == error)
        return;
    if (error < 0)
        events_add(j->events, EVENT_ERROR,
                   "journal file %016" PRIx64 ".journal: a write failed (%s); retrying, free some "
                   "disk space",
                   j->file->id, strerror(-error));
    else
        events_add(j->events, EVENT_INFO, "the journal can be written again");
}

/* Returns 1, after a pause, when a failed write should be retried: the disk is full and the journal
 * is not being stopped. */
static int journal_should_retry_write(journal *j, int error, unsigned *pause_ms) {
    if (!disk_is_full(error))
        return 0;
    journal_report_trouble(j, error);
    *pause_ms = *pause_ms == 0 ? SPACE_RETRY_MS_MIN : *pause_ms * 2;
    if (*pause_ms > SPACE_RETRY_MS_MAX)
        *pause_ms = SPACE_RETRY_MS_MAX;
    struct timespec until = condition_after_ns((uint64_t)*pause_ms * 1000000u);
    pthread_mutex_lock(&j->lock);
    int waited = 0;
    while (!j->stopping && waited == 0)
        waited = pthread_cond_timedwait(&j->work, &j->lock, &until);
    int stopping = j->stopping;
    pthread_mutex_unlock(&j->lock);
    return !stopping;
}

/* Writes groups at the end of the current file, with retries while the disk is full. */
static int journal_write(journal *j, journal_batch *batch, int first, int count) {
    uint64_t bytes = 0, previous = j->previous_group;
    for (int i = first; i < first + count; i++)
        bytes += group_padded(&batch->groups[i]);
    unsigned pause_ms = 0;
    int error;
    do {
        /* Encoded for each attempt, because a write modifies the parts. */
        j->previous_group = previous;
        journal_encode(j, batch, first, count);
        error = disk_write_parts(j->disk, j->file->fd, batch->parts + first, count,
                                 (int64_t)j->offset);
    } while (journal_should_retry_write(j, error, &pause_ms));
    if (error == 0) {
        j->offset += bytes;
        if (atomic_load_explicit(&j->trouble, memory_order_relaxed) != 0)
            journal_report_trouble(j, 0);
    }
    j->file->last_group = batch->groups[first + count - 1].sequence;
    return error;
}

/* Syncs the current file. *ns is the duration. */
static int journal_sync(journal *j, uint64_t *ns) {
    uint64_t start = j->disk->clock_ns(j->disk->ctx);
    int error = j->disk->fdatasync(j->disk->ctx, j->file->fd);
    *ns = j->disk->clock_ns(j->disk->ctx) - start;
    return error;
}

/* Marks the groups first..first+count-1 as durable since now_ns. Under the lock; the caller signals
 * the eventfd afterwards. */
static void journal_complete(journal *j, const journal_batch *batch, int first, int count,
                             uint64_t sync_ns, uint64_t now_ns) {
    const journal_group *last = &batch->groups[first + count - 1];
    for (int i = first; i < first + count; i++) {
        const journal_group *g = &batch->groups[i];
        j->bytes += group_padded(g);
        latency_add(&j->add_latency, now_ns - g->opened_ns, g->records);
    }
    j->groups += (uint64_t)count;
    if (j->sync_data) {
        j->syncs++;
        latency_add(&j->sync_latency, sync_ns, 1);
        if (sync_ns > j->sync_ns_max)
            j->sync_ns_max = sync_ns;
    }
    j->durable_group = last->sequence;
    j->writing = first + count < batch->count;
    /* Adds without a record are durable as soon as no earlier add is pending. */
    uint64_t durable = journal_idle(j) ? j->last_add : last->last_add;
    atomic_store_explicit(&j->durable, durable, memory_order_release);
    pthread_cond_broadcast(&j->done);
}

/* Fails the journal: adds that are not durable yet never will be. */
static void journal_fail(journal *j, const char *what, int error) {
    events_add(j->events, EVENT_ERROR,
               "journal file %016" PRIx64 ".journal: %s failed (%s); no writes are accepted until "
               "a restart, and no unsynced write was acknowledged",
               j->file == NULL ? 0 : j->file->id, what, strerror(-error));
    pthread_mutex_lock(&j->lock);
    atomic_store(&j->failure, error);
    atomic_store(&j->trouble, 0);
    j->writing = 0;
    pthread_cond_broadcast(&j->done);
    pthread_mutex_unlock(&j->lock);
    event_ring(j->event_fd);
}

/* Returns how many groups, starting at `first`, fit into the current file. */
static int journal_fitting(const journal *j, const journal_batch *batch, int first) {
    uint64_t at = j->offset;
    int count = 0;
    while (j->file != NULL && first + count < batch->count) {
        at += group_padded(&batch->groups[first + count]);
        if (at > j->file->bytes)
            break;
        count++;
    }
    return count;
}

/* Retires the current file, synced, and takes the next one with room for the group. */
static int journal_next_file(journal *j, const journal_group *g) {
    if (j->file != NULL && !j->sync_data) {
        uint64_t ns;
        int error = journal_sync(j, &ns);
        if (error < 0)
            return error;
    }
    if (j->file != NULL)
        journal_files_retire(j->files, j->file);
    int error = journal_files_take(j->files, group_padded(g), &j->file);
    j->offset = BLOCK_BYTES;
    if (error == 0)
        atomic_store(&j->file_id, j->file->id);
    return error;
}

/* Writes one batch. Returns 0, or an error after which the journal has failed. */
static int journal_write_batch(journal *j, journal_batch *batch) {
    for (int first = 0; first < batch->count;) {
        j->unwritten = first;
        int count = journal_fitting(j, batch, first);
        if (count == 0) {
            int error = journal_next_file(j, &batch->groups[first]);
            if (error < 0) {
                journal_fail(j, "switching to the next journal file", error);
                return error;
            }
            continue;
        }
        uint64_t sync_ns = 0;
        int error = journal_write(j, batch, first, count);
        if (error < 0) {
            journal_fail(j, "write", error);
            return error;
        }
        if (j->sync_data && (error = journal_sync(j, &sync_ns)) < 0) {
            journal_fail(j, "fdatasync", error);
            return error;
        }
        uint64_t now_ns = j->disk->clock_ns(j->disk->ctx);
        pthread_mutex_lock(&j->lock);
        journal_complete(j, batch, first, count, sync_ns, now_ns);
        pthread_mutex_unlock(&j->lock);
        /* After the unlock, so that the woken owner does not block on the lock. */
        event_ring(j->event_fd);
        journal_files_filled(j->files, j->file, j->offset);
        first += count;
    }
    return 0;
}

static void *journal_run(void *arg) {
    journal *j = arg;
    for (;;) {
        pthread_mutex_lock(&j->lock);
        int count = journal_collect(j, j->batch);
        pthread_mutex_unlock(&j->lock);
        if (count == 0 || journal_write_batch(j, j->batch) < 0)
            break;
    }
    return NULL;
}

int journal_open(journal *j, const journal_options *options) {
    memset(j, 0, sizeof *j);
    j->disk = options->disk;
    j->events = options->events;
    j->files = options->files;
    j->event_fd = options->event_fd;
    j->sync_data = options->sync_data;
    j->flags = (options->sync_data ? GROUP_SYNCED : 0) |
               (options->intact ? GROUP_AFTER_INTACT : 0);
    j->salt = options->disk->entropy(options->disk->ctx);
    j->previous_group = options->last_group;
    j->next_group = options->last_group + GROUP_SEQUENCE_STEP;
    j->durable_group = j->next_group - 1;
    pthread_mutex_init(&j->lock, NULL);
    condition_open(&j->work);
    condition_open(&j->done);
    j->batch = calloc(1, sizeof *j->batch);
    j->sealed = calloc(SEALED_GROUPS_MIN, sizeof *j->sealed);
    j->sealed_capacity = SEALED_GROUPS_MIN;
    return j->batch == NULL || j->sealed == NULL ? -ENOMEM : 0;
}

int journal_start(journal *j) {
    int error = -pthread_create(&j->thread, NULL, journal_run, j);
    j->running = error == 0;
    return error;
}

int journal_close(journal *j) {
    if (j->running) {
        pthread_mutex_lock(&j->lock);
        j->stopping = 1;
        pthread_cond_signal(&j->work);
        pthread_mutex_unlock(&j->lock);
        pthread_join(j->thread, NULL);
        j->running = 0;
    }
    int error = atomic_load(&j->failure);
    if (j->file != NULL && error == 0) {
        uint64_t ns;
        if (!j->sync_data)
            error = journal_sync(j, &ns);
        if (error == 0) {
            journal_files_retire(j->files, j->file);
            j->file = NULL;
        }
    }
    return error;
}

void journal_free(journal *j) {
    if (j->file != NULL) {
        j->disk->close(j->disk->ctx, j->file->fd);
        free(j->file);
    }
    free(j->batch);
    free(j->sealed);
    pthread_cond_destroy(&j->work);
    pthread_cond_destroy(&j->done);
    pthread_mutex_destroy(&j->lock);
}
