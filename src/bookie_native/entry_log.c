/* entry_log.c - opening sealed logs and checking their records. */
#include "entry_log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "disk_retry.h"
#include "entry_log_scan.h"

enum {
    LOG_CRC_START = 12,
    LOG_HEADER_CRC_END = 40,
    LOG_TAIL_BYTES = 64 << 10 /* of one read at open: the footer and a table of some 800 ledgers */
};

static const char LOG_MAGIC[8] = {'P', 'Y', 'X', 'E', 'L', 'O', 'G', '1'};
static const char FOOTER_MAGIC[8] = {'P', 'Y', 'X', 'E', 'F', 'T', 'R', '1'};

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

/* Returns 1 when the values of a row are consistent and inside the file. */
static int log_row_is_valid(const log_row *row, uint64_t bytes) {
    return row->ledger_id >= 0 && row->data_offset <= bytes &&
           row->data_bytes <= bytes - row->data_offset && row->index_offset <= bytes &&
           row->entry_count <= (bytes - row->index_offset) / LOG_ENTRY_BYTES &&
           (row->entry_count == 0 ||
            (row->first_entry >= 0 && row->first_entry <= row->last_entry));
}

/* Results of log_inspect: the intact parts as flags, or LOG_NEWER. */
enum { LOG_HEADER_INTACT = 1, LOG_TABLE_INTACT = 2, LOG_INTACT = 3, LOG_NEWER = 4 };

/* Returns the version if it is newer and the checksum over bytes 12..end is valid, else 0. */
static uint32_t log_newer_version(const uint8_t *at, size_t end) {
    uint32_t version = load_le32(at + 12);
    return version > LOG_VERSION &&
                   crc32c(0, at + LOG_CRC_START, end - LOG_CRC_START) == load_le32(at + 8)
               ? version
               : 0;
}

/* Reads the checkpoint from a header. Returns LOG_HEADER_INTACT, LOG_NEWER or 0. */
static int log_header_decode(entry_log *log, const log_piece *piece) {
    const uint8_t *block = piece->at;
    if (piece->bytes < BLOCK_BYTES || memcmp(block, LOG_MAGIC, sizeof LOG_MAGIC) != 0)
        return 0;
    if ((log->newer = log_newer_version(block, LOG_HEADER_CRC_END)) != 0)
        return LOG_NEWER;
    if (crc32c(0, block + LOG_CRC_START, LOG_HEADER_CRC_END - LOG_CRC_START) !=
            load_le32(block + 8) ||
        load_le32(block + 12) != LOG_VERSION || load_le64(block + 16) != log->id)
        return 0;
    log->checkpoint = load_le64(block + 24);
    log->journal_file = load_le64(block + 32);
    return LOG_HEADER_INTACT;
}

/* Reads the rows of a table. Returns 1, 0 when it is damaged, or -ENOMEM. */
static int log_table_decode(entry_log *log, const uint8_t *table, uint64_t rows, uint32_t crc) {
    if (crc32c(0, table, rows * LOG_ROW_BYTES) != crc)
        return 0;
    log->rows = calloc(rows + 1, sizeof *log->rows);
    if (log->rows == NULL)
        return -ENOMEM;
    for (uint64_t i = 0; i < rows; i++) {
        log_row_decode(table + i * LOG_ROW_BYTES, &log->rows[i]);
        if (!log_row_is_valid(&log->rows[i], log->bytes)) {
            free(log->rows);
            log->rows = NULL;
            return 0;
        }
    }
    log->row_count = rows;
    return 1;
}

/* Reads the footer and the ledger table; tail is the end of the file. Returns LOG_TABLE_INTACT,
 * LOG_NEWER, 0 when either is damaged, or an error. */
static int log_tail_decode(entry_log *log, const disk_calls *disk, int fd, unsigned how,
                           const log_piece *tail) {
    if (tail->bytes < LOG_FOOTER_BYTES)
        return 0;
    const uint8_t *footer = tail->at + tail->bytes - LOG_FOOTER_BYTES;
    if (memcmp(footer, FOOTER_MAGIC, sizeof FOOTER_MAGIC) != 0)
        return 0;
    if ((log->newer = log_newer_version(footer, LOG_FOOTER_BYTES)) != 0)
        return LOG_NEWER;
    uint64_t offset = load_le64(footer + 40), rows = load_le32(footer + 48);
    if (crc32c(0, footer + LOG_CRC_START, LOG_FOOTER_BYTES - LOG_CRC_START) !=
            load_le32(footer + 8) ||
        load_le32(footer + 12) != LOG_VERSION || load_le64(footer + 16) != log->id ||
        load_le64(footer + 64) != log->bytes)
        return 0;
    log->checkpoint = load_le64(footer + 24);
    log->journal_file = load_le64(footer + 32);
    log->entries = load_le64(footer + 56);
    if (offset > log->bytes || rows > (log->bytes - offset) / LOG_ROW_BYTES)
        return 0;
    log_piece table = {0};
    const uint8_t *at = tail->at;
    uint64_t start = log->bytes - tail->bytes;
    if (offset < start) {
        int error = log_piece_read(disk, fd, how, offset, rows * LOG_ROW_BYTES, &table);
        if (error < 0)
            return error;
        at = table.at;
        start = offset;
    }
    int intact = offset >= start && (table.memory == NULL || table.bytes == rows * LOG_ROW_BYTES)
                     ? log_table_decode(log, at + (offset - start), rows, load_le32(footer + 52))
                     : 0;
    log_piece_free(&table);
    return intact > 0 ? LOG_TABLE_INTACT : intact;
}

/* Reads header, footer and table. Returns flags of the intact parts, or an error. */
static int log_inspect_open(entry_log *log, const disk_calls *disk, int fd, unsigned how) {
    int64_t bytes = disk_file_bytes_retrying(disk, fd);
    if (bytes < 0)
        return entry_log_error((int)bytes);
    log->bytes = (uint64_t)bytes;
    log_piece piece;
    int error = log_piece_read(disk, fd, how, 0, BLOCK_BYTES, &piece);
    if (error < 0)
        return error;
    int header = log_header_decode(log, &piece);
    log_piece_free(&piece);
    if (header == LOG_NEWER || bytes < BLOCK_BYTES)
        return header;
    uint64_t tail = log->bytes < LOG_TAIL_BYTES ? log->bytes : LOG_TAIL_BYTES;
    error = log_piece_read(disk, fd, how, log->bytes - tail, tail, &piece);
    if (error < 0)
        return error;
    int table = piece.bytes == tail ? log_tail_decode(log, disk, fd, how, &piece) : 0;
    log_piece_free(&piece);
    return table < 0 ? table : header | table;
}

static int log_inspect(entry_log *log, const disk_calls *disk, int directory_fd, unsigned how) {
    int fd = log_open_to_read(disk, directory_fd, log->id, how);
    if (fd < 0)
        return fd;
    free(log->rows);
    log->rows = NULL;
    log->row_count = 0;
    int found = log_inspect_open(log, disk, fd, how);
    disk->close(disk->ctx, fd);
    return found;
}

/* Reads the log, and rebuilds the table if it is damaged. Returns 0 or an error. */
static int log_load(entry_log *log, const disk_calls *disk, events *events, int directory_fd) {
    int found = log_inspect(log, disk, directory_fd, LOG_READ_RETRYING);
    if (found >= 0 && found < LOG_INTACT) /* the damage may be in the page cache only */
        found = log_inspect(log, disk, directory_fd, LOG_READ_RETRYING | LOG_READ_DIRECT);
    if (found < 0)
        return found;
    if (found & LOG_NEWER)
        return -EPROTONOSUPPORT;
    if (found == LOG_TABLE_INTACT)
        events_add(events, EVENT_WARNING,
                   "entry log %016" PRIx64 ".log has a damaged header; using its footer instead",
                   log->id);
    if (found & LOG_TABLE_INTACT)
        return 0;
    log->damaged = (found & LOG_HEADER_INTACT) == 0;
    log->entries = 0;
    int error = entry_log_rebuild(log, disk, directory_fd, events);
    log->doubtful |= log->row_count == 0;
    if (error == 0)
        events_add(events, EVENT_ERROR,
                   "entry log %016" PRIx64 ".log has a damaged index; it was rebuilt from the "
                   "records",
                   log->id);
    return error;
}

int entry_log_open(const disk_calls *disk, events *events, int directory_fd, uint64_t id,
                   entry_log **out, char *error, size_t error_bytes) {
    entry_log *log = calloc(1, sizeof *log);
    int status = -ENOMEM;
    if (log != NULL) {
        log->id = id;
        status = log_load(log, disk, events, directory_fd);
    }
    if (status == -EPROTONOSUPPORT)
        snprintf(error, error_bytes,
                 "entry log %016" PRIx64 ".log was written by a newer pyxbroker (format %" PRIu32
                 "; this one reads up to %d)",
                 id, log->newer, LOG_VERSION);
    else if (status < 0)
        snprintf(error, error_bytes, "entry log %016" PRIx64 ".log cannot be read: %s", id,
                 strerror(-status));
    if (status < 0) {
        if (log != NULL)
            entry_log_free(log);
        return status;
    }
    for (size_t i = 0; i < log->row_count; i++)
        log->rows[i].log = log;
    log->live_rows = log->row_count;
    *out = log;
    return 0;
}

void entry_log_free(entry_log *log) {
    for (size_t i = 0; i < log->row_count; i++)
        free(log->rows[i].index);
    free(log->rows);
    free(log);
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
