"""A client's socket, from bytes to commands and back; connection.pxd describes the parts."""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport UINT32_MAX, UINT64_MAX
from libc.string cimport memcpy, memmove

from pyxbroker.buffers cimport SLAB_BYTES
from pyxbroker.commands cimport (
    ACK_IDS,
    ACK_SET_WORDS_MAX,
    CMD_ACK,
    CMD_FLOW,
    CMD_REDELIVER,
    CMD_SEND,
    RECEIPT_BYTES_MAX,
    REDELIVER_IDS,
    CHUNK_UUID_BYTES_MAX,
    METADATA_FIELDS_MAX,
    AckCommand,
    AckedId,
    FlowCommand,
    MetadataPeek,
    RedeliverCommand,
    SendCommand,
    build_receipt,
    decode_ack,
    decode_ack_set,
    decode_base,
    decode_flow,
    decode_next_id,
    decode_redeliver,
    decode_send,
    has_room_for_messages,
    peek_metadata,
)
from pyxbroker.entry cimport ITEM_CHUNK, ITEM_UNCOUNTED, AckItem, AckRun
from pyxbroker.frames cimport (
    FRAME_TOO_LARGE,
    PAYLOAD_CHECKSUM,
    PAYLOAD_OK,
    Payload,
    frame_next,
    payload_check,
)
from pyxbroker.integers cimport load_be32, put_varint
from pyxbroker.tls cimport TLS_AGAIN, TLS_FAILED, TlsStream
from pyxbroker.turn_watch cimport turn_now_ns

from pyxbroker._native import crc32c


cdef extern from "<sys/socket.h>" nogil:
    ssize_t recv(int, void *, size_t, int)

cdef extern from "<unistd.h>" nogil:
    int close_fd "close"(int fd)


cdef list PAUSE_NAMES = [
    (PAUSED_SENDS, "sends"),
    (PAUSED_GATE, "gate"),
    (PAUSED_OUTPUT, "output"),
    (PAUSED_COMMANDS, "commands"),
    (PAUSED_TURN, "turn"),
    (PAUSED_ACKS, "acks"),
    (PAUSED_RATE, "rate"),
]


cdef class Connections:
    """All live connections of one event loop, and what they share: slabs, turn, publish buffer."""

    def __cinit__(self, loop, handlers, *, uint32_t frame_bytes_max, uint32_t sends_max,
                  int64_t publish_bytes_max):
        self.loop = loop
        self.handlers = handlers
        self.turn = Turn(loop)
        self.live = set()
        self.dirty = []
        self.held = {}
        self.slabs = SlabPool()
        self.frame_bytes_max = frame_bytes_max
        self.sends_max = sends_max
        self.publish_bytes_max = publish_bytes_max
        self.flush_call = self._flush
        self.watched = {}
        self.unfinished = {}
        self.unauthenticated_fd = -1
        self.fd = epoll_create1(EPOLL_CLOEXEC)
        if self.fd < 0:
            raise OSError(errno, "cannot create an epoll for the sockets of clients")
        self.unauthenticated_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.unauthenticated_fd < 0:
            raise OSError(errno, "cannot create an epoll for unauthenticated connections")
        loop.add_reader(self.fd, self._on_ready)
        loop.add_reader(self.unauthenticated_fd, self.on_ready)

    def __dealloc__(self):
        if self.fd >= 0:
            close_fd(self.fd)
        if self.unauthenticated_fd >= 0:
            close_fd(self.unauthenticated_fd)

    @property
    def free_slabs(self):
        """Sizes of the free slabs in bytes."""
        return self.slabs.sizes()

    def serve_unauthenticated_from(self, door):
        """Let the door of the process decide when unauthenticated connections are served."""
        self.loop.remove_reader(self.unauthenticated_fd)
        door.watch(self.unauthenticated_fd, self)

    def on_ready(self):
        """Serve one ready socket of an unauthenticated connection. Sockets are served round-robin.
        """
        cdef Connection connection
        cdef epoll_event event
        cdef int count = epoll_wait(self.unauthenticated_fd, &event, 1, 0)
        if count < 0 and errno != EINTR:
            raise OSError(errno, "cannot poll the sockets of unauthenticated connections")
        if count > 0:
            connection = self.watched.get(event.data.fd)
            if connection is not None:
                connection.on_ready(event.events)

    def _on_ready(self):
        """Serve the ready sockets within the time of one loop iteration. The remaining events are
        handled in the next iteration, before the sockets are polled again.
        """
        cdef Connection connection
        cdef int64_t began_ns = 0
        cdef epoll_event event
        if self.ready_at == self.ready_count:
            self.ready_at = 0
            self.ready_count = epoll_wait(self.fd, self.ready, SOCKETS_PER_TURN, 0)
            if self.ready_count < 0:
                self.ready_count = 0
                if errno != EINTR:
                    raise OSError(errno, "cannot poll the sockets of clients")
        if self.ready_count - self.ready_at > 1:
            began_ns = self.turn.began_ns()
        while self.ready_at < self.ready_count:
            event = self.ready[self.ready_at]
            self.ready_at += 1
            # The socket may be closed and its descriptor reused since. Reading a socket that is not
            # ready is harmless.
            connection = self.watched.get(event.data.fd)
            if connection is not None:
                connection.on_ready(event.events)
            if began_ns != 0 and turn_now_ns() - began_ns > READ_NS_MAX:
                break

    def accept(self, sock, str peer, session, context=None):
        """Serve a connected, non-blocking socket and return its Connection. context enables TLS.
        Raise OSError if the socket cannot be watched; the caller then still owns it.
        """
        cdef Connection connection = Connection(self, sock, peer)
        if context is not None:
            connection.tls = TlsStream(context)
        connection.session = session
        connection._update_reading()
        self.live.add(connection)
        return connection

    cdef int add_unfinished(self, Connection connection) except -1:
        """Record that an unauthenticated connection holds a slab with a part of its CONNECT. Above
        the limit the handlers close one of the older ones: an honest client would have sent the
        rest by now.
        """
        self.unfinished[connection] = None
        if len(self.unfinished) > UNAUTHENTICATED_SLABS_MAX:
            self.handlers.on_too_many_unfinished(self.unfinished)
        return 0

    cdef int mark_dirty(self, Connection connection) except -1:
        if not connection.is_dirty:
            connection.is_dirty = True
            self.dirty.append(connection)
            if len(self.dirty) == 1:
                self.turn.at_last(self.flush_call)
        return 0

    def _flush(self):
        cdef Connection connection
        cdef list dirty = self.dirty
        self.dirty = []
        for connection in dirty:
            connection.is_dirty = False
            try:
                connection.flush()
            except Exception as error:
                connection._fail(error)

    cdef int publish_started(self, int64_t size) except -1:
        self.publish_bytes += size
        if self.publish_bytes > self.publish_bytes_max and not self.gate_closed:
            self._check_gate()
        return 0

    cdef int publish_ended(self, int64_t size) except -1:
        self.publish_bytes -= size
        if self.gate_closed:
            self._check_gate()
        return 0

    def set_full(self, bint full):
        """Pause publishing while a bookie's write cache is full, or resume it."""
        self.full = full
        self._check_gate()

    def set_holding(self, bint on):
        """Start or stop holding SENDs while storage refuses writes. Acknowledgements and permits
        are still read, also from publishing clients. on_overflow() is called when the held bytes
        exceed the limit.
        """
        cdef Connection connection
        self.holding = on
        if not on:
            self.held.clear()
        else:
            for connection in list(self.live):
                connection._set_paused(PAUSED_SENDS, False)
        self._check_gate()

    def _overflow(self):
        self.overflow_due = False
        if self.on_overflow is not None:
            self.on_overflow()

    cdef int _check_gate(self) except -1:
        cdef Connection connection
        cdef bint over = self.publish_bytes > self.publish_bytes_max
        cdef bint closed = (self.full or over) and not self.holding
        if over and self.holding and not self.overflow_due:
            self.overflow_due = True
            self.turn.at_end(self._overflow)
        if (not closed and self.gate_closed and not self.holding
                and self.publish_bytes * 2 > self.publish_bytes_max):
            return 0
        if closed == self.gate_closed:
            return 0
        self.gate_closed = closed
        for connection in list(self.live):
            # Consumers without producers continue: their acknowledgements free the space that
            # publishing needs.
            connection._set_paused(PAUSED_GATE, closed and len(connection.producers) > 0)
        return 0


cdef class ProducerState:
    """The connection's half of a producer: collects SENDs and sends receipts."""

    def __init__(self, Connection connection not None, uint64_t producer_id):
        self.connection = connection
        self.producer_id = producer_id
        self.run_messages_max = UINT64_MAX
        self.run_bytes_max = UINT64_MAX

    def publish(self, EntryRun run):
        """Publish the run of SENDs of one read. Subclasses override this."""
        raise NotImplementedError

    def publish_transactional(self, EntryRun run):
        """Publish a run with SENDs of transactions. Subclasses override this."""
        raise NotImplementedError

    def send_receipts(self, EntryRun run not None, bint stored=True):
        """Send one SEND_RECEIPT per entry, all in one write. If not stored, all entries get the
        run's position.
        """
        cdef Connection connection = self.connection
        cdef uint32_t i
        cdef int64_t entry_id = run.first_entry_id
        cdef uint8_t *at
        self.settle(run)
        if connection.closed:
            return
        for i in range(run.count):
            at = connection.out.reserve(RECEIPT_BYTES_MAX)
            if at == NULL:
                raise MemoryError("no memory for send receipts")
            connection.out.commit(build_receipt(
                at, self.producer_id, run.items[i].sequence_id, run.items[i].highest_sequence_id,
                <uint64_t>run.ledger_id, <uint64_t>entry_id))
            entry_id += stored
        connection.group.mark_dirty(connection)

    def refused_run(self, uint64_t sequence_id, uint64_t highest_sequence_id):
        """Return a run without data for a refused SEND. It counts as pending until settled."""
        cdef Connection connection = self.connection
        cdef EntryRun run = EntryRun(self)
        run.append(sequence_id, highest_sequence_id, NULL, 0, 0, 1)
        run.bytes = REFUSED_SEND_BYTES
        self.pending_sends += 1
        connection.pending_sends += 1
        connection.pending_send_bytes += REFUSED_SEND_BYTES
        connection.group.publish_started(REFUSED_SEND_BYTES)
        connection._pause_for_sends()
        return run

    def settle(self, EntryRun run not None):
        """Remove an answered or failed run from the pending counts and limits."""
        cdef Connection connection = self.connection
        cdef int64_t size = <int64_t>(run.bytes - run.broker_metadata_bytes)
        self.pending_sends -= run.count
        connection.pending_sends -= run.count
        connection.pending_send_bytes -= size
        connection.group.publish_ended(size)
        if (connection.paused & PAUSED_SENDS
                and connection.pending_sends * 2 <= connection.group.sends_max
                and connection.pending_send_bytes * 2 <= SEND_BYTES_MAX):
            connection._set_paused(PAUSED_SENDS, False)


# Return a payload section whose metadata names the transaction of a SEND. Go clients name it in the
# command alone, and readers of the log see only the metadata.
cdef bytes _with_transaction(Frame *frame, Payload *payload, SendCommand *send):
    cdef uint8_t fields[24]
    cdef uint8_t *at = put_varint(fields, 22 << 3)
    cdef bytes body
    cdef const uint8_t *rest = payload.metadata + payload.metadata_size
    at = put_varint(put_varint(at, send.txnid_least_bits), 23 << 3)
    at = put_varint(at, send.txnid_most_bits)
    body = ((payload.metadata_size + <uint32_t>(at - fields)).to_bytes(4, "big")
            + payload.metadata[:payload.metadata_size] + fields[:at - fields]
            + rest[:frame.payload + frame.payload_size - rest])
    return b"\x0e\x01" + crc32c(body).to_bytes(4, "big") + body


cdef class Connection:
    """A client's socket. Its callbacks run on the event loop and never block."""

    def __cinit__(self, Connections group not None, sock, str peer):
        self.group = group
        self.sock = sock
        self.fd = sock.fileno()
        self.peer = peer
        self.producers = {}
        self.consumers = {}
        self.closed_producers = {}
        self.run_producers = []
        self.waiting_output = {}
        self.out = OutVector()
        self.read_bytes_max = UINT32_MAX
        self.received_since_check = True

    # --- reading -----------------------------------------------------------------------------

    cdef int _on_readable(self) except -1:
        cdef Turn turn = self.group.turn
        if self.part_at:
            return 0
        turn.begin()
        try:
            if self._receive():
                self._consume_frames()
                self._read_decrypted()
        except Exception as error:
            self._fail(error)
        finally:
            turn.end()
        return 0

    cdef int _read_decrypted(self) except -1:
        """Read data that TLS has already decrypted, as the socket does not become readable for it.
        Bounded by what one read of the socket brought.
        """
        while (self.tls is not None and self.tls.has_more and self.paused == 0
                and self.part_at == 0 and not self.closed):
            if not self._receive():
                break
            self._consume_frames()
        return 0

    def _fail(self, error):
        """Close this connection after an internal error. Other connections are not affected."""
        try:
            self.group.handlers.on_internal_error(self, error)
        finally:
            self.close()

    def resume(self):
        """Resume after a wait: continue a long command, then the frames read after it."""
        cdef Turn turn = self.group.turn
        turn.begin()
        try:
            self.paused &= ~PAUSED_TURN
            self.is_granted = True
            if self.has_ended:
                self.close()
            if self.closed:
                self._store_partial_frame()
            elif self.slab is not None or self.stash is not None:
                self._take_slab()
                self._consume_frames()
            self._read_decrypted()
            self._update_reading()
        except Exception as error:
            self._fail(error)
        finally:
            self.is_granted = False
            turn.end()

    cdef bint _may_begin(self) except -1:
        """Return True if a command other than the hot ones may be handled now. Otherwise resume()
        is called later.
        """
        if self.is_granted:
            self.is_granted = False
            return True
        if self.group.handlers.may_begin(self):
            return True
        self._wait_turn()
        return False

    cdef int _wait_turn(self) except -1:
        """Stop handling frames until resume() is called."""
        self.group.handlers.wait_turn(self)
        return self._set_paused(PAUSED_TURN, True)

    cdef int _take_slab(self) except -1:
        if self.slab is not None:
            return 0
        self.slab = self.group.slabs.acquire(SLAB_BYTES)
        self.start = 0
        self.end = 0
        if self.stash is not None:
            memcpy(self.slab.data, <const uint8_t *>self.stash, len(self.stash))
            self.end = len(self.stash)
            self.stash = None
        return 0

    cdef int _receive(self) except -1:
        cdef int64_t n
        cdef uint64_t room
        if self.closed:
            return 0
        self._take_slab()
        room = min(self.slab.size - self.end, <uint64_t>self.read_bytes_max)
        if self.tls is not None:
            n = self._receive_tls(room)
        else:
            n = recv(self.fd, self.slab.data + self.end, room, 0)
            if n < 0:
                n = TLS_AGAIN if errno == EAGAIN or errno == EINTR else 0
        if n > 0:
            self.end += <uint64_t>n
            self.received_since_check = True
            return 1
        if n == TLS_AGAIN or self.closed:
            self._store_partial_frame()
            return 0
        self.has_ended = True
        if self._may_begin():
            self.close()
        # No frame refers to the slab any more, so it can be released.
        self._store_partial_frame()
        return 0

    cdef int64_t _receive_tls(self, uint64_t room) except? -3:
        """Receive like TlsStream.receive, and close the connection after a TLS error."""
        cdef int64_t n = self.tls.receive(self.fd, self.slab.data + self.end, room)
        if self.tls.output_bytes():
            self.group.mark_dirty(self)
        if n == TLS_FAILED:
            self.group.handlers.on_broken_tls(self, self.tls.failure)
            self.close()
        return n

    cdef int _consume_frames(self) except -1:
        cdef Frame frame
        cdef int64_t n
        cdef uint32_t frame_bytes_max
        cdef uint32_t frames_since_check = 0
        cdef int64_t began_ns = 0
        cdef bint was_granted = self.is_granted
        if was_granted:
            began_ns = turn_now_ns()
        while not self.closed and not self.paused & PAUSED_FRAMES:
            frame_bytes_max = self.group.frame_bytes_max
            if not self.established and HANDSHAKE_FRAME_BYTES_MAX < frame_bytes_max:
                frame_bytes_max = HANDSHAKE_FRAME_BYTES_MAX
            n = frame_next(self.slab.data + self.start, self.end - self.start, frame_bytes_max,
                           &frame)
            if n == 0:
                break
            if n < 0:
                self._publish_runs()
                if n == FRAME_TOO_LARGE:
                    self.group.handlers.on_frame_too_large(
                        self, self.slab.data[self.start:self.start + 4], frame_bytes_max)
                else:
                    self.group.handlers.on_malformed(
                        self, "the sizes of a frame contradict each other")
                self.close()
                return 0
            # A FLOW, an ACK or a redelivery may take as long as a thousand SENDs.
            if self.has_worked or frames_since_check == FRAMES_PER_CLOCK_CHECK:
                self.has_worked = False
                frames_since_check = 0
                if began_ns == 0:
                    began_ns = self.group.turn.began_ns()
                if turn_now_ns() - began_ns > READ_NS_MAX:
                    self._wait_turn()
                    break
            frames_since_check += 1
            if not self._on_frame(&frame):
                break
            if self.part_at and not self.closed:
                # The command stays in the slab, and nothing after it is read.
                self._wait_turn()
                return self._publish_runs()
            self.start += <uint64_t>n
        # The runs point into the slab, which is moved, reused or freed below.
        self._publish_runs()
        if self.read_bytes_max < SLAB_BYTES and not self.paused & PAUSED_RATE:
            self.read_bytes_max *= 2
        return self._store_partial_frame()

    cdef int _store_partial_frame(self) except -1:
        """Keep a partial frame in as little memory as possible."""
        cdef uint64_t rest = self.end - self.start
        cdef uint64_t wanted = STASH_BYTES_MAX
        cdef Slab slab = self.slab
        cdef Slab larger
        if slab is None:
            return 0
        if (self.closed or rest <= STASH_BYTES_MAX
                or (self.paused & PAUSED_RATE and slab.size == SLAB_BYTES)):
            # Throttled connections may be many and wait long, so none of them holds a slab.
            self.stash = slab.data[self.start:self.end] if rest and not self.closed else None
            self.slab = None
            self.group.unfinished.pop(self, None)
            return self.group.slabs.release(slab)
        if not self.established:
            self.group.add_unfinished(self)
        # The partial frame exceeds a stash, so its size field is complete and was checked against
        # the limit.
        wanted = <uint64_t>load_be32(slab.data + self.start) + 4
        if wanted > slab.size:
            larger = self.group.slabs.acquire(wanted)
            memcpy(larger.data, slab.data + self.start, rest)
            self.slab = larger
            self.group.slabs.release(slab)
        elif self.start + wanted > slab.size or slab.size - self.end < READ_BYTES_MIN:
            memmove(slab.data, slab.data + self.start, rest)
        else:
            return 0
        self.start = 0
        self.end = rest
        return 0

    cdef bint _on_frame(self, Frame *frame) except -1:
        """Handle a frame. Return False if it has to wait."""
        cdef uint32_t kind = 0
        cdef uint32_t size = 0
        cdef const uint8_t *message = NULL
        if decode_base(frame.command, frame.command_size, &kind, &message, &size) == 0:
            if self.established:
                if kind == CMD_SEND:
                    self._on_send(frame, message, size)
                    return True
                self.has_worked = True
                if kind == CMD_ACK:
                    self._on_ack(message, size)
                    return True
                if kind == CMD_FLOW:
                    self._on_flow(message, size)
                    return True
                if kind == CMD_REDELIVER:
                    self._on_redeliver(message, size)
                    return True
        if not self._may_begin():
            return False
        # A cold command may close a producer that has SENDs in a run.
        self._publish_runs()
        self.group.handlers.on_command(self, kind, frame.command[:frame.command_size],
                                       frame.payload[:frame.payload_size])
        return True

    cdef int _malformed(self, str what) except -1:
        self._publish_runs()
        self.group.handlers.on_malformed(self, what)
        self.close()
        return 0

    cdef int _on_send(self, Frame *frame, const uint8_t *message, uint32_t size) except -1:
        cdef SendCommand send
        cdef Payload payload
        cdef MetadataPeek peek
        cdef ProducerState producer
        cdef int code
        cdef bytes section
        cdef str refused = "transaction"
        if decode_send(message, size, &send) != 0:
            return self._malformed("a SEND command could not be decoded")
        producer = self.producers.get(send.producer_id)
        if producer is None:
            if send.producer_id in self.closed_producers:
                self.group.handlers.on_stray_command("SEND")
                return 0
            return self._malformed("SEND for producer %d, which is not open on this connection"
                                   % send.producer_id)
        code = payload_check(frame.payload, frame.payload_size, &payload)
        if code == PAYLOAD_OK:
            if peek_metadata(payload.metadata, payload.metadata_size, &peek) != 0:
                refused = "metadata"
            elif peek.uuid_size > CHUNK_UUID_BYTES_MAX:
                refused = "uuid"
            elif peek.fields > METADATA_FIELDS_MAX:
                refused = "fields"
            elif not has_room_for_messages(&peek, <uint32_t>(
                    frame.payload + frame.payload_size - payload.metadata - payload.metadata_size)):
                refused = "count"
            elif send.has_txn == peek.has_txn and (
                    not send.has_txn or (peek.txnid_most_bits == send.txnid_most_bits
                                         and peek.txnid_least_bits == send.txnid_least_bits)):
                return self._collect(producer, &send, frame.payload, frame.payload_size,
                                     payload.crc)
            elif send.has_txn and not peek.has_txn:
                section = _with_transaction(frame, &payload, &send)
                return self._collect(producer, &send, section, <uint32_t>len(section),
                                     crc32c(section), section)
        else:
            refused = "checksum" if code == PAYLOAD_CHECKSUM else "metadata"
        # Publish earlier SENDs first, so that the error is not sent before their answers.
        self._publish_runs()
        self.group.handlers.on_refused_send(
            self, producer, send.sequence_id, send.highest_sequence_id, refused)
        return 0

    cdef int _collect(self, ProducerState producer, SendCommand *send, const uint8_t *data,
                      uint32_t size, uint32_t crc, bytes owner=None) except -1:
        if producer.run is None:
            producer.run = EntryRun(producer)
            self.run_producers.append(producer)
        producer.run.append(send.sequence_id, send.highest_sequence_id, data, size, crc,
                            send.num_messages)
        if owner is not None:
            producer.run.keep(owner)
        if send.is_chunk or send.marker:
            producer.run.items[producer.run.count - 1].kind = (
                ITEM_UNCOUNTED if send.marker else ITEM_CHUNK)
            producer.chunks_in += send.is_chunk
        if send.has_txn:
            producer.run.note_transaction(send.txnid_most_bits, send.txnid_least_bits)
        if (producer.run.messages >= producer.run_messages_max
                or producer.run.bytes >= producer.run_bytes_max):
            return self._publish_runs()
        return 0

    cdef int _publish_runs(self) except -1:
        cdef ProducerState producer
        cdef EntryRun run
        cdef list producers
        if not self.run_producers:
            return 0
        producers = self.run_producers
        self.run_producers = []
        for producer in producers:
            run = producer.run
            producer.run = None
            producer.pending_sends += run.count
            producer.msg_in += run.messages
            producer.bytes_in += run.bytes
            self.pending_sends += run.count
            self.pending_send_bytes += <int64_t>run.bytes
            if self.group.holding:
                self.group.held[producer] = None
            self.group.publish_started(<int64_t>run.bytes)
            try:
                if run.transactions is None:
                    producer.publish(run)
                else:
                    producer.publish_transactional(run)
            except Exception:
                producer.settle(run)
                raise
        self._pause_for_sends()
        if self.group.gate_closed:
            # The connection opened its first producer after the gate was closed.
            self._set_paused(PAUSED_GATE, True)
        return 0

    cdef int _pause_for_sends(self) except -1:
        cdef bint many = (self.pending_sends >= self.group.sends_max
                          or self.pending_send_bytes >= SEND_BYTES_MAX)
        if many and not self.group.holding:
            self._set_paused(PAUSED_SENDS, True)
        return 0

    cdef int _on_ack(self, const uint8_t *message, uint32_t size) except -1:
        """Handle an ACK, or the next part of one with many ids."""
        cdef AckCommand *ack = &self.ack
        cdef AckedId id
        cdef AckItem item
        cdef AckRun run
        cdef int64_t words[ACK_SET_WORDS_MAX]
        cdef int got, count
        cdef bint is_last = True
        cdef uint32_t at = self.part_at
        cdef uint32_t end
        self.part_at = 0
        if at == 0 and decode_ack(message, size, ack) != 0:
            return self._malformed("an ACK command could not be decoded")
        end = at + (TXN_ACK_PART_BYTES if ack.has_txn else ACK_PART_BYTES)
        run = AckRun()
        while True:
            got = decode_next_id(message, size, ACK_IDS, &at, &id)
            if got == 0:
                break
            count = 0
            if got > 0 and id.ack_set_words:
                count = decode_ack_set(&id, words, ACK_SET_WORDS_MAX)
            if got < 0 or count < 0:
                return self._malformed("a message id of an ACK command could not be decoded")
            item.ledger_id = id.ledger_id
            item.entry_id = id.entry_id
            item.batch_index = id.batch_index
            item.batch_size = id.batch_size
            run.append(&item, words, <uint32_t>count)
            if at >= end:
                # A cumulative ACK names one id. More ids are refused in one call.
                is_last = ack.cumulative or ack.ids == <uint32_t>run.count
                break
        ack.ids -= <uint32_t>run.count
        consumer = self.consumers.get(ack.consumer_id)
        txn = (ack.txnid_most_bits, ack.txnid_least_bits) if ack.has_txn else None
        if not is_last and consumer is not None:
            self.part_at = at
            consumer.on_ack(run, False, None, txn, False)
        elif consumer is not None:
            consumer.on_ack(run, bool(ack.cumulative),
                            ack.request_id if ack.has_request_id else None, txn)
        elif ack.has_request_id:
            self.group.handlers.on_stray_ack(self, ack.consumer_id, ack.request_id)
        else:
            self.group.handlers.on_stray_command("ACK")
        return 0

    cdef int _on_redeliver(self, const uint8_t *message, uint32_t size) except -1:
        """Handle a REDELIVER_UNACKNOWLEDGED_MESSAGES, or the next part of one with many ids."""
        cdef RedeliverCommand *redeliver = &self.redeliver
        cdef AckedId id
        cdef uint32_t at = self.part_at
        cdef list positions = []
        self.part_at = 0
        if at == 0 and decode_redeliver(message, size, redeliver) != 0:
            return self._malformed("a REDELIVER_UNACKNOWLEDGED_MESSAGES command could not be"
                                   " decoded")
        while redeliver.ids and len(positions) < REDELIVER_PART_IDS:
            if decode_next_id(message, size, REDELIVER_IDS, &at, &id) < 0:
                return self._malformed("a message id of a REDELIVER_UNACKNOWLEDGED_MESSAGES command"
                                       " could not be decoded")
            redeliver.ids -= 1
            positions.append((id.ledger_id, id.entry_id))
        consumer = self.consumers.get(redeliver.consumer_id)
        if consumer is None:
            self.group.handlers.on_stray_command("REDELIVER_UNACKNOWLEDGED_MESSAGES")
        elif consumer.on_redeliver(
                positions, <int64_t>redeliver.consumer_epoch if redeliver.has_epoch else None):
            self.part_at = at if redeliver.ids else 0
        return 0

    cdef int _on_flow(self, const uint8_t *message, uint32_t size) except -1:
        cdef FlowCommand flow
        if decode_flow(message, size, &flow) != 0:
            return self._malformed("a FLOW command could not be decoded")
        consumer = self.consumers.get(flow.consumer_id)
        if consumer is not None:
            if not 0 < flow.permits <= PERMITS_MAX:
                return self._malformed("a FLOW command has no valid number of permits")
            consumer.on_flow(flow.permits)
        else:
            self.group.handlers.on_stray_command("FLOW")
        return 0

    # --- pausing -----------------------------------------------------------------------------

    cdef int _set_paused(self, int flag, bint on) except -1:
        cdef int paused = self.paused | flag if on else self.paused & ~flag
        if paused == self.paused:
            return 0
        if not self.closed and (
                self.paused & PAUSED_FRAMES and not paused & PAUSED_FRAMES
                and (self.slab is not None or self.stash is not None)
                or paused == 0 and self.tls is not None and self.tls.has_more):
            # Bytes read or decrypted earlier may contain whole frames, without further events from
            # the socket.
            paused |= PAUSED_TURN
            self.group.handlers.wait_turn(self)
        self.paused = paused
        self._update_reading()
        return 0

    def pause_commands(self, bint on):
        """Pause while too many commands of the client are in progress, or resume."""
        self._set_paused(PAUSED_COMMANDS, on)

    def ack_begun(self):
        """Count an acknowledgement that is answered once it is durable."""
        self.pending_acks += 1
        if self.pending_acks >= ACKS_MAX:
            self._set_paused(PAUSED_ACKS, True)

    def ack_ended(self):
        """Count an acknowledgement as answered."""
        self.pending_acks -= 1
        if self.paused & PAUSED_ACKS and self.pending_acks * 2 <= ACKS_MAX:
            self._set_paused(PAUSED_ACKS, False)

    def begin_throttling(self):
        """Pause reading because of one more exceeded rate."""
        self.throttling_rates += 1
        self.read_bytes_max = RATED_READ_BYTES
        self._set_paused(PAUSED_RATE, True)

    def end_throttling(self):
        """End the pause for one rate. Reading resumes after the last one."""
        self.throttling_rates -= 1
        if self.throttling_rates == 0:
            self._set_paused(PAUSED_RATE, False)

    @property
    def is_paused(self):
        """True while reading from the client is paused, so that its silence means nothing."""
        return self.paused != 0

    @property
    def pauses(self):
        """Names of the causes that pause reading from the client: sends, gate, output, commands,
        turn, acks, rate.
        """
        return [name for flag, name in PAUSE_NAMES if self.paused & flag]

    cdef int _update_reading(self) except -1:
        self.reading = self.paused == 0 and not self.closed
        return self._watch()

    cdef int _set_writing(self, bint on) except -1:
        self.writing = on
        self.sent_since_check = self.sent_since_check or on
        return self._watch()

    cdef int _watch(self) except -1:
        """Update the epoll events of the socket. epoll always reports errors, so a socket that
        waits for neither direction is removed.
        """
        cdef Connections group = self.group
        cdef int epoll = group.fd if self.established else group.unauthenticated_fd
        cdef epoll_event event
        cdef int code
        cdef int what = EPOLL_CTL_MOD
        event.events = (EPOLLIN if self.reading else 0) | (EPOLLOUT if self.writing else 0)
        event.data.fd = self.fd
        if event.events == self.events:
            return 0
        if event.events == 0:
            what = EPOLL_CTL_DEL
            del group.watched[self.fd]
        elif self.events == 0:
            what = EPOLL_CTL_ADD
        self.events = 0
        if epoll_ctl(epoll, what, self.fd, &event) != 0:
            code = errno
            group.watched.pop(self.fd, None)
            raise OSError(code, "cannot watch the socket of a client")
        self.events = event.events
        if what == EPOLL_CTL_ADD:
            group.watched[self.fd] = self
        return 0

    def establish(self):
        """Serve the connection as an authenticated client. Called just before CONNECTED is sent."""
        cdef bint was_reading = self.reading
        cdef bint was_writing = self.writing
        if self.established or self.closed:
            return
        self.reading = self.writing = False
        self._watch()
        self.established = True
        self.group.unfinished.pop(self, None)
        self.reading, self.writing = was_reading, was_writing
        self._watch()

    cdef int on_ready(self, uint32_t events) except -1:
        """Handle epoll events. Reading or writing the socket reports its errors."""
        if self.reading and events & ~<uint32_t>EPOLLOUT:
            self._on_readable()
        if self.writing and events & ~<uint32_t>EPOLLIN:
            self._on_writable()
        return 0

    # --- writing -----------------------------------------------------------------------------

    def send_frame(self, bytes frame not None):
        """Queue a whole frame. It is sent at the end of the current Turn."""
        cdef uint32_t size = <uint32_t>len(frame)
        cdef uint8_t *at
        if self.closed:
            return
        at = self.out.reserve(size)
        if at == NULL:
            raise MemoryError("no memory for a frame of %d bytes" % size)
        memcpy(at, <const uint8_t *>frame, size)
        self.out.commit(size)
        self.group.mark_dirty(self)

    cdef uint64_t _output_bytes(self) except? 0:
        """Return the number of bytes that wait for the socket, including TLS records."""
        if self.tls is None:
            return self.out.pending
        return self.out.pending + <uint64_t>self.tls.output_bytes()

    cdef int _send(self) except? -1:
        """Send as much as the socket accepts. Returns 0 if all is sent, 1 if the socket is full, or
        -errno.
        """
        return self.out.send(self.fd) if self.tls is None else self.tls.send(self.out, self.fd)

    cdef int flush(self) except -1:
        cdef int code
        if self.closed or self._output_bytes() == 0:
            return 0
        if not self.writing:
            code = self._send()
            if code < 0:
                self.close()
                return 0
            if code == 1:
                self._set_writing(True)
            elif self.waiting_output:
                self._resume_delivery()
        # Check on each flush: a client that does not read may still send requests.
        if self.writing and self._output_bytes() > OUT_PENDING_PAUSE:
            self._set_paused(PAUSED_OUTPUT, True)
        return 0

    cdef int _on_writable(self) except -1:
        cdef Turn turn = self.group.turn
        cdef int code
        if self.closed:
            return 0
        turn.begin()
        try:
            code = self._send()
            if code < 0:
                self.close()
                return 0
            self.sent_since_check = True
            if code == 0:
                self._set_writing(False)
            if self.paused & PAUSED_OUTPUT and self._output_bytes() * 2 < OUT_PENDING_PAUSE:
                self._set_paused(PAUSED_OUTPUT, False)
            if self.waiting_output and self.out.pending < OUT_PENDING_RESUME:
                self._resume_delivery()
        except Exception as error:
            self._fail(error)
        finally:
            turn.end()
        return 0

    cdef bint can_deliver(self) noexcept:
        return not self.closed and self.out.pending < OUT_PENDING_DISPATCH

    def _resume_delivery(self):
        calls = self.waiting_output
        self.waiting_output = {}
        for call in calls:
            self.group.turn.dispatching.run(call)

    def when_writable(self, call):
        """Call call() once when the client has read enough for delivery to resume."""
        self.waiting_output[call] = None

    def cancel_when_writable(self, call):
        """Cancel a call registered with when_writable()."""
        self.waiting_output.pop(call, None)

    @property
    def is_delivery_paused(self):
        """True while a delivery waits until the client has read enough."""
        return bool(self.waiting_output)

    @property
    def pending_bytes(self):
        """Bytes queued for the client and not sent yet."""
        return self.out.pending

    # --- the end -----------------------------------------------------------------------------

    def forget_producer(self, uint64_t producer_id):
        """Remove a producer. Late SENDs for it are dropped.

        Returns the number of remembered ids to charge for since the last call: 0 until there are
        CLOSED_PRODUCERS_COUNTED of them.
        """
        cdef Py_ssize_t more = 0
        if self.producers.pop(producer_id, None) is not None:
            self.closed_producers[producer_id] = None
            if len(self.closed_producers) > CLOSED_PRODUCERS_KEPT:
                del self.closed_producers[next(iter(self.closed_producers))]
            more = len(self.closed_producers) - self.closed_producers_counted
            if more < CLOSED_PRODUCERS_COUNTED:
                more = 0
            self.closed_producers_counted += more
            if not self.producers:
                self._set_paused(PAUSED_GATE, False)
        return more

    def close(self):
        """Send what the socket accepts immediately, close it, and notify the handlers."""
        if self.closed:
            return
        if not self.writing:
            if self.tls is not None:
                self.tls.close_notify(self.out, self.fd)
            elif self.out.pending:
                self.out.send(self.fd)
        self.closed = True
        # Remove both directions in one call: if one cannot be watched, neither can the other.
        self.reading = self.writing = False
        self._watch()
        self.group.live.discard(self)
        self.group.unfinished.pop(self, None)
        self.sock.close()
        self.out.clear()
        self.stash = None
        self.waiting_output = {}
        self.group.handlers.on_closed(self)
