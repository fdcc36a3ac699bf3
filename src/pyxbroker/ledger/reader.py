"""Reads of one ledger, from the bookies of each segment's ensemble."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyxbroker.entry import CRC32C, Digest, EntryBatch
from pyxbroker.ledger.bookie import DAMAGED, LOST_CODES, TIMED_OUT, Bookie, Stripe
from pyxbroker.ledger.errors import LedgerError, error_of
from pyxbroker.metadata.store import resolve

if TYPE_CHECKING:
    from pyxbroker.ledger.read_policy import ReadPolicy

READ_BYTES_MAX = 8 << 20
READ_ENTRIES_MAX = 1024
PARTS_MAX = 32
"""Requests of one read of a striped ledger. It limits the excess where entries become larger."""
PARTS_WAIT_S = 0.1
"""A part that takes longer no longer delays the parts before it."""

ReadCallback = Callable[[EntryBatch | LedgerError], None]


class ReadSettings(NamedTuple):
    """The settings of a broker that concern reads from several bookies."""

    speculative_s: float = 0.0
    """A second bookie is asked after this time without an answer; 0: only after a failure
    (bookkeeperClientSpeculativeReadTimeoutInMillis)."""
    timeout_s: float = 30.0
    """A bookie without an answer after this time has failed (bookkeeperClientTimeoutInSeconds)."""
    is_sticky: bool = True
    """All reads of a ledger without striping go to one bookie while it is healthy, so that its
    cache and its read-ahead serve them (bookkeeperEnableStickyReads)."""


class Segment(NamedTuple):
    """The entries from `first` on, up to the next segment, and the bookies that store them."""

    first: int
    bookies: Sequence[Bookie]


class ReadHandle:
    """Reads entries of one ledger. An entry e of a segment is on the `write_quorum` bookies from
    ensemble index `e mod ensemble size` on. A ledger on the embedded bookie has no policy.
    """

    __slots__ = ("digest", "entry_bytes", "ledger_id", "policy", "segments", "write_quorum")

    def __init__(
        self,
        ledger_id: int,
        segments: Sequence[Segment],
        write_quorum: int,
        digest: Digest = CRC32C,
        policy: ReadPolicy | None = None,
    ) -> None:
        self.policy = policy
        self.ledger_id = ledger_id
        self.segments = segments
        self.write_quorum = write_quorum
        self.digest = digest
        self.entry_bytes = 0  # average of the last read of a striped segment

    def read_cached(
        self, first: int, last: int, count_max: int, bytes_max: int
    ) -> EntryBatch | None:
        """Return entries from first on if a bookie in this process has them in memory."""
        segment, last = self._segment(first, last)
        bookie = segment.bookies[first % len(segment.bookies)]
        batch = bookie.read_cached(self.ledger_id, first, last, count_max, bytes_max)
        return batch if batch is not None and self.is_intact(batch) else None

    def _segment(self, first: int, last: int) -> tuple[Segment, int]:
        """Return the segment of an entry, and the last entry of a read that stays within it."""
        segments = self.segments
        segment = segments[-1]
        if first >= segment.first:
            return segment, last
        at = bisect_right(segments, first, key=lambda each: each.first)
        return segments[at - 1], min(last, segments[at].first - 1)

    def is_intact(self, batch: EntryBatch) -> bool:
        """Return True if the first entry of a batch has the digest that it was written with."""
        return batch.unpack(self.digest) > 0

    def read(
        self, first: int, last: int, count_max: int, bytes_max: int, callback: ReadCallback
    ) -> None:
        """Read entries from first on, at most to last; callback gets a batch or a LedgerError.

        The bookies of the entry's write set are asked one after the other (ReadPolicy), the next
        one when one fails, is slow or has a damaged entry. A batch may be shorter than what was
        asked for.
        """
        segment, last = self._segment(first, last)
        if last > first and len(segment.bookies) > self.write_quorum:
            last = min(last, first + max(count_max, 1) - 1)
            _StripedRead(self, bytes_max, callback).ask(segment.bookies, first, last)
        else:
            _Read(self, segment.bookies, first, last, count_max, bytes_max, callback).ask()

    def read_future(self, first: int, last: int) -> asyncio.Future[EntryBatch]:
        """Read for a coroutine: entries from first on, as many as one read brings."""
        future: asyncio.Future[EntryBatch] = asyncio.get_running_loop().create_future()
        count = min(last - first + 1, READ_ENTRIES_MAX)
        self.read(first, last, count, READ_BYTES_MAX, partial(resolve, future))
        return future


def segments_of(
    ensembles: Mapping[int, Sequence[str]], bookies: Mapping[str, Bookie], ledger_id: int
) -> list[Segment]:
    """Return the segments of a ledger's metadata. Raises LedgerError for unknown bookies."""
    try:
        return [
            Segment(first, [bookies[name] for name in names])
            for first, names in sorted(ensembles.items())
        ]
    except KeyError as error:
        where = f"ledger {ledger_id} is on bookie {error.args[0]}, which is unknown here"
        raise LedgerError(where) from None


class _StripedRead:
    """A read of entries that alternate between bookies: a part for each row of entries that one of
    them has, and all parts together. The callback gets the parts up to the first gap.
    """

    __slots__ = ("bytes_max", "callback", "handle", "is_late", "parts", "timer", "unanswered")

    def __init__(self, handle: ReadHandle, bytes_max: int, callback: ReadCallback) -> None:
        self.handle = handle
        self.bytes_max = bytes_max
        self.callback: ReadCallback | None = callback
        self.parts: list[EntryBatch | LedgerError | None] = []
        self.unanswered = 0
        self.is_late = False
        self.timer: asyncio.TimerHandle | None = None

    def ask(self, bookies: Sequence[Bookie], first: int, last: int) -> None:
        """Ask for as many parts as the byte limit allows, by the size of the last entries."""
        handle = self.handle
        bytes_left = self.bytes_max
        parts_max = PARTS_MAX if handle.entry_bytes else 1
        while first <= last and len(self.parts) < parts_max and (bytes_left > 0 or not self.parts):
            on_part = partial(self.on_part, len(self.parts))
            part = _Read(handle, bookies, first, last, last - first + 1, bytes_left, on_part)
            self.parts.append(None)
            self.unanswered += 1
            part.ask()
            bytes_left -= (part.end - first + 1) * handle.entry_bytes
            first = part.end + 1
        if self.unanswered > 1 and handle.policy is not None:
            self.timer = handle.policy.clock.call_later(PARTS_WAIT_S, self.on_late)

    def on_part(self, index: int, result: EntryBatch | LedgerError) -> None:
        if self.callback is None:
            return
        self.parts[index] = result
        self.unanswered -= 1
        if self.unanswered == 0 or (self.is_late and self.parts[0] is not None):
            self.finish()

    def on_late(self) -> None:
        """Wait for no part but the first one any longer."""
        self.timer = None
        self.is_late = True
        if self.parts[0] is not None:
            self.finish()

    def finish(self) -> None:
        callback, self.callback = self.callback, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        assert callback is not None
        parts, self.parts = self.parts, []
        callback(self.joined(parts))

    def joined(self, parts: list[EntryBatch | LedgerError | None]) -> EntryBatch | LedgerError:
        """Return the parts up to the first one that failed, is incomplete, or is too much."""
        first = parts[0]
        assert first is not None, "a read is finished after its first part was answered"
        if isinstance(first, LedgerError):
            return first
        joined = [(first, 0, first.count)]
        size, following = first.byte_count, first.entry_id(0) + first.count
        for part in parts[1:]:
            if part is None or isinstance(part, LedgerError) or part.entry_id(0) != following:
                break
            if size + part.byte_count > self.bytes_max:
                break
            size += part.byte_count
            following += part.count
            joined.append((part, 0, part.count))
        self.handle.entry_bytes = max(1, size // (following - first.entry_id(0)))
        return first if len(joined) == 1 else first.join(joined)


class _Read:
    """One read until its first good answer. Only the bookies that were asked reference it, and a
    timer where there is a further bookie to ask.
    """

    __slots__ = (
        *("asked", "asked_at", "bookies", "bytes_max", "callback", "codes", "count_max", "end"),
        *("first", "handle", "last", "order", "policy", "timer"),
    )

    def __init__(
        self,
        handle: ReadHandle,
        bookies: Sequence[Bookie],
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
    ) -> None:
        self.handle = handle
        self.bookies = bookies
        self.first = first
        self.last = last
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.callback: ReadCallback | None = callback
        self.codes: dict[int, int] = {}  # ensemble index -> code of the failure
        self.asked = 0
        self.timer: asyncio.TimerHandle | None = None
        self.policy = handle.policy
        size, quorum = len(bookies), handle.write_quorum
        if self.policy is None:
            self.order = [first % size]
            return
        self.asked_at: dict[int, float] = {}  # by ensemble index
        is_striped = size > quorum
        start = handle.ledger_id if self.policy.settings.is_sticky and not is_striped else first
        self.order = [(start + i) % size for i in range(quorum)]
        if is_striped:
            # The last bookie of the write set has the most entries in a row.
            self.order.reverse()
        self.policy.sort(self.order, bookies)

    def ask(self) -> None:
        """Ask the next bookie of the write set."""
        index = self.order[self.asked]
        self.asked += 1
        size, quorum, last = len(self.bookies), self.handle.write_quorum, self.last
        if size > quorum:
            stripe = Stripe(index, size, quorum)
            end = self.first
            while end < last and stripe.has(end + 1):
                end += 1
            last = end
        self.end = last
        if self.policy is not None:
            clock, settings = self.policy.clock, self.policy.settings
            self.asked_at[index] = clock.time()
            delay_s = settings.timeout_s
            if settings.speculative_s and self.asked < quorum:
                delay_s = settings.speculative_s * 2 ** (self.asked - 1)
            self.timer = clock.call_later(delay_s, self.on_slow)
        self.bookies[index].read(
            *(self.handle.ledger_id, self.first, last, self.count_max, self.bytes_max),
            self.on_read if self.policy is None else partial(self.on_answer, index),
        )

    def on_read(self, result: EntryBatch | int) -> None:
        """Take the answer of the only bookie."""
        self.on_answer(self.order[0], result)

    def on_answer(self, index: int, result: EntryBatch | int) -> None:
        """Take the answer of a bookie; only its first answer counts."""
        if self.callback is None or index in self.codes:
            return
        if self.policy is not None:
            bookie_id = self.bookies[index].bookie_id
            if isinstance(result, int) and result not in LOST_CODES:
                self.policy.on_failure(bookie_id)
            else:
                latency_s = self.policy.clock.time() - self.asked_at[index]
                self.policy.on_answer(bookie_id, latency_s)
        if not isinstance(result, int):
            if self.handle.is_intact(result):
                self.finish(result)
                return
            result = DAMAGED
        if result == DAMAGED and self.policy is not None:
            self.policy.damaged[self.bookies[index].bookie_id] += 1
        self.codes[index] = result
        if self.asked < len(self.order):
            self.stop_timer()
            self.ask()
        elif len(self.codes) == self.asked:
            self.finish(error_of(self.code(), self.handle.ledger_id, self.first))

    def on_slow(self) -> None:
        """Ask another bookie as well, since none has answered in time; the first answer wins."""
        self.timer = None
        assert self.policy is not None
        now = self.policy.clock.time()
        for index in self.asked_at.keys() - self.codes.keys():
            bookie_id, waited_s = self.bookies[index].bookie_id, now - self.asked_at[index]
            self.policy.on_wait(bookie_id, waited_s)
            if waited_s >= self.policy.settings.timeout_s:
                self.policy.on_failure(bookie_id)
        if self.asked < len(self.order):
            self.policy.speculative_reads += 1
            self.ask()
        else:
            self.finish(error_of(TIMED_OUT, self.handle.ledger_id, self.first))

    def code(self) -> int:
        """Return the code of the failed read: an entry is lost only if no bookie has it."""
        codes = self.codes.values()
        unsure = [code for code in codes if code not in LOST_CODES]
        if unsure:
            return unsure[0]
        return DAMAGED if DAMAGED in codes else next(iter(codes))

    def finish(self, result: EntryBatch | LedgerError) -> None:
        callback, self.callback = self.callback, None
        self.stop_timer()
        assert callback is not None
        callback(result)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
