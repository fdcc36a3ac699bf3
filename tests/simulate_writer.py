"""A simulator of one ledger's writer among model bookies, a model metadata node and a recovery.

Everything that may happen is one step that a seeded generator chooses: a message is delivered,
late, twice or out of order; it is dropped, and its time-out fires; a bookie dies or returns; a
metadata write is lost although it was applied; re-replication changes an earlier segment; another
broker recovers the ledger. `simulate(seed)` raises Violation when one of these does not hold:

- runs are confirmed once, in the order of appending;
- each entry of a confirmed run is on the ack quorum of the segment that the stored metadata names;
- no entry is confirmed behind the end at which a recovery closed the ledger;
- when faults end and all bookies live, every run is confirmed, unless another owner has the ledger.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import cast

from pyxbroker.entry import EntryRun
from pyxbroker.ledger.bookie import DISCONNECTED, FENCED, TIMED_OUT
from pyxbroker.ledger.errors import LedgerFenced, NotEnoughBookies
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerState, VersionedLedgerMetadata
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
STEPS = 120
DRAIN_STEPS_MAX = 3000


class Violation(AssertionError):
    """The writer broke a promise."""


class ModelRun:
    """What the writer asks of an EntryRun."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.bytes = 10 * count
        self.ledger_id = -1
        self.first_entry_id = -1

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1


class ModelBookie:
    """What one bookie stores of the ledger."""

    def __init__(self) -> None:
        self.is_alive = True
        self.is_fenced = False
        self.entries: set[int] = set()
        self.last_add_confirmed = -1


class Simulation:
    """One ledger, driven by one generator."""

    def __init__(self, seed: int, writer_type: type[LedgerWriter] = LedgerWriter) -> None:
        self.random = random.Random(seed)
        size = self.random.randint(1, 5)
        quorum = self.random.randint(1, size)
        ack = self.random.randint(1, quorum)
        self.bookies = {f"b{i}": ModelBookie() for i in range(size + self.random.randint(0, 3))}
        self.stored = LedgerMetadata(size, quorum, ack, {0: tuple(sorted(self.bookies)[:size])})
        self.version = 0
        self.writer = writer_type(LEDGER, self.stored, 0, self.random.random() < 0.3)
        self.messages: list[Callable[[], None]] = []
        self.runs: list[ModelRun] = []
        self.confirmed: list[ModelRun] = []
        self.failed = False
        self.end: int | None = None  # the last entry, once a recovery has closed the ledger
        self.has_faults = True

    # --- the writer's actions -----------------------------------------------------------------

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self.messages.append(partial(self.deliver_add, action))
                case Confirm(run):
                    self.check_confirmed(cast(ModelRun, run))
                case FindBookies():
                    self.messages.append(partial(self.find_bookies, action))
                case WriteMetadata(metadata, version):
                    self.messages.append(partial(self.write_metadata, metadata, version))
                case ReadMetadata():
                    self.messages.append(self.read_metadata)
                case Fail(error):
                    self.failed = True
                    if not isinstance(error, (LedgerFenced, NotEnoughBookies)):
                        raise Violation(f"the ledger failed: {error}")
                    if isinstance(error, LedgerFenced) and self.stored.state is LedgerState.OPEN:
                        raise Violation("the writer was fenced without a recovery")

    def check_confirmed(self, run: ModelRun) -> None:
        if len(self.confirmed) >= len(self.runs) or self.runs[len(self.confirmed)] is not run:
            raise Violation("a run was confirmed twice, or before its predecessor")
        self.confirmed.append(run)
        for entry_id in range(run.first_entry_id, run.last_entry_id + 1):
            if self.end is not None and entry_id > self.end:
                raise Violation(f"entry {entry_id} was confirmed behind the end {self.end}")
            ensemble = self.stored.ensemble_of(entry_id)
            holders = sum(entry_id in self.bookies[each].entries for each in self.set_of(entry_id))
            if holders < self.stored.ack_quorum_size:
                raise Violation(f"entry {entry_id} is on {holders} bookies of {ensemble}")

    def set_of(self, entry_id: int) -> list[str]:
        """The bookies that the stored metadata names for an entry."""
        ensemble = self.stored.ensemble_of(entry_id)
        quorum = self.stored.write_quorum_size
        return [ensemble[(entry_id + i) % len(ensemble)] for i in range(quorum)]

    # --- deliveries ---------------------------------------------------------------------------

    def deliver_add(self, send: Send) -> None:
        bookie = self.bookies[send.bookie_id]
        first, last = send.run.first_entry_id, send.run.last_entry_id
        if self.has_faults and self.random.random() < 0.03:
            # The request or its answer is dropped; the writer's time-out fires instead.
            if self.random.random() < 0.5 and bookie.is_alive and not bookie.is_fenced:
                self.store(bookie, send)
            self.answer(partial(self.writer.on_failed, send.slot, first, TIMED_OUT))
        elif not bookie.is_alive:
            self.answer(partial(self.writer.on_failed, send.slot, first, DISCONNECTED))
        elif bookie.is_fenced:
            self.answer(partial(self.writer.on_failed, send.slot, first, FENCED))
        else:
            self.store(bookie, send)
            middle = self.random.randint(first, last)
            for part in ((first, middle), (middle + 1, last)):
                if part[0] <= part[1]:
                    self.answer(partial(self.writer.on_acked, send.slot, *part))

    def store(self, bookie: ModelBookie, send: Send) -> None:
        bookie.last_add_confirmed = max(bookie.last_add_confirmed, send.last_add_confirmed)
        bookie.entries.update(
            entry_id
            for entry_id in range(send.run.first_entry_id, send.run.last_entry_id + 1)
            if send.stripe is None or send.stripe.has(entry_id)
        )

    def answer(self, call: Callable[[], list[Action]]) -> None:
        times = 2 if self.has_faults and self.random.random() < 0.1 else 1
        self.messages += [lambda: self.perform(call())] * times

    def find_bookies(self, wanted: FindBookies) -> None:
        members = {*wanted.ensemble, *wanted.failed}
        if self.random.random() < 0.3:
            # The bookie that failed is well again, or seems so.
            members -= {wanted.ensemble[index] for index in wanted.indexes}
        free = [
            name for name, each in self.bookies.items() if each.is_alive and name not in members
        ]
        self.random.shuffle(free)
        found = dict(zip(sorted(wanted.indexes), free))  # noqa: B905, fewer bookies than indexes
        self.perform(self.writer.on_bookies_found(found))

    def write_metadata(self, metadata: LedgerMetadata, version: int) -> None:
        if version != self.version:
            self.perform(self.writer.on_metadata_lost())
            return
        self.stored = metadata
        self.version += 1
        if self.has_faults and self.random.random() < 0.1:
            self.perform(self.writer.on_metadata_lost())  # applied, and its answer was lost
        else:
            self.perform(self.writer.on_metadata_written(self.version))

    def read_metadata(self) -> None:
        self.perform(
            self.writer.on_metadata_read(VersionedLedgerMetadata(self.stored, self.version))
        )

    # --- what others do -----------------------------------------------------------------------

    def replicate(self) -> None:
        """Change the ensemble of an earlier segment, as re-replication does."""
        earlier = sorted(self.stored.ensembles)[:-1]
        if earlier and self.stored.state is LedgerState.OPEN:
            first = self.random.choice(earlier)
            members = list(self.stored.ensembles[first])
            spare = [each for each in self.bookies if each not in members]
            if spare:
                index = self.random.randrange(len(members))
                new = self.random.choice(spare)
                self.bookies[new].entries |= self.bookies[members[index]].entries
                members[index] = new
                self.stored = self.stored.with_ensemble(first, tuple(members))
                self.version += 1

    def recover(self) -> None:
        """Take the ledger over, by the rules of BookKeeper's recovery."""
        if self.end is not None:
            return
        if self.stored.state is LedgerState.OPEN:
            self.stored = self.stored.in_recovery()
            self.version += 1
        _, ensemble = self.stored.last_ensemble()
        needed = self.stored.write_quorum_size - self.stored.ack_quorum_size + 1
        fenced = [each for each in ensemble if self.bookies[each].is_alive]
        for each in fenced:
            self.bookies[each].is_fenced = True
        first = max(self.stored.ensembles)
        for entry_id in range(first, first + len(ensemble)):
            if sum(each in fenced for each in self.set_of(entry_id)) < needed:
                return  # too few bookies answer: it is tried again later
        last = max(self.bookies[each].last_add_confirmed for each in fenced)
        while True:
            members = self.set_of(last + 1)
            if any(last + 1 in self.bookies[each].entries for each in members if each in fenced):
                last += 1
            elif sum(each in fenced for each in members) >= needed:
                break
            else:
                return
        self.end = last
        self.stored = self.stored.closed(last, 0)
        self.version += 1
        if self.confirmed and self.confirmed[-1].last_entry_id > last:
            raise Violation(f"a recovery closed the ledger at {last}, before what was confirmed")

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.25 and not self.failed:
            run = ModelRun(self.random.randint(1, 4))
            self.runs.append(run)
            self.perform(self.writer.append(cast(EntryRun, run)))
        elif choice < 0.85 and self.messages:
            self.messages.pop(self.random.randrange(len(self.messages)))()
        elif choice < 0.89:
            bookie = self.random.choice(list(self.bookies.values()))
            bookie.is_alive = not bookie.is_alive
        elif choice < 0.91:
            self.replicate()
        elif choice < 0.92:
            self.perform(self.writer.retry())
        elif choice < 0.925:
            self.recover()

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.has_faults = False
        for each in self.bookies.values():
            each.is_alive = True
        for _ in range(DRAIN_STEPS_MAX):
            if not self.messages and not self.failed:
                self.perform(self.writer.retry())
            if not self.messages:
                break
            self.messages.pop(self.random.randrange(len(self.messages)))()
        is_open = not self.failed and self.stored.state is LedgerState.OPEN
        waiting = len(self.runs) - len(self.confirmed)
        if is_open and (waiting or not self.writer.is_idle):
            raise Violation(f"{waiting} runs wait for ever, {self.writer.change}")


def simulate(seed: int, writer_type: type[LedgerWriter] = LedgerWriter) -> Simulation:
    """Run one seed to its end. Raises Violation."""
    simulation = Simulation(seed, writer_type)
    simulation.run()
    return simulation
