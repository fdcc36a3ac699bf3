/*
 * warmer.h - a thread that touches memory before the owner uses it.
 *
 * The first write to a new huge page waits until the kernel has found and cleared two megabytes.
 * That takes milliseconds on a virtual machine and would delay the owner and all its connections.
 * So the thread touches the next piece when the owner has filled half of the current one. It does
 * not touch more, so that memory without use is not allocated.
 */
#ifndef PYXBROKER_WARMER_H
#define PYXBROKER_WARMER_H

#include "segment.h"

typedef struct warmer {
    segment_pool *pool;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    segment *ahead; /* held: touch its piece at `from`; NULL: nothing requested */
    size_t from;
    int fresh_wanted; /* touch the first piece of the segment that the pool returns next */
    int stopping;
    int running;
    /* Of the owner: */
    const uint8_t *next_ask; /* ask again when the active segment is filled up to here */
} warmer;

/* Starts the thread, which begins with the first piece of the pool's first segment. Returns 0 or
 * an error. */
int warmer_start(warmer *w, segment_pool *pool);

/* Reports that the active segment is filled up to `end`, or is new. Owner. */
void warmer_ask(warmer *w, segment *active, const uint8_t *end);

/* Returns 1 when the owner should call warmer_ask. */
static inline int warmer_is_due(const warmer *w, const uint8_t *end) {
    return end >= w->next_ask;
}

/* Stops the thread if it was started. */
void warmer_close(warmer *w);

#endif
