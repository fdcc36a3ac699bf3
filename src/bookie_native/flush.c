/* flush.c - the flush thread. */
#define _GNU_SOURCE
#include "flush.h"

#include <errno.h>
#include <string.h>

#include "condition.h"

enum { FLUSH_RETRY_MS_MIN = 100, FLUSH_RETRY_MS_MAX = 5000, REMIND_MS = 100 };

void flusher_open(flusher *f, log_list *logs, journal *j, journal_files *files, reader *reader,
                  events *events, int event_fd) {
    memset(f, 0, sizeof *f);
    f->logs = logs;
    f->journal = j;
    f->files = files;
    f->reader = reader;
    f->events = events;
    f->event_fd = event_fd;
    f->sweep_wanted = logs->manifest_stale;
    pthread_mutex_init(&f->lock, NULL);
    condition_open(&f->work);
}

int flusher_write(flusher *f, generation *g) {
    int error = journal_wait(f->journal, g->last_group);
    if (error < 0)
        return error;
    entry_log *log = log_list_take_pending(f->logs, g);
    if (log == NULL)
        error = entry_log_write(f->logs->disk, f->logs->directory_fd, f->logs->next_id++,
                                atomic_load(&f->journal->file_id), g, &log);
    if (error < 0)
        return error;
    uint64_t bytes = log->bytes;
    error = log_list_publish(f->logs, log, g);
    if (error < 0)
        return error;
    journal_files_checkpoint(f->files, g->last_group);
    atomic_fetch_add(&f->flushes, 1);
    atomic_fetch_add(&f->flush_bytes, bytes);
    return 0;
}

/* Reports a failure, once for each errno, and the first success after it. */
static void flusher_report(flusher *f, int error) {
    int before = atomic_exchange(&f->error, error);
    if (error != before)
        event_ring(f->event_fd);
    if (error < 0 && error != before)
        events_add(f->events, EVENT_ERROR,
                   "the write cache could not be flushed to an entry log (%s); retrying%s",
                   strerror(-error),
                   disk_is_full(error) ? ", free some disk space" : "");
    else if (error == 0 && before < 0)
        events_add(f->events, EVENT_INFO, "the write cache can be flushed again");
}

static uint64_t flusher_now(const flusher *f) {
    return f->logs->disk->clock_ns(f->logs->disk->ctx);
}

/* Waits for work, at most `milliseconds` (0: no limit), and sends reminders that are due. Under the
 * lock. */
static void flusher_wait(flusher *f, unsigned milliseconds) {
    uint64_t now = flusher_now(f), ns = (uint64_t)milliseconds * 1000000u;
    if (f->remind_ns != 0 && f->remind_ns <= now) {
        event_ring(f->event_fd);
        f->remind_ns = now + REMIND_MS * 1000000u;
    }
    if (f->remind_ns != 0 && (ns == 0 || f->remind_ns - now < ns))
        ns = f->remind_ns - now;
    if (ns == 0) {
        pthread_cond_wait(&f->work, &f->lock);
        return;
    }
    struct timespec until = condition_after_ns(ns);
    pthread_cond_timedwait(&f->work, &f->lock, &until);
}

/* Attempts to write the waiting generation. Takes and releases the lock. Returns 0, or an error
 * after which the generation is still waiting. */
static int flusher_attempt(flusher *f, generation *g) {
    int error = flusher_write(f, g);
    int journal_failed = error < 0 && journal_durable_group(f->journal) < g->last_group;
    flusher_report(f, journal_failed ? 0 : error);
    pthread_mutex_lock(&f->lock);
    if (error == 0 || journal_failed)
        f->waiting = NULL;
    if (journal_failed)
        f->returned = g;
    if (error == 0)
        atomic_store_explicit(&g->state, GENERATION_CLEAN, memory_order_release);
    pthread_mutex_unlock(&f->lock);
    if (error == 0 || journal_failed)
        event_ring(f->event_fd);
    return journal_failed ? 0 : error;
}

/* Returns the pause after the next failure. */
static unsigned flusher_next_pause(unsigned milliseconds) {
    return milliseconds * 2 < FLUSH_RETRY_MS_MAX ? milliseconds * 2 : FLUSH_RETRY_MS_MAX;
}

static void *flusher_run(void *arg) {
    flusher *f = arg;
    unsigned retry_ms = FLUSH_RETRY_MS_MIN, sweep_ms = FLUSH_RETRY_MS_MIN;
    int unswept = 0; /* the last sweep was incomplete */
    pthread_mutex_lock(&f->lock);
    for (;;) {
        generation *g = f->waiting;
        int sweep = f->sweep_wanted || unswept;
        f->sweep_wanted = 0;
        pthread_mutex_unlock(&f->lock);
        int error = 0;
        if (g != NULL) {
            error = flusher_attempt(f, g);
            /* With a newer log, an older one without live ledgers can be removed. */
            sweep |= error == 0;
        }
        if (sweep) {
            unswept = log_list_sweep(f->logs);
            sweep_ms = !unswept ? FLUSH_RETRY_MS_MIN : flusher_next_pause(sweep_ms);
            reader_release_removed(f->reader);
        }
        pthread_mutex_lock(&f->lock);
        if (error == 0)
            retry_ms = FLUSH_RETRY_MS_MIN;
        /* A generation handed over during a sweep is written before the thread ends: otherwise a
         * later log would cover it. */
        if (f->stopping && (f->waiting == NULL || error < 0))
            break;
        if (f->waiting != NULL && error < 0) {
            flusher_wait(f, retry_ms);
            retry_ms = flusher_next_pause(retry_ms);
        } else if (f->waiting == NULL && !f->sweep_wanted) {
            flusher_wait(f, unswept ? sweep_ms : 0);
        }
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

int flusher_start(flusher *f) {
    int error = -pthread_create(&f->thread, NULL, flusher_run, f);
    f->running = error == 0;
    return error;
}

void flusher_flush(flusher *f, generation *g) {
    pthread_mutex_lock(&f->lock);
    f->waiting = g;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

generation *flusher_returned(flusher *f) {
    pthread_mutex_lock(&f->lock);
    generation *g = f->returned;
    f->returned = NULL;
    pthread_mutex_unlock(&f->lock);
    return g;
}

void flusher_remind(flusher *f, int on) {
    pthread_mutex_lock(&f->lock);
    f->remind_ns = on ? flusher_now(f) + REMIND_MS * 1000000u : 0;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

void flusher_sweep(flusher *f) {
    pthread_mutex_lock(&f->lock);
    f->sweep_wanted = 1;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

int flusher_close(flusher *f) {
    pthread_mutex_lock(&f->lock);
    f->stopping = 1;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    if (f->running)
        pthread_join(f->thread, NULL);
    f->running = 0;
    pthread_cond_destroy(&f->work);
    pthread_mutex_destroy(&f->lock);
    return atomic_load(&f->error);
}
