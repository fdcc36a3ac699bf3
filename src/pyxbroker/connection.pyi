"""What Python sees of connection.pyx: connections, and their half of a producer."""

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import Any

from pyxbroker.entry import EntryRun
from pyxbroker.tls import TlsStream
from pyxbroker.turn import Turn

class Connections:
    """All live connections of one event loop and what they share: slabs, turn, publish buffer."""

    handlers: Any
    """may_begin, wait_turn, on_command, on_malformed, on_frame_too_large, on_internal_error,
    on_refused_send, on_stray_command, on_stray_ack, on_broken_tls, on_closed."""
    frame_bytes_max: int
    """Largest total size field of a frame."""
    sends_max: int
    """Pending sends of one connection before it is not read any more."""
    publish_bytes_max: int
    """Publish bytes in flight before no connection is read any more."""
    on_overflow: Callable[[], object] | None
    """Called while nothing can be stored, when more than that is kept."""

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
        """The event loop that all connections are served by."""
    @property
    def turn(self) -> Turn:
        """The turns of that loop."""
    @property
    def fd(self) -> int:
        """What the loop watches for all sockets: readable while one of them has something."""
    @property
    def strangers_fd(self) -> int:
        """The same for the sockets of those that are not established."""
    @property
    def free_slabs(self) -> list[int]:
        """The bytes of each slab that waits for its next use."""
    def serve_strangers_at(self, door: Any) -> None:
        """The door of the process says from now on when one of those is served."""
    @property
    def live(self) -> set[Connection]:
        """Connections that are not closed."""
    @property
    def publish_bytes(self) -> int:
        """Publish bytes in flight."""
    @property
    def full(self) -> bool:
        """A bookie asked to stop publishing."""
    @property
    def holding(self) -> bool:
        """Nothing can be stored: what is sent is kept, and reading goes on."""
    @property
    def held(self) -> dict[Any, None]:
        """The producers that published since that began."""
    def accept(
        self, sock: Any, peer: str, session: Any, context: SSLContext | None = None
    ) -> Connection:
        """Serves a connected, non-blocking socket; with a context, by TLS."""
    def set_full(self, full: bool) -> None:
        """A bookie's write cache is full (or has room again): publishing stops (or goes on)."""
    def set_holding(self, on: bool) -> None:
        """Nothing can be stored (or it can again); whoever publishes is read all the while."""

class ProducerState:
    """The connection's half of a producer: collects SENDs, answers with receipts."""

    closed: bool
    run_messages_max: int
    """From so many messages on, a run does not wait for the end of the turn."""
    run_bytes_max: int
    """The same for its bytes."""

    def __init__(self, connection: Connection, producer_id: int) -> None: ...
    @property
    def connection(self) -> Connection:
        """The socket that it came from."""
    @property
    def producer_id(self) -> int:
        """The client's id of it, unique on its connection."""
    @property
    def pending_sends(self) -> int:
        """SENDs that are not answered yet."""
    @property
    def msg_in(self) -> int:
        """Messages received since it was made."""
    @property
    def bytes_in(self) -> int:
        """Bytes received since it was made."""
    @property
    def chunks_in(self) -> int:
        """Chunks of messages received since it was made."""
    def publish(self, run: EntryRun) -> None:
        """Called once per turn with the run of SENDs that the turn brought; for subclasses."""
    def send_receipts(self, run: EntryRun, stored: bool = True) -> None:
        """The run is durable: one SEND_RECEIPT per entry, all in one write."""
    def run_of_refused(self, sequence_id: int, highest_sequence_id: int) -> EntryRun:
        """A SEND that is not going to be stored, until its answer settles it; without data."""
    def settle(self, run: EntryRun) -> None:
        """The run is answered, well or not: it counts no longer against the limits."""

class Connection:
    """One client's socket. Its callbacks run on the event loop; nothing here blocks."""

    protocol_version: int
    session: Any
    """What the handlers keep of this connection."""
    heard: bool
    """Something came since the last keep-alive check."""
    taken: bool
    """The peer took something of what waits for it since then, or that has begun to wait since."""

    @property
    def group(self) -> Connections:
        """The connections that it is one of."""
    @property
    def sock(self) -> Any:
        """Its socket."""
    @property
    def fd(self) -> int:
        """The socket's descriptor."""
    @property
    def peer(self) -> str:
        """address:port of the client."""
    @property
    def tls(self) -> TlsStream | None:
        """What encrypts it."""
    @property
    def closed(self) -> bool:
        """Nothing is read or written any more."""
    @property
    def established(self) -> bool:
        """CONNECTED was sent."""
    def establish(self) -> None:
        """CONNECTED is about to be sent: it is no stranger any more."""
    @property
    def producers(self) -> dict[int, Any]:
        """Its open producers by id."""
    @property
    def consumers(self) -> dict[int, Any]:
        """Its open consumers by id."""
    @property
    def pending_sends(self) -> int:
        """SENDs of all its producers that are not answered yet."""
    @property
    def pending_send_bytes(self) -> int:
        """Bytes of those."""
    @property
    def writing(self) -> bool:
        """Something waits until the peer reads."""
    @property
    def pending_bytes(self) -> int:
        """Bytes queued for the peer and not sent yet."""
    def send_frame(self, frame: bytes) -> None:
        """Queues a whole frame; it leaves when the turn ends."""
    def go_on(self) -> None:
        """Its turn has come: goes on with a long command, and with what was read behind it."""
    def pause_commands(self, on: bool) -> None:
        """Too many commands of this client are under way (or few enough again)."""

    def ack_begun(self) -> None:
        """An acknowledgement is going to be answered when it is durable."""
    def ack_ended(self) -> None:
        """It is answered."""
    @property
    def pending_acks(self) -> int:
        """Acknowledgements that are not answered yet."""
    def rate_begun(self) -> None:
        """It waits for one rate more."""
    def rate_over(self) -> None:
        """It waits for one rate less."""
    @property
    def rates(self) -> int:
        """The rates that it waits for."""
    @property
    def is_paused(self) -> bool:
        """Nothing is read from the peer now."""

    def when_writable(self, call: Callable[[], object]) -> None:
        """Calls call() once when the peer has read enough for delivery to go on."""
    def not_when_writable(self, call: Callable[[], object]) -> None:
        """Nobody wants that call any more."""
    def forget_producer(self, producer_id: int) -> int:
        """Removes a producer; SENDs that are still on their way to it are dropped.

        Returns how many ids are remembered for that which it has not told of yet, a thousand or
        none.
        """
    def close(self) -> None:
        """Sends what the socket takes at once, closes it, and tells the handlers."""
