/* test_condition.c - that a timed wait ends in time whatever is done to the clock of the day. */
#include <stdint.h>

#include "check.h"
#include "condition.h"

enum { WAIT_MS = 30 };

static uint64_t monotonic_ns(const struct timespec *at) {
    struct timespec now;
    if (at == NULL) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        at = &now;
    }
    return (uint64_t)at->tv_sec * 1000000000u + (uint64_t)at->tv_nsec;
}

static void test_a_wait_of_some_ms_ends(void) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition;
    condition_open(&condition);
    pthread_mutex_lock(&lock);
    uint64_t start = monotonic_ns(NULL);
    while (condition_wait_ms(&condition, &lock, WAIT_MS) == 0)
        ;
    uint64_t waited = monotonic_ns(NULL) - start;
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&condition);
    CHECK(waited >= WAIT_MS * 1000000u && waited < 10000000000u);
}

/* A condition on the clock of the day takes a moment of the monotonic clock for one long ago, and
 * such a wait ends at once. */
static void test_waits_are_on_the_monotonic_clock(void) {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t condition;
    condition_open(&condition);
    uint64_t start = monotonic_ns(NULL);
    struct timespec until = condition_after_ns(WAIT_MS * 1000000u);
    uint64_t deadline = monotonic_ns(&until);
    CHECK(deadline >= start + WAIT_MS * 1000000u && deadline < start + 10000000000u);
    pthread_mutex_lock(&lock);
    while (pthread_cond_timedwait(&condition, &lock, &until) == 0)
        ;
    uint64_t end = monotonic_ns(NULL);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&condition);
    CHECK(end >= deadline);
}

static void test_nanoseconds_are_carried_into_seconds(void) {
    for (int i = 0; i < 3; i++) {
        uint64_t before = monotonic_ns(NULL);
        struct timespec until = condition_after_ns(2999999999u);
        CHECK(until.tv_nsec >= 0 && until.tv_nsec < 1000000000);
        CHECK(monotonic_ns(&until) >= before + 2999999999u);
    }
}

static const check_test tests[] = {
    {"condition_a_wait_of_some_ms_ends", test_a_wait_of_some_ms_ends},
    {"condition_waits_are_on_the_monotonic_clock", test_waits_are_on_the_monotonic_clock},
    {"condition_nanoseconds_are_carried_into_seconds", test_nanoseconds_are_carried_into_seconds},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
