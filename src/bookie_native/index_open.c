/* index_open.c - finding the entry logs of a directory, and detecting missing ones. */
#include "index.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "disk_retry.h"

typedef struct found_ids {
    uint64_t *ids;
    size_t count, capacity;
    char unfinished[LOG_NAME_BYTES + 4]; /* an unfinished file to remove, or "" */
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

/* With accept_loss, continues without an unreadable log. Its file and its row in the manifest of
 * entry logs stay; the next start without accept_loss tries again. Returns 0 or an error. */
static int log_list_skip_unreadable(log_list *list, uint64_t id, const manifest_row *known,
                                    int error, char *sentence) {
    if (error != -EIO || !list->accept_loss)
        return error;
    events_add(list->events, EVENT_ERROR, "%s; continuing without it (--accept-loss)", sentence);
    sentence[0] = '\0';
    list->unsure = 1;
    if (id >= list->next_id)
        list->next_id = id + 1;
    if (known == NULL)
        return 0;
    manifest_row *skipped =
        realloc(list->skipped, (list->skipped_count + 1) * sizeof *list->skipped);
    if (skipped == NULL)
        return -ENOMEM;
    list->skipped = skipped;
    skipped[list->skipped_count++] = *known;
    return 0;
}

/* Opens one log found in the directory and passes its rows to `found`. */
static int log_list_adopt(log_list *list, const log_manifest *manifest, uint64_t id,
                          log_row_fn found, void *arg, char *sentence, size_t sentence_bytes) {
    entry_log *log;
    int error = entry_log_open(list->disk, list->events, list->directory_fd, id, &log, sentence,
                               sentence_bytes);
    const manifest_row *known = log_manifest_find(manifest, id);
    if (error < 0)
        return log_list_skip_unreadable(list, id, known, error, sentence);
    list->manifest_stale |= known == NULL;
    if (known != NULL && log->entries < known->entries)
        events_add(list->events, EVENT_ERROR,
                   "entry log %016" PRIx64 ".log has %" PRIu64 " of the %" PRIu64
                   " entries that it had when it was written",
                   id, log->entries, known->entries);
    list->unsure |= log->damaged;
    log_list_put(list, log);
    for (size_t i = 0; i < log->row_count && error == 0; i++) {
        error = log_list_add_row(list, &log->rows[i]);
        if (error == 0)
            error = found(arg, &log->rows[i]);
    }
    return error;
}

/* Lists the logs, ascending, and removes an unfinished one. Returns 0 or an error. */
static int found_list(found_ids *found, const disk_calls *disk, int directory_fd) {
    int result;
    for (;;) {
        disk_retry retry = {0};
        do {
            found->count = 0;
            found->unfinished[0] = '\0';
            result = disk->list(disk->ctx, directory_fd, found_name, found);
        } while (disk_retry_again(&retry, disk, result));
        if (result < 0 || found->unfinished[0] == '\0')
            break;
        /* A crash leaves at most one. Removing it during the listing could disturb the listing. */
        result = disk->unlink(disk->ctx, directory_fd, found->unfinished);
        if (result < 0)
            break;
    }
    if (found->count > 0)
        qsort(found->ids, found->count, sizeof *found->ids, by_id);
    return result;
}

/* Looks for the logs of the manifest in the directory. Returns 0, or -ENOENT and a message when a
 * log is missing without accept_loss. */
static int log_list_check_missing(log_list *list, const found_ids *found,
                                  const log_manifest *manifest, char *error, size_t error_bytes) {
    manifest_row first = {0}, lost = {0};
    uint64_t missing = 0;
    for (size_t i = 0; i < manifest->count; i++) {
        const manifest_row *row = &manifest->rows[i];
        if (row->id >= list->next_id)
            list->next_id = row->id + 1; /* ids are never reused */
        if (bsearch(&row->id, found->ids, found->count, sizeof row->id, by_id) != NULL)
            continue;
        if (missing++ == 0)
            first = *row;
        lost.ledgers += row->ledgers;
        lost.entries += row->entries;
    }
    if (missing == 0)
        return 0;
    char which[96];
    snprintf(which, sizeof which, "entry log %016" PRIx64 ".log", first.id);
    if (missing > 1)
        snprintf(which + strlen(which), sizeof which - strlen(which),
                 " and %" PRIu64 " more entry logs", missing - 1);
    if (!list->accept_loss) {
        snprintf(error, error_bytes,
                 "%s cannot be found, with up to %" PRIu64 " entries of %" PRIu64
                 " ledgers: restore it from a backup, or start with --accept-loss to continue "
                 "without it",
                 which, lost.entries, lost.ledgers);
        return -ENOENT;
    }
    events_add(list->events, EVENT_ERROR,
               "%s cannot be found; up to %" PRIu64 " entries of %" PRIu64
               " ledgers are lost (--accept-loss)",
               which, lost.entries, lost.ledgers);
    list->unsure = list->manifest_stale = 1;
    return 0;
}

/* Reads the manifest and compares it with the directory. Returns 0, or an error and a message. */
static int log_list_check_manifest(log_list *list, const found_ids *found, log_manifest *manifest,
                                   char *error, size_t error_bytes) {
    int status = log_manifest_read(list->disk, list->directory_fd, manifest);
    switch (status) {
    case MANIFEST_GOOD: return log_list_check_missing(list, found, manifest, error, error_bytes);
    case MANIFEST_NONE: return 0; /* a new directory, or one of a version without manifests */
    case MANIFEST_DAMAGED:
        events_add(list->events, EVENT_ERROR,
                   "the manifest of entry logs is damaged and was rebuilt from the %zu logs found; "
                   "a missing log cannot be detected",
                   found->count);
        list->manifest_stale = 1;
        return 0;
    case MANIFEST_NEWER:
        snprintf(error, error_bytes,
                 "the manifest of entry logs was written by a newer pyxbroker (format %" PRIu32
                 "; this one reads up to %d)",
                 manifest->version, MANIFEST_VERSION);
        return -EPROTONOSUPPORT;
    default:
        snprintf(error, error_bytes, "the manifest of entry logs cannot be read: %s",
                 strerror(-status));
        return status;
    }
}

int log_list_open(log_list *list, const disk_calls *disk, events *events, int directory_fd,
                  log_row_fn found_row, void *arg, char *error, size_t error_bytes) {
    list->disk = disk;
    list->events = events;
    list->directory_fd = directory_fd;
    found_ids found = {0};
    log_manifest manifest = {0};
    int result = found_list(&found, disk, directory_fd);
    if (result < 0)
        snprintf(error, error_bytes, "the ledger directory cannot be read: %s", strerror(-result));
    else
        result = log_list_check_manifest(list, &found, &manifest, error, error_bytes);
    for (size_t i = 0; i < found.count && result == 0; i++)
        result = log_list_adopt(list, &manifest, found.ids[i], found_row, arg, error, error_bytes);
    if (result < 0 && error[0] == '\0')
        snprintf(error, error_bytes, "out of memory");
    free(manifest.rows);
    free(found.ids);
    return result;
}
