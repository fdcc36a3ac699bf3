/*
 * flush.h - the flush thread: writes closed generations to entry logs and frees the space of
 * deleted ledgers.
 *
 * The owner hands over one frozen generation at a time. The thread waits until the journal has
 * synced it, writes and publishes its entry log, releases the journal files that the log covers,
 * and marks the generation clean. On failure (a full disk, no memory) the thread reports the error
 * once and retries until it succeeds. When the journal fails before the whole generation is
 * durable, the thread returns the generation to the owner.
 */
#ifndef PYXBROKER_FLUSH_H
#define PYXBROKER_FLUSH_H

#include "index.h"
#include "journal.h"
#include "reader.h"

typedef struct flusher {
    log_list *logs;
    journal *journal;
    journal_files *files;
    reader *reader; /* notified when logs were removed */
    events *events;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    generation *waiting;  /* at most one */
    generation *returned; /* a generation that will never be durable as a whole */
    uint64_t remind_ns;   /* when to signal the owner, 0: never */
    int sweep_wanted;
    int stopping;
    int running;
    _Atomic int error; /* of the last attempt; 0 when it succeeded */
    _Atomic uint64_t flushes, flush_bytes;
} flusher;

void flusher_open(flusher *f, log_list *logs, journal *j, journal_files *files, reader *reader,
                  events *events, int event_fd);
int flusher_start(flusher *f);

/* Hands over a frozen generation. No generation may be waiting. Owner. */
void flusher_flush(flusher *f, generation *g);

/* Writes one frozen generation whose groups are durable. Returns 0, or an error after which the
 * caller may retry. Flush thread, or the owner after that thread has ended. */
int flusher_write(flusher *f, generation *g);

/* Takes the returned generation; NULL when none exists. Owner. */
generation *flusher_returned(flusher *f);

/* While `on`, signals the eventfd periodically. Owner. */
void flusher_remind(flusher *f, int on);

/* Requests a sweep of the entry logs, because a ledger was deleted. Owner. */
void flusher_sweep(flusher *f);

/* Attempts the waiting generation once more and stops the thread. Returns the last error. */
int flusher_close(flusher *f);

#endif
