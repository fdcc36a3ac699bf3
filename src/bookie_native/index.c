/* index.c - the list of entry logs. */
#define _GNU_SOURCE
#include "index.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"

/* The rows of one ledger, the oldest log first. */
typedef struct ledger_rows {
    log_row **rows;
    size_t count, capacity;
} ledger_rows;

int log_list_add_row(log_list *list, log_row *row) {
    ledger_rows *ledger = id_map_get(&list->ledgers, row->ledger_id);
    if (ledger == NULL) {
        ledger = calloc(1, sizeof *ledger);
        if (ledger == NULL)
            return -ENOMEM;
        if (id_map_put(&list->ledgers, row->ledger_id, ledger) < 0) {
            free(ledger);
            return -ENOMEM;
        }
    }
    if (ledger->count == ledger->capacity) {
        size_t capacity = ledger->capacity == 0 ? 1 : ledger->capacity * 2;
        log_row **rows = realloc(ledger->rows, capacity * sizeof(log_row *));
        if (rows == NULL)
            return -ENOMEM;
        ledger->rows = rows;
        ledger->capacity = capacity;
    }
    ledger->rows[ledger->count++] = row;
    return 0;
}

void log_list_put(log_list *list, entry_log *log) {
    log->next = list->newest;
    list->newest = log;
    if (log->id >= list->next_id)
        list->next_id = log->id + 1;
    if (log->checkpoint > list->checkpoint)
        list->checkpoint = log->checkpoint;
}

void log_list_prepare(log_list *list) {
    memset(list, 0, sizeof *list);
    pthread_mutex_init(&list->lock, NULL);
    list->next_id = 1;
}

static void log_list_free(entry_log *log) {
    while (log != NULL) {
        entry_log *next = log->next;
        entry_log_free(log);
        log = next;
    }
}

void log_list_close(log_list *list) {
    for (size_t i = 0; i < list->ledgers.capacity; i++) {
        ledger_rows *ledger = list->ledgers.slots[i].value;
        if (ledger != NULL) {
            free(ledger->rows);
            free(ledger);
        }
    }
    id_map_free(&list->ledgers);
    log_list_free(list->newest);
    log_list_free(list->removed);
    log_list_free(list->pending);
    free(list->skipped);
    pthread_mutex_destroy(&list->lock);
}

/* Messages about the failure of a step, and about its next success. */
static const struct {
    const char *fails, *again;
} log_list_texts[STEP_COUNT] = {
    [STEP_MANIFEST] = {"the manifest of entry logs could not be written",
                       "the manifest of entry logs is written again"},
    [STEP_UNLINK] = {"it has no ledgers left and could not be removed",
                     "entry logs without ledgers are removed again"},
    [STEP_PUNCH] = {"the space of deleted ledgers could not be freed",
                    "the space of deleted ledgers is freed again"}};

/* Reports why a step could not free space, once for each errno, and its next success (error 0). */
static void log_list_report(log_list *list, enum log_list_step step, uint64_t id, int error) {
    int before = list->troubles[step];
    list->troubles[step] = error;
    if (error < 0 && error != before)
        events_add(list->events, EVENT_WARNING,
                   "entry log %016" PRIx64 ".log: %s (%s); retrying", id,
                   log_list_texts[step].fails, strerror(-error));
    else if (error == 0 && before < 0)
        events_add(list->events, EVENT_INFO, "%s", log_list_texts[step].again);
}

static int by_row_id(const void *a, const void *b) {
    uint64_t first = ((const manifest_row *)a)->id, second = ((const manifest_row *)b)->id;
    return first < second ? -1 : first > second;
}

/* Writes the manifest of entry logs, including a log that is not in the list yet, or NULL. Returns
 * 0 or an error. */
static int log_list_write_manifest(log_list *list, const entry_log *more) {
    size_t count = list->skipped_count + (more != NULL);
    for (const entry_log *log = list->newest; log != NULL; log = log->next)
        count += !log->unlisted;
    manifest_row *rows = malloc((count + 1) * sizeof *rows);
    if (rows == NULL)
        return -ENOMEM;
    size_t at = 0;
    for (; at < list->skipped_count; at++)
        rows[at] = list->skipped[at];
    pthread_mutex_lock(&list->lock);
    for (const entry_log *log = more != NULL ? more : list->newest; log != NULL;
         log = log == more ? list->newest : log->next)
        if (!log->unlisted)
            rows[at++] = (manifest_row){.id = log->id,
                                        .bytes = log->bytes,
                                        .ledgers = log->live_rows,
                                        .entries = log->entries};
    pthread_mutex_unlock(&list->lock);
    qsort(rows, count, sizeof *rows, by_row_id);
    int error = log_manifest_write(list->disk, list->directory_fd, rows, count);
    free(rows);
    list->manifest_stale = error < 0;
    return error;
}

entry_log *log_list_take_pending(log_list *list, const generation *g) {
    entry_log *log = list->pending;
    list->pending = NULL;
    if (log == NULL || list->pending_number == g->number)
        return log;
    entry_log_free(log); /* the next start adopts its file, which is harmless */
    return NULL;
}

int log_list_publish(log_list *list, entry_log *log, const generation *g) {
    int error = log_list_write_manifest(list, log);
    if (error < 0) {
        /* The file must stay: the new manifest of entry logs may name it already. */
        list->pending = log;
        list->pending_number = g->number;
        return error;
    }
    pthread_mutex_lock(&list->lock);
    log_list_put(list, log);
    for (size_t i = 0; i < log->row_count && error == 0; i++) {
        log_row *row = &log->rows[i];
        /* log_list_delete marks the generation first and takes this lock afterwards, so one of the
         * two sees the ledger as deleted. */
        if (generation_find(g, row->ledger_id) != NULL) {
            error = log_list_add_row(list, row);
        } else {
            row->state = ROW_DEAD;
            log->live_rows--;
            log->punches_wanted = 1;
        }
    }
    pthread_mutex_unlock(&list->lock);
    return error;
}

int log_list_delete(log_list *list, int64_t ledger_id) {
    pthread_mutex_lock(&list->lock);
    ledger_rows *ledger = id_map_remove(&list->ledgers, ledger_id);
    for (size_t i = 0; ledger != NULL && i < ledger->count; i++) {
        log_row *row = ledger->rows[i];
        row->state = ROW_DEAD;
        row->log->live_rows--;
        row->log->punches_wanted = 1;
    }
    pthread_mutex_unlock(&list->lock);
    if (ledger == NULL)
        return 0;
    free(ledger->rows);
    free(ledger);
    return 1;
}

/* Punches the hole of a row if it is dead. Returns 0, or an error after which it is still dead. */
static int log_punch_row(log_list *list, log_row *row, int fd) {
    pthread_mutex_lock(&list->lock);
    int dead = row->state == ROW_DEAD;
    pthread_mutex_unlock(&list->lock);
    if (!dead)
        return 0;
    uint64_t from = round_up(row->data_offset, BLOCK_BYTES);
    uint64_t to = round_down(row->data_offset + row->data_bytes, BLOCK_BYTES);
    int error = 0;
    if (from < to)
        error = list->disk->fallocate(list->disk->ctx, fd,
                                      FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (int64_t)from,
                                      (int64_t)(to - from));
    /* Without support in the file system, the space is freed when the whole log is removed. */
    if (error < 0 && error != -EOPNOTSUPP)
        return error;
    pthread_mutex_lock(&list->lock);
    row->state = ROW_PUNCHED;
    pthread_mutex_unlock(&list->lock);
    return 0;
}

/* Punches holes for the whole blocks inside the dead rows. Returns 0 or the last error, after which
 * punches_wanted is set again. */
static int log_punch(log_list *list, entry_log *log) {
    const disk_calls *disk = list->disk;
    char name[LOG_NAME_BYTES];
    entry_log_name(name, log->id);
    int fd = disk->open(disk->ctx, list->directory_fd, name, O_RDWR);
    int failure = fd < 0 ? fd : 0;
    for (size_t i = 0; i < log->row_count && fd >= 0; i++) {
        int error = log_punch_row(list, &log->rows[i], fd);
        failure = error < 0 ? error : failure;
    }
    if (fd >= 0)
        disk->close(disk->ctx, fd);
    pthread_mutex_lock(&list->lock);
    log->punches_wanted |= failure < 0;
    pthread_mutex_unlock(&list->lock);
    return failure;
}

/* Unlinks a log that the manifest of entry logs does not name, and removes it from the list.
 * Returns 0, or an error after which it is still listed. */
static int log_remove(log_list *list, entry_log **at) {
    entry_log *log = *at;
    char name[LOG_NAME_BYTES];
    entry_log_name(name, log->id);
    int error = list->disk->unlink(list->disk->ctx, list->directory_fd, name);
    if (error < 0 && error != -ENOENT)
        return error;
    pthread_mutex_lock(&list->lock);
    *at = log->next;
    log->next = list->removed;
    list->removed = log;
    pthread_mutex_unlock(&list->lock);
    return 0;
}

/* Returns 1 when the log can be removed. The newest one stays, because it has the checkpoint. */
static int log_is_removable(log_list *list, const entry_log *log) {
    pthread_mutex_lock(&list->lock);
    int done = log->live_rows == 0 && log != list->newest && !log->doubtful;
    pthread_mutex_unlock(&list->lock);
    return done;
}

/* Removes logs without live ledgers from the manifest of entry logs, so that they may be unlinked.
 * Returns 0 or an error. */
static int log_list_sweep_manifest(log_list *list) {
    for (entry_log *log = list->newest; log != NULL; log = log->next)
        if (!log->unlisted && log_is_removable(list, log))
            list->manifest_stale = log->unlisted = 1;
    int error = list->manifest_stale ? log_list_write_manifest(list, NULL) : 0;
    log_list_report(list, STEP_MANIFEST, list->newest == NULL ? 0 : list->newest->id, error);
    return error;
}

int log_list_sweep(log_list *list) {
    int kept = log_list_sweep_manifest(list), unlinks = 0, punches = 0;
    uint64_t unlink_id = 0, punch_id = 0;
    /* Only this thread changes the links, so the walk needs no lock. */
    for (entry_log **at = &list->newest; *at != NULL;) {
        entry_log *log = *at;
        pthread_mutex_lock(&list->lock);
        int wanted = log->punches_wanted;
        log->punches_wanted = 0;
        pthread_mutex_unlock(&list->lock);
        int error = 0;
        if (log->unlisted && kept == 0) {
            error = log_remove(list, at);
            if (error == 0)
                continue;
            unlinks = error;
            unlink_id = log->id;
        }
        /* If a log cannot be removed, at least the space of its records is freed. */
        if (wanted && (error = log_punch(list, log)) < 0) {
            punches = error;
            punch_id = log->id;
        }
        at = &log->next;
    }
    log_list_report(list, STEP_UNLINK, unlink_id, unlinks);
    log_list_report(list, STEP_PUNCH, punch_id, punches);
    return kept < 0 || unlinks < 0 || punches < 0;
}

log_row *log_list_find(log_list *list, int64_t ledger_id, int64_t entry_id, uint64_t before_id) {
    log_row *found = NULL;
    pthread_mutex_lock(&list->lock);
    ledger_rows *ledger = id_map_get(&list->ledgers, ledger_id);
    for (size_t i = ledger == NULL ? 0 : ledger->count; i > 0 && found == NULL; i--) {
        log_row *row = ledger->rows[i - 1];
        if (row->log->id < before_id && (row->entry_count > 0 || row->lost) &&
            row->first_entry <= entry_id && entry_id <= row->last_entry)
            found = row;
    }
    pthread_mutex_unlock(&list->lock);
    return found;
}

int log_list_is_live(log_list *list, const log_row *row) {
    pthread_mutex_lock(&list->lock);
    int live = row->state == ROW_LIVE;
    pthread_mutex_unlock(&list->lock);
    return live;
}

entry_log *log_list_take_removed(log_list *list) {
    pthread_mutex_lock(&list->lock);
    entry_log *removed = list->removed;
    list->removed = NULL;
    pthread_mutex_unlock(&list->lock);
    return removed;
}

log_list_totals log_list_count(log_list *list) {
    log_list_totals totals = {0};
    pthread_mutex_lock(&list->lock);
    for (const entry_log *log = list->newest; log != NULL; log = log->next) {
        totals.logs++;
        totals.bytes += log->bytes;
        totals.entries += log->entries;
    }
    pthread_mutex_unlock(&list->lock);
    return totals;
}
