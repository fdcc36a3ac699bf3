# One client's socket: reads frames, hands runs of SENDs to producers, coalesces what is written.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyxbroker.buffers cimport OutVector, Slab, SlabPool
from pyxbroker.commands cimport AckCommand, RedeliverCommand, SendCommand
from pyxbroker.entry cimport EntryRun
from pyxbroker.frames cimport Frame
from pyxbroker.tls cimport TlsStream
from pyxbroker.turn cimport Turn

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int what, int fd, epoll_event *event)
    int epoll_wait(int epoll, epoll_event *events, int events_max, int timeout_ms)
    const int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    const int EPOLLIN, EPOLLOUT

cdef enum:
    STASH_BYTES_MAX = 8192          # a rest this small is copied aside, and the slab given back
    READ_BYTES_MIN = 65536          # below this much room the rest is moved to the slab's start
    HANDSHAKE_FRAME_BYTES_MAX = 131072      # frames before CONNECTED
    STRANGERS_SLABS_MAX = 128       # that keep what there is of CONNECTs, up to 128 KiB of each
    OUT_PENDING_PAUSE = 8 * 1024 * 1024     # unsent bytes that pause reading from the peer
    OUT_PENDING_DISPATCH = 4 * 1024 * 1024  # unsent bytes that pause delivery to the peer
    OUT_PENDING_RESUME = 2 * 1024 * 1024    # and those below which it goes on, in few large steps
    PERMITS_MAX = 0x7fffffff        # of one FLOW: the client's number is signed
    CLOSED_PRODUCERS_KEPT = 65536   # SENDs for producers closed this recently are dropped
    CLOSED_PRODUCERS_COUNTED = 1024     # of those, at once

    # Of one connection, not answered yet, before it pauses: what the journal writes and syncs at
    # once is not much more, and others wait for that. No disk takes so much in a sync's time.
    SEND_BYTES_MAX = 8 * 1024 * 1024
    REFUSED_SEND_BYTES = 1024       # that a SEND counts for which is only remembered to be refused

    PAUSED_SENDS = 1                # too many sends pending on this connection, or too large ones
    PAUSED_GATE = 2                 # it publishes, and the publish buffer is full
    PAUSED_OUTPUT = 4               # the peer does not read what we answer
    PAUSED_COMMANDS = 8             # too many commands of the peer are under way
    PAUSED_TURN = 16                # others have their turn before it goes on
    PAUSED_ACKS = 32                # too many acknowledgements wait for their answer
    PAUSED_RATE = 64                # it publishes more than a rate allows
    # With one of these, what was read already waits as well.
    PAUSED_FRAMES = PAUSED_OUTPUT | PAUSED_COMMANDS | PAUSED_TURN | PAUSED_ACKS | PAUSED_RATE
    ACKS_MAX = 1000                 # that wait for the disk, before it is read no further

    FRAMES_PER_LOOK = 64            # frames between two looks at the clock
    RATED_READ_BYTES = 16384        # of one that waited for a rate; doubles while it does not
    READ_NS_MAX = 3 * 1000 * 1000   # of a turn, or of one that a connection waited for
    SOCKETS_PER_TURN = 256          # served at most; thousands may hang up in one moment

    # What one turn takes of a command with many message ids.
    ACK_PART_BYTES = 131072         # up to 20,000 ids
    REDELIVER_PART_IDS = 1000       # Java's client sends no more of them in one command

cdef class Connections:
    cdef readonly object loop
    cdef readonly Turn turn
    cdef readonly object live               # set of Connection
    # Readiness: an epoll of its own, which is one descriptor for the loop. A loop calls for every
    # socket that is ready, in the same turn.
    cdef readonly int fd
    # Another one of those that are not established, who share what the door has for strangers.
    cdef readonly int strangers_fd
    cdef readonly dict watched              # descriptor -> Connection that waits for its socket
    cdef readonly dict unfinished           # strangers that keep a slab, who was first comes first
    cdef epoll_event[SOCKETS_PER_TURN] ready    # told by the last look; served up to ready_at
    cdef int ready_at
    cdef int ready_count
    cdef public object handlers             # see broker/commands/handlers.py
    cdef public uint32_t frame_bytes_max    # total size field of a frame
    cdef public uint32_t sends_max          # pending sends of one connection before it pauses
    cdef public int64_t publish_bytes_max   # in flight before all that publish pause
    cdef readonly int64_t publish_bytes     # in flight now
    cdef readonly bint full                 # a bookie asked to stop publishing
    cdef readonly bint holding              # nothing can be stored: SENDs are kept, reading goes on
    cdef readonly dict held                 # producers that published since holding began
    cdef public object on_overflow          # called when more is kept than publish_bytes_max
    cdef bint overflow_due
    cdef bint gate_closed
    cdef SlabPool slabs
    cdef list dirty                         # connections with something to send in this turn
    cdef object flush_call
    cdef int mark_dirty(self, Connection connection) except -1
    cdef int keep_slab_of(self, Connection stranger) except -1
    cdef int publish_started(self, int64_t size) except -1
    cdef int publish_ended(self, int64_t size) except -1
    cdef int _check_gate(self) except -1

# The connection's half of a producer; broker/topics/producer.py adds the policy.
cdef class ProducerState:
    cdef readonly Connection connection
    cdef readonly uint64_t producer_id
    cdef readonly uint32_t pending_sends    # messages not answered yet
    cdef readonly uint64_t msg_in           # counters since creation
    cdef readonly uint64_t bytes_in
    cdef readonly uint64_t chunks_in        # of messages in chunks
    cdef public bint closed
    # A run with so many of these is published before the turn ends. What a rate allows is looked
    # at then, so no run takes much more than that.
    cdef public uint64_t run_messages_max
    cdef public uint64_t run_bytes_max
    cdef EntryRun run                       # collects the SENDs of this turn

cdef class Connection:
    cdef readonly Connections group
    cdef readonly object sock
    cdef readonly int fd
    cdef readonly str peer                  # address:port
    cdef readonly TlsStream tls             # None: what is on the socket is not encrypted
    cdef readonly bint established          # CONNECTED was sent
    cdef public int protocol_version        # min(ours, the peer's)
    cdef public object session              # what the handlers keep of this connection
    cdef readonly bint closed
    cdef public bint heard                  # something came since the last keep-alive check
    cdef readonly dict producers            # id -> ProducerState
    cdef readonly dict consumers            # id -> consumer
    cdef readonly uint32_t pending_sends
    cdef readonly int64_t pending_send_bytes    # of those
    cdef readonly uint32_t pending_acks     # whose client waits for an answer
    cdef dict closed_producers              # ids, in the order in which they were closed
    cdef Py_ssize_t closed_producers_counted    # that forget_producer has told of
    cdef list run_producers                 # producers with a run in this turn
    cdef dict waiting_output                # calls for when delivery may go on, in their order
    cdef OutVector out
    cdef Slab slab
    cdef uint32_t read_bytes_max            # of one read
    cdef readonly uint32_t rates            # that it waits for
    cdef uint64_t start                     # unconsumed bytes: slab.data[start:end]
    cdef uint64_t end
    cdef bytes stash
    cdef uint32_t part_at           # where the next part of the command at start begins, 0: anew,
    cdef AckCommand ack             # and what it says besides its ids
    cdef RedeliverCommand redeliver
    cdef int paused
    cdef bint has_worked                    # since the last look at the clock: not only SENDs came
    cdef bint is_granted                    # its turn has come: the next command need not wait
    cdef bint has_ended                     # the peer has hung up
    cdef bint reading
    cdef readonly bint writing              # waits for the socket to take more
    cdef public bint taken                  # it took some since the last keep-alive check
    cdef bint is_dirty
    cdef uint32_t events                    # of the socket, that are watched
    cdef int _on_readable(self) except -1
    cdef int _on_writable(self) except -1
    cdef int _update_reading(self) except -1
    cdef int _set_writing(self, bint on) except -1
    cdef int _watch(self) except -1
    cdef int on_ready(self, uint32_t events) except -1
    cdef int _receive(self) except -1
    cdef int64_t _receive_tls(self, uint64_t room) except? -3
    cdef int _read_on(self) except -1
    cdef uint64_t _output_bytes(self) except? 0
    cdef int _send(self) except? -1
    cdef int _take_slab(self) except -1
    cdef int _consume_frames(self) except -1
    cdef int _keep_rest(self) except -1
    cdef bint _may_begin(self) except -1
    cdef int _wait_turn(self) except -1
    cdef bint _on_frame(self, Frame *frame) except -1
    cdef int _on_send(self, Frame *frame, const uint8_t *message, uint32_t size) except -1
    cdef int _on_ack(self, const uint8_t *message, uint32_t size) except -1
    cdef int _on_redeliver(self, const uint8_t *message, uint32_t size) except -1
    cdef int _on_flow(self, const uint8_t *message, uint32_t size) except -1
    cdef int _malformed(self, str what) except -1
    cdef int _collect(self, ProducerState producer, SendCommand *send, Frame *frame,
                      uint32_t crc) except -1
    cdef int _publish_runs(self) except -1
    cdef int _pause_for_sends(self) except -1
    cdef int _set_paused(self, int flag, bint on) except -1
    cdef int flush(self) except -1
    cdef bint can_deliver(self) noexcept
