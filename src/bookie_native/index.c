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

/* The rows of one ledger, oldest log first. */
typedef struct ledger_rows {
    log_row **rows;
    size_t count, capacity;
} ledger_rows;

typedef struct found_ids {
    uint64_t *ids;
    size_t count, capacity;
    char unfinished[LOG_NAME_BYTES + 4]; /* one file to remove, "" for none */
} found_ids;

static int found_name(void *arg, const char *name) {
    found_ids *found = arg;
    uint64_t id;
    size_t length = strlen(name);
    if (length == 24 && strcmp(name + 20, ".tmp") == 0)
        memcpy(found->unfinished, name, length + 1);
    if (!entry_log_parse(name, &id))
        return 0;
    if (found->count == found->capacity) {
        size_t capacity = found->capacity == 0 ? 64 : found->capacity * 2;
        uint64_t *ids = realloc(found->ids, capacity * sizeof *ids);
        if (ids == NULL)
            return -ENOMEM;
        found->ids = ids;
        found->capacity = capacity;
    }
    found->ids[found->count++] = id;
    return 0;
}

static int by_id(const void *a, const void *b) {
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return first < second ? -1 : first > second;
}

/* Adds a live row to its ledger. Under the lock. Returns 0 or -ENOMEM. */
static int log_list_add_row(log_list *list, log_row *row) {
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

static void log_list_put(log_list *list, entry_log *log) {
    log->next = list->newest;
    list->newest = log;
    if (log->id >= list->next_id)
        list->next_id = log->id + 1;
    if (log->checkpoint > list->checkpoint)
        list->checkpoint = log->checkpoint;
}

/* Opens one log found in the directory and tells about its rows. */
static int log_list_adopt(log_list *list, uint64_t id, log_row_fn found, void *arg) {
    entry_log *log;
    int error = entry_log_open(list->disk, list->events, list->directory_fd, id, &log);
    if (error < 0)
        return error;
    list->unsure |= log->damaged;
    log_list_put(list, log);
    for (size_t i = 0; i < log->row_count && error == 0; i++) {
        error = log_list_add_row(list, &log->rows[i]);
        if (error == 0)
            error = found(arg, &log->rows[i]);
    }
    return error;
}

void log_list_prepare(log_list *list) {
    memset(list, 0, sizeof *list);
    pthread_mutex_init(&list->lock, NULL);
    list->next_id = 1;
}

int log_list_open(log_list *list, const disk_calls *disk, events *events, int directory_fd,
                  log_row_fn found_row, void *arg, char *error, size_t error_bytes) {
    list->disk = disk;
    list->events = events;
    list->directory_fd = directory_fd;
    found_ids found = {0};
    int result;
    for (;;) {
        result = disk->list(disk->ctx, directory_fd, found_name, &found);
        if (result < 0 || found.unfinished[0] == '\0')
            break;
        /* A crash leaves at most one; removing it while listing could confuse the listing. */
        result = disk->unlink(disk->ctx, directory_fd, found.unfinished);
        if (result < 0)
            break;
        found.unfinished[0] = '\0';
        found.count = 0;
    }
    if (result < 0)
        snprintf(error, error_bytes, "the ledger directory cannot be read: %s", strerror(-result));
    if (found.count > 0)
        qsort(found.ids, found.count, sizeof *found.ids, by_id);
    for (size_t i = 0; i < found.count && result == 0; i++) {
        result = log_list_adopt(list, found.ids[i], found_row, arg);
        if (result < 0)
            snprintf(error, error_bytes, "entry log %016" PRIx64 ".log cannot be opened: %s",
                     found.ids[i], strerror(-result));
    }
    free(found.ids);
    return result;
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
    pthread_mutex_destroy(&list->lock);
}

int log_list_publish(log_list *list, uint64_t id, const generation *g) {
    entry_log *log;
    int error = entry_log_open(list->disk, list->events, list->directory_fd, id, &log);
    if (error < 0)
        return error;
    pthread_mutex_lock(&list->lock);
    log_list_put(list, log);
    for (size_t i = 0; i < log->row_count && error == 0; i++) {
        log_row *row = &log->rows[i];
        /* A delete marks the generation first and takes this lock afterwards, so that a ledger is
         * seen as deleted either here or there. */
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

/* Moves the rows of a log from one state to another. Under the lock. Returns how many. */
static size_t log_rows_move(entry_log *log, enum log_row_state from, enum log_row_state to) {
    size_t moved = 0;
    for (size_t i = 0; i < log->row_count; i++)
        if (log->rows[i].state == from) {
            log->rows[i].state = (uint8_t)to;
            moved++;
        }
    return moved;
}

/* Gives the blocks that lie wholly inside the draining rows back to the file system. */
static void log_punch(log_list *list, entry_log *log) {
    const disk_calls *disk = list->disk;
    char name[LOG_NAME_BYTES];
    entry_log_name(name, log->id);
    int fd = disk->open(disk->ctx, list->directory_fd, name, O_RDWR);
    int error = fd < 0 ? fd : 0;
    for (size_t i = 0; i < log->row_count && error == 0; i++) {
        log_row *row = &log->rows[i];
        if (row->state != ROW_DRAINING)
            continue;
        uint64_t from = round_up(row->data_offset, BLOCK_BYTES);
        uint64_t to = round_down(row->data_offset + row->data_bytes, BLOCK_BYTES);
        if (from < to)
            error = disk->fallocate(disk->ctx, fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                    (int64_t)from, (int64_t)(to - from));
    }
    if (fd >= 0)
        disk->close(disk->ctx, fd);
    /* Where the file system cannot, the space comes back when the whole log goes. */
    if (error < 0 && error != -EOPNOTSUPP)
        events_add(list->events, EVENT_WARNING,
                   "the space of deleted ledgers in entry log %s could not be freed: %s", name,
                   strerror(-error));
    pthread_mutex_lock(&list->lock);
    log_rows_move(log, ROW_DRAINING, ROW_PUNCHED);
    pthread_mutex_unlock(&list->lock);
}

/* Punches what nobody reads any more. Returns 1 when some of it still waits for pins. */
static int log_sweep(log_list *list, entry_log *log) {
    if (log->draining == NULL) {
        /* Readers that come now get a new mapping; those of the deleted ledgers hold the old one,
         * whose last pin tells that nobody can see the hole. */
        log_map *fresh;
        int error = entry_log_map(list->disk, list->directory_fd, log->id, log->bytes, &fresh);
        if (error < 0) {
            if (!log->map_reported++)
                events_add(list->events, EVENT_WARNING,
                       "entry log %016" PRIx64 ".log could not be mapped again: %s", log->id,
                           strerror(-error));
            return 1;
        }
        pthread_mutex_lock(&list->lock);
        log_rows_move(log, ROW_DEAD, ROW_DRAINING);
        log->punches_wanted = 0;
        log->draining = log->map;
        log->map = fresh;
        pthread_mutex_unlock(&list->lock);
    }
    if (atomic_load_explicit(&log->draining->pin.count, memory_order_acquire) > 1)
        return 1;
    log_punch(list, log);
    pin_drop(&log->draining->pin);
    log->draining = NULL;
    return 0;
}

/* Takes a log without live ledgers off the disk and off the list. */
static void log_remove(log_list *list, entry_log **at) {
    entry_log *log = *at;
    char name[LOG_NAME_BYTES];
    entry_log_name(name, log->id);
    int error = list->disk->unlink(list->disk->ctx, list->directory_fd, name);
    if (error < 0 && error != -ENOENT)
        events_add(list->events, EVENT_WARNING, "entry log %s could not be removed: %s", name,
                   strerror(-error));
    pthread_mutex_lock(&list->lock);
    *at = log->next;
    log->next = list->removed;
    list->removed = log;
    pthread_mutex_unlock(&list->lock);
}

int log_list_sweep(log_list *list) {
    int waiting = 0;
    /* Only this thread changes the links, so the walk needs no lock. */
    for (entry_log **at = &list->newest; *at != NULL;) {
        entry_log *log = *at;
        pthread_mutex_lock(&list->lock);
        size_t live = log->live_rows;
        int wanted = log->punches_wanted;
        pthread_mutex_unlock(&list->lock);
        /* The newest one carries the checkpoint and stays. */
        if (live == 0 && log != list->newest) {
            log_remove(list, at);
            continue;
        }
        if (wanted || log->draining != NULL)
            waiting |= log_sweep(list, log);
        at = &log->next;
    }
    return waiting;
}

log_row *log_list_find(log_list *list, int64_t ledger_id, int64_t entry_id, uint64_t before_id,
                       log_map **map) {
    log_row *found = NULL;
    pthread_mutex_lock(&list->lock);
    ledger_rows *ledger = id_map_get(&list->ledgers, ledger_id);
    for (size_t i = ledger == NULL ? 0 : ledger->count; i > 0 && found == NULL; i--) {
        log_row *row = ledger->rows[i - 1];
        if (row->log->id < before_id && row->entry_count > 0 && row->first_entry <= entry_id &&
            entry_id <= row->last_entry)
            found = row;
    }
    if (found != NULL) {
        *map = found->log->map;
        pin_hold(&(*map)->pin, 1);
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
