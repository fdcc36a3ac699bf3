# What happens between two looks at the sockets.
#
# Everything that one readable event, one group of completions or one command brings is a *turn*.
# What must happen once for all of it (waking the journal, writing to sockets) is asked for with
# Turn.at_end and done when the turn ends, so no layer needs a timer to coalesce.

from libc.stdint cimport int64_t

from pyxbroker.turn_watch cimport TurnWatch


cdef enum:
    SHARE_NS = 2 * 1000 * 1000      # of a turn of the loop, for all calls of one Share
    STEPS_NS = 1000 * 1000          # of one dispatcher in one go


# What many may want in one moment, each a small thing: of a turn of the loop it takes SHARE_NS, and
# one call more. Who finds that over waits in a line, whose first ones have their turn in the next.
cdef class Share:
    cdef Turn turn
    cdef public int64_t turn_ns     # SHARE_NS, but in tests
    cdef public int64_t call_ns     # a call that has lasted so long asks for another turn
    cdef object waiting             # OrderedDict of calls
    cdef int64_t spent_ns           # since the turn that was asked for last
    cdef bint scheduled
    cdef object run_call
    cdef int _spend(self, int64_t ns) except -1
    cdef int _schedule(self) except -1


cdef class Turn:
    cdef readonly object loop
    cdef readonly Share news        # telling of new entries
    cdef readonly Share more        # dispatchers that have more to do
    cdef public TurnWatch watch     # of the loop's turns, if somebody measures them
    cdef list calls                 # work, which may ask for more
    cdef list last_calls            # writes to sockets, once nothing more will be added to them
    cdef bint active
    cdef bint scheduled
    cdef int64_t began_ns(self) noexcept
    cdef int begin(self) except -1
    cdef int end(self) except -1
    cdef int _schedule(self) except -1
