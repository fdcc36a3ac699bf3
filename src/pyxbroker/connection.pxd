# A client's socket: parses frames, passes runs of SENDs to producers, and batches output.
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
    # a partial frame up to this size is copied, and its slab released
    STASH_BYTES_MAX = 8192
    # with less room than this, the partial frame is moved to the slab's start
    READ_BYTES_MIN = 65536
    HANDSHAKE_FRAME_BYTES_MAX = 131072      # largest frame before CONNECTED
    # unauthenticated connections that may hold a slab, with up to 128 KiB of a CONNECT
    UNAUTHENTICATED_SLABS_MAX = 128
    OUT_PENDING_PAUSE = 8 * 1024 * 1024     # unsent bytes that pause reading from the client
    OUT_PENDING_DISPATCH = 4 * 1024 * 1024  # unsent bytes that pause delivery to the client
    # unsent bytes below which delivery resumes; far below, so that it resumes rarely
    OUT_PENDING_RESUME = 2 * 1024 * 1024
    PERMITS_MAX = 0x7fffffff        # in one FLOW: the client's counter is signed
    CLOSED_PRODUCERS_KEPT = 65536   # recently closed producers whose late SENDs are dropped
    CLOSED_PRODUCERS_COUNTED = 1024     # unit in which forget_producer counts them

    # Limit of unanswered SEND bytes before a connection pauses. It is about as much as the journal
    # writes per sync, so that one client does not delay the others. No disk accepts more in the
    # time of a sync.
    SEND_BYTES_MAX = 8 * 1024 * 1024
    REFUSED_SEND_BYTES = 1024       # size that a refused SEND counts as until it is answered

    PAUSED_SENDS = 1                # too many pending SENDs on this connection, or too many bytes
    PAUSED_GATE = 2                 # the connection publishes, and the publish buffer is full
    PAUSED_OUTPUT = 4               # the client does not read its responses
    PAUSED_COMMANDS = 8             # too many commands of the client are in progress
    PAUSED_TURN = 16                # the connection waits in the queue of its class
    PAUSED_ACKS = 32                # too many acknowledgements are unanswered
    PAUSED_RATE = 64                # the connection exceeds a publish rate
    # With any of these flags, frames that are already in the slab wait as well.
    PAUSED_FRAMES = PAUSED_OUTPUT | PAUSED_COMMANDS | PAUSED_TURN | PAUSED_ACKS | PAUSED_RATE
    ACKS_MAX = 1000                 # unanswered acknowledgements before reading pauses

    FRAMES_PER_CLOCK_CHECK = 64     # frames between two checks of the clock
    RATED_READ_BYTES = 16384        # read size after throttling; doubles with each unthrottled read
    READ_NS_MAX = 3 * 1000 * 1000   # reading time per loop iteration, or per granted slot
    # sockets served per loop iteration; thousands may disconnect together
    SOCKETS_PER_TURN = 256

    # Portion of a command with many message ids that is handled per slot.
    ACK_PART_BYTES = 131072         # up to 20,000 ids
    TXN_ACK_PART_BYTES = 4096       # of a transaction: each id costs some 10 us
    REDELIVER_PART_IDS = 1000       # the Java client sends at most this many in one command

cdef class Connections:
    cdef readonly object loop
    cdef readonly Turn turn
    cdef readonly object live               # set of Connection
    # One epoll for all sockets, so that the loop has a single descriptor to watch. asyncio would
    # call back for every ready socket within the same loop iteration.
    cdef readonly int fd
    # A separate epoll for connections that are not established. Their time is limited together.
    cdef readonly int unauthenticated_fd
    cdef readonly dict watched              # descriptor -> Connection that waits for its socket
    # unauthenticated connections that hold a slab, oldest first
    cdef readonly dict unfinished
    # events of the last epoll_wait; handled up to ready_at
    cdef epoll_event[SOCKETS_PER_TURN] ready
    cdef int ready_at
    cdef int ready_count
    cdef public object handlers             # see broker/commands/handlers.py
    cdef public uint32_t frame_bytes_max    # limit of a frame's total size field
    cdef public uint32_t sends_max          # pending SENDs of one connection before it pauses
    # bytes in flight before all publishing connections pause
    cdef public int64_t publish_bytes_max
    cdef readonly int64_t publish_bytes     # in flight now
    cdef readonly bint full                 # a bookie's write cache is full
    # storage refuses writes: SENDs are held, reading continues
    cdef readonly bint holding
    cdef readonly dict held                 # producers that published since holding started
    cdef public object on_overflow          # called when held bytes exceed publish_bytes_max
    cdef bint overflow_due
    cdef bint gate_closed
    cdef SlabPool slabs
    cdef list dirty                         # connections with output of the current Turn
    cdef object flush_call
    cdef int mark_dirty(self, Connection connection) except -1
    cdef int add_unfinished(self, Connection connection) except -1
    cdef int publish_started(self, int64_t size) except -1
    cdef int publish_ended(self, int64_t size) except -1
    cdef int _check_gate(self) except -1

# The connection's half of a producer. broker/topics/producer.py adds the policies.
cdef class ProducerState:
    cdef readonly Connection connection
    cdef readonly uint64_t producer_id
    cdef readonly uint32_t pending_sends    # unanswered messages
    cdef readonly uint64_t msg_in           # counters since creation
    cdef readonly uint64_t bytes_in
    cdef readonly uint64_t chunks_in        # chunks of chunked messages
    cdef public bint closed
    # A run that reaches one of these limits is published immediately. Publish rates are checked
    # then, so a run exceeds a rate only slightly.
    cdef public uint64_t run_messages_max
    cdef public uint64_t run_bytes_max
    cdef EntryRun run                       # SENDs collected from the current read

cdef class Connection:
    cdef readonly Connections group
    cdef readonly object sock
    cdef readonly int fd
    cdef readonly str peer                  # address:port
    cdef readonly TlsStream tls             # None: plain text
    cdef readonly bint established          # CONNECTED was sent
    cdef public int protocol_version        # min(ours, the client's)
    cdef public object session              # state of the handlers for this connection
    cdef readonly bint closed
    cdef public bint received_since_check   # received bytes since the last keep-alive check
    cdef readonly dict producers            # id -> ProducerState
    cdef readonly dict consumers            # id -> consumer
    cdef readonly uint32_t pending_sends
    cdef readonly int64_t pending_send_bytes    # bytes of pending_sends
    cdef readonly uint32_t pending_acks     # unanswered acknowledgements
    cdef dict closed_producers              # ids, in closing order
    cdef Py_ssize_t closed_producers_counted    # already reported by forget_producer
    cdef list run_producers                 # producers with a run from the current read
    cdef dict waiting_output                # callbacks that resume delivery, in order
    cdef OutVector out
    cdef Slab slab
    cdef uint32_t read_bytes_max            # limit of one read
    cdef readonly uint32_t throttling_rates  # number of rates that throttle it
    cdef uint64_t start                     # unconsumed bytes: slab.data[start:end]
    cdef uint64_t end
    cdef bytes stash
    # offset in the command at `start` where its next part begins; 0: none
    cdef uint32_t part_at
    cdef AckCommand ack             # fields of that command other than its ids
    cdef RedeliverCommand redeliver
    cdef int paused
    # a command other than SEND was handled since the last clock check
    cdef bint has_worked
    cdef bint is_granted                    # the slot was granted: the next command need not wait
    cdef bint has_ended                     # the client has closed its end
    cdef bint reading
    cdef readonly bint writing              # waits until the socket is writable
    cdef public bint sent_since_check       # sent bytes since the last keep-alive check
    cdef bint is_dirty
    cdef uint32_t events                    # epoll events of the socket being watched
    cdef int _on_readable(self) except -1
    cdef int _on_writable(self) except -1
    cdef int _update_reading(self) except -1
    cdef int _set_writing(self, bint on) except -1
    cdef int _watch(self) except -1
    cdef int on_ready(self, uint32_t events) except -1
    cdef int _receive(self) except -1
    cdef int64_t _receive_tls(self, uint64_t room) except? -3
    cdef int _read_decrypted(self) except -1
    cdef uint64_t _output_bytes(self) except? 0
    cdef int _send(self) except? -1
    cdef int _take_slab(self) except -1
    cdef int _consume_frames(self) except -1
    cdef int _store_partial_frame(self) except -1
    cdef bint _may_begin(self) except -1
    cdef int _wait_turn(self) except -1
    cdef bint _on_frame(self, Frame *frame) except -1
    cdef int _on_send(self, Frame *frame, const uint8_t *message, uint32_t size) except -1
    cdef int _on_ack(self, const uint8_t *message, uint32_t size) except -1
    cdef int _on_redeliver(self, const uint8_t *message, uint32_t size) except -1
    cdef int _on_flow(self, const uint8_t *message, uint32_t size) except -1
    cdef int _malformed(self, str what) except -1
    cdef int _collect(self, ProducerState producer, SendCommand *send, const uint8_t *data,
                      uint32_t size, uint32_t crc, bytes owner=*) except -1
    cdef int _publish_runs(self) except -1
    cdef int _pause_for_sends(self) except -1
    cdef int _set_paused(self, int flag, bint on) except -1
    cdef int flush(self) except -1
    cdef bint can_deliver(self) noexcept
