/*
 * entry_log_index.h - the indexes of ledgers in entry logs, in memory while they are used.
 *
 * An index is read before its first use, checked, and kept until others need its room: so a ledger
 * of any size costs memory only while somebody reads it. All functions belong to the read thread.
 */
#ifndef PYXBROKER_ENTRY_LOG_INDEX_H
#define PYXBROKER_ENTRY_LOG_INDEX_H

#include "entry_log.h"

enum { LOG_INDEXES_BYTES_MAX = 32 << 20 };

typedef struct log_indexes {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    size_t bytes, bytes_max; /* of those in the list; the one in use may be larger than the limit */
    log_row *latest, *oldest; /* by last use; without those made from records, which stay */
} log_indexes;

void log_indexes_open(log_indexes *indexes, const disk_calls *disk, events *events,
                      int directory_fd, size_t bytes_max);

/* Makes sure that the row's index is in memory, until the next call for another row. An index that
 * is damaged, also when it is read anew, is made from the records. Returns 0 or an error
 * (entry_log_error), after which the same may be tried again. */
int log_indexes_need(log_indexes *indexes, log_row *row);

/* Lets go of what a log has in memory, before it is freed. */
void log_indexes_forget(log_indexes *indexes, entry_log *log);

/* The number in the row's index, which is in memory, of the entry or of the first one after it. */
uint32_t log_row_position(const log_row *row, int64_t entry_id);

/* The entry with that number in the index. */
int64_t log_row_entry(const log_row *row, uint32_t number, log_place *out);

#endif
