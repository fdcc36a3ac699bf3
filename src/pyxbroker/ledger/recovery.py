"""Recovery: take a ledger away from a writer that may still be alive, and close it.

LedgerRecovery is a state machine without sockets, clocks or futures, as LedgerWriter is. `recover`
performs its actions; tests/simulate_ledger.py does so with model bookies.

    input                                   what it may return
    on_metadata_read(found)                 Recovered, WriteMetadata (IN_RECOVERY), or Fence
    on_metadata_written(version)            Fence to each bookie of the last segment, or Recovered
    on_metadata_lost()                      ReadMetadata: another client changed the node
    on_fenced(member, answer)               Read to the write sets of the first entries, or Fail
    on_read(entry_id, member, answer)       WriteBack, Read, ReadLength, WriteMetadata, or Fail
    on_written_back()                       Read, or WriteMetadata (CLOSED)
    on_length(length)                       WriteMetadata (CLOSED)

Three rules make the end safe, with write quorum Qw and ack quorum Qa:

- Qw - Qa + 1 bookies of each write set are fenced before the first entry is read, so no ack quorum
  is left for the former writer.
- An entry is behind the end only if Qw - Qa + 1 bookies of its write set do not have it. A bookie
  that does not answer may have it. What is still undecided then fails the recovery.
- Each entry behind the last add confirmed is written back to an ack quorum before the ledger is
  closed, so every reader finds it.

Two recoveries of one ledger may find different ends. The first one whose compare-and-set closes the
ledger decides, and the other one takes that end. (BookKeeper's LedgerRecoveryOp follows the same
rules.)

The embedded bookie is the only one of its ensemble, and has an end of its own (`find_end`).
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from pyxbroker.base.log import get_logger
from pyxbroker.entry import Digest, EntryBatch, EntryRun
from pyxbroker.ledger.bookie import (
    ADD_HIGH_PRIORITY,
    ADD_RECOVERY,
    DAMAGED,
    NO_ENTRY,
    NO_LEDGER,
    TIMED_OUT,
    Bookie,
)
from pyxbroker.ledger.ensemble import EnsembleHandle
from pyxbroker.ledger.errors import (
    EntryDamaged,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    error_of,
    journal_failed,
)
from pyxbroker.ledger.handle import LedgerHandle
from pyxbroker.ledger.metadata import (
    LedgerMetadata,
    LedgerMetadataStore,
    LedgerState,
    VersionedLedgerMetadata,
)
from pyxbroker.ledger.read_policy import ReadPolicy
from pyxbroker.ledger.reader import READ_BYTES_MAX, ReadHandle, segments_of
from pyxbroker.ledger.writer import Fail, FindBookies, LedgerWriter, ReadMetadata, WriteMetadata
from pyxbroker.metadata.store import BadVersion, NotFound, resolve

log = get_logger("pyxbroker.ledger")

READ_AHEAD = 16
"""Number of entries that a recovery reads or writes back at the same time."""
ANSWER_TIMEOUT_S = 10.0
LAST_ENTRY_TIMEOUT_S = 2.0
"""A bookie that has not answered a fence or a read by then counts as unknown."""

# The entry header's length field: 8 bytes at offset 24 of the packaging.
_LENGTH_AT = slice(24, 32)
_ABSENT = frozenset({NO_ENTRY, NO_LEDGER})


class Fence(NamedTuple):
    """Fence the ledger on a bookie; the answer is on_fenced(member, last add confirmed or code)."""

    member: int
    """Index in the ensemble."""
    bookie_id: str


class Read(NamedTuple):
    """Read one entry from a bookie, and fence the ledger there."""

    entry_id: int
    member: int
    bookie_id: str


class FoundEntry(NamedTuple):
    """An entry of the former writer, and the bytes of the ledger up to its end."""

    run: EntryRun
    length: int


class WriteBack(NamedTuple):
    """Append the run to LedgerRecovery.writer."""

    run: EntryRun


class ReadLength(NamedTuple):
    """Return the bytes of the ledger up to the end of this confirmed entry."""

    entry_id: int


class Recovered(NamedTuple):
    """The ledger is closed."""

    last_entry_id: int
    length: int


class Restart(NamedTuple):
    """Start again: the metadata of a ledger in recovery has changed."""


Action: TypeAlias = (
    Fence
    | Read
    | WriteBack
    | ReadLength
    | WriteMetadata
    | ReadMetadata
    | Recovered
    | Restart
    | Fail
)


class Phase(enum.Enum):
    """The step of a recovery whose answers it waits for."""

    MARKING = "marking the ledger IN_RECOVERY"
    FENCING = "fencing bookies"
    READING = "reading forward"
    CLOSING = "closing the ledger"
    DONE = "done"


class LedgerRecovery:
    """State of one attempt to recover a ledger."""

    def __init__(self, ledger_id: int, read_ahead: int = READ_AHEAD) -> None:
        self.ledger_id = ledger_id
        self._read_ahead = read_ahead
        self.phase = Phase.MARKING
        self.metadata: LedgerMetadata
        self.version = -1
        self.writer: LedgerWriter | None = None
        self.confirmed = -1  # the last add that a fenced bookie knows to be confirmed
        self._ensemble: tuple[str, ...] = ()
        self._fenced: set[int] = set()  # ensemble indexes
        self._unknown: dict[int, int] = {}  # ensemble index -> code, of fences that failed
        self._next = 0  # the first entry that is neither found nor absent
        self._asked = 0  # the first entry that no bookie was asked for
        self._reads: dict[int, dict[int, int]] = {}  # entry -> ensemble index -> code
        self._decided: dict[int, FoundEntry | LedgerError | None] = {}  # None: absent
        self._unwritten = 0  # entries to write back that are not on an ack quorum yet
        self._length = 0
        self._is_end_found = False

    # --- metadata -----------------------------------------------------------------------------

    def on_metadata_read(self, found: VersionedLedgerMetadata | None) -> list[Action]:
        """Start, or continue after another client changed the metadata. None: it was deleted."""
        if found is None:
            return self._fail(NoSuchLedger(f"ledger {self.ledger_id} does not exist"))
        metadata, version = found
        if metadata.is_closed:
            return self._finish(Recovered(metadata.last_entry_id, metadata.length))
        if self.phase is Phase.CLOSING:
            return self._finish(Restart())
        self.metadata, self.version = metadata, version
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._begin()
        self.metadata = metadata.in_recovery()
        return [WriteMetadata(self.metadata, version)]

    def on_metadata_written(self, version: int) -> list[Action]:
        """The ledger is marked IN_RECOVERY, or closed."""
        if self.phase is Phase.CLOSING:
            return self._finish(Recovered(self.metadata.last_entry_id, self.metadata.length))
        self.version = version
        return self._begin()

    def on_metadata_lost(self) -> list[Action]:
        """Another client has changed the metadata since it was read."""
        return [ReadMetadata()]

    # --- fencing ------------------------------------------------------------------------------

    def _begin(self) -> list[Action]:
        self.phase = Phase.FENCING
        first, self._ensemble = self.metadata.last_ensemble()
        self.confirmed = first - 1
        return [Fence(member, bookie_id) for member, bookie_id in enumerate(self._ensemble)]

    @property
    def _needed(self) -> int:
        """So many bookies of a write set leave no ack quorum without one of them."""
        return self.metadata.write_quorum_size - self.metadata.ack_quorum_size + 1

    def on_fenced(self, member: int, answer: int) -> list[Action]:
        """A bookie answered the last add confirmed that it knows, or the code of a failure."""
        if self.phase is not Phase.FENCING or member in self._fenced or member in self._unknown:
            return []
        if answer < -1:
            self._unknown[member] = answer
        else:
            self._fenced.add(member)
            self.confirmed = max(self.confirmed, answer)
        write_sets = [self._write_set(start) for start in range(len(self._ensemble))]
        if all(len(self._fenced.intersection(each)) >= self._needed for each in write_sets):
            self.phase = Phase.READING
            self._next = self._asked = self.confirmed + 1
            return self._advance()
        quorum = self.metadata.ack_quorum_size
        if any(len(self._unknown.keys() & each) >= quorum for each in write_sets):
            failed = ", ".join(
                f"{self._ensemble[each]} ({os.strerror(-code)})"
                for each, code in sorted(self._unknown.items())
            )
            return self._fail(
                LedgerError(
                    f"ledger {self.ledger_id} cannot be fenced: a writer could still reach an ack"
                    f" quorum of {quorum} bookies, since these gave no answer: {failed}",
                    next(iter(self._unknown.values())),
                )
            )
        return []

    def _write_set(self, entry_id: int) -> set[int]:
        size = len(self._ensemble)
        return {(entry_id + i) % size for i in range(self.metadata.write_quorum_size)}

    # --- reading forward, and writing back ----------------------------------------------------

    def on_read(self, entry_id: int, member: int, answer: FoundEntry | int) -> list[Action]:
        """A bookie answered the entry, or the code of a failure."""
        codes = self._reads.get(entry_id)
        if codes is None or member in codes or self.phase is not Phase.READING:
            return []
        if isinstance(answer, int):
            codes[member] = answer
            if sum(code in _ABSENT for code in codes.values()) >= self._needed:
                self._decided[entry_id] = None
            elif len(codes) == self.metadata.write_quorum_size:
                code = next(code for code in codes.values() if code not in _ABSENT)
                self._decided[entry_id] = error_of(code, self.ledger_id, entry_id)
            else:
                return []
        else:
            self._decided[entry_id] = answer
        del self._reads[entry_id]
        return self._advance()

    def _advance(self) -> list[Action]:
        """Handle the decided entries in order, and ask for further ones."""
        actions: list[Action] = []
        while self._next in self._decided:
            found = self._decided.pop(self._next)
            if isinstance(found, LedgerError):
                return self._fail(found)
            if found is None:
                self._is_end_found = True
                self._reads.clear()
                return [*actions, *self._close_if_written()]
            if self.writer is None:
                length = found.length - found.run.bytes
                self.writer = LedgerWriter(
                    *(self.ledger_id, self.metadata, self.version),
                    next_entry_id=self._next,
                    length=length,
                )
            self._length = found.length
            self._next += 1
            self._unwritten += 1
            actions.append(WriteBack(found.run))
        while self._asked < self._next + self._read_ahead - self._unwritten:
            self._reads[self._asked] = {}
            actions += [
                Read(self._asked, member, self._ensemble[member])
                for member in sorted(self._write_set(self._asked))
            ]
            self._asked += 1
        return actions

    def on_written_back(self) -> list[Action]:
        """The writer has confirmed a run."""
        self._unwritten -= 1
        if self.phase is not Phase.READING:
            return []
        return self._close_if_written() if self._is_end_found else self._advance()

    def _close_if_written(self) -> list[Action]:
        if not self._is_end_found or self._unwritten or self.phase is not Phase.READING:
            return []
        if self.writer is not None:
            return self._close(self.writer.metadata, self._length)
        if self.confirmed < 0:
            return self._close(self.metadata, 0)
        return [ReadLength(self.confirmed)]

    def on_length(self, length: int) -> list[Action]:
        """No entry was found behind the last confirmed one, which ends at this length."""
        return self._close(self.metadata, length)

    def _close(self, metadata: LedgerMetadata, length: int) -> list[Action]:
        self.phase = Phase.CLOSING
        self.metadata = metadata.closed(self._next - 1, length)
        return [WriteMetadata(self.metadata, self.version)]

    # --- the end ------------------------------------------------------------------------------

    def give_up(self, error: LedgerError) -> list[Action]:
        """Fail for a reason that the machine does not know, such as the writer's failure."""
        return [] if self.phase is Phase.DONE else self._fail(error)

    def _fail(self, error: LedgerError) -> list[Action]:
        return self._finish(Fail(error))

    def _finish(self, action: Recovered | Restart | Fail) -> list[Action]:
        self.phase = Phase.DONE
        return [action]


class Takeover(NamedTuple):
    """Access to the bookies and the metadata for a recovery. `find` chooses replacements for
    bookies that fail, which `on_error` reports.
    """

    bookies: Mapping[str, Bookie]
    find: Callable[[FindBookies], Mapping[int, str]]
    on_error: Callable[[str, int], None]
    metadata: LedgerMetadataStore
    policy: ReadPolicy
    add_timeout_s: float


async def recover(
    takeover: Takeover,
    ledger_id: int,
    found: VersionedLedgerMetadata,
    digest: Digest,
) -> Recovered | None:
    """Recover a ledger; None: its metadata has changed, and the caller starts again.

    Raises LedgerError when too few bookies answer, and MetadataError. The caller may try again.
    """
    return await _Attempt(takeover, ledger_id, digest).run(found)


class _Attempt:
    """Performs the actions of one LedgerRecovery; also the listener of its writer."""

    def __init__(self, takeover: Takeover, ledger_id: int, digest: Digest) -> None:
        self._bookies, self._find, self._on_error, self._store, self._policy, _ = takeover
        self._add_timeout_s = takeover.add_timeout_s
        self._ledger_id = ledger_id
        self._digest = digest
        self._machine = LedgerRecovery(ledger_id)
        self._handle: EnsembleHandle | None = None
        self._end: asyncio.Future[Recovered | None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()

    async def run(self, found: VersionedLedgerMetadata) -> Recovered | None:
        # A ledger on unknown bookies fails here.
        segments_of(found.metadata.ensembles, self._bookies, self._ledger_id)
        self._perform(self._machine.on_metadata_read(found))
        try:
            return await self._end
        finally:
            for timer in self._timers:
                timer.cancel()
            if self._task is not None:
                self._task.cancel()
            if self._handle is not None:
                # It may still look for replacements of bookies.
                self._handle.give_up(LedgerError("the recovery has ended"))

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Fence(member, bookie_id):
                    answer = self._question(partial(self._on_fenced, member))
                    self._bookies[bookie_id].fence(self._ledger_id, self._digest, answer)
                case Read(entry_id, member, bookie_id):
                    answer = self._question(partial(self._on_read, entry_id, member))
                    self._bookies[bookie_id].read(
                        *(self._ledger_id, entry_id, entry_id, 1, READ_BYTES_MAX, answer),
                        fencing_key=self._digest.master_key,
                    )
                case WriteBack(run):
                    self._writer_handle().append(run)
                case ReadLength(entry_id):
                    self._spawn(self._read_length(entry_id))
                case WriteMetadata(metadata, version):
                    self._spawn(self._write_metadata(metadata, version))
                case ReadMetadata():
                    self._spawn(self._read_metadata())
                case Recovered():
                    log.info(
                        "a ledger is recovered",
                        ledger=self._ledger_id,
                        last_entry=action.last_entry_id,
                        confirmed=self._machine.confirmed,
                    )
                    resolve(self._end, action)
                case Restart():
                    resolve(self._end, None)
                case Fail(error):
                    resolve(self._end, error)

    def _question(self, on_answer: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a callback that takes the first answer, which is TIMED_OUT after a while."""
        is_answered = False

        def answer(result: Any) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                timer.cancel()
                self._timers.discard(timer)
                on_answer(result)

        timer = asyncio.get_running_loop().call_later(ANSWER_TIMEOUT_S, answer, TIMED_OUT)
        self._timers.add(timer)
        return answer

    def _on_fenced(self, member: int, answer: int) -> None:
        self._perform(self._machine.on_fenced(member, answer))

    def _on_read(self, entry_id: int, member: int, answer: EntryBatch | int) -> None:
        found: FoundEntry | int = DAMAGED
        if isinstance(answer, int):
            found = answer
        elif answer.unpack(self._digest) > 0 and answer.entry_id(0) == entry_id:
            found = FoundEntry(EntryRun.of(answer.data(0)), _length_of(answer))
        self._perform(self._machine.on_read(entry_id, member, found))

    # --- the writer ---------------------------------------------------------------------------

    def _writer_handle(self) -> EnsembleHandle:
        if self._handle is None:
            writer = self._machine.writer
            assert writer is not None
            self._handle = EnsembleHandle(
                *(writer, self._bookies, self._find, self._store, self, self._add_timeout_s),
                add_flags=ADD_RECOVERY | ADD_HIGH_PRIORITY,
                digest=self._digest,
                on_error=self._on_error,
            )
        return self._handle

    def on_run_confirmed(self, run: EntryRun) -> None:
        self._perform(self._machine.on_written_back())

    def on_run_taken_back(self, run: EntryRun) -> None:
        raise AssertionError("an ensemble takes nothing back")

    def on_ledger_failed(self, handle: LedgerHandle, error: LedgerError) -> None:
        self._perform(self._machine.give_up(error))

    # --- metadata and lengths -----------------------------------------------------------------

    async def _read_length(self, entry_id: int) -> None:
        metadata = self._machine.metadata
        segments = segments_of(metadata.ensembles, self._bookies, self._ledger_id)
        quorum = metadata.write_quorum_size
        reader = ReadHandle(self._ledger_id, segments, quorum, self._digest, self._policy)
        self._perform(self._machine.on_length(await _length_at(reader, entry_id)))

    async def _write_metadata(self, metadata: LedgerMetadata, version: int) -> None:
        try:
            result = await self._store.update(self._ledger_id, metadata, version)
        except (BadVersion, NotFound):
            self._perform(self._machine.on_metadata_lost())
        else:
            self._perform(self._machine.on_metadata_written(result.version))

    async def _read_metadata(self) -> None:
        found: VersionedLedgerMetadata | None = None
        with contextlib.suppress(NotFound):
            found = await self._store.read(self._ledger_id)
        self._perform(self._machine.on_metadata_read(found))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run one request. The machine has at most one at a time."""
        self._task = asyncio.get_running_loop().create_task(coroutine)
        self._task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            resolve(self._end, error)


# --- the embedded bookie ------------------------------------------------------------------------


async def fence(reader: ReadHandle) -> None:
    """Fence a ledger on its only bookie, so that its writer confirms nothing more.

    Raises LedgerError when it cannot be fenced.
    """
    (bookie,) = reader.segments[-1].bookies
    code = await _answer(partial(bookie.fence, reader.ledger_id, reader.digest))
    if code < -1 and bookie.failure:
        raise journal_failed(bookie.bookie_id, bookie.failure)
    if code < -1:
        why = f"ledger {reader.ledger_id} cannot be fenced: {os.strerror(-code)}"
        raise LedgerError(why, code)


async def find_end(reader: ReadHandle) -> tuple[int, int]:
    """Return (last entry id, length in bytes) of a ledger that no writer has.

    The embedded bookie is the only one of its ensemble, so a missing entry before the last one
    says nothing about those behind it: it was damaged, and they were acknowledged. The ledger
    then continues behind a gap. A power cut leaves no gap: the bookie stores nothing behind the
    first entry that a torn write lost. Raises LedgerError when an entry cannot be read now.
    """
    last = await stored_entries(reader.segments[-1].bookies, reader.ledger_id) - 1
    return last, await _length_at(reader, last)


async def _length_at(reader: ReadHandle, last: int) -> int:
    """Return the ledger's bytes up to the end of an entry, as far as they can still be known.

    Raises LedgerError when an entry cannot be read now.
    """
    length = 0
    lost: LedgerError | None = None
    entry_id = last
    while entry_id >= 0:
        try:
            batch = await reader.read_future(entry_id, entry_id)
        except (EntryDamaged, NoSuchEntry) as error:
            lost = error
            entry_id -= 1
            continue
        length = _length_of(batch)
        break
    if lost is not None:
        log.error(
            "entries at the end of a ledger are lost",
            ledger=reader.ledger_id,
            entries=last - entry_id,
            first=entry_id + 1,
            error=lost,
        )
    return length


def _length_of(batch: EntryBatch) -> int:
    return int.from_bytes(batch.packaged(0)[_LENGTH_AT], "big")


async def stored_entries(bookies: Iterable[Bookie], ledger_id: int) -> int:
    """Return one more than the highest entry id that one of the bookies stores; 0 without any."""
    found = await asyncio.gather(
        *(_answer(partial(bookie.last_entry, ledger_id)) for bookie in bookies)
    )
    return 1 + max(found)


async def last_stored(bookies: Iterable[Bookie], ledger_id: int) -> int:
    """Return the highest entry id that the bookies store which answer in time; -1 without any."""
    asked = [
        asyncio.ensure_future(_answer(partial(bookie.last_entry, ledger_id))) for bookie in bookies
    ]
    done, late = await asyncio.wait(asked, timeout=LAST_ENTRY_TIMEOUT_S)
    for each in late:
        each.cancel()
    return max((each.result() for each in done), default=-1)


async def _answer(ask: Callable[[Callable[[int], None]], None]) -> int:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    ask(partial(resolve, future))
    return await future
