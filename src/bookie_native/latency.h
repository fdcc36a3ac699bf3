/*
 * latency.h - how long something took, counted by microseconds.
 *
 * Up to 16 us each microsecond has a bucket of its own; above, each power of two has 16 of them, so
 * that the bounds of a bucket are at most a sixteenth apart. The last one takes everything from
 * 2^34 us (five hours) on, too. Nothing here locks: whoever owns the counts does.
 */
#ifndef PYXBROKER_LATENCY_H
#define PYXBROKER_LATENCY_H

#include <stdint.h>

enum { LATENCY_BUCKETS = 496, LATENCY_POWER_MAX = 33 };

typedef struct latency_counts {
    uint64_t sum_ns;
    uint64_t counts[LATENCY_BUCKETS];
} latency_counts;

/* The bucket of a time. */
static inline int latency_bucket(uint64_t us) {
    if (us < 16)
        return (int)us;
    int power = 63 - __builtin_clzll(us);
    if (power > LATENCY_POWER_MAX)
        return LATENCY_BUCKETS - 1;
    return (power - 3) * 16 + (int)((us >> (power - 4)) & 15);
}

/* The longest time of a bucket, in us. */
static inline uint64_t latency_bound_us(int bucket) {
    if (bucket < 32)
        return (uint64_t)bucket;
    return ((uint64_t)(17 + bucket % 16) << (bucket / 16 - 1)) - 1;
}

/* As many things took so long. */
static inline void latency_add(latency_counts *l, uint64_t ns, uint64_t count) {
    l->sum_ns += ns * count;
    l->counts[latency_bucket(ns / 1000)] += count;
}

#endif
