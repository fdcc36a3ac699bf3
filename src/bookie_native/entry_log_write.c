/* entry_log_write.c - writing a frozen generation to a new entry log, in one pass. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "entry_log.h"

enum { LOG_WRITE_BYTES = 1 << 20 };

/* A sequential writer with one aligned buffer. After the first error it writes nothing. */
typedef struct log_writer {
    const disk_calls *disk;
    int fd;
    int error;
    uint8_t *buffer; /* LOG_WRITE_BYTES */
    size_t fill;
    uint64_t offset; /* in the file, of the buffer's start */
} log_writer;

static uint64_t log_writer_at(const log_writer *w) {
    return w->offset + w->fill;
}

/* Writes the buffer, whose fill is a multiple of the block size. */
static void log_writer_flush(log_writer *w) {
    if (w->error == 0 && w->fill > 0)
        w->error = disk_write_all(w->disk, w->fd, w->buffer, w->fill, (int64_t)w->offset);
    w->offset += w->fill;
    w->fill = 0;
}

static void log_writer_put(log_writer *w, const uint8_t *data, size_t bytes) {
    while (bytes > 0) {
        size_t part = LOG_WRITE_BYTES - w->fill;
        if (part > bytes)
            part = bytes;
        memcpy(w->buffer + w->fill, data, part);
        w->fill += part;
        data += part;
        bytes -= part;
        if (w->fill == LOG_WRITE_BYTES)
            log_writer_flush(w);
    }
}

static void log_writer_zeros(log_writer *w, uint64_t bytes) {
    static const uint8_t zeros[256];
    for (; bytes > sizeof zeros; bytes -= sizeof zeros)
        log_writer_put(w, zeros, sizeof zeros);
    log_writer_put(w, zeros, bytes);
}

static int by_ledger_id(const void *a, const void *b) {
    int64_t first = (*(cache_ledger *const *)a)->ledger_id;
    int64_t second = (*(cache_ledger *const *)b)->ledger_id;
    return first < second ? -1 : first > second;
}

/* Returns the ledgers that are not deleted, sorted. NULL when out of memory. */
static cache_ledger **generation_live(const generation *g, size_t *count) {
    cache_ledger **live = malloc((g->list_count + 1) * sizeof(cache_ledger *));
    if (live == NULL)
        return NULL;
    *count = 0;
    for (size_t i = 0; i < g->list_count; i++)
        if (!atomic_load_explicit(&g->list[i]->deleted, memory_order_acquire))
            live[(*count)++] = g->list[i];
    qsort(live, *count, sizeof(cache_ledger *), by_ledger_id);
    return live;
}

static void log_write_record(log_writer *w, uint32_t seed, const record *r) {
    uint8_t header[RECORD_HEADER_BYTES];
    record_encode(header, seed, r);
    log_writer_put(w, header, sizeof header);
    log_writer_put(w, r->payload, r->length);
    log_writer_zeros(w, record_bytes(r->length) - RECORD_HEADER_BYTES - r->length);
}

/* Writes fence and master key as records, so that they survive a damaged ledger table. */
static void log_write_state(log_writer *w, uint32_t seed, const cache_ledger *ledger) {
    record r = {.ledger_id = ledger->ledger_id, .entry_id = -1, .payload = ledger->key};
    if (ledger->fenced) {
        r.type = RECORD_FENCE;
        log_write_record(w, seed, &r);
    }
    if (ledger->has_key) {
        r.type = RECORD_MASTER_KEY;
        r.length = MASTER_KEY_BYTES;
        r.payload_crc = crc32c(0, ledger->key, MASTER_KEY_BYTES);
        log_write_record(w, seed, &r);
    }
}

/* Writes the records of one ledger; fills in its row and its part of the index at `index`. */
static void log_write_ledger(log_writer *w, uint32_t seed, const cache_ledger *ledger,
                             log_row *row, uint8_t *index) {
    *row = (log_row){.ledger_id = ledger->ledger_id,
                     .last_entry = -1,
                     .data_offset = log_writer_at(w),
                     .entry_count = (uint32_t)ledger->count,
                     .flags = (ledger->fenced ? LOG_FENCED : 0) |
                              (ledger->has_key ? LOG_HAS_KEY : 0)};
    memcpy(row->key, ledger->key, MASTER_KEY_BYTES);
    if (ledger->count > 0) {
        row->first_entry = ledger->entries[0].entry_id;
        row->last_entry = ledger->entries[ledger->count - 1].entry_id;
    }
    log_write_state(w, seed, ledger);
    for (size_t i = 0; i < ledger->count; i++) {
        const cache_entry *entry = &ledger->entries[i];
        uint8_t *slot = index + i * LOG_ENTRY_BYTES;
        store_le64(slot, (uint64_t)entry->entry_id);
        store_le32(slot + 8, (uint32_t)(log_writer_at(w) / RECORD_ALIGNMENT));
        store_le32(slot + 12, entry->data == NULL ? 0 : entry->length);
        if (entry->data == NULL)
            continue;
        /* The payload's checksum is in the header of the journal record, right before the data. */
        record r = {.type = RECORD_ENTRY,
                    .ledger_id = ledger->ledger_id,
                    .entry_id = entry->entry_id,
                    .payload = entry->data,
                    .length = entry->length,
                    .payload_crc = load_le32(entry->data - RECORD_HEADER_BYTES + 4)};
        log_write_record(w, seed, &r);
    }
    row->data_bytes = log_writer_at(w) - row->data_offset;
    row->index_crc = crc32c(0, index, ledger->count * LOG_ENTRY_BYTES);
}

/* Writes index, ledger table and footer. */
static void log_write_tail(log_writer *w, entry_log *log, const uint8_t *index,
                           uint64_t index_bytes) {
    uint64_t index_start = log_writer_at(w);
    log_writer_put(w, index, index_bytes);
    uint64_t table_offset = log_writer_at(w);
    uint32_t table_crc = 0;
    for (size_t i = 0; i < log->row_count; i++) {
        uint8_t encoded[LOG_ROW_BYTES];
        log->rows[i].index_offset += index_start;
        log_row_encode(encoded, &log->rows[i]);
        table_crc = crc32c(table_crc, encoded, sizeof encoded);
        log_writer_put(w, encoded, sizeof encoded);
    }
    log->bytes = round_up(log_writer_at(w) + LOG_FOOTER_BYTES, BLOCK_BYTES);
    log_writer_zeros(w, log->bytes - LOG_FOOTER_BYTES - log_writer_at(w));
    uint8_t footer[LOG_FOOTER_BYTES];
    log_footer_encode(footer, log, table_offset, table_crc);
    log_writer_put(w, footer, sizeof footer);
    log_writer_flush(w);
}

/* Writes the content of the file. */
static void log_write_body(log_writer *w, entry_log *log, cache_ledger *const *live,
                           uint8_t *index) {
    uint8_t *block = calloc(1, BLOCK_BYTES);
    if (block == NULL) {
        w->error = -ENOMEM;
        return;
    }
    log_header_encode(block, log->id, log->checkpoint, log->journal_file);
    log_writer_put(w, block, BLOCK_BYTES);
    free(block);
    uint32_t seed = record_seed(log->id, 0);
    uint64_t index_bytes = 0;
    for (size_t i = 0; i < log->row_count && w->error == 0; i++) {
        log_write_ledger(w, seed, live[i], &log->rows[i], index + index_bytes);
        log->rows[i].index_offset = index_bytes;
        index_bytes += live[i]->count * LOG_ENTRY_BYTES;
    }
    log_write_tail(w, log, index, index_bytes);
}

/* Returns an upper bound of the file size, to allocate the file contiguously. */
static uint64_t log_bytes_expected(cache_ledger *const *live, size_t count, uint64_t *entries) {
    uint64_t bytes = BLOCK_BYTES + LOG_FOOTER_BYTES + BLOCK_BYTES;
    *entries = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += LOG_ROW_BYTES + live[i]->count * LOG_ENTRY_BYTES + record_bytes(0) +
                 record_bytes(MASTER_KEY_BYTES);
        for (size_t k = 0; k < live[i]->count; k++)
            bytes +=
                live[i]->entries[k].data == NULL ? 0 : record_bytes(live[i]->entries[k].length);
        *entries += live[i]->count;
    }
    return round_up(bytes, BLOCK_BYTES);
}

/* Writes the temporary file, syncs and renames it. */
static int log_write_file(log_writer *w, int directory_fd, entry_log *log,
                          cache_ledger *const *live, uint8_t *index, uint64_t expected) {
    const disk_calls *disk = w->disk;
    char name[LOG_NAME_BYTES], temporary[LOG_NAME_BYTES + 4];
    entry_log_name(name, log->id);
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    w->fd = disk_open_direct(disk, directory_fd, temporary, O_RDWR | O_CREAT | O_TRUNC);
    if (w->fd < 0)
        return w->fd;
    /* Allocates contiguously and detects a full disk early; KEEP_SIZE leaves the size unchanged. */
    enum { KEEP_SIZE = 1 };
    int error = disk->fallocate(disk->ctx, w->fd, KEEP_SIZE, 0, (int64_t)expected);
    if (error == 0 || error == -EOPNOTSUPP) {
        log_write_body(w, log, live, index);
        error = w->error;
    }
    if (error == 0)
        error = disk->fdatasync(disk->ctx, w->fd);
    disk->close(disk->ctx, w->fd);
    const char *left = temporary;
    if (error == 0 && (error = disk->rename(disk->ctx, directory_fd, temporary, name)) == 0) {
        left = name;
        error = disk->sync_directory(disk->ctx, directory_fd);
    }
    if (error < 0)
        disk->unlink(disk->ctx, directory_fd, left);
    return error;
}

/* Returns a new log for `rows` ledgers of a generation, or NULL when out of memory. */
static entry_log *log_new(uint64_t id, uint64_t journal_file, const generation *g, size_t rows) {
    entry_log *log = calloc(1, sizeof *log);
    if (log == NULL)
        return NULL;
    *log = (entry_log){.id = id,
                       .checkpoint = g->last_group,
                       .journal_file = journal_file,
                       .row_count = rows,
                       .live_rows = rows,
                       .rows = calloc(rows + 1, sizeof *log->rows)};
    if (log->rows != NULL)
        return log;
    free(log);
    return NULL;
}

int entry_log_write(const disk_calls *disk, int directory_fd, uint64_t id, uint64_t journal_file,
                    const generation *g, entry_log **out) {
    size_t count;
    cache_ledger **live = generation_live(g, &count);
    if (live == NULL)
        return -ENOMEM;
    entry_log *log = log_new(id, journal_file, g, count);
    uint64_t entries, expected = log_bytes_expected(live, count, &entries);
    uint8_t *index = malloc(entries * LOG_ENTRY_BYTES + 1);
    log_writer w = {.disk = disk, .buffer = aligned_alloc(BLOCK_BYTES, LOG_WRITE_BYTES)};
    int error = -ENOMEM;
    if (expected / RECORD_ALIGNMENT > UINT32_MAX) {
        error = -EFBIG;
    } else if (log != NULL && index != NULL && w.buffer != NULL) {
        log->entries = entries;
        error = log_write_file(&w, directory_fd, log, live, index, expected);
    }
    for (size_t i = 0; error == 0 && i < count; i++)
        log->rows[i].log = log;
    if (error == 0)
        *out = log;
    else if (log != NULL)
        entry_log_free(log);
    free(w.buffer);
    free(index);
    free(live);
    return error;
}
