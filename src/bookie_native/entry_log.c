/* entry_log.c - opening sealed logs, and reading them. */
#include "entry_log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"

enum { LOG_CRC_START = 12, LOG_HEADER_CRC_END = 40 };

static const char LOG_MAGIC[8] = {'P', 'Y', 'X', 'E', 'L', 'O', 'G', '1'};
static const char FOOTER_MAGIC[8] = {'P', 'Y', 'X', 'E', 'F', 'T', 'R', '1'};

int entry_log_error(int error) {
    switch (error) {
    case STORAGE_NO_LEDGER:
    case STORAGE_NO_ENTRY:
    case STORAGE_DAMAGED:
    case STORAGE_FULL:
    case STORAGE_FENCED: return -EIO;
    default: return error;
    }
}

void entry_log_name(char name[LOG_NAME_BYTES], uint64_t id) {
    snprintf(name, LOG_NAME_BYTES, "%016" PRIx64 ".log", id);
}

int entry_log_parse(const char *name, uint64_t *id) {
    if (strlen(name) != 20 || strcmp(name + 16, ".log") != 0 ||
        strspn(name, "0123456789abcdef") != 16)
        return 0;
    *id = strtoull(name, NULL, 16);
    return 1;
}

void log_header_encode(uint8_t *block, uint64_t id, uint64_t checkpoint, uint64_t journal_file) {
    memcpy(block, LOG_MAGIC, sizeof LOG_MAGIC);
    store_le32(block + 12, LOG_VERSION);
    store_le64(block + 16, id);
    store_le64(block + 24, checkpoint);
    store_le64(block + 32, journal_file);
    store_le32(block + 8,
               crc32c(0, block + LOG_CRC_START, LOG_HEADER_CRC_END - LOG_CRC_START));
}

void log_row_encode(uint8_t *at, const log_row *row) {
    store_le64(at, (uint64_t)row->ledger_id);
    store_le64(at + 8, (uint64_t)row->first_entry);
    store_le64(at + 16, (uint64_t)row->last_entry);
    store_le64(at + 24, row->data_offset);
    store_le64(at + 32, row->data_bytes);
    store_le64(at + 40, row->index_offset);
    store_le32(at + 48, row->entry_count);
    store_le32(at + 52, row->index_crc);
    store_le32(at + 56, row->flags);
    memcpy(at + 60, row->key, MASTER_KEY_BYTES);
}

static void log_row_decode(const uint8_t *at, log_row *row) {
    row->ledger_id = (int64_t)load_le64(at);
    row->first_entry = (int64_t)load_le64(at + 8);
    row->last_entry = (int64_t)load_le64(at + 16);
    row->data_offset = load_le64(at + 24);
    row->data_bytes = load_le64(at + 32);
    row->index_offset = load_le64(at + 40);
    row->entry_count = load_le32(at + 48);
    row->index_crc = load_le32(at + 52);
    row->flags = load_le32(at + 56);
    memcpy(row->key, at + 60, MASTER_KEY_BYTES);
}

void log_footer_encode(uint8_t *at, const entry_log *log, uint64_t table_offset,
                       uint32_t table_crc) {
    memset(at, 0, LOG_FOOTER_BYTES);
    memcpy(at, FOOTER_MAGIC, sizeof FOOTER_MAGIC);
    store_le32(at + 12, LOG_VERSION);
    store_le64(at + 16, log->id);
    store_le64(at + 24, log->checkpoint);
    store_le64(at + 32, log->journal_file);
    store_le64(at + 40, table_offset);
    store_le32(at + 48, (uint32_t)log->row_count);
    store_le32(at + 52, table_crc);
    store_le64(at + 56, log->entries);
    store_le64(at + 64, log->bytes);
    store_le32(at + 8, crc32c(0, at + LOG_CRC_START, LOG_FOOTER_BYTES - LOG_CRC_START));
}

static void log_map_release(storage_pin *pin) {
    log_map *map = (log_map *)pin;
    if (map->bytes > 0)
        map->disk->unmap(map->disk->ctx, (void *)(uintptr_t)map->base, map->bytes);
    free(map);
}

/* Maps bytes of an open file, all of it when bytes is UINT64_MAX. */
static int log_map_fd(const disk_calls *disk, int fd, uint64_t bytes, log_map **out) {
    /* Never more than there is: a touch behind the end of a file is a signal, not an error. */
    int64_t size = disk->file_bytes(disk->ctx, fd);
    if (size < 0)
        return (int)size;
    if (bytes > (uint64_t)size)
        bytes = (uint64_t)size;
    log_map *map = calloc(1, sizeof *map);
    if (map == NULL)
        return -ENOMEM;
    void *base = NULL;
    int error = bytes == 0 ? 0 : disk->map(disk->ctx, fd, bytes, &base);
    if (error < 0) {
        free(map);
        return error;
    }
    map->base = base;
    map->bytes = bytes;
    map->disk = disk;
    map->pin.release = log_map_release;
    atomic_store(&map->pin.count, 1);
    *out = map;
    return 0;
}

int entry_log_map(const disk_calls *disk, int directory_fd, uint64_t id, uint64_t bytes,
                  log_map **out) {
    char name[LOG_NAME_BYTES];
    entry_log_name(name, id);
    int fd = disk->open(disk->ctx, directory_fd, name, O_RDONLY);
    if (fd < 0)
        return fd;
    int error = log_map_fd(disk, fd, bytes, out);
    disk->close(disk->ctx, fd);
    return error;
}

/* 1 when what a row says lies inside the file and makes sense. */
static int log_row_sound(const log_row *row, uint64_t bytes) {
    return row->ledger_id >= 0 && row->data_offset <= bytes &&
           row->data_bytes <= bytes - row->data_offset && row->index_offset <= bytes &&
           row->entry_count <= (bytes - row->index_offset) / LOG_ENTRY_BYTES &&
           (row->entry_count == 0 ||
            (row->first_entry >= 0 && row->first_entry <= row->last_entry));
}

/* Reads the header's checkpoint. 1, or 0 when the header is damaged. */
static int log_header_read(entry_log *log) {
    const uint8_t *block = log->map->base;
    if (log->map->bytes < BLOCK_BYTES || memcmp(block, LOG_MAGIC, sizeof LOG_MAGIC) != 0 ||
        crc32c(0, block + LOG_CRC_START, LOG_HEADER_CRC_END - LOG_CRC_START) !=
            load_le32(block + 8) ||
        load_le32(block + 12) != LOG_VERSION || load_le64(block + 16) != log->id)
        return 0;
    log->checkpoint = load_le64(block + 24);
    log->journal_file = load_le64(block + 32);
    return 1;
}

/* Reads footer and ledger table. 1, 0 when either is damaged, or -ENOMEM. */
static int log_table_read(entry_log *log) {
    const log_map *map = log->map;
    if (map->bytes < BLOCK_BYTES)
        return 0;
    const uint8_t *footer = map->base + map->bytes - LOG_FOOTER_BYTES;
    if (memcmp(footer, FOOTER_MAGIC, sizeof FOOTER_MAGIC) != 0 ||
        crc32c(0, footer + LOG_CRC_START, LOG_FOOTER_BYTES - LOG_CRC_START) !=
            load_le32(footer + 8) ||
        load_le32(footer + 12) != LOG_VERSION || load_le64(footer + 16) != log->id ||
        load_le64(footer + 64) != map->bytes)
        return 0;
    log->checkpoint = load_le64(footer + 24);
    log->journal_file = load_le64(footer + 32);
    uint64_t offset = load_le64(footer + 40), rows = load_le32(footer + 48);
    if (offset > map->bytes || rows > (map->bytes - offset) / LOG_ROW_BYTES ||
        crc32c(0, map->base + offset, rows * LOG_ROW_BYTES) != load_le32(footer + 52))
        return 0;
    log->rows = calloc(rows + 1, sizeof *log->rows);
    if (log->rows == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < rows; i++) {
        log_row_decode(map->base + offset + i * LOG_ROW_BYTES, &log->rows[i]);
        if (!log_row_sound(&log->rows[i], map->bytes)) {
            free(log->rows);
            log->rows = NULL;
            return 0;
        }
    }
    log->row_count = rows;
    log->entries = load_le64(footer + 56);
    return 1;
}

int entry_log_open(const disk_calls *disk, events *events, int directory_fd, uint64_t id,
                   entry_log **out) {
    entry_log *log = calloc(1, sizeof *log);
    if (log == NULL)
        return -ENOMEM;
    log->id = id;
    int error = entry_log_map(disk, directory_fd, id, UINT64_MAX, &log->map);
    if (error < 0) {
        free(log);
        return error;
    }
    log->bytes = log->map->bytes;
    int header = log_header_read(log);
    int table = log_table_read(log);
    if (table == 0) {
        events_add(events, EVENT_ERROR,
                   "entry log %016" PRIx64 ".log has a damaged index; it is read from its records",
                   id);
        log->damaged = !header;
        table = entry_log_rebuild(log, events);
    } else if (table > 0 && !header) {
        events_add(events, EVENT_WARNING,
                   "entry log %016" PRIx64 ".log has a damaged header; its footer serves instead",
                   id);
    }
    if (table < 0) {
        entry_log_free(log);
        return table;
    }
    for (size_t i = 0; i < log->row_count; i++)
        log->rows[i].log = log;
    log->live_rows = log->row_count;
    *out = log;
    return 0;
}

void entry_log_free(entry_log *log) {
    for (size_t i = 0; i < log->row_count; i++)
        free(log->rows[i].rebuilt);
    free(log->rows);
    if (log->draining != NULL)
        pin_drop(&log->draining->pin);
    if (log->map != NULL)
        pin_drop(&log->map->pin);
    free(log);
}

static const uint8_t *log_row_index(const log_row *row, const log_map *map) {
    return row->rebuilt != NULL ? row->rebuilt : map->base + row->index_offset;
}

void log_row_prepare(log_row *row, const log_map *map, events *events) {
    if (row->index_checked)
        return;
    size_t bytes = (size_t)row->entry_count * LOG_ENTRY_BYTES;
    const uint8_t *index = map->base + row->index_offset;
    int intact = row->entry_count == 0 ||
                 (map->disk->populate(map->disk->ctx, index, bytes) == 0 &&
                  crc32c(0, index, bytes) == row->index_crc);
    if (!intact) {
        events_add(events, EVENT_ERROR,
                   "entry log %016" PRIx64 ".log: the index of ledger %" PRId64
                   " is damaged; it is made anew from its records",
                   row->log->id, row->ledger_id);
        if (log_row_rebuild(row, map, events) < 0)
            return; /* without memory for it: as it is it must not be used, so try again later */
    }
    row->index_checked = 1;
}

uint32_t log_row_position(const log_row *row, const log_map *map, int64_t entry_id) {
    if (!row->index_checked)
        return row->entry_count;
    const uint8_t *index = log_row_index(row, map);
    /* Ids are mostly without gaps: try the distance from the first one. */
    uint64_t guess = (uint64_t)entry_id - (uint64_t)row->first_entry;
    if (entry_id >= row->first_entry && guess < row->entry_count &&
        (int64_t)load_le64(index + guess * LOG_ENTRY_BYTES) == entry_id)
        return (uint32_t)guess;
    uint32_t low = 0, high = row->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((int64_t)load_le64(index + (size_t)middle * LOG_ENTRY_BYTES) < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t log_row_entry(const log_row *row, const log_map *map, uint32_t number, log_place *out) {
    const uint8_t *slot = log_row_index(row, map) + (size_t)number * LOG_ENTRY_BYTES;
    out->offset = (uint64_t)load_le32(slot + 8) * RECORD_ALIGNMENT;
    out->length = load_le32(slot + 12);
    /* An index is checked before it is used, but a bound is cheaper than trust. */
    if (out->offset > map->bytes || record_bytes(out->length) > map->bytes - out->offset)
        out->length = 0;
    return (int64_t)load_le64(slot);
}

int log_record_check(const log_row *row, int64_t entry_id, uint32_t length, const uint8_t *at,
                     size_t available, const uint8_t **payload) {
    record r;
    if (length == 0 || !record_decode(at, available, record_seed(row->log->id, 0), &r) ||
        r.type != RECORD_ENTRY || r.ledger_id != row->ledger_id || r.entry_id != entry_id ||
        r.length != length || !record_payload_intact(&r))
        return 0;
    *payload = r.payload;
    return 1;
}
