"""Type stub of bookie_channel.pyx: a connection to a bookie."""

import socket
from collections.abc import Callable
from typing import Any

from pyxbroker.entry import Digest, EntryBatch, EntryRun
from pyxbroker.tls import TlsStream
from pyxbroker.turn import Turn

class BookieChannel:
    """A connection to a bookie. The subclass connects, and is notified of the end.

    Its methods are those of ledger/bookie.py. Requests that are pending when the connection ends
    fail with DISCONNECTED, and those that wait longer than a time-out with TIMED_OUT. A frame of
    the bookie has at most `frame_bytes_max` bytes. While adds of more than `pending_bytes_max`
    bytes have no answer, `holding` is True.
    """

    holding: bool

    def __init__(
        self,
        turn: Turn,
        *,
        frame_bytes_max: int,
        pending_bytes_max: int,
        add_timeout_s: float,
        read_timeout_s: float,
    ) -> None: ...

    # For the subclass.

    def open(self) -> bool:
        """Begin to connect. Return False if the channel must not queue requests now: they fail.
        Subclasses override this.
        """
    def on_full(self, is_full: bool) -> None:
        """Note that the channel holds too many bytes of adds, or no longer."""
    def on_lost(self, reason: str) -> None:
        """Note the end of the connection."""
    def on_defect(self, error: Exception) -> None:
        """Log an exception of a callback, or of the channel itself."""
    def begin(self) -> None:
        """Queue requests until attach() or lose() is called."""
    def attach(self, sock: socket.socket, tls: TlsStream | None = None) -> None:
        """Use a connected, non-blocking socket."""
    def lose(self, reason: str) -> None:
        """End the connection, or the attempt to connect. All pending requests fail."""

    # The contract of bookies.

    def add_run(
        self,
        adder: Any,
        slot: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        flags: int = 0,
        stripe: tuple[int, int, int] | None = None,
    ) -> bool:
        """Add the entries of a run, or those of its stripe. Always return True: the channel holds
        the data itself.
        """
    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | int], None],
        fencing_key: bytes | None = None,
    ) -> None:
        """Read consecutive entries from first on, at most to last."""
    def fence(self, ledger_id: int, digest: Digest, callback: Callable[[int], None]) -> None:
        """Fence a ledger; callback(last add confirmed)."""
    def read_last_add_confirmed(self, ledger_id: int, callback: Callable[[int], None]) -> None:
        """Report the last add confirmed that the bookie knows; -1 without entries."""
    def last_entry(self, ledger_id: int, callback: Callable[[int], None]) -> None:
        """Report the highest stored entry id; -1 without entries."""

    # Its state.

    @property
    def turn(self) -> Turn:
        """The turn in which callbacks run."""
    @property
    def is_connected(self) -> bool:
        """True while the channel has a socket."""
    @property
    def is_connecting(self) -> bool:
        """True while requests wait for the socket."""
    @property
    def has_batch_reads(self) -> bool:
        """False after the bookie has refused one."""
    @property
    def pending_bytes(self) -> int:
        """Bytes of adds without an answer."""
    @property
    def answers(self) -> int:
        """Answers on the current connection."""
    @property
    def late_answers(self) -> int:
        """Answers that no request waited for: they came twice, or after a time-out."""
    @property
    def timeouts(self) -> int:
        """Requests that timed out."""
    @property
    def adds_done(self) -> int:
        """Entries that the bookie has acknowledged since the start."""
    @property
    def adds_failed(self) -> int:
        """Runs of which an entry was refused or timed out."""
    @property
    def adds_ns(self) -> int:
        """Sum of the times until the acknowledgements of `adds_done`."""
    @property
    def reads_done(self) -> int:
        """Reads that were answered, also by the absence of the entry."""
    @property
    def reads_failed(self) -> int:
        """Reads that were refused or timed out."""
    @property
    def reads_ns(self) -> int:
        """Sum of the times until the answers of `reads_done`."""
    @property
    def malformed_answers(self) -> int:
        """Connections that ended with an answer that is not of BookKeeper's protocol."""
