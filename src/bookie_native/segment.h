/*
 * segment.h - the memory that holds entries, and the pins that keep it allocated.
 *
 * A segment is page-aligned memory that the owner fills once with journal groups. It is written to
 * the journal and read by readers in place. Its content does not change after a record is appended.
 * A pin is a counted hold on a segment. The cache has one hold on each of its segments, and every
 * entry_ref has one. Dropping the last hold returns the segment to the pool, on any thread.
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
    void (*release)(storage_pin *pin); /* called once, by the thread that drops the last hold */
};

typedef struct segment_pool segment_pool;

typedef struct segment {
    storage_pin pin; /* first, so that a pin can be cast to its segment */
    uint8_t *base;
    size_t bytes;
    size_t used; /* bytes appended; under the journal's lock while the segment is active */
    size_t lost; /* data from here on never became durable: the journal failed; owner */
    segment_pool *pool;
    struct segment *next; /* in the pool's list of free segments */
} segment;

/* segments_max limits the memory. notify(arg) is called, on any thread, when a segment is returned
 * after a refusal. Returns NULL when out of memory. */
segment_pool *segment_pool_open(size_t segment_bytes, size_t segments_max, void (*notify)(void *),
                                void *arg);

/* Frees the memory. Segments still pinned are freed when their last hold is dropped. */
void segment_pool_close(segment_pool *pool);

/* Returns an empty segment of at least the given size, with one hold. Returns NULL when out of
 * memory, or when segments_max are in use, unless forced. A segment larger than the pool's size is
 * freed after use, not pooled. */
segment *segment_take(segment_pool *pool, size_t bytes, int forced);

/* Returns a segment of the pool's size, or NULL and *error: STORAGE_FULL (notify will be called) or
 * -ENOMEM. */
segment *segment_take_or_error(segment_pool *pool, int *error);

size_t segment_pool_segment_bytes(const segment_pool *pool);

/* Sets whether new segments use huge pages; initially they do not. Huge pages cost fewer page
 * faults, and fewer pages to pin for each direct write. But the kernel clears each in one step,
 * which takes milliseconds on a virtual machine and blocks the processor. Any thread. */
void segment_pool_use_huge(segment_pool *pool, int on);

/* The unit of touching memory ahead: a huge page. */
enum { SEGMENT_PIECE_BYTES = 2 << 20 };

/* Touches bytes from..from + bytes of a segment, up to its end, without changing them. Any thread
 * that has a hold. */
void segment_populate(segment *s, size_t from, size_t bytes);

/* Touches the first piece of the segment that is taken next (only its beginning while pages are
 * small), unless segments_max prevents it. Any thread. */
void segment_pool_prepare(segment_pool *pool);

static inline void pin_hold(storage_pin *pin, uint32_t count) {
    atomic_fetch_add_explicit(&pin->count, count, memory_order_relaxed);
}

static inline void pin_drop(storage_pin *pin) {
    if (atomic_fetch_sub_explicit(&pin->count, 1, memory_order_acq_rel) == 1)
        pin->release(pin);
}

#endif
