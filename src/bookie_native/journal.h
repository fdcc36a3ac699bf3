/*
 * journal.h - group commit: what was appended becomes durable, one write and one sync at a time.
 *
 * The owner appends records to the open group at the end of the active segment. The journal thread
 * takes what was committed, writes it from where it lies, and syncs; while it does, the next group
 * collects. There is no timer. A group starts at a multiple of 4096 in its segment and in its file:
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
 * What a sync guarantees: when fdatasync has returned, all groups up to the last one written are
 * durable, and only then does the durable sequence move. A file is left only after its sync. So
 * when a group of a later write (or of a later file) is found, everything before it had been
 * durable: bad bytes before it are damage, bad bytes with nothing behind them are the torn tail of
 * a write that was never acknowledged.
 *
 * What a failure means: after a failed sync nobody knows what is on the disk, so the journal ends,
 * and with it whatever was not durable yet. So it does after a failed write, unless that was for
 * want of space (a file system that copies on write, a quota): nothing of it was acknowledged, so
 * it is written once more to the same place when there is room.
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
    JOURNAL_WRITE_BYTES_MAX = 8 << 20, /* of one write, unless a single group is larger */
    JOURNAL_WRITE_GROUPS_MAX = 256,
    GROUP_SEQUENCE_STEP = 1 << 20 /* skipped at each start */
};

typedef struct journal_group {
    segment *segment;
    size_t start, end; /* in the segment; end excludes the padding */
    uint32_t records;  /* 0: there is no such group */
    uint64_t sequence;
    uint64_t last_add; /* adds up to this one are in this or an earlier group */
    uint32_t seed;     /* of its records */
    uint64_t opened_ns; /* by the disk's clock, when its first record came */
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

    pthread_mutex_t lock; /* for all down to the atomics */
    pthread_cond_t work;  /* the thread may have something to do */
    pthread_cond_t done;  /* durable_group moved, or the journal failed */
    segment *active;
    journal_group open;
    int open_committed;     /* some record of the open group was committed */
    journal_group *sealed;  /* a ring */
    size_t sealed_first, sealed_count, sealed_capacity;
    uint64_t next_group;    /* sequence of the next group to open */
    uint64_t last_add;      /* sequence of the last add */
    uint64_t durable_group;
    int sleeping, writing, stopping;
    uint64_t groups, syncs, sync_ns_max, bytes;
    latency_counts add_latency;  /* of records: from their group's first until it was durable */
    latency_counts sync_latency;

    _Atomic uint64_t durable; /* adds up to this one are durable */
    _Atomic int failure;
    _Atomic int trouble;      /* the negative errno of a write that is tried again, or 0 */
    _Atomic uint64_t file_id; /* of the file in use, 0 before the first */

    journal_file *file;      /* the rest is the thread's own, until it has failed */
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
    int intact;          /* replay found nothing bad */
    uint64_t last_group; /* found by replay or in the entry logs */
} journal_options;

/* 1 and *out when a valid group header stands at block, 0 otherwise. */
int group_header_decode(const uint8_t *block, group_header *out);

/* Returns 0 or -ENOMEM; journal_free is due after both. */
int journal_open(journal *j, const journal_options *options);

/* Starts the thread, after which the first file is taken. Returns 0 or an error. */
int journal_start(journal *j);

/* Writes what was appended, retires the file and stops the thread. Returns the failure or 0. */
int journal_close(journal *j);

/* Frees what remains after journal_close. */
void journal_free(journal *j);

/* Appends a record whose payload is header followed by data. Returns where the payload lies, or
 * NULL when the active segment has no room: then call journal_use_segment and try again. Owner. */
const uint8_t *journal_append(journal *j, const record *r, const uint8_t *header,
                              uint32_t header_length, const uint8_t *data, uint32_t data_length);

/* Sequence of the last add that was appended. Owner. */
static inline uint64_t journal_last_add(const journal *j) {
    return j->last_add;
}

/* A sequence number for an add that needs no record: durable with what is before it. Owner. */
uint64_t journal_note(journal *j);

/* Seals the open group and goes on in s (NULL: in none for now). Returns 0 or -ENOMEM. Owner. */
int journal_use_segment(journal *j, segment *s, uint64_t *last_group);

/* Lets the thread take all that was appended. Owner. */
void journal_commit(journal *j);

/* Waits until the group is durable. Returns 0 or the failure. Any thread but the journal's. */
int journal_wait(journal *j, uint64_t group);

/* Groups up to this one are durable. Any thread. */
uint64_t journal_durable_group(journal *j);

/* After a failure: notes in each segment where that begins which never became durable. Owner. */
void journal_mark_lost(journal *j);

#endif
