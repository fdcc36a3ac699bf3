/*
 * reader.h - the read thread: reads entries from the entry logs and checks them.
 *
 * Requests are served in order. The thread reads a run of entries and checks each record, so that
 * the consumer of the entries neither waits for a disk nor meets damage. The thread does not wait
 * long for a failing disk: after a few attempts it returns the error, and the caller retries.
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
    int64_t count; /* the result */
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
    int failing; /* the last read attempt failed; read thread */
    int removed; /* logs were removed since the last check */
    int stopping;
    int running;
    _Atomic uint64_t disk_reads, disk_read_bytes, damaged_entries;
    latency_counts latency;        /* of requests, from their submission; under the lock */
    latency_counts failed_latency; /* of requests that failed */
} reader;

void reader_open(reader *r, log_list *logs, events *events, int event_fd);
int reader_start(reader *r);

/* Queues a request, or a result that is known already (answered != 0, count set). Returns 0 or
 * -ENOMEM. Owner. */
int reader_submit(reader *r, const read_request *request, int answered);

/* Requests that the memory and descriptors of removed logs be released. Any thread. */
void reader_release_removed(reader *r);

int reader_completions(reader *r, read_completion *out, int max);

/* Stops the thread without serving queued requests. Drops the pins of results not taken yet. */
void reader_close(reader *r);

#endif
