/*
 * journal.h - group commit: appended records become durable with one write and one sync per batch.
 *
 * The owner appends records to the open group at the end of the active segment. The journal thread
 * takes the committed groups, writes them directly from the segment, and syncs. Meanwhile the next
 * group fills. There is no timer. A group starts at a multiple of 4096 in its segment and its file:
 *
 *   offset size  little-endian
 *        0    4  magic "PBJG"
 *        4    4  CRC32C of bytes 8..63
 *        8    8  id of the journal file
 *       16    8  group sequence; grows by one, and by more at each start
 *       24    8  sequence of the first group of the same write
 *       32    8  salt of the records (record.h); their container number is the group sequence
 *       40    4  length in bytes, this header included, padding excluded
 *       44    4  records
 *       48    8  sequence of the group before this one, 0 for none
 *       56    4  flags; 1: the write before this one was synced before this one began,
 *                2: when this session began, all groups of earlier sessions were found intact
 *       60    4  zero
 *       64       records, then zeros up to a multiple of 4096
 *
 * Guarantee of a sync: when fdatasync returns, all groups up to the last one written are durable,
 * and only then does the durable sequence advance. The journal leaves a file only after its sync.
 * So a group of a later write (or a later file) proves that everything before it was durable.
 * Invalid bytes before it are damage. Invalid bytes with nothing after them are the torn tail of a
 * write that was never acknowledged.
 *
 * Failures: after a failed sync the state of the disk is unknown, so the journal ends, and what is
 * not durable is lost. A failed write ends the journal too, unless the cause is a full disk (a
 * copy-on-write file system, a quota): nothing of that write was acknowledged, so it is written
 * again to the same place when there is room.
 */
#ifndef PYXBROKER_JOURNAL_H
#define PYXBROKER_JOURNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "journal_files.h"
#include "latency.h"
#include "record.h"
#include "segment.h"

enum {
    GROUP_HEADER_BYTES = 64,
    GROUP_SYNCED = 1,
    GROUP_AFTER_INTACT = 2,
    JOURNAL_WRITE_BYTES_MAX = 8 << 20, /* per write, unless a single group is larger */
    JOURNAL_WRITE_GROUPS_MAX = 256,
    GROUP_SEQUENCE_STEP = 1 << 20 /* skipped at each start */
};

typedef struct journal_group {
    segment *segment;
    size_t start, end; /* in the segment; end excludes the padding */
    uint32_t records;  /* 0: the group does not exist */
    uint64_t sequence;
    uint64_t last_add; /* adds up to this one are in this or an earlier group */
    uint32_t seed;     /* of its records */
    uint64_t opened_ns; /* by the disk's clock, when its first record was appended */
} journal_group;

typedef struct group_header {
    uint64_t file_id, sequence, write_sequence, salt, previous;
    uint32_t length, records, flags;
} group_header;

typedef struct journal_batch journal_batch;

typedef struct journal {
    const disk_calls *disk;
    events *events;
    journal_files *files;
    int event_fd;
    int sync_data;
    uint32_t flags; /* of its groups */
    uint64_t salt;
    pthread_t thread;
    int running;

    pthread_mutex_t lock; /* for the fields before the atomics */
    pthread_cond_t work;  /* signaled when the thread may have something to do */
    pthread_cond_t done;  /* signaled when durable_group advanced or the journal failed */
    segment *active;
    journal_group open;
    int open_committed;     /* a record of the open group was committed */
    journal_group *sealed;  /* a ring buffer */
    size_t sealed_first, sealed_count, sealed_capacity;
    uint64_t next_group;    /* sequence of the next group to open */
    uint64_t last_add;      /* sequence of the last add */
    uint64_t durable_group;
    int sleeping, writing, stopping;
    uint64_t groups, syncs, sync_ns_max, bytes;
    latency_counts add_latency;  /* of records: from the first of their group until durable */
    latency_counts sync_latency;

    _Atomic uint64_t durable; /* adds up to this one are durable */
    _Atomic int failure;
    _Atomic int trouble;      /* negative errno of a write that is being retried, or 0 */
    _Atomic uint64_t file_id; /* of the file in use, 0 before the first */

    journal_file *file;      /* this and the fields below are the thread's own until it fails */
    journal_batch *batch;
    int unwritten;           /* the first group of the batch that is not durable */
    uint64_t offset;         /* in the file */
    uint64_t previous_group; /* the last one written */
} journal;

typedef struct journal_options {
    const disk_calls *disk;
    events *events;
    journal_files *files;
    int event_fd;
    int sync_data;
    int intact;          /* replay found no damage */
    uint64_t last_group; /* found by replay or in the entry logs */
} journal_options;

/* Returns 1 and *out when block holds a valid group header, 0 otherwise. */
int group_header_decode(const uint8_t *block, group_header *out);

/* Returns 0 or -ENOMEM. journal_free must be called in both cases. */
int journal_open(journal *j, const journal_options *options);

/* Starts the thread, which takes its first file. Returns 0 or an error. */
int journal_start(journal *j);

/* Writes all appended records, retires the file, stops the thread. Returns the failure or 0. */
int journal_close(journal *j);

/* Frees the remaining memory after journal_close. */
void journal_free(journal *j);

/* Appends a record whose payload is header followed by data. Returns the payload's address, or
 * NULL when the active segment has no room: call journal_use_segment and retry. Owner. */
const uint8_t *journal_append(journal *j, const record *r, const uint8_t *header,
                              uint32_t header_length, const uint8_t *data, uint32_t data_length);

/* Returns the sequence of the last appended add. Owner. */
static inline uint64_t journal_last_add(const journal *j) {
    return j->last_add;
}

/* Returns a sequence for an add that needs no record; durable with the adds before it. Owner. */
uint64_t journal_next_sequence(journal *j);

/* Seals the open group and continues in s (NULL: in none yet). Returns 0 or -ENOMEM. Owner. */
int journal_use_segment(journal *j, segment *s, uint64_t *last_group);

/* Lets the thread write everything appended so far. Owner. */
void journal_commit(journal *j);

/* Waits until the group is durable. Returns 0 or the failure. Not for the journal thread. */
int journal_wait(journal *j, uint64_t group);

/* Returns the last durable group. Any thread. */
uint64_t journal_durable_group(journal *j);

/* After a failure: marks in each segment the start of the data that never became durable. Owner. */
void journal_mark_lost(journal *j);

#endif
