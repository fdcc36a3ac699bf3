/*
 * entry_log_index.h - the in-memory cache of the ledger indexes of entry logs.
 *
 * An index is read and checked before its first use, and evicted in order of last use. So a ledger
 * costs memory only while it is read. All functions belong to the read thread.
 */
#ifndef PYXBROKER_ENTRY_LOG_INDEX_H
#define PYXBROKER_ENTRY_LOG_INDEX_H

#include "entry_log.h"

enum { LOG_INDEXES_BYTES_MAX = 32 << 20 };

typedef struct log_indexes {
    const disk_calls *disk;
    events *events;
    int directory_fd;
    size_t bytes, bytes_max; /* of the listed indexes; the latest may exceed the limit alone */
    log_row *latest, *oldest; /* by last use; excludes rebuilt indexes, which stay */
} log_indexes;

void log_indexes_open(log_indexes *indexes, const disk_calls *disk, events *events,
                      int directory_fd, size_t bytes_max);

/* Loads the row's index if needed; it stays in memory until the next call for another row. An index
 * that is damaged when read a second time is rebuilt from the records. Returns 0 or an error
 * (entry_log_error), after which the caller may retry. */
int log_indexes_ensure(log_indexes *indexes, log_row *row);

/* Frees the indexes of a log, before the log is freed. */
void log_indexes_release(log_indexes *indexes, entry_log *log);

/* Returns the position in the row's loaded index of the entry, or of the first one after it. */
uint32_t log_row_position(const log_row *row, int64_t entry_id);

/* Returns the id of the entry at that position of the index, and its place. */
int64_t log_row_entry(const log_row *row, uint32_t number, log_place *out);

#endif
