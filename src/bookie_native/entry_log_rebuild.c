/*
 * entry_log_rebuild.c - rebuilding ledger tables and indexes from records.
 *
 * Records are sorted by ledger and entry, and each contains both ids, so one scan recovers
 * everything. Punched ranges read as zeros and are skipped silently. The scan bypasses the page
 * cache. A disk error ends it without a result.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "entry_log.h"
#include "entry_log_scan.h"

/* An index under construction. */
typedef struct log_index {
    uint8_t *slots;
    size_t count, capacity;
    int64_t last; /* entry id; -1: none */
} log_index;

/* Adds an entry, unless its id is not higher than the last one. Returns 0 or -ENOMEM. */
static int log_index_add(log_index *index, int64_t entry_id, uint64_t offset, uint32_t length) {
    if (index->count > 0 && entry_id <= index->last)
        return 0;
    if (index->count == index->capacity) {
        size_t capacity = index->capacity == 0 ? 64 : index->capacity * 2;
        uint8_t *slots = realloc(index->slots, capacity * LOG_ENTRY_BYTES);
        if (slots == NULL)
            return -ENOMEM;
        index->slots = slots;
        index->capacity = capacity;
    }
    uint8_t *slot = index->slots + index->count++ * LOG_ENTRY_BYTES;
    store_le64(slot, (uint64_t)entry_id);
    store_le32(slot + 8, (uint32_t)(offset / RECORD_ALIGNMENT));
    store_le32(slot + 12, length);
    index->last = entry_id;
    return 0;
}

/* Moves the index to its row, which keeps it in memory. */
static void log_index_finish(log_index *index, log_row *row) {
    row->index = index->slots;
    row->index_stays = 1;
    row->entry_count = (uint32_t)index->count;
    *index = (log_index){0};
}

/* Returns the offset of the record found by the last step. */
static uint64_t log_scan_record(const log_scan *scan, const record *r) {
    return scan->at - record_bytes(r->length);
}

static void log_report_lost(events *events, const entry_log *log, const log_scan *scan) {
    events_add(events, EVENT_ERROR,
               "entry log %016" PRIx64 ".log: %" PRIu64 " bytes at offset %" PRIu64
               " are not a valid record; the entries in them are lost",
               log->id, scan->lost_bytes, scan->at - scan->lost_bytes);
}

/* Scans the records of one row whose entry in the ledger table is intact. */
static int log_row_scan(log_row *row, log_scan *scan, log_index *index, events *events) {
    record r;
    enum record_found found;
    int error = 0;
    while (error == 0 && (found = log_scan_next(scan, &r)) != RECORD_NONE) {
        if (found == RECORD_LOST && !scan->lost_zero)
            log_report_lost(events, row->log, scan);
        else if (found != RECORD_LOST && r.type == RECORD_ENTRY && r.ledger_id == row->ledger_id)
            error = log_index_add(index, r.entry_id, log_scan_record(scan, &r), r.length);
    }
    return error < 0 ? error : scan->error;
}

int log_row_rebuild(log_row *row, const disk_calls *disk, int directory_fd, events *events) {
    int fd = log_open_to_read(disk, directory_fd, row->log->id, LOG_READ_DIRECT);
    if (fd < 0)
        return fd;
    log_index index = {0};
    log_scan scan = {.disk = disk,
                     .fd = fd,
                     .how = LOG_READ_DIRECT,
                     .seed = record_seed(row->log->id, 0),
                     .at = row->data_offset,
                     .end = row->data_offset + row->data_bytes};
    int error = log_row_scan(row, &scan, &index, events);
    log_scan_close(&scan);
    disk->close(disk->ctx, fd);
    if (error < 0) {
        free(index.slots);
        return error;
    }
    events_add(events, EVENT_ERROR,
               "entry log %016" PRIx64 ".log: the index of ledger %" PRId64
               " is damaged; it was rebuilt from the records, with %zu entries of %" PRIu32,
               row->log->id, row->ledger_id, index.count, row->entry_count);
    row->lost = index.count < row->entry_count;
    log_index_finish(&index, row);
    return 0;
}

/* A log whose table is being rebuilt. */
typedef struct log_rebuild {
    entry_log *log;
    events *events;
    size_t capacity; /* of log->rows */
    log_index index; /* of the last row */
    int lost;        /* the bytes before the next record contain damaged records */
} log_rebuild;

/* Returns the row of a record: the last one, or a new one. NULL when out of memory. */
static log_row *log_rebuild_row(log_rebuild *b, const record *r, uint64_t offset) {
    entry_log *log = b->log;
    log_row *last = log->row_count > 0 ? &log->rows[log->row_count - 1] : NULL;
    if (last != NULL && b->lost)
        last->lost = 1;
    if (last != NULL && last->ledger_id == r->ledger_id)
        return last;
    if (last != NULL)
        log_index_finish(&b->index, last);
    if (log->row_count == b->capacity) {
        size_t larger = b->capacity == 0 ? 16 : b->capacity * 2;
        log_row *rows = realloc(log->rows, larger * sizeof *rows);
        if (rows == NULL)
            return NULL;
        log->rows = rows;
        b->capacity = larger;
    }
    log_row *row = &log->rows[log->row_count++];
    *row = (log_row){.ledger_id = r->ledger_id,
                     .last_entry = -1,
                     .data_offset = offset,
                     .lost = (uint8_t)b->lost,
                     .log = log};
    return row;
}

/* Adds a record to its row. Returns 0 or -ENOMEM. */
static int log_rebuild_add(log_rebuild *b, log_row *row, const record *r, uint64_t offset,
                           int intact) {
    row->data_bytes = offset + record_bytes(r->length) - row->data_offset;
    if (r->type == RECORD_FENCE) {
        row->flags |= LOG_FENCED;
    } else if (r->type == RECORD_MASTER_KEY && intact) {
        row->flags |= LOG_HAS_KEY;
        memcpy(row->key, r->payload, MASTER_KEY_BYTES);
    } else if (r->type == RECORD_ENTRY) {
        if (row->last_entry < 0)
            row->first_entry = r->entry_id;
        if (r->entry_id > row->last_entry)
            row->last_entry = r->entry_id;
        b->log->entries++;
        return log_index_add(&b->index, r->entry_id, offset, r->length);
    }
    return 0;
}

/* Scans all records of the log. Returns 0 or an error. */
static int log_rebuild_scan(log_rebuild *b, log_scan *scan) {
    record r;
    enum record_found found;
    while ((found = log_scan_next(scan, &r)) != RECORD_NONE) {
        const entry_log *log = b->log;
        /* Bytes after the last record are the damaged index; only a gap before a record counts. */
        if (found == RECORD_LOST) {
            b->lost = scan->at < scan->end && !scan->lost_zero;
            if (b->lost)
                log_report_lost(b->events, log, scan);
            b->log->doubtful |= b->lost;
            continue;
        }
        if (log->row_count > 0 && r.ledger_id < log->rows[log->row_count - 1].ledger_id)
            continue;
        uint64_t offset = log_scan_record(scan, &r);
        log_row *row = log_rebuild_row(b, &r, offset);
        b->lost = 0;
        if (row == NULL || log_rebuild_add(b, row, &r, offset, found == RECORD_GOOD) < 0)
            return -ENOMEM;
    }
    return scan->error;
}

int entry_log_rebuild(entry_log *log, const disk_calls *disk, int directory_fd, events *events) {
    unsigned how = LOG_READ_DIRECT | LOG_READ_RETRYING;
    int fd = log_open_to_read(disk, directory_fd, log->id, how);
    if (fd < 0)
        return fd;
    log_rebuild b = {.log = log, .events = events};
    log_scan scan = {.disk = disk,
                     .fd = fd,
                     .how = how,
                     .seed = record_seed(log->id, 0),
                     .at = BLOCK_BYTES,
                     .end = log->bytes};
    int error = log_rebuild_scan(&b, &scan);
    log_scan_close(&scan);
    disk->close(disk->ctx, fd);
    if (log->row_count > 0)
        log_index_finish(&b.index, &log->rows[log->row_count - 1]);
    free(b.index.slots);
    return error;
}
