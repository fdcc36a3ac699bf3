/*
 * log_manifest.h - the list of entry logs that must exist.
 *
 * Without it the storage would not notice a log that was deleted by mistake or left out of a
 * restore: its entries are missing, and the journal that contained them is gone. The file
 * "manifest" in the ledger directory lists every log. All integers are little-endian.
 *
 *   offset size
 *        0    8  magic "PYXMNFS1"
 *        8    4  CRC32C of bytes 12..31
 *       12    4  format version, 1
 *       16    8  number of logs
 *       24    4  CRC32C of the rows
 *       28    4  zero
 *       32       rows: 32 bytes for each log, ascending
 *                  0  8  log id
 *                  8  8  file size in bytes
 *                 16  8  ledgers in it that were not deleted when this was written
 *                 24  8  entries in it, including those of deleted ledgers
 *                zeros, or arbitrary bytes, up to the end of the file
 *
 * The manifest is written to "manifest.tmp", synced and renamed, and the directory is synced. The
 * order of steps: a log is synced and renamed, durably, before the manifest lists it. The manifest
 * lists it, durably, before the journal files that it covers are released. A log is removed from
 * the manifest before it is unlinked. So after a crash a listed log exists, unless it was removed
 * from outside, and a log that is not listed is adopted.
 *
 * "manifest.tmp" then stays, with its blocks allocated, for the next write: removing logs must
 * work on a disk without a single free block.
 */
#ifndef PYXBROKER_LOG_MANIFEST_H
#define PYXBROKER_LOG_MANIFEST_H

#include "disk.h"

enum { MANIFEST_VERSION = 1, MANIFEST_HEADER_BYTES = 32, MANIFEST_ROW_BYTES = 32 };

typedef struct manifest_row {
    uint64_t id, bytes, ledgers, entries;
} manifest_row;

typedef struct log_manifest {
    manifest_row *rows; /* ascending ids; freed by the caller */
    size_t count;
    uint32_t version;
} log_manifest;

enum manifest_found { MANIFEST_NONE, MANIFEST_DAMAGED, MANIFEST_NEWER, MANIFEST_GOOD };

/* Reads the manifest, retrying for two seconds. Returns manifest_found or an error. */
int log_manifest_read(const disk_calls *disk, int directory_fd, log_manifest *out);

/* Writes a manifest with these rows, durably. Returns 0, or an error after which either the old or
 * the new manifest exists. */
int log_manifest_write(const disk_calls *disk, int directory_fd, const manifest_row *rows,
                       size_t count);

/* Returns the row of a log, or NULL. */
const manifest_row *log_manifest_find(const log_manifest *manifest, uint64_t id);

#endif
