# A connection to a bookie: adds of runs and reads of batches, as frames of bookie_frames.pxd.
#
# v2 answers have no request ids. An answer to an add belongs to the oldest request for that entry
# that has no answer yet, and so does an answer to a read. A request that timed out therefore stays
# until its answer arrives, which is dropped, or the connection ends. A connection that withholds an
# answer for two time-outs ends. Equal reads of which only one fences are never in flight together:
# the answer to one would complete the other.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.bookie_frames cimport Answer
from pyxbroker.buffers cimport OutVector, Slab
from pyxbroker.entry cimport AddFrames, Digest, EntryBatch, EntryRun
from pyxbroker.tls cimport TlsStream
from pyxbroker.turn cimport Turn

cdef enum:
    STASH_BYTES_MAX = 8192          # a partial frame up to this size is copied, its slab released
    SWEEP_NS_MAX = 1000000000       # longest time between two searches for late answers

    READ_ENTRIES = 0                # kind of a PendingRead: the callback gets a batch
    READ_CONFIRMED = 1              # the last add confirmed
    READ_LAST = 2                   # the id of the last entry

# A run, or its entries of one stripe, on its way to the bookie.
cdef class PendingRun:
    cdef object adder               # None: it was answered with a failure
    cdef int64_t slot
    cdef int64_t first
    cdef int64_t last
    # Of a stripe (ledger/bookie.py); ensemble_size is 0 if the bookie has all entries.
    cdef int64_t position
    cdef int64_t ensemble_size
    cdef int64_t write_quorum
    cdef int64_t next               # entries before it are answered
    cdef int64_t left               # entries without an answer
    cdef uint8_t *answered          # a bit per entry; NULL while answers arrive in order
    cdef int64_t bytes
    cdef int64_t sent_ns
    cdef bint has(self, int64_t entry_id) noexcept
    cdef int64_t after(self, int64_t entry_id) noexcept
    # Count the answer for an entry. Return 0 if the entry needed none.
    cdef int take(self, int64_t entry_id) except -1

# The pending adds of one ledger, and acknowledgements that its writer does not know yet.
cdef class LedgerAdds:
    cdef list runs                  # PendingRun, in the order of sending, from `head` on
    cdef Py_ssize_t head
    cdef object adder               # of the acknowledgements first..last, or None
    cdef int64_t slot
    cdef int64_t first
    cdef int64_t last
    cdef int64_t next               # the entry that continues them
    cdef PendingRun find(self, int64_t entry_id)

cdef class PendingRead:
    cdef object callback            # None: it was answered
    cdef int kind                   # READ_...
    cdef int64_t ledger_id
    cdef int64_t first
    cdef int64_t last
    cdef int64_t bytes_max
    cdef bint is_batch
    cdef bytes fencing_key          # None: the read does not fence
    cdef Digest digest              # of the ledger, if the answer must be checked here; or None
    cdef object key                 # in `reads`
    cdef bint is_sent
    cdef bint is_done               # its answer has arrived
    cdef int64_t sent_ns
    cdef PendingRead following      # an equal read

cdef class BookieChannel:
    cdef readonly Turn turn
    cdef object loop
    cdef readonly uint32_t frame_bytes_max
    cdef readonly int64_t pending_bytes_max     # of adds; more of them set `holding`
    cdef readonly int64_t add_timeout_ns
    cdef readonly int64_t read_timeout_ns
    cdef object sock
    cdef int fd                     # -1: not connected
    cdef TlsStream tls              # None: plain text
    cdef readonly bint is_connecting    # requests are queued until attach() or lose()
    cdef OutVector out
    cdef bint is_flush_due
    cdef bint is_writing            # waits until the socket is writable
    cdef Slab slab                  # unconsumed bytes: slab.data[start:end]
    cdef uint64_t start
    cdef uint64_t end
    cdef bytes stash
    cdef dict adds                  # ledger id -> LedgerAdds
    cdef list acked                 # LedgerAdds with acknowledgements to report
    cdef dict reads                 # (ledger id, entry id) or the id of a batch read -> PendingRead
    cdef int64_t last_request_id
    cdef object adds_by_age         # deque of PendingRun, possibly answered
    cdef object reads_by_age        # deque of PendingRead, possibly answered
    cdef object overdue             # deque of requests that timed out and have no answer yet
    cdef object timer
    cdef object flush_call
    cdef object sweep_call
    cdef int64_t received_ns        # when the last bytes arrived
    cdef bint awaits_batch_read     # the first one is sent, and its answer is due
    cdef bint has_answered_batch_read
    cdef readonly bint has_batch_reads      # False: the bookie does not know them
    cdef readonly int64_t pending_bytes     # of adds without an answer
    cdef readonly bint holding              # see ledger/bookie.py
    cdef readonly uint64_t answers          # of the current connection
    cdef readonly uint64_t late_answers     # answers that no request waited for
    cdef readonly uint64_t timeouts         # requests that timed out
    # Since the start, for /metrics: entries that were added and reads that were answered, the sums
    # of their latencies, and those that failed or timed out.
    cdef readonly uint64_t adds_done
    cdef readonly uint64_t adds_failed
    cdef readonly uint64_t adds_ns
    cdef readonly uint64_t reads_done
    cdef readonly uint64_t reads_failed
    cdef readonly uint64_t reads_ns
    cdef readonly uint64_t malformed_answers    # connections that ended with one
    cdef int _call(self, callback, tuple results) except -1
    cdef bint _is_ready(self) except -1
    cdef int _schedule(self) except -1
    cdef int _send(self) except -1
    cdef int _start_timer(self) except -1
    cdef int _send_read(self, PendingRead read) except -1
    cdef int _ask(self, PendingRead read) except -1
    cdef int _receive(self) except -1
    cdef int _consume(self) except -1
    cdef int _store_partial_frame(self) except -1
    cdef int _on_added(self, Answer *answer) except -1
    cdef int _on_read(self, Answer *answer) except -1
    cdef object _result(self, PendingRead read, Answer *answer)
    cdef bint _is_intact(self, PendingRead read, Answer *answer) except -1
    cdef object _entries(self, PendingRead read, Answer *answer)
    cdef int _report(self, LedgerAdds ledger) except -1
    cdef int _report_all(self) except -1
    cdef int _settle(self, int64_t bytes) except -1
    cdef int _forget_answered(self) except -1
    cdef int _end(self, str reason, bint is_malformed) except -1
