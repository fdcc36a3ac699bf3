"""A connection to a bookie, from runs and reads to frames and back; see bookie_channel.pxd."""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

import os
from collections import deque

from pyxbroker.bookie_frames cimport (
    ADD_HIGH_PRIORITY,
    ADD_RECOVERY,
    ANSWER_TOO_LARGE,
    BOOKIE_ADD,
    BOOKIE_BATCH_READ,
    BOOKIE_FENCING,
    BOOKIE_HIGH_PRIORITY,
    BOOKIE_RECOVERY_ADD,
    DAMAGED,
    DISCONNECTED,
    ENTRY_BYTES_MIN,
    NO_ENTRY,
    NO_LEDGER,
    READ_BYTES_MAX,
    REFUSED,
    TIMED_OUT,
    build_batch_read,
    build_read,
    next_answer,
    package_run,
)
from pyxbroker.buffers cimport SLAB_BYTES, SlabPool
from pyxbroker.integers cimport load_be32, load_be64
from pyxbroker.tls cimport TLS_AGAIN, TLS_FAILED
from pyxbroker.turn_watch cimport turn_now_ns

cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void *, size_t, int)

cdef enum:
    NS = 1000000000

# Every connection returns its slab before the event loop waits, unless a frame is incomplete.
cdef SlabPool _slabs = SlabPool()


cdef class PendingRun:
    def __dealloc__(self):
        free(self.answered)

    cdef bint has(self, int64_t entry_id) noexcept:
        cdef int64_t distance
        if not self.ensemble_size:
            return True
        distance = (self.position - entry_id) % self.ensemble_size
        if distance < 0:
            distance += self.ensemble_size
        return distance < self.write_quorum

    cdef int64_t after(self, int64_t entry_id) noexcept:
        """Return the entry of the stripe that follows another one."""
        entry_id += 1
        while not self.has(entry_id):
            entry_id += 1
        return entry_id

    cdef int take(self, int64_t entry_id) except -1:
        cdef int64_t at = entry_id - self.first
        if not self.next <= entry_id <= self.last or not self.has(entry_id):
            return 0
        if self.answered != NULL:
            if self.answered[at >> 3] >> (at & 7) & 1:
                return 0
        elif entry_id != self.next:
            self.answered = <uint8_t *>calloc(1, <size_t>(((self.last - self.first) >> 3) + 1))
            if self.answered == NULL:
                raise MemoryError("no memory for answers that arrive out of order")
        if entry_id == self.next:
            self.next = self.after(entry_id)
        else:
            self.answered[at >> 3] |= <uint8_t>(1 << (at & 7))
        self.left -= 1
        return 1


cdef class LedgerAdds:
    def __cinit__(self):
        self.runs = []

    cdef PendingRun find(self, int64_t entry_id):
        """Return the oldest run in which the entry had no answer yet, and count the answer."""
        cdef PendingRun run
        cdef Py_ssize_t i
        for i in range(self.head, len(self.runs)):
            run = self.runs[i]
            if run.take(entry_id):
                while self.head < len(self.runs) and (<PendingRun>self.runs[self.head]).left == 0:
                    self.runs[self.head] = None
                    self.head += 1
                if self.head > 64 and self.head * 2 > len(self.runs):
                    del self.runs[:self.head]
                    self.head = 0
                return run
        return None


cdef class PendingRead:
    pass


cdef class BookieChannel:
    """A connection to a bookie. The subclass connects, and is notified of the end."""

    def __init__(self, Turn turn not None, *, uint32_t frame_bytes_max, int64_t pending_bytes_max,
                 double add_timeout_s, double read_timeout_s):
        self.turn = turn
        self.loop = turn.loop
        self.frame_bytes_max = frame_bytes_max
        self.pending_bytes_max = pending_bytes_max
        self.add_timeout_ns = <int64_t>(add_timeout_s * NS)
        self.read_timeout_ns = <int64_t>(read_timeout_s * NS)
        self.fd = -1
        self.out = OutVector()
        self.adds = {}
        self.acked = []
        self.reads = {}
        self.adds_by_age = deque()
        self.reads_by_age = deque()
        self.overdue = deque()
        self.has_batch_reads = True
        self.flush_call = self._flush
        self.sweep_call = self._sweep

    # --- for the subclass ----------------------------------------------------------------------

    def open(self):
        """Begin to connect. Return False if the channel must not queue requests now: they fail.
        Subclasses override this.
        """
        raise NotImplementedError

    def on_full(self, bint is_full):
        """Note that the channel holds too many bytes of adds, or no longer. Subclasses override
        this.
        """

    def on_lost(self, str reason):
        """Note the end of the connection. Subclasses override this."""

    def on_defect(self, error):
        """Log an exception of a callback, or of the channel itself. Subclasses override this."""
        raise error

    def begin(self):
        """Queue requests until attach() or lose() is called."""
        self.is_connecting = True

    def attach(self, sock, TlsStream tls=None):
        """Use a connected, non-blocking socket."""
        self.sock = sock
        self.fd = sock.fileno()
        self.tls = tls
        self.is_connecting = False
        self.answers = 0
        self.awaits_batch_read = False
        self.received_ns = turn_now_ns()
        self.loop.add_reader(self.fd, self._on_readable)
        self._schedule()

    @property
    def is_connected(self):
        return self.fd >= 0

    def lose(self, str reason not None):
        """End the connection, or the attempt to connect. All pending requests fail."""
        self._end(reason, False)

    cdef int _end(self, str reason, bint is_malformed) except -1:
        cdef bint was_connected = self.fd >= 0
        cdef dict adds = self.adds
        cdef dict reads = self.reads
        cdef int64_t pending_bytes = self.pending_bytes
        cdef list failed = []
        cdef LedgerAdds ledger
        cdef PendingRun run
        cdef PendingRead read
        if was_connected:
            self.loop.remove_reader(self.fd)
            if self.is_writing:
                self.loop.remove_writer(self.fd)
            self.sock.close()
        self.malformed_answers += is_malformed
        self.fd = -1
        self.sock = None
        self.tls = None
        self.is_connecting = False
        self.is_writing = False
        self.slab = None
        self.stash = None
        self.out = OutVector()
        self.adds = {}
        self.reads = {}
        self.adds_by_age.clear()
        self.reads_by_age.clear()
        self.overdue.clear()
        for ledger in self.acked:
            if ledger.adder is not None:
                failed.append((ledger.adder.on_adds_acked, ledger.slot, ledger.first, ledger.last))
                ledger.adder = None
        self.acked = []
        for ledger in adds.values():
            for run in ledger.runs[ledger.head:]:
                if run.left and run.adder is not None:
                    failed.append((run.adder.on_adds_failed, run.slot, run.next, DISCONNECTED))
                    run.adder = None
        for read in reads.values():
            while read is not None:
                if read.callback is not None:
                    failed.append((read.callback, DISCONNECTED))
                    read.callback = None
                read = read.following
        if failed:
            self.loop.call_soon(self.turn.run, self._fail, failed)
        self.on_lost(reason)
        return self._settle(pending_bytes)

    def _fail(self, list failed):
        for callback, *results in failed:
            self._call(callback, tuple(results))

    cdef int _call(self, callback, tuple results) except -1:
        """Call back. An exception of one ledger or reader must not affect the others."""
        try:
            callback(*results)
        except Exception as error:
            self.on_defect(error)
        return 0

    # --- requests ------------------------------------------------------------------------------

    cdef bint _is_ready(self) except -1:
        return self.fd >= 0 or self.is_connecting or self.open()

    def add_run(self, adder not None, int64_t slot, EntryRun run not None,
                int64_t last_add_confirmed, int64_t length, uint32_t flags=0, stripe=None):
        """Add the entries of a run, or those of its stripe. Always return True: the channel holds
        the data itself.
        """
        cdef AddFrames frames
        cdef PendingRun pending
        cdef LedgerAdds ledger
        cdef int64_t entry_id, until
        cdef uint8_t *at
        cdef uint8_t *end
        cdef uint32_t wire = 0
        cdef int code = 0
        if flags & ADD_RECOVERY:
            wire |= BOOKIE_RECOVERY_ADD
        if flags & ADD_HIGH_PRIORITY:
            wire |= BOOKIE_HIGH_PRIORITY
        if not self._is_ready():
            code = DISCONNECTED
        else:
            frames = package_run(run, adder.digest, last_add_confirmed, length, wire)
            if frames.longest > self.frame_bytes_max:
                code = REFUSED
        if code != 0:
            self.loop.call_soon(self.turn.run, self._fail,
                                [(adder.on_adds_failed, slot, run.first_entry_id, code)])
            return True
        pending = PendingRun.__new__(PendingRun)
        pending.adder = adder
        pending.slot = slot
        pending.first = run.first_entry_id
        pending.last = run.first_entry_id + run.count - 1
        pending.next = pending.first
        if stripe is None:
            pending.left = run.count
            pending.bytes = <int64_t>frames.size
            self.out.reference(frames.data, <uint32_t>frames.size, frames)
        else:
            pending.position, pending.ensemble_size, pending.write_quorum = stripe
            if not pending.has(pending.first):
                pending.next = pending.after(pending.first)
            entry_id = pending.next
            while entry_id <= pending.last:
                # Consecutive entries of the stripe are one piece.
                until = entry_id
                while until <= pending.last and pending.has(until):
                    until += 1
                at = <uint8_t *>run.items[entry_id - pending.first].data - frames.prefix
                end = (<uint8_t *>run.items[until - 1 - pending.first].data
                       + run.items[until - 1 - pending.first].length)
                self.out.reference(at, <uint32_t>(end - at), frames)
                pending.bytes += end - at
                pending.left += until - entry_id
                entry_id = pending.after(until - 1)
            if pending.left == 0:
                return True
        ledger = self.adds.get(run.ledger_id)
        if ledger is None:
            ledger = self.adds[run.ledger_id] = LedgerAdds.__new__(LedgerAdds)
        ledger.runs.append(pending)
        pending.sent_ns = turn_now_ns()
        self.adds_by_age.append(pending)
        self.pending_bytes += pending.bytes
        if self.pending_bytes > self.pending_bytes_max and not self.holding:
            self.holding = True
            self.on_full(True)
        self._start_timer()
        self._schedule()
        return True

    def read(self, int64_t ledger_id, int64_t first, int64_t last, int64_t count_max,
             int64_t bytes_max, callback not None, bytes fencing_key=None):
        """Read consecutive entries from first on, at most to last."""
        cdef PendingRead read = PendingRead.__new__(PendingRead)
        read.kind = READ_ENTRIES
        read.ledger_id = ledger_id
        read.first = first
        read.last = min(last, first + max(count_max, 1) - 1)
        # The bookie counts the bytes of the whole answer.
        read.bytes_max = max(1, min(bytes_max, <int64_t>self.frame_bytes_max))
        read.is_batch = self.has_batch_reads and read.last > first
        read.fencing_key = fencing_key
        read.callback = callback
        self._ask(read)

    def fence(self, int64_t ledger_id, Digest digest not None, callback not None):
        """Fence a ledger; callback(last add confirmed), or DAMAGED if the digest of the entry that
        names it is wrong.
        """
        self._ask_last(READ_CONFIRMED, ledger_id, digest, callback)

    def read_last_add_confirmed(self, int64_t ledger_id, callback not None):
        """Report the last add confirmed that the bookie knows; -1 without entries."""
        self._ask_last(READ_CONFIRMED, ledger_id, None, callback)

    def last_entry(self, int64_t ledger_id, callback not None):
        """Report the highest stored entry id; -1 without entries."""
        self._ask_last(READ_LAST, ledger_id, None, callback)

    def _ask_last(self, int kind, int64_t ledger_id, Digest digest, callback):
        cdef PendingRead read = PendingRead.__new__(PendingRead)
        read.kind = kind
        read.ledger_id = ledger_id
        read.first = -1
        read.last = -1
        read.digest = digest
        read.fencing_key = None if digest is None else digest.master_key
        read.callback = callback
        self._ask(read)

    cdef int _ask(self, PendingRead read) except -1:
        cdef PendingRead earlier
        if not self._is_ready():
            self.loop.call_soon(self.turn.run, self._fail, [(read.callback, DISCONNECTED)])
            return 0
        read.sent_ns = turn_now_ns()
        self.reads_by_age.append(read)
        self._start_timer()
        if read.is_batch:
            self.last_request_id += 1
            read.key = self.last_request_id
        else:
            read.key = (read.ledger_id, read.first)
        earlier = self.reads.get(read.key)
        if earlier is None:
            self.reads[read.key] = read
            return self._send_read(read)
        while earlier.following is not None:
            earlier = earlier.following
        earlier.following = read
        if earlier.is_sent and (earlier.fencing_key is None) == (read.fencing_key is None):
            return self._send_read(read)
        return 0

    cdef int _send_read(self, PendingRead read) except -1:
        cdef uint8_t *at = self.out.reserve(READ_BYTES_MAX)
        cdef const uint8_t *key = NULL
        cdef uint32_t flags = 0
        cdef uint32_t size
        if at == NULL:
            raise MemoryError("no memory for a request to a bookie")
        if read.fencing_key is not None:
            key = read.fencing_key
            flags = BOOKIE_FENCING | BOOKIE_HIGH_PRIORITY
        if read.is_batch:
            self.awaits_batch_read = not self.has_answered_batch_read
            size = build_batch_read(at, flags, read.ledger_id, read.first, read.key,
                                    <uint32_t>(read.last - read.first + 1), read.bytes_max, key)
        else:
            size = build_read(at, flags, read.ledger_id, read.first, key)
        self.out.commit(size)
        read.is_sent = True
        return self._schedule()

    # --- writing -------------------------------------------------------------------------------

    cdef int _schedule(self) except -1:
        """Write once per loop iteration, after all sockets of clients were read."""
        if not self.is_flush_due and self.fd >= 0 and not self.is_writing:
            self.is_flush_due = True
            self.loop.call_soon(self.flush_call)
        return 0

    def _flush(self):
        self.is_flush_due = False
        if self.fd >= 0 and not self.is_writing:
            self._send()

    def _on_writable(self):
        if self.fd >= 0:
            self._send()

    cdef int _send(self) except -1:
        cdef int code
        if self.tls is None:
            code = self.out.send(self.fd)
        else:
            code = self.tls.send(self.out, self.fd)
        if code < 0:
            return self._end(os.strerror(-code), False)
        if code == self.is_writing:
            return 0
        self.is_writing = code == 1
        if self.is_writing:
            self.loop.add_writer(self.fd, self._on_writable)
        else:
            self.loop.remove_writer(self.fd)
        return 0

    # --- reading -------------------------------------------------------------------------------

    def _on_readable(self):
        self.turn.begin()
        try:
            if self._receive():
                self._consume()
            while self.fd >= 0 and self.tls is not None and self.tls.has_more:
                if not self._receive():
                    break
                self._consume()
        except Exception as error:
            self.on_defect(error)
            self._end("the broker could not handle an answer", False)
        finally:
            self.turn.end()

    cdef int _receive(self) except -1:
        cdef int64_t n
        if self.fd < 0:
            return 0
        if self.slab is None:
            self.slab = _slabs.acquire(SLAB_BYTES)
            self.start = 0
            self.end = 0
            if self.stash is not None:
                memcpy(self.slab.data, <const uint8_t *>self.stash, len(self.stash))
                self.end = len(self.stash)
                self.stash = None
        if self.tls is None:
            n = recv(self.fd, self.slab.data + self.end, self.slab.size - self.end, 0)
            if n < 0 and (errno == EAGAIN or errno == EINTR):
                n = TLS_AGAIN
            elif n < 0:
                self._end(os.strerror(errno), False)
                return 0
        else:
            n = self.tls.receive(self.fd, self.slab.data + self.end, self.slab.size - self.end)
            # The handshake has ended, or it has something to say.
            self._schedule()
            if n == TLS_FAILED:
                self._end(f"TLS failed: {self.tls.failure}", False)
                return 0
        if n > 0:
            self.end += <uint64_t>n
            self.received_ns = turn_now_ns()
            return 1
        if n == 0:
            if self.awaits_batch_read:
                self.has_batch_reads = False  # a bookie before 4.17 closes the connection then
            self._end("the bookie closed the connection", False)
            return 0
        self._store_partial_frame()
        return 0

    cdef int _consume(self) except -1:
        cdef Answer answer
        cdef int64_t n
        while self.slab is not None:
            n = next_answer(self.slab.data + self.start, self.end - self.start,
                            self.frame_bytes_max, &answer)
            if n == 0:
                break
            if n < 0:
                return self._end(
                    "the bookie sent a frame of %d bytes, and the limit is %d"
                    % (load_be32(self.slab.data + self.start), self.frame_bytes_max)
                    if n == ANSWER_TOO_LARGE
                    else "the bookie sent an answer that is not of BookKeeper's protocol", True)
            self.answers += 1
            if answer.operation == BOOKIE_ADD:
                self._on_added(&answer)
            else:
                self._on_read(&answer)
            self.start += <uint64_t>n
        self._report_all()
        self._forget_answered()
        return self._store_partial_frame()

    cdef int _store_partial_frame(self) except -1:
        """Keep a partial frame in as little memory as possible."""
        cdef Slab slab = self.slab
        cdef uint64_t rest = self.end - self.start
        cdef uint64_t wanted
        if slab is None:
            return 0
        if rest <= STASH_BYTES_MAX:
            self.stash = slab.data[self.start:self.end] if rest else None
            self.slab = None
            return _slabs.release(slab)
        # The size was checked against the limit.
        wanted = <uint64_t>load_be32(slab.data + self.start) + 4
        if self.start + wanted <= slab.size:
            return 0
        if wanted > slab.size:
            self.slab = _slabs.acquire(wanted)
            memcpy(self.slab.data, slab.data + self.start, rest)
            _slabs.release(slab)
        else:
            memmove(slab.data, slab.data + self.start, rest)
        self.start = 0
        self.end = rest
        return 0

    # --- answers -------------------------------------------------------------------------------

    cdef int _on_added(self, Answer *answer) except -1:
        cdef LedgerAdds ledger = self.adds.get(answer.ledger_id)
        cdef PendingRun run = None if ledger is None else ledger.find(answer.entry_id)
        if run is None:
            self.late_answers += 1
            return 0
        if run.left == 0:
            if run.bytes:
                self._settle(run.bytes)
                run.bytes = 0
            if ledger.head == len(ledger.runs):
                del self.adds[answer.ledger_id]
        if run.adder is None:
            self.late_answers += 1
            return 0
        if answer.code == 0:
            self.adds_done += 1
            self.adds_ns += <uint64_t>max(self.received_ns - run.sent_ns, 0)
            if (ledger.adder is run.adder and ledger.slot == run.slot
                    and ledger.next == answer.entry_id):
                ledger.last = answer.entry_id
            else:
                self._report(ledger)
                ledger.adder = run.adder
                ledger.slot = run.slot
                ledger.first = answer.entry_id
                ledger.last = answer.entry_id
                self.acked.append(ledger)
            ledger.next = run.after(answer.entry_id)
            return 0
        self.adds_failed += 1
        self._report(ledger)
        adder, run.adder = run.adder, None  # one notification covers all entries behind it
        self._call(adder.on_adds_failed, (run.slot, answer.entry_id, answer.code))
        return 0

    cdef int _report(self, LedgerAdds ledger) except -1:
        """Notify the writer of the acknowledgements that have arrived."""
        adder = ledger.adder
        if adder is not None:
            ledger.adder = None
            self._call(adder.on_adds_acked, (ledger.slot, ledger.first, ledger.last))
        return 0

    cdef int _report_all(self) except -1:
        cdef list acked
        while self.acked:
            acked = self.acked
            self.acked = []
            for ledger in acked:
                self._report(ledger)
        return 0

    cdef int _on_read(self, Answer *answer) except -1:
        cdef bint is_batch = answer.operation == BOOKIE_BATCH_READ
        cdef PendingRead read, following
        cdef object key
        if is_batch:
            key = answer.request_id
        else:
            key = (answer.ledger_id, answer.entry_id)
        read = self.reads.get(key)
        if read is None or not read.is_sent:
            self.late_answers += 1
            return 0
        if is_batch and (read.ledger_id != answer.ledger_id or read.first != answer.entry_id):
            self._end("the bookie answered a batch read with the ids of another one", True)
            return 0
        read.is_done = True
        following = read.following
        read.following = None
        if following is None:
            del self.reads[key]
        else:
            self.reads[key] = following
            if not following.is_sent:
                self._send_read(following)
        if is_batch:
            self.has_answered_batch_read = True
            self.awaits_batch_read = False
        if read.callback is None:
            self.late_answers += 1
            return 0
        if answer.code == 0 or answer.code == NO_ENTRY or answer.code == NO_LEDGER:
            self.reads_done += 1
            self.reads_ns += <uint64_t>max(self.received_ns - read.sent_ns, 0)
        else:
            self.reads_failed += 1
        result = self._result(read, answer)
        if result is None:
            self._end("the bookie answered a read with sizes that contradict each other", True)
            result = DAMAGED
        callback, read.callback = read.callback, None
        self._call(callback, (result,))
        return 0

    cdef object _result(self, PendingRead read, Answer *answer):
        """Return what the callback of a read gets; None if the answer is malformed."""
        cdef int64_t entry_id, confirmed
        if read.kind == READ_ENTRIES:
            return answer.code if answer.code != 0 else self._entries(read, answer)
        if answer.code != 0:
            return -1 if answer.code == NO_LEDGER or answer.code == NO_ENTRY else answer.code
        if answer.size < ENTRY_BYTES_MIN:
            return DAMAGED
        entry_id = load_be64(answer.entries + 8)
        confirmed = load_be64(answer.entries + 16)
        if (load_be64(answer.entries) != read.ledger_id or entry_id < 0
                or not -1 <= confirmed < entry_id):
            return DAMAGED
        if read.digest is not None and not self._is_intact(read, answer):
            return DAMAGED
        return confirmed if read.kind == READ_CONFIRMED else entry_id

    cdef bint _is_intact(self, PendingRead read, Answer *answer) except -1:
        """Return True if the entry of an answer has the digest that it was written with."""
        cdef bytes copy = answer.entries[:answer.size]
        cdef EntryBatch batch = EntryBatch(read.ledger_id, 1, copy)
        batch.is_foreign = True
        batch.refs[0].data = <const uint8_t *>copy
        batch.refs[0].length = answer.size
        batch.refs[0].pin = NULL
        batch.count = 1
        return batch.unpack(read.digest) == 1

    cdef object _entries(self, PendingRead read, Answer *answer):
        """Return a batch of copies of the entries, or a code; None if the answer is malformed."""
        cdef bytes copy = answer.entries[:answer.size]
        cdef const uint8_t *data = copy
        cdef uint64_t at = 0
        cdef uint32_t size = answer.size
        cdef uint32_t count = 0
        cdef EntryBatch batch
        if answer.operation == BOOKIE_BATCH_READ:
            while at < answer.size:
                if answer.size - at < 4:
                    return None
                at += 4 + <uint64_t>load_be32(data + at)
                count += 1
            if at != answer.size or count == 0 or count > read.last - read.first + 1:
                return None
            at = 0
        else:
            count = 1
        batch = EntryBatch(read.ledger_id, <int>count, copy)
        batch.is_foreign = True
        while batch.count < <int>count:
            if answer.operation == BOOKIE_BATCH_READ:
                size = load_be32(data + at)
                at += 4
            if (size < ENTRY_BYTES_MIN or load_be64(data + at) != read.ledger_id
                    or load_be64(data + at + 8) != read.first + batch.count):
                # What the bookie has stored is wrong, not its protocol.
                break
            batch.refs[batch.count].entry_id = read.first + batch.count
            batch.refs[batch.count].data = data + at
            batch.refs[batch.count].length = size
            batch.refs[batch.count].from_disk = 0
            batch.refs[batch.count].pin = NULL
            batch.count += 1
            at += size
        return batch if batch.count else DAMAGED

    cdef int _settle(self, int64_t bytes) except -1:
        """Count bytes of adds as answered."""
        self.pending_bytes -= bytes
        if self.holding and self.pending_bytes * 2 <= self.pending_bytes_max:
            self.holding = False
            self.on_full(False)
        return 0

    # --- time-outs -----------------------------------------------------------------------------

    cdef int _start_timer(self) except -1:
        cdef int64_t interval_ns
        if self.timer is None:
            interval_ns = min(self.add_timeout_ns, self.read_timeout_ns) // 4
            interval_ns = min(interval_ns, <int64_t>SWEEP_NS_MAX)
            self.timer = self.loop.call_later(<double>interval_ns / NS, self.turn.run,
                                              self.sweep_call)
        return 0

    cdef int _forget_answered(self) except -1:
        while self.adds_by_age and (<PendingRun>self.adds_by_age[0]).left == 0:
            self.adds_by_age.popleft()
        while self.reads_by_age and (<PendingRead>self.reads_by_age[0]).is_done:
            self.reads_by_age.popleft()
        return 0

    def _sweep(self):
        """Fail the requests that have waited too long; end a connection that answers nothing."""
        cdef int64_t now_ns = turn_now_ns()
        cdef int64_t oldest_ns = now_ns
        cdef PendingRun run
        cdef PendingRead read
        cdef list failed = []
        self.timer = None
        self._forget_answered()
        while self.adds_by_age:
            run = self.adds_by_age[0]
            if run.left and now_ns - run.sent_ns < self.add_timeout_ns:
                break
            self.adds_by_age.popleft()
            if run.left == 0:
                continue
            self.overdue.append(run)
            oldest_ns = min(oldest_ns, run.sent_ns)
            self._settle(run.bytes)
            run.bytes = 0
            if run.adder is not None:
                self.adds_failed += 1
                failed.append((run.adder.on_adds_failed, run.slot, run.next, TIMED_OUT))
                run.adder = None
        while self.reads_by_age:
            read = self.reads_by_age[0]
            if not read.is_done and now_ns - read.sent_ns < self.read_timeout_ns:
                break
            self.reads_by_age.popleft()
            if read.is_done:
                continue
            self.overdue.append(read)
            oldest_ns = min(oldest_ns, read.sent_ns)
            if read.callback is not None:
                self.reads_failed += 1
                failed.append((read.callback, TIMED_OUT))
                read.callback = None
        self.timeouts += len(failed)
        self._fail(failed)
        self._check_alive(now_ns, oldest_ns)
        if self.adds_by_age or self.reads_by_age or self.overdue:
            self._start_timer()

    def _check_alive(self, int64_t now_ns, int64_t oldest_ns):
        """End a connection on which nothing was received while a request timed out, or whose bookie
        withholds an answer. oldest_ns is when the oldest request that timed out now was sent.
        """
        cdef int64_t sent_ns
        if self.fd < 0:
            return
        if oldest_ns < now_ns and self.received_ns < oldest_ns:
            self._end("the bookie does not answer", False)
            return
        while self.overdue:
            request = self.overdue[0]
            if isinstance(request, PendingRun):
                sent_ns = (<PendingRun>request).sent_ns + 2 * self.add_timeout_ns
                is_answered = (<PendingRun>request).left == 0
            else:
                sent_ns = (<PendingRead>request).sent_ns + 2 * self.read_timeout_ns
                is_answered = (<PendingRead>request).is_done
            if not is_answered:
                if sent_ns < now_ns:
                    self._end("the bookie left a request without an answer", False)
                return
            self.overdue.popleft()
