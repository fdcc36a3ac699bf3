/*
 * index.h - all entry logs of a bookie, and which of them hold a ledger.
 *
 * The owner asks and deletes, the flush thread adds, punches and removes, the read thread looks up.
 * One lock guards the lists; it is held for look-ups in memory only, never while a disk is touched.
 * A removed entry_log is freed by the read thread, the only one that uses rows without the lock.
 *
 * The holes of deleted ledgers are punched while the read thread may still read there. Nobody is
 * served a hole: it fails the checksum, and whoever finds that asks whether the row is still live
 * (log_list_is_live). A row is marked dead, under the lock, before its hole is punched, so the
 * answer is no. What was read before lies in memory of the reader's own.
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

/* What a sweep does to give space back; each can fail for a cause of its own. */
enum log_list_step { STEP_MANIFEST, STEP_UNLINK, STEP_PUNCH, STEP_COUNT };

typedef struct log_list {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    pthread_mutex_t lock;
    entry_log *newest;
    entry_log *removed; /* waiting to be freed by the read thread */
    id_map ledgers;     /* of ledger_rows */
    entry_log *pending;      /* flush thread, like the number of its generation */
    uint64_t pending_number;
    uint64_t next_id;
    uint64_t checkpoint; /* highest of all logs */
    int unsure; /* a log was damaged or is missing, so the checkpoint may be too low */
    int accept_loss; /* set before the open: missing logs are reported, and gone without */
    manifest_row *unread; /* ascending; gone without, but named by the manifest of entry logs */
    size_t unread_count;
    int manifest_stale; /* it is to be written; flush thread */
    int troubles[STEP_COUNT]; /* the last error of each step; flush thread */
} log_list;

/* Told about each ledger row found at open. */
typedef int (*log_row_fn)(void *arg, const log_row *row);

/* Makes an empty list. */
void log_list_prepare(log_list *list);

/* index_open.c: opens every log of the directory and removes unfinished ones. Refuses to when a log
 * that the manifest of entry logs names is missing. Returns 0 or an error, for which error holds a
 * sentence. */
int log_list_open(log_list *list, const disk_calls *disk, events *events, int directory_fd,
                  log_row_fn found, void *arg, char *error, size_t error_bytes);

void log_list_close(log_list *list);

/* Adds a log that was just written to the manifest of entry logs, and to the list as the newest.
 * Rows of ledgers that were deleted since the generation was frozen are dead from the start. Takes
 * the log over. Returns 0, after which the journal files that it covers may go, or an error, after
 * which the log is pending. Flush thread. */
int log_list_publish(log_list *list, entry_log *log, const generation *g);

/* The log of this generation that is pending: it is written, and only the manifest of entry logs
 * was not. NULL when there is none. Flush thread. */
entry_log *log_list_take_pending(log_list *list, const generation *g);

/* Forgets a ledger; its space is wanted back. Owner. Returns 1 when some log held it. */
int log_list_delete(log_list *list, int64_t ledger_id);

/* Punches and removes what may be. Returns 1 when something could not be done and is to be tried
 * again. Flush thread. */
int log_list_sweep(log_list *list);

/* The row of the newest log older than before_id (UINT64_MAX: any) that spans the entry; NULL when
 * there is none. It stays until this thread has freed the removed logs. Read thread. */
log_row *log_list_find(log_list *list, int64_t ledger_id, int64_t entry_id, uint64_t before_id);

/* 1 while the row's ledger was not deleted. What is found wrong in a row that is not live is no
 * damage: its hole may have been punched, or its file removed. Any thread that may use the row. */
int log_list_is_live(log_list *list, const log_row *row);

/* Hands over the removed logs, a list to be freed. Read thread, while it uses no row. */
entry_log *log_list_take_removed(log_list *list);

log_list_totals log_list_count(log_list *list);

/* For index_open.c: adds a live row to its ledger, which returns 0 or -ENOMEM; adds a log. Under
 * the lock. */
int log_list_add_row(log_list *list, log_row *row);
void log_list_put(log_list *list, entry_log *log);

#endif
