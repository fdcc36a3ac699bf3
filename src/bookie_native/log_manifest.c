/* log_manifest.c - reading and writing the list of entry logs. */
#include "log_manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "disk_retry.h"
#include "entry_log_scan.h"

enum { MANIFEST_CRC_START = 12 };

static const char MANIFEST_MAGIC[8] = {'P', 'Y', 'X', 'M', 'N', 'F', 'S', '1'};
static const char MANIFEST_NAME[] = "manifest", MANIFEST_NEXT[] = "manifest.tmp";

static void manifest_encode(uint8_t *at, const manifest_row *rows, size_t count) {
    memcpy(at, MANIFEST_MAGIC, sizeof MANIFEST_MAGIC);
    store_le32(at + 12, MANIFEST_VERSION);
    store_le64(at + 16, count);
    for (size_t i = 0; i < count; i++) {
        uint8_t *row = at + MANIFEST_HEADER_BYTES + i * MANIFEST_ROW_BYTES;
        store_le64(row, rows[i].id);
        store_le64(row + 8, rows[i].bytes);
        store_le64(row + 16, rows[i].ledgers);
        store_le64(row + 24, rows[i].entries);
    }
    store_le32(at + 24, crc32c(0, at + MANIFEST_HEADER_BYTES, count * MANIFEST_ROW_BYTES));
    store_le32(at + 8, crc32c(0, at + MANIFEST_CRC_START,
                              MANIFEST_HEADER_BYTES - MANIFEST_CRC_START));
}

/* Returns manifest_found or -ENOMEM. */
static int manifest_decode(const uint8_t *at, size_t bytes, log_manifest *out) {
    if (bytes < MANIFEST_HEADER_BYTES || memcmp(at, MANIFEST_MAGIC, sizeof MANIFEST_MAGIC) != 0)
        return MANIFEST_DAMAGED;
    if (crc32c(0, at + MANIFEST_CRC_START, MANIFEST_HEADER_BYTES - MANIFEST_CRC_START) !=
        load_le32(at + 8))
        return MANIFEST_DAMAGED;
    out->version = load_le32(at + 12);
    if (out->version > MANIFEST_VERSION)
        return MANIFEST_NEWER;
    uint64_t count = load_le64(at + 16);
    if (out->version != MANIFEST_VERSION ||
        count > (bytes - MANIFEST_HEADER_BYTES) / MANIFEST_ROW_BYTES ||
        crc32c(0, at + MANIFEST_HEADER_BYTES, count * MANIFEST_ROW_BYTES) != load_le32(at + 24))
        return MANIFEST_DAMAGED;
    out->rows = calloc(count + 1, sizeof *out->rows);
    if (out->rows == NULL)
        return -ENOMEM;
    out->count = (size_t)count;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *row = at + MANIFEST_HEADER_BYTES + i * MANIFEST_ROW_BYTES;
        out->rows[i] = (manifest_row){.id = load_le64(row),
                                      .bytes = load_le64(row + 8),
                                      .ledgers = load_le64(row + 16),
                                      .entries = load_le64(row + 24)};
    }
    return MANIFEST_GOOD;
}

/* Reads and decodes the file once. Returns manifest_found or an error. */
static int manifest_load(const disk_calls *disk, int directory_fd, unsigned how,
                         log_manifest *out) {
    int fd = disk_open_to_read(disk, directory_fd, MANIFEST_NAME, how);
    if (fd < 0)
        return fd == -ENOENT ? MANIFEST_NONE : fd;
    log_piece piece;
    int64_t bytes = disk_file_bytes_retrying(disk, fd);
    int found = bytes < 0 ? (int)bytes : log_piece_read(disk, fd, how, 0, (size_t)bytes, &piece);
    disk->close(disk->ctx, fd);
    if (found < 0)
        return found;
    found = manifest_decode(piece.at, piece.bytes, out);
    log_piece_free(&piece);
    return found;
}

int log_manifest_read(const disk_calls *disk, int directory_fd, log_manifest *out) {
    *out = (log_manifest){0};
    int found = manifest_load(disk, directory_fd, LOG_READ_RETRYING, out);
    if (found == MANIFEST_DAMAGED) /* the damage may be in the page cache only */
        found = manifest_load(disk, directory_fd, LOG_READ_RETRYING | LOG_READ_DIRECT, out);
    return found;
}

/* Allocates the space of the next manifest, plus one block. If this fails, the next write allocates
 * it. */
static void manifest_reserve(const disk_calls *disk, int directory_fd, size_t bytes) {
    int fd = disk->open(disk->ctx, directory_fd, MANIFEST_NEXT, O_RDWR | O_CREAT);
    if (fd < 0)
        return;
    disk->fallocate(disk->ctx, fd, 0, 0, (int64_t)(bytes + BLOCK_BYTES));
    disk->close(disk->ctx, fd);
}

int log_manifest_write(const disk_calls *disk, int directory_fd, const manifest_row *rows,
                       size_t count) {
    size_t bytes = round_up(MANIFEST_HEADER_BYTES + count * MANIFEST_ROW_BYTES, BLOCK_BYTES);
    uint8_t *encoded = calloc(1, bytes);
    if (encoded == NULL)
        return -ENOMEM;
    manifest_encode(encoded, rows, count);
    /* Not truncated: the allocated blocks are reserved for this. */
    int fd = disk->open(disk->ctx, directory_fd, MANIFEST_NEXT, O_RDWR | O_CREAT);
    int error = fd < 0 ? fd : disk_write_all(disk, fd, encoded, bytes, 0);
    if (error == 0)
        error = disk->fdatasync(disk->ctx, fd);
    if (fd >= 0)
        disk->close(disk->ctx, fd);
    if (error == 0)
        error = disk->rename(disk->ctx, directory_fd, MANIFEST_NEXT, MANIFEST_NAME);
    if (error == 0)
        error = disk->sync_directory(disk->ctx, directory_fd);
    if (error == 0)
        manifest_reserve(disk, directory_fd, bytes);
    free(encoded);
    return error;
}

const manifest_row *log_manifest_find(const log_manifest *manifest, uint64_t id) {
    size_t low = 0, high = manifest->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (manifest->rows[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < manifest->count && manifest->rows[low].id == id ? &manifest->rows[low] : NULL;
}
