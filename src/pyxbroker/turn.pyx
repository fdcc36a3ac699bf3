"""Turns of the event loop, and work at their end; see turn.pxd."""
from collections import OrderedDict

from libc.stdint cimport int64_t

from pyxbroker.turn_watch cimport turn_mark, turn_now_ns


cdef class Share:
    """Limits calls of one kind to a share of each loop iteration; see turn.pxd."""

    def __cinit__(self, Turn turn, int64_t call_ns):
        self.turn = turn
        self.turn_ns = SHARE_NS
        self.call_ns = call_ns
        self.waiting = OrderedDict()  # popitem(last=False) is O(1)
        self.run_call = self._run

    def now_ns(self):
        """Return the clock that has_used_slice() compares with."""
        return turn_now_ns()

    def has_used_slice(self, int64_t began_ns):
        """Return True if a call that started at began_ns must yield and request another turn."""
        return turn_now_ns() - began_ns >= self.call_ns

    def run(self, call):
        """Run call() now if time is left in this loop iteration; otherwise queue it."""
        cdef int64_t began_ns
        if self.spent_ns >= self.turn_ns:
            self.later(call)
            return
        began_ns = turn_now_ns()
        try:
            call()
        finally:
            self._spend(turn_now_ns() - began_ns)

    def later(self, call):
        """Queue call() for a later loop iteration. A queued call keeps its place."""
        self.waiting[call] = None
        self._schedule()

    cdef int _spend(self, int64_t ns) except -1:
        # An iteration is scheduled only when the time is used up, so time used in earlier
        # iterations counts as well. That is acceptable: most calls are single and short.
        self.spent_ns += ns
        return self._schedule() if self.spent_ns >= self.turn_ns else 0

    cdef int _schedule(self) except -1:
        if not self.scheduled:
            self.scheduled = True
            self.turn.loop.call_soon(self.run_call)
        return 0

    def _run(self):
        """Run the calls that have waited longest."""
        cdef object waiting = self.waiting
        cdef int64_t began_ns = turn_now_ns()
        self.scheduled = False
        self.spent_ns = 0
        if not waiting:
            return
        self.turn.begin()
        try:
            while waiting and self.spent_ns < self.turn_ns:
                call, _ = waiting.popitem(last=False)
                try:
                    call()
                except Exception as error:
                    self.turn.loop.call_exception_handler(
                        {"message": "a queued call failed", "exception": error})
                self.spent_ns = max(self.spent_ns, turn_now_ns() - began_ns)
        finally:
            self.turn.end()
        if waiting or self.spent_ns >= self.turn_ns:
            self._schedule()


cdef class Turn:
    """Collects calls that run once at the end of the current turn."""

    def __cinit__(self, loop):
        self.loop = loop
        # Notifications are short, so they share a whole slice; a dispatcher may use half of it per
        # call.
        self.notifications = Share(self, SHARE_NS)
        self.dispatching = Share(self, STEPS_NS)
        self.calls = []
        self.last_calls = []

    cdef int64_t began_ns(self) noexcept:
        """Return when the loop iteration began (turn_now_ns); now, if it is not measured."""
        if self.watch is None or self.watch.clock.started_ns == 0:
            return turn_now_ns()
        return self.watch.clock.started_ns

    cdef int begin(self) except -1:
        self.active = True
        if self.watch is not None:
            turn_mark(self.watch.clock)
        return 0

    cdef int end(self) except -1:
        cdef list calls
        # Calls may register further calls: a delivery that acknowledges, a response that waits for
        # the journal.
        while self.calls or self.last_calls:
            if self.calls:
                calls = self.calls
                self.calls = []
            else:
                calls = self.last_calls
                self.last_calls = []
            for call in calls:
                # A failing call must not prevent the others, or the end of the turn.
                try:
                    call()
                except Exception as error:
                    self.loop.call_exception_handler(
                        {"message": "a call at the end of a turn failed", "exception": error})
        self.active = False
        return 0

    def at_end(self, call):
        """Run call() when the current turn ends, or in a turn of its own."""
        self.calls.append(call)
        self._schedule()

    def at_last(self, call):
        """Run call() after all calls registered with at_end()."""
        self.last_calls.append(call)
        self._schedule()

    cdef int _schedule(self) except -1:
        if not self.active and not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self._run)
        return 0

    def _run(self):
        self.scheduled = False
        self.begin()
        self.end()

    def run(self, function, *args):
        """Run function(*args) as a turn."""
        cdef bint outer = self.active
        self.begin()
        try:
            return function(*args)
        finally:
            if not outer:
                self.end()
