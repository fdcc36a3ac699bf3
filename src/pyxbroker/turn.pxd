# What happens between two looks at the sockets.
#
# Everything that one readable event, one group of completions or one command brings is a *turn*.
# What must happen once for all of it (waking the journal, writing to sockets) is asked for with
# Turn.at_end and done when the turn ends, so no layer needs a timer to coalesce.

from libc.stdint cimport int64_t

from pyxbroker.turn_watch cimport TurnWatch


cdef class Turn:
    cdef readonly object loop
    cdef public TurnWatch watch     # of the loop's turns, if somebody measures them
    cdef list calls                 # work, which may ask for more
    cdef list last_calls            # writes to sockets, once nothing more will be added to them
    cdef bint active
    cdef bint scheduled
    cdef int64_t began_ns(self) noexcept
    cdef int begin(self) except -1
    cdef int end(self) except -1
    cdef int _schedule(self) except -1
