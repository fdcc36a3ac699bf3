"""The end of a turn: what was asked for once is done once; see turn.pxd."""
from collections import OrderedDict

from libc.stdint cimport int64_t

from pyxbroker.turn_watch cimport turn_mark, turn_now_ns


cdef class Share:
    """Calls that together take no more than a share of a turn of the loop; see turn.pxd."""

    def __cinit__(self, Turn turn, int64_t call_ns):
        self.turn = turn
        self.turn_ns = SHARE_NS
        self.call_ns = call_ns
        self.waiting = OrderedDict()  # whose first one is found at once
        self.run_call = self._run

    def now_ns(self):
        """The time that lasts_long() compares with."""
        return turn_now_ns()

    def lasts_long(self, int64_t began_ns):
        """Whether a call that began then has to let others go on, and ask for another turn."""
        return turn_now_ns() - began_ns >= self.call_ns

    def run(self, call):
        """Calls call() now when there is time left in this turn, else when it is its turn."""
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
        """Calls call() in another turn; who waits already keeps its place."""
        self.waiting[call] = None
        self._schedule()

    cdef int _spend(self, int64_t ns) except -1:
        # A turn is asked for only when the time is over, so what earlier turns took counts as well:
        # most that run here are alone and short.
        self.spent_ns += ns
        return self._schedule() if self.spent_ns >= self.turn_ns else 0

    cdef int _schedule(self) except -1:
        if not self.scheduled:
            self.scheduled = True
            self.turn.loop.call_soon(self.run_call)
        return 0

    def _run(self):
        """The next turn: those who have waited longest."""
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
                        {"message": "what waited for its turn failed", "exception": error})
                self.spent_ns = max(self.spent_ns, turn_now_ns() - began_ns)
        finally:
            self.turn.end()
        if waiting or self.spent_ns >= self.turn_ns:
            self._schedule()


cdef class Turn:
    """Collects the calls that are due once at the end of what happens now."""

    def __cinit__(self, loop):
        self.loop = loop
        # Of a hundred subscriptions all are told in one go, and each socket is written once.
        self.news = Share(self, SHARE_NS)
        self.more = Share(self, STEPS_NS)
        self.calls = []
        self.last_calls = []

    cdef int64_t began_ns(self) noexcept:
        """When the loop's turn began, in the time of turn_now_ns; now, when nobody measures it."""
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
        # A call may ask for further ones: a delivery that acknowledges, an answer that waits for
        # the journal.
        while self.calls or self.last_calls:
            if self.calls:
                calls = self.calls
                self.calls = []
            else:
                calls = self.last_calls
                self.last_calls = []
            for call in calls:
                # One that fails must keep neither the others nor all later turns from their end.
                try:
                    call()
                except Exception as error:
                    self.loop.call_exception_handler(
                        {"message": "work at the end of a turn failed", "exception": error})
        self.active = False
        return 0

    def at_end(self, call):
        """Calls call() when the current turn ends; in a turn of its own when none is under way."""
        self.calls.append(call)
        self._schedule()

    def at_last(self, call):
        """The same, after everything that at_end was asked for."""
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
        """Calls function(*args) as a turn."""
        cdef bint outer = self.active
        self.begin()
        try:
            return function(*args)
        finally:
            if not outer:
                self.end()
