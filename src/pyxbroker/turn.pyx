"""The end of a turn: what was asked for once is done once; see turn.pxd."""
from libc.stdint cimport int64_t

from pyxbroker.turn_watch cimport turn_mark, turn_now_ns


cdef class Turn:
    """Collects the calls that are due once at the end of what happens now."""

    def __cinit__(self, loop):
        self.loop = loop
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
