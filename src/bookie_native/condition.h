/*
 * condition.h - condition variables whose timed waits use the monotonic clock.
 *
 * By default a condition variable uses the wall clock. When that clock is set back by an hour, a
 * pause of 50 ms takes an hour.
 */
#ifndef PYXBROKER_CONDITION_H
#define PYXBROKER_CONDITION_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define CONDITION_CLOCK CLOCK_MONOTONIC

/* Initializes a condition whose timed waits use CONDITION_CLOCK. */
void condition_open(pthread_cond_t *condition);

/* Returns the time in `nanoseconds` from now on CONDITION_CLOCK, as the deadline of one or more
 * calls of pthread_cond_timedwait. */
struct timespec condition_after_ns(uint64_t nanoseconds);

/* Waits for a signal, at most `milliseconds`; spurious wakeups are possible. The caller holds the
 * lock. Returns 0 or ETIMEDOUT. */
int condition_wait_ms(pthread_cond_t *condition, pthread_mutex_t *lock, unsigned milliseconds);

#endif
