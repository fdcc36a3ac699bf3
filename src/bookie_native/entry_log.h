/*
 * entry_log.h - a sealed file of entries, sorted by ledger and entry, with its own index.
 *
 * A log is named <16 hex digits of its id>.log. It is written once, sequentially, to that name
 * with ".tmp" appended, then synced and renamed, and the directory is synced. It does not change
 * afterwards, except that holes are punched for the records of deleted ledgers. All integers are
 * little-endian.
 *
 *   header, the first block of 4096 bytes
 *     offset size
 *          0    8  magic "PYXELOG1"
 *          8    4  CRC32C of bytes 12..39
 *         12    4  format version, 1
 *         16    8  log id
 *         24    8  checkpoint: this log and earlier ones cover all journal groups up to this one
 *         32    8  id of the journal file in use at the checkpoint; informational
 *   records (record.h) from offset 4096, sorted; their container number is the log id, the salt 0.
 *     The FENCE and MASTER_KEY records of a ledger, if any, precede its entries
 *   index: for each ledger its entries, ascending, 16 bytes each
 *          0    8  entry id
 *          8    4  offset of the record in the file, in units of 8 bytes
 *         12    4  length of the packaged entry; 0: the entry was damaged already before
 *   ledger table: 80 bytes for each ledger, ascending
 *          0    8  ledger id
 *          8    8  first entry id
 *         16    8  last entry id; first > last when it has none
 *         24    8  offset of its first record
 *         32    8  bytes of its records
 *         40    8  offset of its index
 *         48    4  entries in its index
 *         52    4  CRC32C of its index
 *         56    4  flags; 1: fenced, 2: has a master key
 *         60   20  master key
 *   zeros, so that the file size is a multiple of 4096 bytes
 *   footer, the last 128 bytes
 *          0    8  magic "PYXEFTR1"
 *          8    4  CRC32C of bytes 12..127
 *         12    4  format version, 1
 *         16    8  log id
 *         24    8  checkpoint (as in the header)
 *         32    8  journal file id (as in the header)
 *         40    8  offset of the ledger table
 *         48    4  ledgers in the table
 *         52    4  CRC32C of the table
 *         56    8  entries
 *         64    8  file size in bytes
 *         72       zeros
 *
 * The footer and the ledger table are read and checked when the log is opened, a ledger's index
 * before its first use, and a record at every read. A damaged part is read a second time, bypassing
 * the page cache. If it is still damaged, it is rebuilt from the records. A disk error is not
 * damage: the open or the read fails and nothing is rebuilt. A header or footer with a valid
 * checksum and a higher version is not damage either: such a log is refused.
 *
 * Files are never mapped: SIGBUS for an unreadable page would end the process.
 */
#ifndef PYXBROKER_ENTRY_LOG_H
#define PYXBROKER_ENTRY_LOG_H

#include "cache.h"
#include "disk.h"
#include "events.h"
#include "record.h"
#include "segment.h"

enum {
    LOG_VERSION = 1,
    LOG_FOOTER_BYTES = 128,
    LOG_ROW_BYTES = 80,
    LOG_ENTRY_BYTES = 16,
    LOG_NAME_BYTES = 32,
    LOG_FENCED = 1,
    LOG_HAS_KEY = 2
};

enum log_row_state {
    ROW_LIVE,
    ROW_DEAD, /* its ledger was deleted; its space is to be freed */
    ROW_PUNCHED
};

struct entry_log;

/* One ledger's part of a log. */
typedef struct log_row {
    int64_t ledger_id, first_entry, last_entry;
    uint64_t data_offset, data_bytes, index_offset;
    uint32_t entry_count, index_crc, flags;
    uint8_t key[MASTER_KEY_BYTES];
    uint8_t state; /* log_row_state; under the list's lock */
    /* The fields below belong to the read thread once the log is open. */
    uint8_t index_stays; /* the index was rebuilt from the records; kept until the log is freed */
    uint8_t lost;        /* some of its entries are not in the index: their records are damaged */
    uint8_t *index;      /* LOG_ENTRY_BYTES for each entry; NULL: not in memory */
    struct log_row *earlier, *later; /* in order of last use (entry_log_index.h) */
    struct entry_log *log;
} log_row;

typedef struct entry_log {
    uint64_t id, bytes, checkpoint, journal_file;
    log_row *rows; /* ascending ledger ids */
    size_t row_count, live_rows;
    uint64_t entries;
    int punches_wanted;
    /* Of the read thread: the time of the last reported error (0: none), and 1 while no read has
     * succeeded since. */
    uint64_t trouble_ns;
    int troubled;
    uint32_t newer;      /* the unsupported version, when the log is refused because of it */
    int unlisted; /* no longer in the manifest of entry logs, to be removed; flush thread */
    int doubtful; /* its table was rebuilt and may be incomplete: the log is never removed */
    int damaged; /* the checkpoint could be read from neither footer nor header */
    struct entry_log *next; /* the next older one */
} entry_log;

/* The location of an entry. */
typedef struct log_place {
    uint64_t offset;
    uint32_t length; /* 0: known to be damaged */
} log_place;

/* Translates the error of a disk call into the result of a read. Some errno values have a meaning
 * of their own there (storage_error), but disks and file systems return them too: ENODATA for a bad
 * sector, EBADMSG and ESTALE from file systems. From a disk they mean EIO: no data was read. */
int entry_log_error(int error);

/* Formats and parses file names of logs. entry_log_parse returns 1 and *id, or 0. */
void entry_log_name(char name[LOG_NAME_BYTES], uint64_t id);
int entry_log_parse(const char *name, uint64_t *id);

/* Reads header, footer and ledger table of a log, rebuilds and reports what is damaged. Returns 0,
 * or an error when the disk could not be read for two seconds or a newer version wrote the log;
 * then error holds a message. */
int entry_log_open(const disk_calls *disk, events *events, int directory_fd, uint64_t id,
                   entry_log **out, char *error, size_t error_bytes);

/* The read thread must have released the log's indexes (log_indexes_release) or have ended. */
void entry_log_free(entry_log *log);

/* Checks the record of an entry at `at`, where `available` bytes are in memory; length is the one
 * in the index. Returns 1 and the payload, or 0 when the record is damaged. */
int log_record_check(const log_row *row, int64_t entry_id, uint32_t length, const uint8_t *at,
                     size_t available, const uint8_t **payload);

/* Writes a new log with all ledgers of the generation that are not deleted, syncs and renames it.
 * *out is the log as entry_log_open would return it. Returns 0, or an error after which no file
 * is left. Flush thread; frozen generation. */
int entry_log_write(const disk_calls *disk, int directory_fd, uint64_t id, uint64_t journal_file,
                    const generation *g, entry_log **out);

/* Helpers shared by the entry_log files. */
void log_header_encode(uint8_t *block, uint64_t id, uint64_t checkpoint, uint64_t journal_file);
void log_row_encode(uint8_t *at, const log_row *row);
void log_footer_encode(uint8_t *at, const entry_log *log, uint64_t table_offset,
                       uint32_t table_crc);

/* entry_log_rebuild.c: rebuilds the rows of a log from its records. Returns 0 or an error. */
int entry_log_rebuild(entry_log *log, const disk_calls *disk, int directory_fd, events *events);

/* Rebuilds the index of one row whose entry in the ledger table is intact. Read thread. */
int log_row_rebuild(log_row *row, const disk_calls *disk, int directory_fd, events *events);

#endif
