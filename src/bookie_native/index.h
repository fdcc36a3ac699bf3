/*
 * index.h - the list of all entry logs of a bookie, and the logs of each ledger.
 *
 * The owner queries and deletes; the flush thread adds, punches holes and removes; the read thread
 * looks up. One lock guards the lists. It is held for in-memory operations only, never during disk
 * calls. The read thread frees removed logs, because it is the only thread that uses rows without
 * the lock.
 *
 * Holes are punched for deleted ledgers while the read thread may still read there. A hole is never
 * served: it fails the checksum, and the read thread then checks that the row is still live
 * (log_list_is_live). A row is marked dead under the lock before its hole is punched, so it is not.
 * Data that was read before is in the reader's own memory.
 */
#ifndef PYXBROKER_INDEX_H
#define PYXBROKER_INDEX_H

#include <pthread.h>

#include "entry_log.h"
#include "id_map.h"
#include "log_manifest.h"

typedef struct log_list_totals {
    uint64_t logs, bytes, entries;
} log_list_totals;

/* Steps of a sweep, which frees space. The error of each is reported separately. */
enum log_list_step { STEP_MANIFEST, STEP_UNLINK, STEP_PUNCH, STEP_COUNT };

typedef struct log_list {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    pthread_mutex_t lock;
    entry_log *newest;
    entry_log *removed; /* to be freed by the read thread */
    id_map ledgers;     /* of ledger_rows */
    entry_log *pending;      /* flush thread, like the number of its generation */
    uint64_t pending_number;
    uint64_t next_id;
    uint64_t checkpoint; /* highest of all logs */
    int unsure; /* a log is damaged or missing, so the checkpoint may be too low */
    int accept_loss; /* set before the open: missing logs are reported and do not fail the open */
    manifest_row *skipped; /* ascending; unreadable logs that the manifest must still name */
    size_t skipped_count;
    int manifest_stale; /* the manifest must be written; flush thread */
    int troubles[STEP_COUNT]; /* the last error of each step; flush thread */
} log_list;

/* Called for each ledger row found at open. */
typedef int (*log_row_fn)(void *arg, const log_row *row);

/* Initializes an empty list. */
void log_list_prepare(log_list *list);

/* index_open.c: opens every log of the directory and removes unfinished ones. Fails when a log
 * named by the manifest of entry logs is missing. Returns 0, or an error and a message in
 * `error`. */
int log_list_open(log_list *list, const disk_calls *disk, events *events, int directory_fd,
                  log_row_fn found, void *arg, char *error, size_t error_bytes);

void log_list_close(log_list *list);

/* Adds a newly written log to the manifest of entry logs, and to the list as the newest. Rows of
 * ledgers that were deleted since the generation was frozen start as dead. Takes ownership of the
 * log. Returns 0, after which the covered journal files may be removed, or an error, after which
 * the log is pending. Flush thread. */
int log_list_publish(log_list *list, entry_log *log, const generation *g);

/* Takes the pending log of this generation, whose file is written while the manifest of entry logs
 * is not. NULL when none exists. Flush thread. */
entry_log *log_list_take_pending(log_list *list, const generation *g);

/* Removes a ledger and requests its space back. Returns 1 when a log contained it. Owner. */
int log_list_delete(log_list *list, int64_t ledger_id);

/* Punches holes and removes logs. Returns 1 when a step failed and must be retried. Flush
 * thread. */
int log_list_sweep(log_list *list);

/* Returns the row of the newest log older than before_id (UINT64_MAX: any) whose range includes the
 * entry, or NULL. The row is valid until this thread frees the removed logs. Read thread. */
log_row *log_list_find(log_list *list, int64_t ledger_id, int64_t entry_id, uint64_t before_id);

/* Returns 1 unless the row's ledger was deleted. An error in a row that is not live is not damage:
 * its hole may have been punched or its file removed. Any thread that may use the row. */
int log_list_is_live(log_list *list, const log_row *row);

/* Takes the list of removed logs, to be freed. Read thread, while it uses no row. */
entry_log *log_list_take_removed(log_list *list);

log_list_totals log_list_count(log_list *list);

/* For index_open.c, under the lock: adds a live row to its ledger (returns 0 or -ENOMEM), or a
 * log to the list. */
int log_list_add_row(log_list *list, log_row *row);
void log_list_put(log_list *list, entry_log *log);

#endif
