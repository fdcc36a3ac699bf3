/*
 * latency.h - a latency histogram with microsecond buckets.
 *
 * Up to 16 us each microsecond has its own bucket. Above, each power of two has 16 buckets, so that
 * the bounds of a bucket differ by at most a sixteenth. The last bucket also takes everything from
 * 2^34 us (five hours) up. There is no locking here: the caller holds the lock.
 */
#ifndef PYXBROKER_LATENCY_H
#define PYXBROKER_LATENCY_H

#include <stdint.h>

enum { LATENCY_BUCKETS = 496, LATENCY_POWER_MAX = 33 };

typedef struct latency_counts {
    uint64_t sum_ns;
    uint64_t counts[LATENCY_BUCKETS];
} latency_counts;

/* Returns the bucket of a duration. */
static inline int latency_bucket(uint64_t us) {
    if (us < 16)
        return (int)us;
    int power = 63 - __builtin_clzll(us);
    if (power > LATENCY_POWER_MAX)
        return LATENCY_BUCKETS - 1;
    return (power - 3) * 16 + (int)((us >> (power - 4)) & 15);
}

/* Returns the upper bound of a bucket, in us. */
static inline uint64_t latency_bound_us(int bucket) {
    if (bucket < 32)
        return (uint64_t)bucket;
    return ((uint64_t)(17 + bucket % 16) << (bucket / 16 - 1)) - 1;
}

/* Adds `count` measurements of the same duration. */
static inline void latency_add(latency_counts *l, uint64_t ns, uint64_t count) {
    l->sum_ns += ns * count;
    l->counts[latency_bucket(ns / 1000)] += count;
}

#endif
