/*
 * log_manifest.h - the names of the entry logs that must be there.
 *
 * A log that was deleted by mistake, or that a restore forgot, is otherwise never missed: its
 * entries are just not there, and the journal that had them is gone. The file "manifest" in the
 * directory of the logs names each of them. All integers are little-endian.
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
 *                 24  8  entries in it, also those of deleted ledgers
 *                zeros, or anything, to the end of the file
 *
 * It is written to "manifest.tmp", synced, renamed, and the directory synced. The order of things:
 * a log is synced and has its name, durably, before the manifest names it; the manifest names it,
 * durably, before the journal files that it covers may go; a log is removed from the manifest
 * before it is unlinked. So whatever a crash leaves, a log that the manifest names is there unless
 * somebody else took it, and a log that it does not name is taken in.
 *
 * "manifest.tmp" stays there with its blocks allocated, for the next time: removing logs must work
 * on a disk that has not one block left.
 */
#ifndef PYXBROKER_LOG_MANIFEST_H
#define PYXBROKER_LOG_MANIFEST_H

#include "disk.h"

enum { MANIFEST_VERSION = 1, MANIFEST_HEADER_BYTES = 32, MANIFEST_ROW_BYTES = 32 };

typedef struct manifest_row {
    uint64_t id, bytes, ledgers, entries;
} manifest_row;

typedef struct log_manifest {
    manifest_row *rows; /* ascending ids; to be freed */
    size_t count;
    uint32_t version;
} log_manifest;

enum manifest_found { MANIFEST_NONE, MANIFEST_DAMAGED, MANIFEST_NEWER, MANIFEST_GOOD };

/* Reads the manifest of a directory, trying for two seconds. Returns manifest_found or an error. */
int log_manifest_read(const disk_calls *disk, int directory_fd, log_manifest *out);

/* Writes one with these rows, durably. Returns 0 or an error, after which the old one is there or
 * the new one. */
int log_manifest_write(const disk_calls *disk, int directory_fd, const manifest_row *rows,
                       size_t count);

/* The row of a log, or NULL. */
const manifest_row *log_manifest_find(const log_manifest *manifest, uint64_t id);

#endif
