/*
 * reader.h - the read thread: entries from the entry logs, checked and brought into memory.
 *
 * Requests are served in order. The thread brings a run in and checks each record, so that whoever
 * uses the entries later neither waits for a disk nor meets damage. It never waits long for a disk
 * that fails either: after a few attempts the error is the answer, and the request comes again.
 */
#ifndef PYXBROKER_READER_H
#define PYXBROKER_READER_H

#include "entry_log_index.h"
#include "index.h"
#include "latency.h"
#include "window.h"

typedef struct read_request {
    int64_t ledger_id, first, last;
    int max;
    uint64_t bytes_max;
    entry_ref *out;
    uint64_t tag;
    int64_t count; /* the answer */
    uint64_t submitted_ns; /* by the disk's clock */
    struct read_request *next;
} read_request;

typedef struct read_queue {
    read_request *first, **last;
} read_queue;

typedef struct reader {
    log_list *logs;
    events *events;
    windows windows;     /* read thread, like the indexes */
    log_indexes indexes;
    int event_fd;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    read_queue requests, done;
    int failing; /* the last attempt to read failed; read thread */
    int removed; /* logs were removed */
    int stopping;
    int running;
    _Atomic uint64_t disk_reads, disk_read_bytes, damaged_entries;
    latency_counts latency;        /* of requests, from their submission on; under the lock */
    latency_counts failed_latency; /* of those that were answered by an error */
} reader;

void reader_open(reader *r, log_list *logs, events *events, int event_fd);
int reader_start(reader *r);

/* Queues a request, or an answer that is already known (answered != 0, count set). Owner.
 * Returns 0 or -ENOMEM. */
int reader_submit(reader *r, const read_request *request, int answered);

/* Some logs were removed: whatever keeps their space is let go. Any thread. */
void reader_forget_removed(reader *r);

int reader_completions(reader *r, read_completion *out, int max);

/* Answers nothing more and stops the thread. Pins of answers that were not taken are returned. */
void reader_close(reader *r);

#endif
