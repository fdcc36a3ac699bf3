/*
 * warmer.h - a thread that touches memory before the owner comes to it.
 *
 * The first write to a fresh huge page waits until the kernel has found and cleared two megabytes,
 * milliseconds on a virtual machine, and with the owner all its connections would wait. So the
 * piece that follows is touched while the owner is still half a piece away from it. No further
 * ahead: memory that no message needs is not taken.
 */
#ifndef PYXBROKER_WARMER_H
#define PYXBROKER_WARMER_H

#include "segment.h"

typedef struct warmer {
    segment_pool *pool;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;
    segment *ahead; /* held: its piece from `from` on is wanted; NULL: nothing asked of one */
    size_t from;
    int fresh_wanted; /* the first piece of a segment that the pool will hand out next */
    int stopping;
    int running;
    /* The owner's: */
    const uint8_t *next_ask; /* once the active segment is filled up to here; NULL: not set */
} warmer;

/* Starts the thread, which begins with the first piece of the pool's first segment. Returns 0 or
 * an error. */
int warmer_start(warmer *w, segment_pool *pool);

/* The active segment is filled up to `end` (or has just become the active one). Owner. */
void warmer_ask(warmer *w, segment *active, const uint8_t *end);

/* 1 when the owner has come to where it should call warmer_ask. */
static inline int warmer_is_due(const warmer *w, const uint8_t *end) {
    return end >= w->next_ask;
}

/* Stops the thread, if it was started. */
void warmer_close(warmer *w);

#endif
