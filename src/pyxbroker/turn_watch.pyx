"""Durations of event loop iterations; turn_watch.pxd describes the threads."""
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdlib cimport calloc


cdef extern from *:
    """
    #include <dlfcn.h>
    #include <errno.h>
    #include <stdlib.h>
    #include <string.h>

    static const int64_t TURN_BOUNDS_NS[TURN_BUCKETS] = {
        1000000, 2000000, 5000000, 10000000, 20000000, 50000000, 100000000, 200000000, 500000000,
        1000000000, 2000000000, 5000000000, 10000000000,
    };

    enum { HANDLE_BYTES = 1024 };  /* uv_prepare_t and uv_check_t take about 120 */
    #define POLL_NS 50000000       /* polling interval while the loop is busy */
    #define STUCK_NS 10000000000

    /* The first members of every uv_handle_t: the user's data and the loop. */
    struct turn_handle {
        struct turn_clock *clock;
        void *loop;
    };

    /* uv_prepare_cb: the loop is about to poll its sockets. */
    static void turn_ended(void *handle)
    {
        struct turn_clock *clock = ((struct turn_handle *)handle)->clock;
        int bucket = 0;
        if (clock->started_ns == 0)
            return;
        int64_t ns = turn_now_ns() - clock->started_ns;
        while (bucket < TURN_BUCKETS && ns > TURN_BOUNDS_NS[bucket])
            bucket++;
        clock->counts[bucket]++;
        clock->sum_ns += ns;
        uint64_t turn = clock->turns + 1;
        if (ns >= clock->limit_ns) {
            __atomic_store_n(&clock->stall_ns, ns, __ATOMIC_SEQ_CST);
            __atomic_store_n(&clock->stall_turn, turn, __ATOMIC_SEQ_CST);
        }
        __atomic_store_n(&clock->started_ns, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&clock->turns, turn, __ATOMIC_SEQ_CST);
    }

    /* uv_check_cb: the loop has polled and served its sockets. If nothing marked the start of the
     * iteration, use libuv's clock. It has millisecond resolution, so round up. */
    static void turn_polled(void *handle)
    {
        struct turn_handle *own = handle;
        struct turn_clock *clock = own->clock;
        if (clock->started_ns != 0)
            return;
        int64_t now_ns = turn_now_ns();
        int64_t woken_ns = (int64_t)clock->now_ms(own->loop) * 1000000 + 1000000;
        turn_mark_at(clock, woken_ns < now_ns ? woken_ns : now_ns);
    }

    enum { TURN_CLOSED, TURN_STALLED, TURN_ENDED };

    /* Called by the watching thread without the GIL. Blocks until there is an event to report. */
    static int turn_wait(struct turn_clock *clock, uint64_t *sampled, int64_t *patience_ns,
                         uint64_t reported)
    {
        uint64_t seen = 0;
        struct timespec until;
        for (;;) {
            if (__atomic_load_n(&clock->stall_turn, __ATOMIC_SEQ_CST) != reported)
                return TURN_ENDED;
            if (__atomic_load_n(&clock->closed, __ATOMIC_SEQ_CST))
                return TURN_CLOSED;
            uint64_t turns = __atomic_load_n(&clock->turns, __ATOMIC_SEQ_CST);
            int64_t started_ns = __atomic_load_n(&clock->started_ns, __ATOMIC_SEQ_CST);
            int64_t wait_ns = POLL_NS;
            if (started_ns != 0) {
                if (*sampled != turns + 1)
                    *patience_ns = clock->limit_ns;
                int64_t left_ns = started_ns + *patience_ns - turn_now_ns();
                if (left_ns <= 0) {
                    *sampled = turns + 1;
                    *patience_ns = *patience_ns < STUCK_NS ? STUCK_NS : INT64_MAX / 2;
                    return TURN_STALLED;
                }
                if (left_ns < wait_ns)
                    wait_ns = left_ns;
            } else if (turns == seen) {
                __atomic_store_n(&clock->sleeping, 1, __ATOMIC_SEQ_CST);
                if (__atomic_load_n(&clock->started_ns, __ATOMIC_SEQ_CST) == 0
                    && __atomic_load_n(&clock->turns, __ATOMIC_SEQ_CST) == turns
                    && !__atomic_load_n(&clock->closed, __ATOMIC_SEQ_CST)) {
                    while (sem_wait(&clock->wake) == -1 && errno == EINTR)
                        ;
                    continue;
                }
                __atomic_store_n(&clock->sleeping, 0, __ATOMIC_SEQ_CST);
                continue;
            }
            seen = turns;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += wait_ns;
            if (until.tv_nsec >= 1000000000) {
                until.tv_sec++;
                until.tv_nsec -= 1000000000;
            }
            sem_timedwait(&clock->wake, &until);
        }
    }

    static void turn_close(struct turn_clock *clock)
    {
        __atomic_store_n(&clock->closed, 1, __ATOMIC_SEQ_CST);
        sem_post(&clock->wake);
    }

    static void turn_free_handle(void *handle)
    {
        free(handle);
    }
    """
    const int64_t *TURN_BOUNDS_NS
    const int HANDLE_BYTES
    const int TURN_CLOSED
    const int TURN_STALLED
    const int TURN_ENDED
    struct turn_handle:
        turn_clock *clock
    void turn_ended(void *handle) noexcept nogil
    void turn_polled(void *handle) noexcept nogil
    int turn_wait(turn_clock *clock, uint64_t *sampled, int64_t *patience_ns,
                  uint64_t reported) noexcept nogil
    void turn_close(turn_clock *clock) noexcept nogil
    void turn_free_handle(void *handle) noexcept nogil

cdef extern from "<dlfcn.h>" nogil:
    void *dlopen(const char *path, int flags)
    void *dlsym(void *library, const char *name)
    const int RTLD_LAZY

cdef extern from "<semaphore.h>" nogil:
    int sem_init(void *semaphore, int shared, unsigned int value)

ctypedef int (*UvInit)(void *loop, void *handle) noexcept nogil
ctypedef int (*UvStart)(void *handle, void *callback) noexcept nogil
ctypedef void (*UvUnref)(void *handle) noexcept nogil

CLOSED = TURN_CLOSED
STALLED = TURN_STALLED
ENDED = TURN_ENDED


cdef void *_function(void *library, str name) except NULL:
    cdef bytes text = name.encode()
    cdef void *found = dlsym(library, text)
    if found == NULL:
        raise RuntimeError(f"cannot find {name} in uvloop's library")
    return found


cdef class TurnWatch:
    """Measures the iterations of a uvloop. Created and closed by the loop's thread."""

    def __cinit__(self, loop, double limit_s):
        import uvloop.loop as library_of

        if not isinstance(loop, library_of.Loop):
            raise RuntimeError("the event loop is not a uvloop.Loop")
        cdef bytes path = library_of.__file__.encode()
        cdef void *library = dlopen(path, RTLD_LAZY)
        if library == NULL:
            raise RuntimeError("cannot open uvloop's library")
        cdef void *uv_loop = PyCapsule_GetPointer(library_of.libuv_get_loop_t_ptr(loop), NULL)
        cdef UvUnref unref = <UvUnref>_function(library, "uv_unref")
        self.uv_close = <void (*)(void *, void *) noexcept nogil>_function(library, "uv_close")
        now_ms = _function(library, "uv_now")
        functions = [<size_t>_function(library, each) for each in (
            "uv_prepare_init", "uv_prepare_start", "uv_check_init", "uv_check_start")]
        # Never freed: a waiting thread may use it after this object is gone.
        self.clock = <turn_clock *>calloc(1, sizeof(turn_clock))
        self.prepare = calloc(1, HANDLE_BYTES)
        self.check = calloc(1, HANDLE_BYTES)
        if self.clock == NULL or self.prepare == NULL or self.check == NULL:
            raise MemoryError("no memory to measure loop iterations")
        sem_init(&self.clock.wake, 0, 0)
        self.clock.limit_ns = <int64_t>(limit_s * 1e9)
        self.clock.now_ms = <uint64_t (*)(const void *) noexcept nogil>now_ms
        self._start(uv_loop, self.prepare, functions[0], functions[1], <void *>turn_ended)
        self._start(uv_loop, self.check, functions[2], functions[3], <void *>turn_polled)
        # The handles must not keep the loop running.
        unref(self.prepare)
        unref(self.check)
        turn_mark(self.clock)

    cdef int _start(self, void *uv_loop, void *handle, size_t init, size_t start,
                    void *callback) except -1:
        (<UvInit><void *>init)(uv_loop, handle)
        (<turn_handle *>handle).clock = self.clock
        (<UvStart><void *>start)(handle, callback)
        return 0

    def wait(self):
        """Block until an event occurs; return (event, iteration, seconds). Called by one other
        thread.

        STALLED: the current iteration exceeds the limit; reported again when it seems stuck. ENDED:
        a stalled iteration has ended after that time. CLOSED: the watch was closed.
        """
        cdef int what
        cdef int64_t patience_ns = self.patience_ns
        with nogil:
            what = turn_wait(self.clock, &self.sampled_turn, &patience_ns, self.reported_turn)
        self.patience_ns = patience_ns
        if what == TURN_STALLED:
            return what, self.sampled_turn, patience_ns / 1e9
        if what == TURN_ENDED:
            self.reported_turn = self.clock.stall_turn
            return what, self.reported_turn, self.clock.stall_ns / 1e9
        return what, 0, 0.0

    def elapsed(self, uint64_t turn):
        """Return how long an iteration has lasted so far, in seconds; 0 if it has ended."""
        cdef int64_t started_ns = self.clock.started_ns
        if started_ns == 0 or self.clock.turns + 1 != turn:
            return 0.0
        return (turn_now_ns() - started_ns) / 1e9

    def histogram(self):
        """Return (upper bound in seconds, count) of each bucket, the last one unbounded, and the
        total seconds.
        """
        cdef int i
        buckets = [(TURN_BOUNDS_NS[i] / 1e9, self.clock.counts[i]) for i in range(TURN_BUCKETS)]
        buckets.append((float("inf"), self.clock.counts[TURN_BUCKETS]))
        return buckets, self.clock.sum_ns / 1e9

    def close(self):
        """Stop measuring, and make wait() return CLOSED. Further calls have no effect."""
        if self.prepare == NULL:
            return
        self.uv_close(self.prepare, <void *>turn_free_handle)
        self.uv_close(self.check, <void *>turn_free_handle)
        self.prepare = NULL
        self.check = NULL
        turn_close(self.clock)
