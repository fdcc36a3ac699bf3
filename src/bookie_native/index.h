/*
 * index.h - all entry logs of a bookie, and which of them hold a ledger.
 *
 * The owner asks and deletes, the flush thread adds, punches and removes, the read thread looks up.
 * One lock guards the lists; it is held for look-ups in memory only, never while a disk is touched.
 * A removed entry_log is freed by the read thread, the only one that uses rows without the lock.
 */
#ifndef PYXBROKER_INDEX_H
#define PYXBROKER_INDEX_H

#include <pthread.h>

#include "entry_log.h"
#include "id_map.h"

typedef struct log_list_totals {
    uint64_t logs, bytes, entries;
} log_list_totals;

typedef struct log_list {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    pthread_mutex_t lock;
    entry_log *newest;
    entry_log *removed; /* waiting to be freed by the read thread */
    id_map ledgers;     /* of ledger_rows */
    uint64_t next_id;
    uint64_t checkpoint; /* highest of all logs */
    int unsure;          /* a log was damaged, so the checkpoint may be too low */
} log_list;

/* Told about each ledger row found at open. */
typedef int (*log_row_fn)(void *arg, const log_row *row);

/* Makes an empty list. */
void log_list_prepare(log_list *list);

/* Opens every log of the directory and removes unfinished ones. Returns 0 or an error, for which
 * error holds a sentence. */
int log_list_open(log_list *list, const disk_calls *disk, events *events, int directory_fd,
                  log_row_fn found, void *arg, char *error, size_t error_bytes);

void log_list_close(log_list *list);

/* Opens a log that was just written and puts it first. Rows of ledgers that were deleted since the
 * generation was frozen are dead from the start. Flush thread. Returns 0 or an error. */
int log_list_publish(log_list *list, uint64_t id, const generation *g);

/* Forgets a ledger; its space is wanted back. Owner. Returns 1 when some log held it. */
int log_list_delete(log_list *list, int64_t ledger_id);

/* Punches and removes what may be. Flush thread. Returns 1 when something still waits for pins. */
int log_list_sweep(log_list *list);

/* The row of the newest log older than before_id (UINT64_MAX: any) that spans the entry, and a hold
 * on its mapping; NULL when there is none. Read thread. */
log_row *log_list_find(log_list *list, int64_t ledger_id, int64_t entry_id, uint64_t before_id,
                       log_map **map);

/* 1 while the row's ledger was not deleted. What is found wrong in a row that is not live is no
 * damage: its hole may have been punched, or its file removed. Any thread that may use the row. */
int log_list_is_live(log_list *list, const log_row *row);

/* Hands over the removed logs, a list to be freed. Read thread, while it uses no row. */
entry_log *log_list_take_removed(log_list *list);

log_list_totals log_list_count(log_list *list);

#endif
