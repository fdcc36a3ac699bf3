/*
 * flush.h - the flush thread: closed generations become entry logs, deleted ledgers' space comes
 * back.
 *
 * The owner hands over one frozen generation at a time. The thread waits until the journal has
 * synced it, writes and publishes its entry log, lets the journal files go that it covered, and
 * marks the generation clean. When that fails (a full disk, no memory) it says so once and tries
 * again until it goes well. When the journal has failed before all of the generation was durable,
 * the owner gets it back.
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
    reader *reader; /* told when logs were removed */
    events *events;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    generation *waiting;  /* at most one */
    generation *returned; /* the one that will never be durable as a whole */
    uint64_t remind_ns;   /* when the owner wants to be rung, 0: not at all */
    int sweep_wanted;
    int stopping;
    int running;
    _Atomic int error; /* of the last attempt; 0 when it went well */
    _Atomic uint64_t flushes, flush_bytes;
} flusher;

void flusher_open(flusher *f, log_list *logs, journal *j, journal_files *files, reader *reader,
                  events *events, int event_fd);
int flusher_start(flusher *f);

/* Hands over a frozen generation; there is none waiting. Owner. */
void flusher_flush(flusher *f, generation *g);

/* Writes one frozen generation, whose groups are durable. Returns 0, or an error after which it may
 * be tried again. Flush thread, or the owner once that has stopped. */
int flusher_write(flusher *f, generation *g);

/* The generation that came back, once; NULL when there is none. Owner. */
generation *flusher_returned(flusher *f);

/* Has the owner rung in a while, again and again as long as it says so. Owner. */
void flusher_remind(flusher *f, int on);

/* Some ledger was deleted. Owner. */
void flusher_sweep(flusher *f);

/* Finishes the waiting generation (one attempt), stops the thread. Returns the last error. */
int flusher_close(flusher *f);

#endif
