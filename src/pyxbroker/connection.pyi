"""Type stub of connection.pyx: connections, and their half of a producer."""

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import Any

from pyxbroker.entry import EntryRun
from pyxbroker.tls import TlsStream
from pyxbroker.turn import Turn

class Connections:
    """All live connections of one event loop, and what they share: slabs, turn, publish buffer."""

    handlers: Any
    """may_begin, wait_turn, on_command, on_malformed, on_frame_too_large, on_internal_error,
    on_refused_send, on_stray_command, on_stray_ack, on_broken_tls, on_closed."""
    frame_bytes_max: int
    """Limit of a frame's total size field."""
    sends_max: int
    """Pending SENDs of one connection before reading from it pauses."""
    publish_bytes_max: int
    """Publish bytes in flight before reading from all publishing connections pauses."""
    on_overflow: Callable[[], object] | None
    """Called when held bytes exceed publish_bytes_max while storage refuses writes."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handlers: Any,
        *,
        frame_bytes_max: int,
        sends_max: int,
        publish_bytes_max: int,
    ) -> None: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that serves all connections."""
    @property
    def turn(self) -> Turn:
        """The Turn of that loop."""
    @property
    def fd(self) -> int:
        """The epoll descriptor that the loop watches for all sockets."""
    @property
    def unauthenticated_fd(self) -> int:
        """The epoll descriptor for the sockets of unauthenticated connections."""
    @property
    def free_slabs(self) -> list[int]:
        """Sizes of the free slabs in bytes."""
    def serve_unauthenticated_from(self, door: Any) -> None:
        """Let the door of the process decide when unauthenticated connections are served."""
    @property
    def live(self) -> set[Connection]:
        """Connections that are not closed."""
    @property
    def publish_bytes(self) -> int:
        """Publish bytes in flight."""
    @property
    def full(self) -> bool:
        """True while a bookie's write cache is full."""
    @property
    def holding(self) -> bool:
        """True while storage refuses writes. SENDs are held, and reading continues."""
    @property
    def held(self) -> dict[Any, None]:
        """The producers that published since holding started."""
    def accept(
        self, sock: Any, peer: str, session: Any, context: SSLContext | None = None
    ) -> Connection:
        """Serve a connected, non-blocking socket, with TLS if a context is given."""
    def set_full(self, full: bool) -> None:
        """Pause publishing while a bookie's write cache is full, or resume it."""
    def set_holding(self, on: bool) -> None:
        """Start or stop holding SENDs while storage refuses writes. Publishing clients are still
        read.
        """

class ProducerState:
    """The connection's half of a producer: collects SENDs and sends receipts."""

    closed: bool
    run_messages_max: int
    """Number of messages from which a run is published immediately."""
    run_bytes_max: int
    """Number of bytes from which a run is published immediately."""

    def __init__(self, connection: Connection, producer_id: int) -> None: ...
    @property
    def connection(self) -> Connection:
        """The producer's connection."""
    @property
    def producer_id(self) -> int:
        """The client's id of the producer, unique on its connection."""
    @property
    def pending_sends(self) -> int:
        """Unanswered SENDs."""
    @property
    def msg_in(self) -> int:
        """Messages received since creation."""
    @property
    def bytes_in(self) -> int:
        """Bytes received since creation."""
    @property
    def chunks_in(self) -> int:
        """Chunks of chunked messages received since creation."""
    def publish(self, run: EntryRun) -> None:
        """Publish the run of SENDs of one read. Subclasses override this."""
    def publish_transactional(self, run: EntryRun) -> None:
        """Publish a run with SENDs of transactions. Subclasses override this."""
    def send_receipts(self, run: EntryRun, stored: bool = True) -> None:
        """Send one SEND_RECEIPT per entry of a durable run, all in one write."""
    def refused_run(self, sequence_id: int, highest_sequence_id: int) -> EntryRun:
        """Return a run without data for a refused SEND. It counts as pending until settled."""
    def settle(self, run: EntryRun) -> None:
        """Remove an answered or failed run from the pending counts and limits."""

class Connection:
    """A client's socket. Its callbacks run on the event loop and never block."""

    protocol_version: int
    session: Any
    """State of the handlers for this connection."""
    received_since_check: bool
    """True if bytes were received since the last keep-alive check."""
    sent_since_check: bool
    """True if the client read any output since the last keep-alive check, or output has only begun
    to wait since.
    """

    @property
    def group(self) -> Connections:
        """The group of connections it belongs to."""
    @property
    def sock(self) -> Any:
        """The socket object."""
    @property
    def fd(self) -> int:
        """The file descriptor of the socket."""
    @property
    def peer(self) -> str:
        """address:port of the client."""
    @property
    def tls(self) -> TlsStream | None:
        """The TLS stream, or None for plain text."""
    @property
    def closed(self) -> bool:
        """True once the connection is closed."""
    @property
    def established(self) -> bool:
        """True once CONNECTED was sent."""
    def establish(self) -> None:
        """Serve the connection as an authenticated client. Called just before CONNECTED is sent."""
    @property
    def producers(self) -> dict[int, Any]:
        """Open producers by id."""
    @property
    def consumers(self) -> dict[int, Any]:
        """Open consumers by id."""
    @property
    def pending_sends(self) -> int:
        """Unanswered SENDs of all its producers."""
    @property
    def pending_send_bytes(self) -> int:
        """Bytes of the unanswered SENDs."""
    @property
    def writing(self) -> bool:
        """True while output waits for the client to read."""
    @property
    def pending_bytes(self) -> int:
        """Bytes queued for the client and not sent yet."""
    def send_frame(self, frame: bytes) -> None:
        """Queue a whole frame. It is sent at the end of the current Turn."""
    def resume(self) -> None:
        """Resume after a wait: continue a long command, then the frames read after it."""
    def pause_commands(self, on: bool) -> None:
        """Pause while too many commands of the client are in progress, or resume."""

    def ack_begun(self) -> None:
        """Count an acknowledgement that is answered once it is durable."""
    def ack_ended(self) -> None:
        """Count an acknowledgement as answered."""
    @property
    def pending_acks(self) -> int:
        """Unanswered acknowledgements."""
    def begin_throttling(self) -> None:
        """Pause reading because of one more exceeded rate."""
    def end_throttling(self) -> None:
        """End the pause for one rate. Reading resumes after the last one."""
    @property
    def throttling_rates(self) -> int:
        """Number of rates that throttle the connection."""
    @property
    def is_paused(self) -> bool:
        """True while reading from the client is paused."""
    @property
    def pauses(self) -> list[str]:
        """Names of the causes that pause reading from the client: sends, gate, output, commands,
        turn, acks, rate.
        """

    @property
    def is_delivery_paused(self) -> bool:
        """True while a delivery waits until the client has read enough."""
    def when_writable(self, call: Callable[[], object]) -> None:
        """Call call() once when the client has read enough for delivery to resume."""
    def cancel_when_writable(self, call: Callable[[], object]) -> None:
        """Cancel a call registered with when_writable()."""
    def forget_producer(self, producer_id: int) -> int:
        """Remove a producer. Late SENDs for it are dropped.

        Returns the number of remembered ids to charge for since the last call: 0 until there are
        CLOSED_PRODUCERS_COUNTED of them.
        """
    def close(self) -> None:
        """Send what the socket accepts immediately, close it, and notify the handlers."""
