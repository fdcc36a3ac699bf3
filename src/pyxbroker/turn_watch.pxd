# Durations of event loop iterations, and detection of stalls while they last.
#
# The loop's thread writes, and one other thread (TurnWatch.wait) reads, both without the GIL. libuv
# calls back before the loop polls its sockets (an iteration ends) and after it has served them.
# Turn.begin marks the start of an iteration while sockets are served. An iteration costs two reads
# of the clock, whatever happens in it.

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from *:
    """
    #include <semaphore.h>
    #include <stdint.h>
    #include <time.h>

    #define TURN_BUCKETS 13

    struct turn_clock {
        int64_t started_ns;   /* of the current iteration; 0: the loop is polling */
        uint64_t turns;       /* completed iterations */
        uint32_t sleeping;    /* the watching thread waits for `wake` */
        uint32_t closed;
        sem_t wake;
        int64_t limit_ns;     /* an iteration of this length or more is a stall */
        uint64_t stall_turn;  /* iteration of the last completed stall, and its duration */
        int64_t stall_ns;
        uint64_t counts[TURN_BUCKETS + 1];  /* by TURN_BOUNDS_NS; the last one counts longer ones */
        int64_t sum_ns;
        uint64_t (*now_ms)(const void *loop);
    };

    static inline int64_t turn_now_ns(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }

    /* Marks the start of an iteration, in the loop's thread. Later marks have no effect. */
    static inline void turn_mark_at(struct turn_clock *clock, int64_t now_ns)
    {
        __atomic_store_n(&clock->started_ns, now_ns, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&clock->sleeping, __ATOMIC_SEQ_CST)
            && __atomic_exchange_n(&clock->sleeping, 0, __ATOMIC_SEQ_CST))
            sem_post(&clock->wake);
    }

    static inline void turn_mark(struct turn_clock *clock)
    {
        if (clock->started_ns == 0)
            turn_mark_at(clock, turn_now_ns());
    }
    """
    const int TURN_BUCKETS
    struct turn_clock:
        int64_t started_ns
        uint64_t turns
        uint32_t sleeping
        uint32_t closed
        int64_t limit_ns
        uint64_t stall_turn
        int64_t stall_ns
        uint64_t *counts
        int64_t sum_ns
        uint64_t (*now_ms)(const void *loop) noexcept nogil
        int wake                    # a semaphore
    int64_t turn_now_ns() noexcept nogil
    void turn_mark(turn_clock *clock) noexcept nogil


cdef class TurnWatch:
    cdef turn_clock *clock          # also referenced by the loop's handles
    cdef void *prepare              # uv_prepare_t and uv_check_t; freed by libuv when closed
    cdef void *check
    cdef void (*uv_close)(void *handle, void *callback) noexcept nogil
    cdef uint64_t sampled_turn      # reported as STALLED
    cdef int64_t patience_ns        # duration at which it is reported again
    cdef uint64_t reported_turn     # reported as ENDED
    cdef int _start(self, void *uv_loop, void *handle, size_t init, size_t start,
                    void *callback) except -1
