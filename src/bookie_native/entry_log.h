/*
 * entry_log.h - a sealed file of entries, sorted by ledger and entry, that carries its own index.
 *
 * A log is named <16 hex digits of its id>.log. It is written once, from front to back, under the
 * name of its id with ".tmp", synced, renamed, and the directory synced; it never changes
 * afterwards, except that the records of deleted ledgers are punched out. All integers are
 * little-endian.
 *
 *   header, the first block of 4096 bytes
 *     offset size
 *          0    8  magic "PYXELOG1"
 *          8    4  CRC32C of bytes 12..39
 *         12    4  format version, 1
 *         16    8  log id
 *         24    8  checkpoint: this log and those before it cover all journal groups up to this one
 *         32    8  id of the journal file in use when the checkpoint was taken, for people
 *   records (record.h) from offset 4096 on, sorted; their container number is the log id, salt 0.
 *     Before a ledger's entries stand its FENCE and MASTER_KEY records, if any
 *   index: for each ledger its entries, ascending, 16 bytes each
 *          0    8  entry id
 *          8    4  offset of the record in the file, in units of 8 bytes
 *         12    4  length of the packaged entry; 0: it was damaged before it came here
 *   ledger table: 80 bytes for each ledger, ascending
 *          0    8  ledger id
 *          8    8  first entry id
 *         16    8  last entry id; first > last when there are none
 *         24    8  offset of its first record
 *         32    8  bytes of its records
 *         40    8  offset of its index
 *         48    4  entries in its index
 *         52    4  CRC32C of its index
 *         56    4  flags; 1: fenced, 2: has a master key
 *         60   20  master key
 *   zeros, so that the file ends at a multiple of 4096 bytes
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
 * At open the footer and the ledger table are read and checked; a ledger's index is, before its
 * first use, and a record with every read. Where footer, table or an index is damaged, also
 * when it is read once more past the page cache, it is made anew from the records. An error of the
 * disk is not damage: nothing is made anew, the open or the read fails. A header or footer with the
 * right checksum and a higher version is neither: such a log is refused.
 *
 * Nothing here is mapped: a page that the disk cannot bring would end the process.
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
    ROW_DEAD, /* its ledger was deleted, its space is wanted back */
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
    /* The rest belongs to the read thread, once the log is open. */
    uint8_t index_stays; /* it was made from the records and is kept until the log is freed */
    uint8_t lost;        /* some entries that it had are in no index, for their records are gone */
    uint8_t *index;      /* LOG_ENTRY_BYTES for each entry; NULL: not in memory */
    struct log_row *earlier, *later; /* by last use (entry_log_index.h) */
    struct entry_log *log;
} log_row;

typedef struct entry_log {
    uint64_t id, bytes, checkpoint, journal_file;
    log_row *rows; /* ascending ledger ids */
    size_t row_count, live_rows;
    uint64_t entries;
    int punches_wanted;
    /* The read thread's: when an error was reported last (0: never); no read went well since. */
    uint64_t trouble_ns;
    int troubled;
    uint32_t newer;      /* the version that wrote it, when that is why it is refused */
    int unlisted; /* taken off the manifest of entry logs: it is to be removed; flush thread */
    int doubtful; /* its table is made from records and some may be missing: it is never removed */
    int damaged; /* neither footer nor header could tell the checkpoint */
    struct entry_log *next; /* the next older one */
} entry_log;

/* Where a found entry lies. */
typedef struct log_place {
    uint64_t offset;
    uint32_t length; /* 0: known to be damaged */
} log_place;

/* The error of a disk call as the answer to a read. Some numbers have a meaning of their own there
 * (storage_error), and disks and file systems know them too: ENODATA is a bad sector, EBADMSG and
 * ESTALE are a file system's. From a disk they say no more than EIO: the data was not read. */
int entry_log_error(int error);

/* The name of a log's file, and back: 1 when it is one. */
void entry_log_name(char name[LOG_NAME_BYTES], uint64_t id);
int entry_log_parse(const char *name, uint64_t *id);

/* Reads header, footer and ledger table of a log that has its name, rebuilding what is damaged and
 * saying so. Returns 0, or an error when the disk could not be read for two seconds or a newer
 * version wrote the log; then error holds a sentence. */
int entry_log_open(const disk_calls *disk, events *events, int directory_fd, uint64_t id,
                   entry_log **out, char *error, size_t error_bytes);

/* The read thread must have let go of its indexes (log_indexes_forget), or be gone. */
void entry_log_free(entry_log *log);

/* Checks the record of an entry with the length that the index has, at its place in memory with
 * the bytes available there. 1 and its payload, or 0 when it is damaged. */
int log_record_check(const log_row *row, int64_t entry_id, uint32_t length, const uint8_t *at,
                     size_t available, const uint8_t **payload);

/* Writes, syncs and names a new log with all that lives in the generation, and hands out what an
 * open would read from it. Returns 0 or an error, after which no file is left. Flush thread; frozen
 * generation. */
int entry_log_write(const disk_calls *disk, int directory_fd, uint64_t id, uint64_t journal_file,
                    const generation *g, entry_log **out);

/* Helpers shared by the files of this part. */
void log_header_encode(uint8_t *block, uint64_t id, uint64_t checkpoint, uint64_t journal_file);
void log_row_encode(uint8_t *at, const log_row *row);
void log_footer_encode(uint8_t *at, const entry_log *log, uint64_t table_offset,
                       uint32_t table_crc);

/* entry_log_rebuild.c: fills the rows of a log from its records, at open. Returns 0 or an error. */
int entry_log_rebuild(entry_log *log, const disk_calls *disk, int directory_fd, events *events);

/* The same for the index of one row whose table row is intact. Read thread. */
int log_row_rebuild(log_row *row, const disk_calls *disk, int directory_fd, events *events);

#endif
