/*
 * entry_log_rebuild.c - making ledger tables and indexes anew from records.
 *
 * Records are sorted by ledger and entry, and each names both, so one scan gives everything back.
 * Punched ranges read as zeros and are passed over in silence.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "entry_log.h"

/* An index being built. */
typedef struct log_index {
    uint8_t *slots;
    size_t count, capacity;
} log_index;

static int log_index_add(log_index *index, int64_t entry_id, uint64_t offset, uint32_t length) {
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
    return 0;
}

static void log_report_lost(events *events, const entry_log *log, uint64_t offset, size_t bytes) {
    events_add(events, EVENT_ERROR,
               "entry log %016" PRIx64 ".log: %zu bytes at offset %" PRIu64
               " are no record; the entries in them are lost",
               log->id, bytes, offset);
}

int log_row_rebuild(log_row *row, const log_map *map, events *events) {
    log_index index = {0};
    record_scan scan = {.data = map->base + row->data_offset,
                        .bytes = row->data_bytes,
                        .seed = record_seed(row->log->id, 0)};
    record r;
    enum record_found found;
    int64_t last = -1;
    while ((found = record_scan_next(&scan, &r)) != RECORD_NONE) {
        if (found == RECORD_LOST) {
            const uint8_t *lost = scan.data + scan.at - scan.skipped_bytes;
            if (!all_zero(lost, scan.skipped_bytes))
                log_report_lost(events, row->log, (uint64_t)(lost - map->base),
                                scan.skipped_bytes);
        } else if (r.type == RECORD_ENTRY && r.ledger_id == row->ledger_id && r.entry_id > last) {
            uint64_t offset = (uint64_t)(r.payload - RECORD_HEADER_BYTES - map->base);
            if (log_index_add(&index, r.entry_id, offset, r.length) < 0) {
                free(index.slots);
                return -ENOMEM;
            }
            last = r.entry_id;
        }
    }
    if (index.slots == NULL && (index.slots = malloc(1)) == NULL)
        return -ENOMEM;
    row->rebuilt = index.slots;
    row->entry_count = (uint32_t)index.count;
    return 0;
}

/* The row that a record belongs to: the last one, or a new one behind it. NULL without memory. */
static log_row *log_rebuild_row(entry_log *log, size_t *capacity, const record *r,
                                uint64_t offset) {
    if (log->row_count > 0 && log->rows[log->row_count - 1].ledger_id == r->ledger_id)
        return &log->rows[log->row_count - 1];
    if (log->row_count == *capacity) {
        size_t larger = *capacity == 0 ? 16 : *capacity * 2;
        log_row *rows = realloc(log->rows, larger * sizeof *rows);
        if (rows == NULL)
            return NULL;
        log->rows = rows;
        *capacity = larger;
    }
    log_row *row = &log->rows[log->row_count++];
    *row = (log_row){.ledger_id = r->ledger_id,
                     .last_entry = -1,
                     .data_offset = offset,
                     .log = log};
    return row;
}

static void log_rebuild_add(entry_log *log, log_row *row, const record *r, int intact) {
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
        log->entries++;
    }
}

int entry_log_rebuild(entry_log *log, events *events) {
    const log_map *map = log->map;
    if (map->bytes <= BLOCK_BYTES)
        return 0;
    if (map->disk->populate(map->disk->ctx, map->base, map->bytes) < 0)
        return -EIO;
    record_scan scan = {.data = map->base + BLOCK_BYTES,
                        .bytes = map->bytes - BLOCK_BYTES,
                        .seed = record_seed(log->id, 0)};
    size_t capacity = 0;
    record r;
    enum record_found found;
    while ((found = record_scan_next(&scan, &r)) != RECORD_NONE) {
        /* Behind the last record is the damaged index itself; only a gap before one counts. */
        if (found == RECORD_LOST) {
            const uint8_t *lost = scan.data + scan.at - scan.skipped_bytes;
            if (scan.at < scan.bytes && !all_zero(lost, scan.skipped_bytes))
                log_report_lost(events, log, (uint64_t)(lost - map->base), scan.skipped_bytes);
            continue;
        }
        if (log->row_count > 0 && r.ledger_id < log->rows[log->row_count - 1].ledger_id)
            continue;
        uint64_t offset = (uint64_t)(r.payload - RECORD_HEADER_BYTES - map->base);
        log_row *row = log_rebuild_row(log, &capacity, &r, offset);
        if (row == NULL)
            return -ENOMEM;
        log_rebuild_add(log, row, &r, found == RECORD_GOOD);
        row->data_bytes = offset + record_bytes(r.length) - row->data_offset;
    }
    for (size_t i = 0; i < log->row_count; i++) {
        int error = log_row_rebuild(&log->rows[i], map, events);
        if (error < 0)
            return error;
        log->rows[i].index_checked = 1;
    }
    return 0;
}
