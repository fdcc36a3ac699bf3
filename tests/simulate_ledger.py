"""A simulator of one ledger: its writer, its recoveries and its readers, with virtual time.

The machines and readers of the broker run unchanged among model bookies and a model metadata node.
A seed decides everything else. Requests and answers are late, lost, duplicated and reordered.
Bookies crash and return; some lose what they had not synced. Links break, writers pause for a
minute and come back, recoveries run at the same time and die half way, re-replication changes
earlier segments, bookies return damaged entries.

`simulate(seed)` raises Violation when one of these does not hold:

- runs are confirmed once, in the order of appending, each entry on an ack quorum of the bookies
  that the stored metadata names;
- no bookie stores two versions of an entry;
- the last add confirmed never goes back, and no bookie knows one that the writer has not reached;
- a ledger is closed once, behind everything that its writer has confirmed or ever confirms, and
  then each of its entries is on an ack quorum;
- every recovery reports that end, and every reader finds each entry up to it;
- when the faults end, the writer confirms everything, unless another client has the ledger, and a
  recovery succeeds.

`python tests/simulate_ledger.py --seeds N [--first SEED]` runs many seeds on all cores.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import simulating
from pyxbroker.entry import EntryBatch, EntryRun
from pyxbroker.ledger.bookie import (
    DAMAGED,
    DISCONNECTED,
    FENCED,
    NO_ENTRY,
    NO_LEDGER,
    TIMED_OUT,
    Bookie,
)
from pyxbroker.ledger.errors import LedgerError, LedgerFenced, NotEnoughBookies, is_lost
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerState, VersionedLedgerMetadata
from pyxbroker.ledger.read_policy import ReadPolicy
from pyxbroker.ledger.reader import ReadHandle, ReadSettings, segments_of
from pyxbroker.ledger.recovery import Action as RecoveryAction
from pyxbroker.ledger.recovery import (
    Fence,
    FoundEntry,
    LedgerRecovery,
    Read,
    ReadLength,
    Recovered,
    Restart,
    WriteBack,
)
from pyxbroker.ledger.writer import (
    Action,
    Confirm,
    Fail,
    FindBookies,
    LedgerWriter,
    ReadMetadata,
    Send,
    WriteMetadata,
)

LEDGER = 7
ENTRY_BYTES = 10
ADD_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
LATE_S = 2.0  # an answer after this time may come after a time-out
FAULTS_S = 25.0  # after this time the network and the bookies are well again
EVENTS_MAX = 20_000


class Violation(AssertionError):
    """A machine broke a promise."""


class ModelRun:
    """What a writer asks of an EntryRun. `token` stands for the data of its first entry."""

    def __init__(self, count: int, token: int = 0) -> None:
        self.count = count
        self.bytes = ENTRY_BYTES * count
        self.token = token
        self.ledger_id = -1
        self.first_entry_id = -1

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1


class StoredEntry(NamedTuple):
    """An entry as a bookie stores it."""

    token: int
    length: int
    last_add_confirmed: int


class ModelBatch:
    """What a reader asks of an EntryBatch."""

    def __init__(self, first: int, entries: list[StoredEntry], is_damaged: bool = False) -> None:
        self.first = first
        self.entries = entries
        self.is_damaged = is_damaged

    def unpack(self, digest: object) -> int:
        return 0 if self.is_damaged else self.count

    @property
    def count(self) -> int:
        return len(self.entries)

    @property
    def byte_count(self) -> int:
        return sum(each.length for each in self.entries)

    def entry_id(self, index: int) -> int:
        return self.first + index

    def join(self, parts: list[tuple[ModelBatch, int, int]]) -> ModelBatch:
        entries = [each for batch, at, count in parts for each in batch.entries[at : at + count]]
        return ModelBatch(parts[0][0].first, entries)


class Client:
    """A process: it may pause, die, and lose its links to some bookies."""

    def __init__(self) -> None:
        self.wakes_at = 0.0
        self.is_dead = False
        self.cut: set[str] = set()
        self.troubled: set[str] = set()  # bookies that lost something of it, or were late


class ModelBookie:
    """What one bookie stores of the ledger; it also is the Bookie of the simulation's readers."""

    failure = 0

    def __init__(self, simulation: Simulation, bookie_id: str) -> None:
        self.simulation = simulation
        self.bookie_id = bookie_id
        self.is_alive = True
        self.is_fenced = False
        self.is_fence_synced = False
        self.starts = 0
        self.entries: dict[int, StoredEntry] = {}  # synced
        self.unsynced: dict[int, StoredEntry] = {}

    def store(self, send: Send) -> None:
        run = cast(ModelRun, send.run)
        target = self.unsynced if self.simulation.loses_unsynced else self.entries
        for i in range(run.count):
            entry_id = run.first_entry_id + i
            if send.stripe is not None and not send.stripe.has(entry_id):
                continue
            length = send.length + ENTRY_BYTES * (i + 1)
            known = self.visible(entry_id)
            if known is not None and known[:2] != (run.token + i, length):
                raise Violation(f"entry {entry_id} changed on {self.bookie_id}")
            target[entry_id] = StoredEntry(run.token + i, length, send.last_add_confirmed)

    def sync(self, send: Send) -> None:
        """The journal has what the bookie stored of a run."""
        for entry_id in range(send.run.first_entry_id, send.run.last_entry_id + 1):
            entry = self.unsynced.pop(entry_id, None)
            if entry is not None:
                self.entries[entry_id] = entry

    def visible(self, entry_id: int) -> StoredEntry | None:
        return self.unsynced.get(entry_id) or self.entries.get(entry_id)

    def may_add(self, is_recovery: bool) -> bool:
        return is_recovery or not self.is_fenced

    def fence(self) -> int:
        """Fence the ledger, and return the last add confirmed that the bookie knows."""
        self.is_fenced = True
        return self.last_add_confirmed()

    def last_add_confirmed(self) -> int:
        """The last entry names it, as in BookKeeper."""
        last = max(max(self.entries, default=-1), max(self.unsynced, default=-1))
        entry = self.visible(last)
        return -1 if entry is None else entry.last_add_confirmed

    def recovery_read(self, entry_id: int) -> StoredEntry | None:
        self.is_fenced = True
        return self.visible(entry_id)

    def crash(self) -> None:
        self.is_alive = False
        self.starts += 1
        for client in self.simulation.clients():
            client.troubled.add(self.bookie_id)
        if self.simulation.loses_unsynced:
            self.unsynced.clear()
            self.is_fenced = self.is_fence_synced

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: Callable[[Any], None],
    ) -> None:
        simulation = self.simulation
        client = simulation.reader
        if not simulation.loses(client, self):
            simulation.at(simulation.delay(), self._read, first, last, callback)

    def _read(self, first: int, last: int, callback: Callable[[Any], None]) -> None:
        simulation = self.simulation
        result: ModelBatch | int
        if not self.is_alive:
            result = DISCONNECTED
        elif self.visible(first) is None:
            result = NO_ENTRY if self.entries else NO_LEDGER
        else:
            entries = []
            for entry_id in range(first, last + 1):
                entry = self.visible(entry_id)
                if entry is None:
                    break
                entries.append(entry)
            is_damaged = simulation.may_damage and simulation.chance() < 0.2
            simulation.may_damage &= not is_damaged
            result = ModelBatch(first, entries, is_damaged)
        simulation.answer(simulation.reader, self, callback, result)


class Clock:
    """The event loop of readers."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation

    def time(self) -> float:
        return self.simulation.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> Any:
        timer = _Timer(callback)
        self.simulation.at(delay, timer.fire)
        return timer


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None

    def fire(self) -> None:
        if self.callback is not None:
            self.callback()


class Plants(NamedTuple):
    """The classes under test, or others with a bug."""

    writer: type[LedgerWriter] = LedgerWriter
    recovery: type[LedgerRecovery] = LedgerRecovery
    bookie: type[ModelBookie] = ModelBookie
    reader: type[ReadHandle] = ReadHandle


class WriterDriver:
    """Performs the actions of a LedgerWriter, as EnsembleHandle does."""

    def __init__(
        self,
        simulation: Simulation,
        client: Client,
        writer: LedgerWriter,
        on_confirmed: Callable[[ModelRun], None],
        on_failed: Callable[[LedgerError], None],
        is_recovery: bool = False,
    ) -> None:
        self.simulation = simulation
        self.client = client
        self.writer = writer
        self.on_confirmed = on_confirmed
        self.on_failed = on_failed
        self.is_recovery = is_recovery
        self.is_checking = False
        self.waits_for = -1
        self.slots = 0

    def append(self, run: ModelRun) -> None:
        writer, sent = self.writer, cast(EntryRun, run)
        confirmed, length = writer.last_add_confirmed, writer.length
        members = writer.append(sent)
        if not self.is_checking:
            self.check_later()
        self.perform([Send(*each[:2], sent, confirmed, length, each.stripe) for each in members])

    def check_later(self) -> None:
        self.is_checking = True
        self.waits_for = self.writer.pending.first
        self.slots = self.writer.next_slot
        self.simulation.to(self.client, ADD_TIMEOUT_S, self.check_progress)

    def check_progress(self) -> None:
        self.is_checking = False
        writer = self.writer
        if writer.failure is not None or not writer.pending.pending:
            return
        oldest = writer.pending.first
        if oldest == self.waits_for and writer.change is None:
            for slot in writer.silent_slots(oldest, self.slots):
                name = writer.ensemble[writer._index_of[slot]]
                if name not in self.client.troubled:
                    raise Violation(f"{name} failed, and was asked for nothing")
                self.perform(writer.on_failed(slot, oldest, TIMED_OUT))
        self.check_later()

    def perform(self, actions: list[Action]) -> None:
        simulation = self.simulation
        for action in actions:
            if isinstance(action, Send):
                bookie = simulation.bookies[action.bookie_id]
                if not simulation.loses(self.client, bookie):
                    delay_s = simulation.delay()
                    if delay_s > LATE_S:
                        self.client.troubled.add(bookie.bookie_id)
                    simulation.at(delay_s, self.deliver, action, bookie)
            elif isinstance(action, Confirm):
                self.on_confirmed(cast(ModelRun, action.run))
            elif isinstance(action, Fail):
                self.on_failed(action.error)
            elif isinstance(action, FindBookies):
                simulation.to(self.client, 0.001, self.find, action)
            elif isinstance(action, WriteMetadata):
                simulation.write_metadata(
                    *(self.client, action.metadata, action.version),
                    lambda version: self.perform(self.writer.on_metadata_written(version)),
                    lambda: self.perform(self.writer.on_metadata_lost()),
                )
            else:
                simulation.read_metadata(
                    self.client, lambda found: self.perform(self.writer.on_metadata_read(found))
                )

    def deliver(self, send: Send, bookie: ModelBookie) -> None:
        simulation = self.simulation
        if not bookie.is_alive:
            self.refuse(send, bookie, DISCONNECTED)
        elif not bookie.may_add(self.is_recovery):
            self.refuse(send, bookie, FENCED)
        else:
            bookie.store(send)
            if simulation.loses_unsynced:
                simulation.at(simulation.sync_delay(), self.sync, send, bookie, bookie.starts)
            else:
                self.acknowledge(send, bookie)

    def refuse(self, send: Send, bookie: ModelBookie, code: int) -> None:
        first = send.run.first_entry_id
        self.simulation.answer(self.client, bookie, self.on_refused, send.slot, first, code)

    def on_refused(self, slot: int, first: int, code: int) -> None:
        self.perform(self.writer.on_failed(slot, first, code))

    def sync(self, send: Send, bookie: ModelBookie, starts: int) -> None:
        if bookie.starts == starts:
            bookie.sync(send)
            self.acknowledge(send, bookie)

    def acknowledge(self, send: Send, bookie: ModelBookie) -> None:
        first, last = send.run.first_entry_id, send.run.last_entry_id
        if last > first and self.simulation.chance() < 0.3:
            middle = (first + last) // 2
            self.simulation.answer(self.client, bookie, self.on_acked, send.slot, middle + 1, last)
            last = middle
        self.simulation.answer(self.client, bookie, self.on_acked, send.slot, first, last)

    def on_acked(self, slot: int, first: int, last: int) -> None:
        for run in self.writer.on_acked(slot, first, last):
            self.on_confirmed(cast(ModelRun, run))

    def find(self, wanted: FindBookies) -> None:
        simulation = self.simulation
        members = {*wanted.ensemble, *wanted.failed}
        if simulation.chance() < 0.3:
            # The bookie that failed is well again, or seems so.
            members -= {wanted.ensemble[index] for index in wanted.indexes}
        free = [
            name
            for name, each in simulation.bookies.items()
            if each.is_alive and name not in members
        ]
        simulation.random.shuffle(free)
        found = dict(zip(sorted(wanted.indexes), free))  # noqa: B905, fewer bookies than indexes
        self.perform(self.writer.on_bookies_found(found))
        if self.writer.absent and not found and self.writer.failure is None:
            simulation.to(self.client, 1.0, self.retry)

    def retry(self) -> None:
        self.perform(self.writer.retry())


class RecoveryDriver:
    """Performs the actions of a LedgerRecovery, and starts again after a failure."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.client = Client()
        self.machine: LedgerRecovery
        self.pen: WriterDriver | None = None
        self.start()

    def start(self) -> None:
        self.machine = self.simulation.plants.recovery(LEDGER, self.simulation.read_ahead)
        self.pen = None
        self.simulation.read_metadata(self.client, self.input(self.machine.on_metadata_read))

    def input(self, method: Callable[..., list[RecoveryAction]]) -> Callable[..., None]:
        """Return a callback for this attempt, whose late answers the next one ignores."""
        machine = self.machine

        def call(*arguments: Any) -> None:
            if machine is self.machine:
                self.perform(method(*arguments))

        return call

    def perform(self, actions: list[RecoveryAction]) -> None:
        simulation = self.simulation
        machine = self.machine
        for action in actions:
            if isinstance(action, Read):
                call = self.input(machine.on_read)
                self.ask(action, self.serve_read, call, action.entry_id, action.member)
            elif isinstance(action, Fence):
                self.ask(action, self.serve_fence, self.input(machine.on_fenced), action.member)
            elif isinstance(action, WriteBack):
                self.write_back(cast(ModelRun, action.run))
            elif isinstance(action, ReadLength):
                self.read_length(action.entry_id)
            elif isinstance(action, WriteMetadata):
                simulation.write_metadata(
                    *(self.client, action.metadata, action.version),
                    self.input(machine.on_metadata_written),
                    self.input(machine.on_metadata_lost),
                )
            elif isinstance(action, ReadMetadata):
                simulation.read_metadata(self.client, self.input(machine.on_metadata_read))
            elif isinstance(action, Recovered):
                simulation.on_recovered(action)
            elif isinstance(action, Restart):
                self.start()
            elif isinstance(action, Fail):
                simulation.to(self.client, 1.0, self.start)

    def ask(
        self,
        action: Fence | Read,
        serve: Callable[..., None],
        call: Callable[..., None],
        *what: int,
    ) -> None:
        simulation = self.simulation
        bookie = simulation.bookies[action.bookie_id]
        is_lost = simulation.loses(self.client, bookie)
        if is_lost or (simulation.has_faults and simulation.chance() < 0.02):
            simulation.to(self.client, ANSWER_TIMEOUT_S, call, *what, TIMED_OUT)
        if not is_lost:
            simulation.at(simulation.delay(), serve, bookie, call, *what)

    def serve_fence(self, bookie: ModelBookie, call: Callable[..., None], member: int) -> None:
        if not bookie.is_alive:
            self.reply(bookie, call, member, DISCONNECTED)
        else:
            self.sync_fence(bookie, call, member, bookie.fence())

    def serve_read(
        self, bookie: ModelBookie, call: Callable[..., None], entry_id: int, member: int
    ) -> None:
        if not bookie.is_alive:
            self.reply(bookie, call, entry_id, member, DISCONNECTED)
            return
        entry = bookie.recovery_read(entry_id)
        if entry is None:
            found: FoundEntry | int = NO_ENTRY if bookie.entries else NO_LEDGER
        elif self.simulation.has_faults and self.simulation.chance() < 0.02:
            found = DAMAGED
        else:
            found = FoundEntry(cast(EntryRun, ModelRun(1, entry.token)), entry.length)
        self.sync_fence(bookie, call, entry_id, member, found)

    def sync_fence(self, bookie: ModelBookie, call: Callable[..., None], *answer: Any) -> None:
        if not self.simulation.loses_unsynced or bookie.is_fence_synced:
            self.reply(bookie, call, *answer)
            return

        def on_synced(starts: int) -> None:
            if bookie.starts == starts:
                bookie.is_fence_synced = bookie.is_fenced
                self.reply(bookie, call, *answer)
            else:
                self.reply(bookie, call, *answer[:-1], DISCONNECTED)

        self.simulation.at(self.simulation.sync_delay(), on_synced, bookie.starts)

    def reply(self, bookie: ModelBookie, call: Callable[..., None], *answer: Any) -> None:
        if not self.simulation.answer(self.client, bookie, call, *answer):
            self.simulation.to(self.client, ANSWER_TIMEOUT_S, call, *answer[:-1], TIMED_OUT)

    def write_back(self, run: ModelRun) -> None:
        if self.pen is None:
            machine = self.machine
            assert machine.writer is not None
            on_confirmed, on_failed = (
                self.input(machine.on_written_back),
                self.input(machine.give_up),
            )
            self.pen = WriterDriver(
                *(self.simulation, self.client, machine.writer),
                lambda run: on_confirmed(),
                on_failed,
                is_recovery=True,
            )
        self.pen.append(run)

    def read_length(self, entry_id: int) -> None:
        on_length, give_up = self.input(self.machine.on_length), self.input(self.machine.give_up)

        def on_read(result: EntryBatch | LedgerError) -> None:
            if not isinstance(result, LedgerError):
                on_length(cast(ModelBatch, result).entries[0].length)
            elif is_lost(result):
                raise Violation(f"a recovery lost entry {entry_id}, which was confirmed")
            else:
                give_up(result)

        reader = self.simulation.open_reader(self.machine.metadata)
        reader.read(entry_id, entry_id, 1, 1, on_read)


class Simulation:
    """One ledger, driven by one seed."""

    def __init__(self, seed: int, plants: Plants) -> None:
        self.random = random.Random(seed)
        self.chance = chance = self.random.random
        self.plants = plants
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self.sequence = 0
        self.has_faults = True
        self.loses_unsynced = chance() < 0.4
        self.loss = (0.0, 0.02, 0.1)[int(chance() * 3)]
        self.lateness = (0.02, 0.2, 0.5)[int(chance() * 3)]
        self.read_ahead = 1 + int(chance() * 3)
        size = (1, 2, 3, 3, 4, 5)[int(chance() * 6)]
        quorum = size - int(chance() ** 2 * size)
        ack = quorum - int(chance() ** 2 * quorum)
        names = [f"b{i}" for i in range(size + int(chance() * 3))]
        self.bookies = {name: plants.bookie(self, name) for name in names}
        self.stored = LedgerMetadata(size, quorum, ack, {0: tuple(names[:size])})
        self.version = 0
        self.may_damage = ack > 1  # one answer, since several could be all copies of an entry
        self.reader = Client()
        settings = ReadSettings(0.5 * int(chance() * 2), ANSWER_TIMEOUT_S, chance() < 0.5)
        self.policy = ReadPolicy(Clock(self), settings)
        self.owner = Client()
        self.writer = plants.writer(LEDGER, self.stored, 0, chance() < 0.3)
        self.pen = WriterDriver(
            self, self.owner, self.writer, self.on_confirmed, self.on_writer_failed
        )
        self.recoveries: list[RecoveryDriver] = []
        self.runs: list[ModelRun] = []
        self.tokens: list[int] = []  # of the entries that were appended, by entry id
        self.runs_confirmed = 0
        self.confirmed = -1  # the last entry that the writer has confirmed
        self.seen = -1  # the largest last add confirmed that a reader has seen
        self.failed = False
        self.reads_pending = 0

    # --- time and network -----------------------------------------------------------------------

    def at(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (self.now + delay_s, self.sequence, call, arguments))

    def to(self, client: Client, delay_s: float, call: Callable[..., object], *what: Any) -> None:
        """Call a client later: when it is awake, and unless it has died."""
        self.at(delay_s, self._arrive, client, call, what)

    def _arrive(self, client: Client, call: Callable[..., object], what: tuple[Any, ...]) -> None:
        if client.wakes_at > self.now:
            self.to(client, client.wakes_at - self.now, call, *what)
        elif not client.is_dead:
            call(*what)

    def delay(self) -> float:
        x = self.chance()
        return 12 * self.chance() ** 4 if self.has_faults and x < self.lateness else 0.02 * x

    def sync_delay(self) -> float:
        x = self.chance()
        return 0.01 * x if x < 0.8 else x

    def loses(self, client: Client, bookie: ModelBookie) -> bool:
        """Return True if a message between the two is lost."""
        name = bookie.bookie_id
        if self.has_faults and (name in client.cut or self.chance() < self.loss):
            client.troubled.add(name)
            return True
        return False

    def answer(
        self, client: Client, bookie: ModelBookie, call: Callable[..., object], *what: Any
    ) -> bool:
        """Answer a client: once, twice, or never (False)."""
        if self.loses(client, bookie):
            return False
        delay_s = self.delay()
        if delay_s > LATE_S:
            client.troubled.add(bookie.bookie_id)
        self.to(client, delay_s, call, *what)
        if self.has_faults and self.chance() < 0.05:
            self.to(client, self.delay(), call, *what)
        return True

    # --- metadata -------------------------------------------------------------------------------

    def read_metadata(self, client: Client, call: Callable[..., None]) -> None:
        self.at(self.delay(), self._serve_metadata, client, call)

    def _serve_metadata(self, client: Client, call: Callable[..., None]) -> None:
        found = VersionedLedgerMetadata(self.stored, self.version)
        self.to(client, self.delay(), call, found)

    def write_metadata(
        self,
        client: Client,
        metadata: LedgerMetadata,
        version: int,
        on_written: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.at(self.delay(), self._write, client, metadata, version, on_written, on_lost)

    def _write(
        self,
        client: Client,
        metadata: LedgerMetadata,
        version: int,
        on_written: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        if version != self.version:
            self.to(client, self.delay(), on_lost)
            return
        if metadata.state is LedgerState.CLOSED:
            self.check_close(metadata)
        elif self.stored.state is LedgerState.CLOSED:
            raise Violation("a closed ledger was opened again")
        self.stored = metadata
        self.version += 1
        if self.has_faults and self.chance() < 0.1:
            self.to(client, self.delay(), on_lost)  # applied, and its answer was lost
        else:
            self.to(client, self.delay(), on_written, self.version)

    def check_close(self, metadata: LedgerMetadata) -> None:
        last = metadata.last_entry_id
        if self.stored.state is LedgerState.CLOSED:
            raise Violation("a ledger was closed twice")
        if last < max(self.confirmed, self.seen):
            raise Violation(f"the ledger was closed at {last}, before what was confirmed")
        if metadata.length != ENTRY_BYTES * (last + 1):
            raise Violation(f"the ledger was closed with a length of {metadata.length}")
        for entry_id in range(last + 1):
            self.check_copies(metadata, entry_id)

    def check_copies(self, metadata: LedgerMetadata, entry_id: int) -> None:
        """An ack quorum has the entry, synced, where the metadata says."""
        ensemble = metadata.ensemble_of(entry_id)
        size = len(ensemble)
        copies = 0
        for i in range(metadata.write_quorum_size):
            entry = self.bookies[ensemble[(entry_id + i) % size]].entries.get(entry_id)
            copies += entry is not None and entry.token == self.tokens[entry_id]
        if copies < metadata.ack_quorum_size:
            raise Violation(f"entry {entry_id} is on {copies} bookies of {ensemble}")

    # --- the writer -----------------------------------------------------------------------------

    def append(self) -> None:
        if self.failed or self.owner.is_dead:
            return
        if self.owner.wakes_at > self.now:
            self.at(self.owner.wakes_at - self.now, self.append)
            return
        run = ModelRun(1 + int(self.chance() * 3), len(self.tokens) + 1000)
        self.runs.append(run)
        self.tokens += range(run.token, run.token + run.count)
        self.pen.append(run)

    def on_confirmed(self, run: ModelRun) -> None:
        if self.runs_confirmed >= len(self.runs) or self.runs[self.runs_confirmed] is not run:
            raise Violation("a run was confirmed twice, or before its predecessor")
        self.runs_confirmed += 1
        if self.stored.is_closed and run.last_entry_id > self.stored.last_entry_id:
            raise Violation(f"entry {run.last_entry_id} was confirmed behind the end")
        if run.last_entry_id <= self.confirmed:
            raise Violation("the last add confirmed went back")
        self.confirmed = run.last_entry_id
        for entry_id in range(run.first_entry_id, run.last_entry_id + 1):
            self.check_copies(self.stored, entry_id)

    def on_writer_failed(self, error: LedgerError) -> None:
        self.failed = True
        if not isinstance(error, (LedgerFenced, NotEnoughBookies)):
            raise Violation(f"the ledger failed: {error}")
        if isinstance(error, LedgerFenced) and self.stored.state is LedgerState.OPEN:
            raise Violation("the writer was fenced without a recovery")

    def close(self) -> None:
        """The writer closes its ledger, as LedgerClient.close does."""
        writer = self.writer
        if not self.failed and writer.is_idle and self.owner.wakes_at <= self.now:
            self.owner.is_dead = True  # it does nothing more
            closed = writer.metadata.closed(writer.pending.last_add_confirmed, writer.length)
            ignore = lambda *_: None  # noqa: E731
            self.write_metadata(self.owner, closed, writer.version, ignore, ignore)

    # --- readers and recoveries -----------------------------------------------------------------

    def open_reader(self, metadata: LedgerMetadata) -> ReadHandle:
        bookies = cast("dict[str, Bookie]", self.bookies)
        segments = segments_of(metadata.ensembles, bookies, LEDGER)
        return self.plants.reader(LEDGER, segments, metadata.write_quorum_size, policy=self.policy)

    def watch(self) -> None:
        """A reader follows the open ledger: it asks bookies how far it may read, and reads."""
        if self.stored.is_closed:
            last = self.stored.last_entry_id
        else:
            last = (
                max(each.last_add_confirmed() for each in self.bookies.values() if each.is_alive)
                if any(each.is_alive for each in self.bookies.values())
                else -1
            )
            confirmed = self.writer.pending.last_add_confirmed
            if last > confirmed:
                raise Violation(f"a bookie knows {last} as confirmed, the writer {confirmed}")
            self.seen = max(self.seen, last)
        if last >= 0:
            first = int(self.chance() * (last + 1))
            self.read(self.open_reader(self.stored), first, min(first + 2, last))

    def read(self, reader: ReadHandle, first: int, last: int) -> None:
        """Read entries, and check each of them."""
        self.reads_pending += 1

        def on_read(result: EntryBatch | LedgerError) -> None:
            self.reads_pending -= 1
            if isinstance(result, LedgerError):
                if is_lost(result):
                    raise Violation(f"a reader lost entry {first}, which was confirmed: {result}")
                if not self.has_faults:
                    self.read(reader, first, last)
                return
            found = [each.token for each in cast(ModelBatch, result).entries]
            if found != self.tokens[first : first + len(found)]:
                raise Violation(f"a reader found {found} from entry {first} on")
            if first + len(found) <= last and not self.has_faults:
                self.read(reader, first + len(found), last)

        reader.read(first, last, 100, 1 << 20, on_read)

    def recover(self) -> None:
        self.recoveries.append(RecoveryDriver(self))

    def on_recovered(self, end: Recovered) -> None:
        stored = (self.stored.last_entry_id, self.stored.length)
        if not self.stored.is_closed or (end.last_entry_id, end.length) != stored:
            raise Violation(f"a recovery found the end {end}, another one {stored}")

    # --- faults ---------------------------------------------------------------------------------

    def clients(self) -> Iterator[Client]:
        yield self.owner
        yield self.reader
        for each in self.recoveries:
            yield each.client

    def crash(self) -> None:
        bookie = self.random.choice([*self.bookies.values()])
        if bookie.is_alive:
            bookie.crash()
            self.at(self.chance() ** 2 * 20, self.revive, bookie)

    def revive(self, bookie: ModelBookie) -> None:
        bookie.is_alive = True

    def cut(self) -> None:
        client = self.random.choice([*self.clients()])
        name = self.random.choice([*self.bookies])
        client.cut.add(name)
        self.at(self.chance() * 20, client.cut.discard, name)

    def pause(self) -> None:
        self.owner.wakes_at = self.now + self.chance() ** 2 * 120
        self.owner.troubled.update(self.bookies)

    def kill_recovery(self) -> None:
        for each in self.recoveries:
            each.client.is_dead = True

    def replicate(self) -> None:
        """Change the ensemble of an earlier segment, as re-replication does."""
        earlier = sorted(self.stored.ensembles)
        if not self.stored.is_closed:
            earlier.pop()
        if not earlier:
            return
        first = self.random.choice(earlier)
        members = list(self.stored.ensembles[first])
        spare = [each for each in self.bookies if each not in members]
        if spare:
            index = self.random.randrange(len(members))
            new = self.bookies[self.random.choice(spare)]
            new.entries |= {
                entry_id: entry
                for entry_id, entry in self.bookies[members[index]].entries.items()
                if entry_id not in new.entries
            }
            members[index] = new.bookie_id
            self.stored = self.stored.with_ensemble(first, tuple(members))
            self.version += 1

    # --- the course of a simulation -------------------------------------------------------------

    def schedule(self) -> None:
        chance = self.chance
        at = 0.0
        for _ in range(2 + int(chance() * 8)):
            if chance() < 0.6:
                at += chance() * 3
            self.at(at, self.append)
        if chance() < 0.3:
            self.at(at + chance() * 3, self.close)
        took = chance() * at if chance() < 0.5 else chance() * (at + 5)
        for _ in range(int(chance() * 3)):
            self.at(took, self.recover)
            for _ in range(int(chance() * 4)):
                self.at(max(took + (chance() - 0.4) * 0.1, 0.0), self.append)
            took += chance() * 2 if chance() < 0.6 else chance() * 15
        faults = (self.crash, self.crash, self.cut, self.cut, self.watch)
        for _ in range(int(chance() * 12)):
            self.at(chance() * (at + 5), self.random.choice(faults))
        rare = (self.pause, self.replicate, self.kill_recovery)
        for _ in range(int(chance() * 3)):
            self.at(chance() * (at + 5), self.random.choice(rare))
        self.at(FAULTS_S, self.heal)

    def heal(self) -> None:
        self.has_faults = False
        self.may_damage = False
        for each in self.bookies.values():
            each.is_alive = True

    def settle(self) -> None:
        """Run until nothing happens any more."""
        heap = self.heap
        pop = heapq.heappop
        for _ in range(EVENTS_MAX):
            if not heap:
                return
            self.now, _, call, arguments = pop(heap)
            call(*arguments)
        raise Violation("the clients never come to rest")

    def run(self) -> None:
        self.schedule()
        self.settle()
        waiting = len(self.runs) - self.runs_confirmed
        is_open = self.stored.state is LedgerState.OPEN and not self.failed
        if is_open and not self.owner.is_dead and (waiting or not self.writer.is_idle):
            raise Violation(f"{waiting} runs wait for ever, {self.writer.change}")
        self.recover()
        self.settle()
        if not self.stored.is_closed:
            raise Violation("the ledger was not closed")
        last = self.stored.last_entry_id
        for entry_id in range(last + 1):
            self.check_copies(self.stored, entry_id)
        if last >= 0:
            for is_sticky in (False, True):
                self.policy = ReadPolicy(Clock(self), ReadSettings(0.5, is_sticky=is_sticky))
                self.read(self.open_reader(self.stored), 0, last)
        self.settle()
        if self.reads_pending:
            raise Violation("a reader got no answer")


def simulate(seed: int, plants: Plants = Plants()) -> Simulation:  # noqa: B008
    """Run one seed to its end. Raises Violation."""
    simulation = Simulation(seed, plants)
    try:
        simulation.run()
    except Violation as error:
        raise Violation(f"seed {seed}, at {simulation.now:.3f} s: {error}") from error
    return simulation


if __name__ == "__main__":
    sys.exit(simulating.main("Simulate ledgers by seeds.", simulate, Violation))
