# How long the turns of the event loop take, and whether one lasts too long right now.
#
# The loop's thread writes, one other thread (TurnWatch.wait) reads; both without the GIL. libuv
# says when the loop is about to look at its sockets (a turn is over) and when it has looked and
# served them; that a turn begins while it serves them is marked by Turn.begin. So a turn costs two
# looks at the clock, whatever happens in it.

from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef extern from *:
    """
    #include <semaphore.h>
    #include <stdint.h>
    #include <time.h>

    #define TURN_BUCKETS 13

    struct turn_clock {
        int64_t started_ns;   /* of the turn that lasts now; 0: the loop waits for its sockets */
        uint64_t turns;       /* that are over */
        uint32_t sleeping;    /* the thread that watches waits until something happens */
        uint32_t closed;
        sem_t wake;
        int64_t limit_ns;     /* a turn that takes longer is a stall */
        uint64_t stall_turn;  /* the last stall that is over, and how long it took */
        int64_t stall_ns;
        uint64_t counts[TURN_BUCKETS + 1];  /* by TURN_BOUNDS_NS; the last one is of all above */
        int64_t sum_ns;
        uint64_t (*now_ms)(const void *loop);
    };

    static inline int64_t turn_now_ns(void)
    {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }

    /* The loop's thread: something is done. Only the first mark of a turn counts. */
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
    cdef turn_clock *clock          # the loop's handles point to it as well
    cdef void *prepare              # uv_prepare_t and uv_check_t; they free themselves when closed
    cdef void *check
    cdef void (*uv_close)(void *handle, void *callback) noexcept nogil
    cdef uint64_t sampled_turn      # told as STALLED
    cdef int64_t patience_ns        # how long it may last until it is told again
    cdef uint64_t told_turn         # told as ENDED
    cdef int _start(self, void *uv_loop, void *handle, size_t init, size_t start,
                    void *callback) except -1
