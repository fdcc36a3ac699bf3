# Turns: units of work of the event loop.
#
# All that one readable event, one group of completions or one command causes is a *turn*. Work that
# must happen once per turn (waking the journal, writing to sockets) is registered with Turn.at_end
# and runs when the turn ends. No layer needs a timer to batch its work.

from libc.stdint cimport int64_t

from pyxbroker.turn_watch cimport TurnWatch


cdef enum:
    SHARE_NS = 2 * 1000 * 1000      # per loop iteration, for all calls of one Share
    STEPS_NS = 1000 * 1000          # per call of a dispatcher


# Limits the time of a kind of small calls, of which many may become due together, to SHARE_NS per
# loop iteration and one more call. Once the time is used up, calls wait in a FIFO queue for the
# next iteration.
cdef class Share:
    cdef Turn turn
    cdef public int64_t turn_ns     # SHARE_NS, except in tests
    cdef public int64_t call_ns     # a longer call must yield and request another turn
    cdef object waiting             # OrderedDict of calls
    cdef int64_t spent_ns           # used since the last scheduled iteration
    cdef bint scheduled
    cdef object run_call
    cdef int _spend(self, int64_t ns) except -1
    cdef int _schedule(self) except -1


cdef class Turn:
    cdef readonly object loop
    cdef readonly Share notifications   # of new entries
    cdef readonly Share dispatching     # dispatchers with more work
    cdef public TurnWatch watch     # measures loop iterations; may be None
    cdef list calls                 # may register further calls
    cdef list last_calls            # writes to sockets, after all other calls
    cdef bint active
    cdef bint scheduled
    cdef int64_t began_ns(self) noexcept
    cdef int begin(self) except -1
    cdef int end(self) except -1
    cdef int _schedule(self) except -1
