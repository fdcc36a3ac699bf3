/*
 * storage.h - what one bookie keeps on disk: journal, write cache, entry logs.
 *
 * The road of one entry: storage_add copies it into the active segment of the write cache (the only
 * copy in user space), storage_commit wakes the journal thread, which writes every finished group
 * with one vector write, syncs once, advances the durable sequence number and rings the eventfd.
 * The journal buffer *is* the write cache: readers get slices of the same memory. When a generation
 * of the cache is full, the flush thread writes it, sorted by (ledger, entry), into a new sealed
 * entry log; the journal files that it covered are then recycled.
 *
 * Threads. Every function here is called by one thread, the owner (the event loop), unless its
 * comment says otherwise. The journal, flush and read threads are private and never hold the GIL.
 * Nothing here blocks on a disk except storage_open and storage_close.
 *
 * Errors. Functions return 0 (or a count, or a positive sequence number) or a negative errno.
 * Values with a meaning of their own are named in storage_error.
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
    STORAGE_NO_LEDGER = -2, /* -ENOENT: this bookie never saw the ledger */
    STORAGE_NO_ENTRY = -61, /* -ENODATA: the ledger is known, the entry is not here */
    STORAGE_DAMAGED = -74,  /* -EBADMSG: the entry is here but fails its checksum */
    STORAGE_FULL = -105,    /* -ENOBUFS: no room in the write cache, or no memory for more; retry
                             * after the next event */
    STORAGE_FENCED = -116,  /* -ESTALE: the ledger is fenced and the add is not a recovery add */
    STORAGE_FAILED = -5     /* -EIO: the journal failed; nothing more is written until a restart */
};

enum storage_add_flags {
    STORAGE_ADD_RECOVERY = 1,    /* accepted on a fenced ledger */
    STORAGE_ADD_HAS_CRC = 2      /* data_crc is the CRC32C of data and is trusted */
};

typedef struct storage_options {
    const char *journal_directory; /* journal files; created when missing */
    const char *ledger_directory;  /* entry logs; created when missing */
    uint64_t journal_file_bytes;   /* of one file (journalMaxSizeMB), a multiple of 4096 */
    uint64_t dirty_bytes_max;      /* a cache generation is flushed when it holds this much */
    uint64_t cache_bytes_max;      /* all generations: active, flushing, clean (for readers) */
    uint32_t entry_bytes_max;      /* largest entry accepted, packaging included */
    int journal_sync_data;         /* 0 (journalSyncData=false): complete before any sync */
    int accept_loss;               /* 1: open although files are missing that should be there */
    const disk_calls *disk;        /* the table of disk calls; NULL for the system's */
} storage_options;

/* A slice of one stored entry (packaging included), valid until it is unpinned. */
typedef struct entry_ref {
    int64_t entry_id;
    const uint8_t *data;
    uint32_t length;                 /* bytes */
    uint32_t from_disk;              /* 1: data was read from an entry log, 0: it is in the cache */
    storage_pin *pin;
} entry_ref;

typedef struct read_completion {
    uint64_t tag;                    /* as given to storage_read_submit */
    int64_t count;                   /* entries written to out, or a negative error */
} read_completion;

/* One thing an operator should know: damage found, a failed sync, a torn tail cut at start. */
typedef struct storage_event {
    int severity;                    /* 0 info, 1 warning, 2 error */
    char text[496];                  /* one sentence, UTF-8, NUL-terminated */
} storage_event;

typedef struct storage_stats {
    uint64_t adds, add_bytes;        /* accepted since open */
    uint64_t groups, syncs;          /* journal groups written, syncs done */
    uint64_t waiting_groups;         /* that are full, or being written or synced */
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
    latency_counts add;         /* of records, from their group's first until it was durable */
    latency_counts sync;        /* of the journal's syncs */
    latency_counts read;        /* of what storage_read_submit was asked for */
    latency_counts failed_read; /* of that, what was answered by an error */
} storage_latencies;

/* Opens (creating what is missing), replays the journal, starts the threads. On failure error holds
 * a sentence. */
int storage_open(const storage_options *options, storage **out, char *error, size_t error_bytes);

/* Waits for the journal, stops the threads, frees all. Pins must have been returned. flush != 0:
 * also writes the dirty generations to entry logs, so that the next start has nothing to replay.
 * Returns the first error. */
int storage_close(storage *s, int flush);

/* The eventfd that becomes readable when the durable sequence, a read, free space or an event
 * changed. */
int storage_event_fd(const storage *s);

/* Adds one entry: packaged header (digest.h; at least 16 bytes: ledger id, entry id, big-endian)
 * followed by data. Copies both. Returns the add's sequence number (> 0, growing) or an error.
 * An entry that is already in the cache is accepted again and changes nothing; one that is only in
 * the entry logs is stored once more, and the newer copy is read from then on. */
int64_t storage_add(storage *s, const uint8_t *header, uint32_t header_length, const uint8_t *data,
                    uint32_t data_length, uint32_t data_crc, uint32_t flags);

/* Fences a ledger (creating it when unknown); durable like an add. Returns a sequence number or an
 * error. */
int64_t storage_fence(storage *s, int64_t ledger_id);

/* Stores the 20-byte master key on first sight of a ledger. Returns 0 when it is already the stored
 * one, a sequence number when it was stored now, -EACCES when the ledger has another one. */
int64_t storage_master_key(storage *s, int64_t ledger_id, const uint8_t key[20]);

/* Hands everything added so far to the journal thread. Call once per run of adds. */
void storage_commit(storage *s);

/* Every add with a sequence number up to this one is durable. Any thread. */
uint64_t storage_durable_sequence(const storage *s);

/* 0, or the negative errno with which the journal failed. From then on adds are refused, and what
 * was not durable is forgotten: reads and storage_last_entry answer as if it had never been added.
 * What was durable goes to an entry log. Any thread. */
int storage_failure(const storage *s);

/* 0, or the negative errno because of which nothing more can be stored at this moment: that of the
 * last flush, of preparing the next journal file, of a write of the journal that is tried again, or
 * -ENOMEM when there was no memory for an add. It is 0 again when that went well. Each change rings
 * the eventfd. The end of the journal is not among it: storage_failure tells that. Any thread. */
int storage_trouble(const storage *s);

/* Takes the next operator event, oldest first; returns 1, or 0 when there is none. Call it after
 * each ring until then: it also does what was put off, like a flush that had no memory. */
int storage_next_event(storage *s, storage_event *out);

/* Reads the consecutive entries first..last that are in the cache, starting at first exactly; at
 * most max of them, and no more after bytes_max is passed (at least one). Returns the count; 0:
 * first is not in the cache. */
int storage_read_cached(storage *s, int64_t ledger_id, int64_t first, int64_t last, int max,
                        uint64_t bytes_max, entry_ref *out);

/* The same from the entry logs (and the cache), by the read thread, which checks every checksum.
 * out stays the caller's until the completion with this tag was taken. Returns 0 or an error.
 * Completion counts: as above, or for first itself one of
 *   STORAGE_NO_LEDGER, STORAGE_NO_ENTRY: it is not here, or its ledger was deleted meanwhile
 *   STORAGE_DAMAGED: its checksum is wrong, also when it was read anew past every cache; or its log
 *     has become shorter and ends before it
 *   any other, -EIO (which is STORAGE_FAILED's number) among them: a failing disk, or the want of
 *     memory or descriptors, says nothing about the entry. Try again, later and less often. */
int storage_read_submit(storage *s, int64_t ledger_id, int64_t first, int64_t last, int max,
                        uint64_t bytes_max, entry_ref *out, uint64_t tag);

/* Takes finished reads; returns how many were written to out. */
int storage_read_completions(storage *s, read_completion *out, int max);

/* Returns the pins of count refs. Any thread. */
void storage_unpin(entry_ref *refs, int count);

/* Highest entry id stored; -1: the ledger is known but has none; STORAGE_NO_LEDGER. */
int64_t storage_last_entry(storage *s, int64_t ledger_id);

/* 1 fenced, 0 not, STORAGE_NO_LEDGER. */
int storage_is_fenced(storage *s, int64_t ledger_id);

/* Some ledger ids, in no order, for garbage collection: at most max >= 1 go to out; returns how
 * many, possibly none. *position is 0 at first, then what the call before made it, until it is 0
 * again. A pass sees every ledger that is there all the while, once or more often; only what the
 * removal of another one moves from the table's beginning to its end may be left for the next pass.
 * When the table has grown meanwhile, the pass begins anew. */
int storage_ledgers(const storage *s, uint64_t *position, int64_t *out, int max);

/* Forgets a ledger and frees its space (punched out of its entry logs; a log with nothing left is
 * removed by the flush thread). Not journaled: after a crash the ledger may be back until it is
 * deleted again. */
int storage_delete_ledger(storage *s, int64_t ledger_id);

/* Asks the flush thread to write the active generation now. storage_durable_sequence is not
 * affected. */
void storage_flush(storage *s);

/* While the journal's disk is short of space (on != 0): removes spare journal files, and flushes
 * when that frees further ones. Called at intervals meanwhile, and with 0 afterwards. */
void storage_save_space(storage *s, int on);

void storage_get_stats(const storage *s, storage_stats *out);
void storage_get_latencies(const storage *s, storage_latencies *out);

#endif
