/*
 * segment.h - the memory that entries live in, and the pins that keep it.
 *
 * A segment is page-aligned memory that the owner fills once with journal groups; it is written to
 * the journal and read by readers where it lies. Nothing in it changes after a record was appended.
 * A pin is a counted hold on a segment; the cache holds one on each of its segments, every
 * entry_ref another. The last unpin puts a segment back into the pool, on any thread.
 */
#ifndef PYXBROKER_SEGMENT_H
#define PYXBROKER_SEGMENT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "storage.h"

struct storage_pin {
    _Atomic uint32_t count;
    void (*release)(storage_pin *pin); /* called once, by whoever drops the last hold */
};

typedef struct segment_pool segment_pool;

typedef struct segment {
    storage_pin pin; /* first: a pin of a segment is the segment */
    uint8_t *base;
    size_t bytes;
    size_t used; /* appended so far; under the journal's lock while the segment is active */
    size_t lost; /* what lies here and behind never became durable: the journal failed; owner */
    segment_pool *pool;
    struct segment *next; /* in the pool's list of free segments */
} segment;

/* segments_max bounds the memory; notify(arg) is called, on any thread, when a segment came back
 * after a refusal. Returns NULL without memory. */
segment_pool *segment_pool_open(size_t segment_bytes, size_t segments_max, void (*notify)(void *),
                                void *arg);

/* Frees the memory, that of segments still pinned when their last pin goes. */
void segment_pool_close(segment_pool *pool);

/* A segment with one hold and nothing used, of at least the given size; NULL when segments_max are
 * out (unless forced) or there is no memory. A larger one than the pool's is freed, not reused. */
segment *segment_take(segment_pool *pool, size_t bytes, int forced);

/* The same for one of the pool's size; *error says which of the two it was: STORAGE_FULL (notify
 * will be called) or -ENOMEM. */
segment *segment_take_or_why(segment_pool *pool, int *error);

size_t segment_pool_segment_bytes(const segment_pool *pool);

/* Whether fresh segments ask for huge pages (at first they do not): those cost fewer faults, and
 * fewer pages to pin for each direct write, but each is cleared in one go, for milliseconds on a
 * virtual machine, in which its processor does nothing else. Any thread. */
void segment_pool_use_huge(segment_pool *pool, int on);

/* What is touched at once where memory is touched ahead: a huge page. */
enum { SEGMENT_PIECE_BYTES = 2 << 20 };

/* Touches bytes from..from + bytes of a segment, as far as it goes, without changing any. Any
 * thread that has a hold. */
void segment_populate(segment *s, size_t from, size_t bytes);

/* Makes sure, as far as segments_max allows, that the next segment taken has its first piece
 * touched, or the beginning of it while pages are small. Any thread. */
void segment_pool_prepare(segment_pool *pool);

static inline void pin_hold(storage_pin *pin, uint32_t count) {
    atomic_fetch_add_explicit(&pin->count, count, memory_order_relaxed);
}

static inline void pin_drop(storage_pin *pin) {
    if (atomic_fetch_sub_explicit(&pin->count, 1, memory_order_acq_rel) == 1)
        pin->release(pin);
}

#endif
