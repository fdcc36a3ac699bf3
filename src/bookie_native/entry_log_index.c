/* entry_log_index.c - loading, caching and searching indexes. */
#include "entry_log_index.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "entry_log_scan.h"

enum { LARGE_INDEX_BYTES = 1 << 20 };

static size_t log_row_index_bytes(const log_row *row) {
    return (size_t)row->entry_count * LOG_ENTRY_BYTES;
}

void log_indexes_open(log_indexes *indexes, const disk_calls *disk, events *events,
                      int directory_fd, size_t bytes_max) {
    *indexes = (log_indexes){
        .disk = disk, .events = events, .directory_fd = directory_fd, .bytes_max = bytes_max};
}

static void log_indexes_unlink(log_indexes *indexes, log_row *row) {
    *(row->later != NULL ? &row->later->earlier : &indexes->latest) = row->earlier;
    *(row->earlier != NULL ? &row->earlier->later : &indexes->oldest) = row->later;
    row->earlier = row->later = NULL;
}

static void log_indexes_link(log_indexes *indexes, log_row *row) {
    row->earlier = indexes->latest;
    *(row->earlier != NULL ? &row->earlier->later : &indexes->oldest) = row;
    indexes->latest = row;
}

static void log_indexes_drop(log_indexes *indexes, log_row *row) {
    log_indexes_unlink(indexes, row);
    indexes->bytes -= log_row_index_bytes(row);
    free(row->index);
    row->index = NULL;
}

/* Reads and checks an index. Returns 1, 0 when it is damaged, or an error. */
static int log_index_read(const log_indexes *indexes, log_row *row, unsigned how) {
    int fd = log_open_to_read(indexes->disk, indexes->directory_fd, row->log->id, how);
    if (fd < 0)
        return fd;
    log_piece piece;
    size_t bytes = log_row_index_bytes(row);
    int error = log_piece_read(indexes->disk, fd, how, row->index_offset, bytes, &piece);
    indexes->disk->close(indexes->disk->ctx, fd);
    if (error < 0)
        return error;
    if (piece.bytes < bytes || crc32c(0, piece.at, bytes) != row->index_crc) {
        log_piece_free(&piece);
        return 0;
    }
    memmove(piece.memory, piece.at, bytes);
    row->index = piece.memory;
    return 1;
}

/* Loads an index, or rebuilds it. */
static int log_index_load(log_indexes *indexes, log_row *row) {
    /* Large indexes bypass the page cache: copying them from there costs more than it saves. */
    int large = log_row_index_bytes(row) > LARGE_INDEX_BYTES;
    int intact = log_index_read(indexes, row, large ? LOG_READ_DIRECT : LOG_READ_ONCE);
    if (intact == 0)
        intact = log_index_read(indexes, row, LOG_READ_DIRECT);
    if (intact < 0)
        return intact;
    if (intact == 0)
        return log_row_rebuild(row, indexes->disk, indexes->directory_fd, indexes->events);
    log_indexes_link(indexes, row);
    indexes->bytes += log_row_index_bytes(row);
    while (indexes->bytes > indexes->bytes_max && indexes->oldest != row)
        log_indexes_drop(indexes, indexes->oldest);
    return 0;
}

int log_indexes_ensure(log_indexes *indexes, log_row *row) {
    if (row->entry_count == 0 || row->index_stays)
        return 0;
    if (row->index == NULL)
        return log_index_load(indexes, row);
    if (row != indexes->latest) {
        log_indexes_unlink(indexes, row);
        log_indexes_link(indexes, row);
    }
    return 0;
}

void log_indexes_release(log_indexes *indexes, entry_log *log) {
    for (size_t i = 0; i < log->row_count; i++)
        if (log->rows[i].index != NULL && !log->rows[i].index_stays)
            log_indexes_drop(indexes, &log->rows[i]);
}

uint32_t log_row_position(const log_row *row, int64_t entry_id) {
    /* Ids rarely have gaps, so the distance from the first id is usually the position. */
    uint64_t guess = (uint64_t)entry_id - (uint64_t)row->first_entry;
    if (entry_id >= row->first_entry && guess < row->entry_count &&
        (int64_t)load_le64(row->index + guess * LOG_ENTRY_BYTES) == entry_id)
        return (uint32_t)guess;
    uint32_t low = 0, high = row->entry_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if ((int64_t)load_le64(row->index + (size_t)middle * LOG_ENTRY_BYTES) < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

int64_t log_row_entry(const log_row *row, uint32_t number, log_place *out) {
    const uint8_t *slot = row->index + (size_t)number * LOG_ENTRY_BYTES;
    uint64_t log_bytes = row->log->bytes;
    out->offset = (uint64_t)load_le32(slot + 8) * RECORD_ALIGNMENT;
    out->length = load_le32(slot + 12);
    /* The index's checksum was verified; this check guards against a wrong writer. */
    if (out->offset > log_bytes || record_bytes(out->length) > log_bytes - out->offset)
        out->length = 0;
    return (int64_t)load_le64(slot);
}
