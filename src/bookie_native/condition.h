/*
 * condition.h - waiting for a condition for so long and no longer.
 *
 * Waits are timed by the monotonic clock. With the clock of the day, which a condition has when
 * nobody says otherwise, a clock that is set back by an hour makes a pause of 50 ms one of an hour.
 */
#ifndef PYXBROKER_CONDITION_H
#define PYXBROKER_CONDITION_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define CONDITION_CLOCK CLOCK_MONOTONIC

/* Makes a condition whose timed waits are on that clock. */
void condition_open(pthread_cond_t *condition);

/* The moment so far from now, on the conditions' clock, for pthread_cond_timedwait: for who waits
 * for it several times. */
struct timespec condition_after_ns(uint64_t nanoseconds);

/* Waits with the lock until somebody signals, at most so long; it may also be shorter. Returns 0 or
 * ETIMEDOUT. */
int condition_wait_ms(pthread_cond_t *condition, pthread_mutex_t *lock, unsigned milliseconds);

#endif
