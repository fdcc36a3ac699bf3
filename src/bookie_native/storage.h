/*
 * storage.h - the disk storage of one bookie: journal, write cache, entry logs.
 *
 * The path of an entry: storage_add copies it into the active segment of the write cache, which is
 * the only copy in user space. storage_commit wakes the journal thread. That thread writes all
 * finished groups with one vectored write, syncs once, advances the durable sequence number and
 * signals the eventfd. The journal buffer *is* the write cache: readers get slices of the same
 * memory. When a generation of the cache is full, the flush thread writes it, sorted by (ledger,
 * entry), to a new sealed entry log. The journal files that it covers are then recycled.
 *
 * Threads. One thread, the owner (the event loop), calls every function here, unless its comment
 * says otherwise. The journal, flush and read threads are private and never hold the GIL. Only
 * storage_open and storage_close block on a disk.
 *
 * Errors. Functions return 0 (or a count, or a positive sequence number) or a negative errno.
 * storage_error names the values with a special meaning.
 */
#ifndef PYXBROKER_STORAGE_H
#define PYXBROKER_STORAGE_H

#include <stddef.h>
#include <stdint.h>

#include "disk.h"
#include "latency.h"

typedef struct storage storage;
typedef struct storage_pin storage_pin;

enum storage_error {
    STORAGE_NO_LEDGER = -2, /* -ENOENT: the ledger is unknown to this bookie */
    STORAGE_NO_ENTRY = -61, /* -ENODATA: the ledger is known, the entry is not stored */
    STORAGE_DAMAGED = -74,  /* -EBADMSG: the entry is stored but fails its checksum */
    STORAGE_FULL = -105,    /* -ENOBUFS: the write cache is full, or out of memory; retry after the
                             * next event */
    STORAGE_FENCED = -116,  /* -ESTALE: the ledger is fenced and the add is not a recovery add */
    STORAGE_FAILED = -5     /* -EIO: the journal failed; nothing more is written until a restart */
};

enum storage_add_flags {
    STORAGE_ADD_RECOVERY = 1,    /* accepted on a fenced ledger */
    STORAGE_ADD_HAS_CRC = 2      /* data_crc is the CRC32C of data and is not verified */
};

typedef struct storage_options {
    const char *journal_directory; /* journal files; created when missing */
    const char *ledger_directory;  /* entry logs; created when missing */
    uint64_t journal_file_bytes;   /* of one file (journalMaxSizeMB), a multiple of 4096 */
    uint64_t dirty_bytes_max;      /* a cache generation of this size is flushed */
    uint64_t cache_bytes_max;      /* all generations: active, flushing, clean (for readers) */
    uint32_t entry_bytes_max;      /* largest entry accepted, packaging included */
    int journal_sync_data;         /* 0 (journalSyncData=false): complete before any sync */
    int accept_loss;               /* 1: open although expected files are missing */
    const disk_calls *disk;        /* table of disk calls; NULL: the system's */
} storage_options;

/* A slice of one stored entry (packaging included), valid until it is unpinned. */
typedef struct entry_ref {
    int64_t entry_id;
    const uint8_t *data;
    uint32_t length;                 /* bytes */
    uint32_t from_disk;              /* 1: read from an entry log, 0: in the cache */
    storage_pin *pin;
} entry_ref;

typedef struct read_completion {
    uint64_t tag;                    /* as given to storage_read_submit */
    int64_t count;                   /* entries written to out, or a negative error */
} read_completion;

/* A message for the operator: damage found, a failed sync, a torn tail cut at start. */
typedef struct storage_event {
    int severity;                    /* 0 info, 1 warning, 2 error */
    char text[496];                  /* one sentence, UTF-8, NUL-terminated */
} storage_event;

typedef struct storage_stats {
    uint64_t adds, add_bytes;        /* accepted since open */
    uint64_t groups, syncs;          /* journal groups written, syncs done */
    uint64_t waiting_groups;         /* groups that are sealed, being written or being synced */
    uint64_t sync_ns_total, sync_ns_max;
    uint64_t journal_bytes;          /* written, padding included */
    uint64_t queue_adds;             /* added, not yet durable */
    uint64_t flushes, flush_bytes;
    uint64_t cache_bytes, dirty_bytes;
    uint64_t entry_logs, entry_log_bytes;
    uint64_t ledgers, entries;       /* entries: upper bound, for metrics */
    uint64_t cache_hits, disk_reads, disk_read_bytes, damaged_entries;
    uint64_t replayed_entries;       /* by the last storage_open */
    uint64_t trouble;                /* storage_trouble as a positive errno, 0: none */
} storage_stats;

typedef struct storage_latencies {
    latency_counts add;         /* of records, from the first of their group until durable */
    latency_counts sync;        /* of the journal's syncs */
    latency_counts read;        /* of successful requests of storage_read_submit */
    latency_counts failed_read; /* of failed requests */
} storage_latencies;

/* Opens the storage: creates missing directories, replays the journal, starts the threads. On
 * failure `error` holds a message. */
int storage_open(const storage_options *options, storage **out, char *error, size_t error_bytes);

/* Waits for the journal, stops the threads, frees all memory. All pins must have been dropped. If
 * flush != 0, also writes the dirty generations to entry logs, so that the next start has nothing
 * to replay. Returns the first error. */
int storage_close(storage *s, int flush);

/* Returns the eventfd that becomes readable when the durable sequence advances, a read completes,
 * space becomes free or an event is added. */
int storage_event_fd(const storage *s);

/* Adds one entry: a packaged header (digest.h; at least 16 bytes: ledger id, entry id, big-endian)
 * followed by data. Copies both. Returns the add's sequence number (> 0, increasing) or an error.
 * Adding an entry that is in the cache succeeds and changes nothing. An entry that is only in the
 * entry logs is stored again, and the newer copy is read from then on. */
int64_t storage_add(storage *s, const uint8_t *header, uint32_t header_length, const uint8_t *data,
                    uint32_t data_length, uint32_t data_crc, uint32_t flags);

/* Fences a ledger (creating it if unknown); durable like an add. Returns a sequence number or an
 * error. */
int64_t storage_fence(storage *s, int64_t ledger_id);

/* Stores the 20-byte master key of a ledger that has none. Returns a sequence number if the key was
 * stored now, 0 if the same key is stored already, -EACCES if the ledger has a different one. */
int64_t storage_master_key(storage *s, int64_t ledger_id, const uint8_t key[20]);

/* Hands all added records to the journal thread. Call once per batch of adds. */
void storage_commit(storage *s);

/* Returns the durable sequence: all adds up to it are durable. Any thread. */
uint64_t storage_durable_sequence(const storage *s);

/* Returns 0, or the negative errno of the journal's failure. After a failure adds are refused, and
 * entries that were not durable are dropped: reads and storage_last_entry behave as if they had
 * never been added. Durable entries are flushed to an entry log. Any thread. */
int storage_failure(const storage *s);

/* Returns 0, or the negative errno of a temporary condition that prevents writes. It is -ENOMEM
 * after an add failed for lack of memory. Other causes are retried: a failed flush, a failed write
 * of the journal, or a failed preparation of its next file. Each change signals the eventfd. A
 * permanent failure of the journal is returned by storage_failure instead. Any thread. */
int storage_trouble(const storage *s);

/* Takes the next event, oldest first. Returns 1, or 0 when none exists. After each signal of the
 * eventfd call it until it returns 0: it also does deferred work, such as a flush that had no
 * memory. */
int storage_next_event(storage *s, storage_event *out);

/* Reads consecutive entries first..last from the cache, beginning exactly at first: at most max
 * entries, and none after bytes_max is exceeded (but at least one). Returns the count; 0 when
 * first is not in the cache. */
int storage_read_cached(storage *s, int64_t ledger_id, int64_t first, int64_t last, int max,
                        uint64_t bytes_max, entry_ref *out);

/* Reads like storage_read_cached, but from the entry logs and the cache, on the read thread, which
 * verifies every checksum. `out` must stay valid until the completion with this tag is taken.
 * Returns 0 or an error. The count of the completion is the number of entries, or for `first` one
 * of:
 *   STORAGE_NO_LEDGER, STORAGE_NO_ENTRY: not stored, or the ledger was deleted meanwhile
 *   STORAGE_DAMAGED: the checksum is wrong, even after a second read that bypassed every cache; or
 *     the log was truncated before the entry
 *   any other error, including -EIO (the value of STORAGE_FAILED): a failing disk, or a lack of
 *     memory or descriptors. The entry may be fine: retry with increasing pauses. */
int storage_read_submit(storage *s, int64_t ledger_id, int64_t first, int64_t last, int max,
                        uint64_t bytes_max, entry_ref *out, uint64_t tag);

/* Takes completed reads. Returns how many were written to out. */
int storage_read_completions(storage *s, read_completion *out, int max);

/* Drops the pins of `count` refs. Any thread. */
void storage_unpin(entry_ref *refs, int count);

/* Returns the highest stored entry id, -1 for a ledger without entries, or STORAGE_NO_LEDGER. */
int64_t storage_last_entry(storage *s, int64_t ledger_id);

/* Returns 1 if the ledger is fenced, 0 if not, or STORAGE_NO_LEDGER. */
int storage_is_fenced(storage *s, int64_t ledger_id);

/* Lists ledger ids in batches, unordered, for garbage collection. Writes at most max >= 1 ids to
 * out and returns how many, possibly 0. *position is 0 at the start of a pass; pass it on until it
 * is 0 again. A pass lists every ledger that exists throughout, possibly more than once. Exception:
 * a ledger that a removal moves from the table's beginning to its end may be missed until the next
 * pass. When the table grows, the pass restarts. */
int storage_ledgers(const storage *s, uint64_t *position, int64_t *out, int max);

/* Deletes a ledger and frees its space: holes are punched into its entry logs, and the flush thread
 * removes a log without other ledgers. Not journaled: after a crash the ledger may exist again
 * until it is deleted again. */
int storage_delete_ledger(storage *s, int64_t ledger_id);

/* Asks the flush thread to write the active generation now. Does not affect
 * storage_durable_sequence. */
void storage_flush(storage *s);

/* Closes the active generation for a consistent copy of the storage: once the flush that this
 * starts is complete, the entry logs with an id below *end have exactly the entries added so far.
 * Returns 1 if it started a flush, 0 if every entry is flushed, -EAGAIN while another flush is
 * under way, or -ENOMEM. */
int storage_begin_copy(storage *s, uint64_t *end);

/* Call periodically with on != 0 while the journal's disk is short of space, and once with 0
 * afterwards. Removes spare journal files, and flushes when that allows more to be removed. */
void storage_save_space(storage *s, int on);

void storage_get_stats(const storage *s, storage_stats *out);
void storage_get_latencies(const storage *s, storage_latencies *out);

#endif
