/* condition.c - timed waits on the monotonic clock. */
#define _GNU_SOURCE
#include "condition.h"

void condition_open(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CONDITION_CLOCK);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

struct timespec condition_after_ns(uint64_t nanoseconds) {
    struct timespec until;
    clock_gettime(CONDITION_CLOCK, &until);
    nanoseconds += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(nanoseconds / 1000000000u);
    until.tv_nsec = (long)(nanoseconds % 1000000000u);
    return until;
}

int condition_wait_ms(pthread_cond_t *condition, pthread_mutex_t *lock, unsigned milliseconds) {
    struct timespec until = condition_after_ns((uint64_t)milliseconds * 1000000u);
    return pthread_cond_timedwait(condition, lock, &until);
}
