"""The writer of an open ledger on an ensemble of bookies, as a state machine.

No socket, clock, future or logger inside: each input returns the actions that the caller performs
(ensemble.py does, tests/simulate_ledger.py does with model bookies). The first two inputs are those
of every run. They return what they have instead of an action for each bookie and run.

    input                                   what it may return
    append(run)                             the members of the run's write sets, to send it to
    on_acked(slot, first, last)             the confirmed runs, in the order of appending
    on_failed(slot, first, code)            FindBookies, or Fail when the ledger is fenced
    on_bookies_found({index: bookie})       WriteMetadata; Confirm or Fail when none exists
    on_metadata_written(version)            Send to the new bookies what is unconfirmed, Confirm
    on_metadata_lost()                      ReadMetadata: another client changed the node
    on_metadata_read(found)                 WriteMetadata once more, or Fail: there is another owner
    retry()                                 FindBookies, while a member has no replacement

An entry is confirmed when `ack_quorum` bookies of its write set have it, and every entry before it
is confirmed. During an ensemble change nothing is confirmed: the new segment begins with the first
unconfirmed entry, and an entry that only the old members acknowledged must not end up in it.
(BookKeeper's LedgerHandle and PendingAddOp follow the same rules.)
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pyxbroker.entry import EntryRun
from pyxbroker.ledger.bookie import FENCED, UNAUTHORIZED, Stripe
from pyxbroker.ledger.errors import LedgerError, LedgerFenced, NotEnoughBookies, error_of
from pyxbroker.ledger.metadata import LedgerMetadata, LedgerState, VersionedLedgerMetadata
from pyxbroker.quorum import PendingRuns


class Member(NamedTuple):
    """A bookie of the ensemble, for the entries of its stripe; arguments as in Bookie.add_run."""

    slot: int
    bookie_id: str
    stripe: Stripe | None


class Send(NamedTuple):
    """Add a run to a bookie; arguments as in Bookie.add_run."""

    slot: int
    bookie_id: str
    run: EntryRun
    last_add_confirmed: int
    length: int
    stripe: Stripe | None


class Confirm(NamedTuple):
    """Every entry of the run is on its ack quorum."""

    run: EntryRun


class FindBookies(NamedTuple):
    """Choose a replacement for each of these ensemble indexes, neither a member nor one that has
    failed lately; the answer is on_bookies_found.
    """

    indexes: frozenset[int]
    ensemble: tuple[str, ...]
    failed: frozenset[str]


class WriteMetadata(NamedTuple):
    """Replace the ledger's metadata if it still has this version."""

    metadata: LedgerMetadata
    version: int


class ReadMetadata(NamedTuple):
    """Read the ledger's metadata; the answer is on_metadata_read."""


class Fail(NamedTuple):
    """The ledger confirms nothing more."""

    error: LedgerError


Action: TypeAlias = Send | Confirm | FindBookies | WriteMetadata | ReadMetadata | Fail


class Change(enum.Enum):
    """The step of an ensemble change whose answer the writer waits for."""

    FINDING = "finding bookies"
    WRITING = "writing metadata"
    READING = "reading metadata"


class LedgerWriter:
    """State of one ledger's writer.

    With `delays_change` a failed bookie is replaced only when an entry can no longer reach its ack
    quorum without it (BookKeeper's delayEnsembleChange); until then each run is sent to it again.

    For a ledger in recovery, the writer writes back entries from `next_entry_id` on; `length` is
    the number of bytes before them. Its ensemble changes stay in `metadata` until the ledger is
    closed, and each entry carries the last add that the former writer confirmed. Otherwise a
    recovery that dies would leave a mark behind entries that only its own ensemble has.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        delays_change: bool = False,
        next_entry_id: int = 0,
        length: int = 0,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.length = length
        self.failure: LedgerError | None = None
        self.change: Change | None = None
        self.is_sealed = False
        self.absent: set[int] = set()  # ensemble indexes of failed bookies without a replacement
        self.ensemble = list(metadata.last_ensemble()[1])
        self.pending = PendingRuns(
            *(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size),
            next_entry_id,
        )
        self._recovers_from = next_entry_id if metadata.state is LedgerState.IN_RECOVERY else None
        self._delays_change = delays_change
        self._members: dict[int, tuple[Member, ...]] = {}  # of runs, by their position and length
        self._slots = list(range(metadata.ensemble_size))
        self._index_of = {slot: slot for slot in self._slots}
        self.next_slot = len(self._slots)
        self._found: Mapping[int, str] = {}
        self._failed: set[str] = set()  # bookies, until retry()
        self._proposed = metadata
        # With a delayed change: the entries that each ensemble index refused, as one range.
        self._refused: dict[int, tuple[int, int]] = {}

    @property
    def is_idle(self) -> bool:
        """True if all entries are confirmed, and no ensemble change is under way."""
        return not self.pending.has_runs and self.change is None

    def seal(self) -> None:
        """Ignore failures of bookies from now on: all entries are confirmed, and none will follow.

        A bookie beyond the ack quorum may fail late, and an ensemble change then would compete with
        the metadata that closes the ledger.
        """
        assert self.is_idle
        self.is_sealed = True

    @property
    def last_add_confirmed(self) -> int:
        """The last add confirmed that entries carry."""
        if self._recovers_from is not None:
            return self._recovers_from - 1
        return self.pending.first - 1

    def append(self, run: EntryRun) -> tuple[Member, ...]:
        """Give the run its entry ids and return the members to send it to, with the ledger's length
        before the run.
        """
        run.ledger_id = self.ledger_id
        first = self.pending.append(run)
        self.length += run.bytes
        size = len(self.ensemble)
        count = min(run.count, size)
        key = first % size + size * count
        members = self._members.get(key)
        if members is None:
            members = self._members[key] = self._members_of(range(size), first, count)
        return members

    def on_acked(self, slot: int, first: int, last: int) -> Sequence[EntryRun]:
        """Take note that the bookie of a slot has entries first..last."""
        index = self._index_of.get(slot)
        if index is None or self.failure is not None:
            return ()  # the answer of a bookie that was replaced
        return self.pending.on_run_ack(index, first, last)

    def on_failed(self, slot: int, first: int, code: int) -> list[Action]:
        """Take note that the bookie of a slot will not store the entries from first on."""
        index = self._index_of.get(slot)
        if index is None or self.failure is not None or self.is_sealed:
            return []
        if code == FENCED:
            return self._fail(LedgerFenced(f"ledger {self.ledger_id} has another writer", code))
        if code == UNAUTHORIZED:
            return self._fail(error_of(code, self.ledger_id, first))
        self._failed.add(self.ensemble[index])
        if not self._delays_change:
            self.absent.add(index)
        else:
            since, _ = self._refused.get(index, (first, 0))
            self._refused[index] = (min(since, first), self.pending.next - 1)
            if not self._lacks_quorum():
                return []
            self.absent.update(self._refused)
        return self._begin_change()

    def on_bookies_found(self, found: Mapping[int, str]) -> list[Action]:
        """Use the bookies that the placement has found for some of the requested indexes."""
        if self.failure is not None:
            return []
        assert self.change is Change.FINDING
        self._found = {index: each for index, each in found.items() if index in self.absent}
        if self._found:
            return self._propose()
        self.change = None
        spare = self.metadata.write_quorum_size - self.metadata.ack_quorum_size
        if any(len(self.absent.intersection(each)) > spare for each in self._write_sets()):
            return self._fail(
                NotEnoughBookies(
                    f"ledger {self.ledger_id} cannot reach its ack quorum of"
                    f" {self.metadata.ack_quorum_size}: {len(self.absent)} of its"
                    f" {len(self.ensemble)} bookies failed, and no other bookie is writable"
                )
            )
        return self._resume()

    def on_metadata_written(self, version: int) -> list[Action]:
        """Take note that the proposed metadata is stored."""
        if self.failure is not None:
            return []
        assert self.change is Change.WRITING
        return self._adopt(version)

    def on_metadata_lost(self) -> list[Action]:
        """Take note that another client has changed the metadata since `version`."""
        if self.failure is not None:
            return []
        assert self.change is Change.WRITING
        self.change = Change.READING
        return [ReadMetadata()]

    def on_metadata_read(self, found: VersionedLedgerMetadata | None) -> list[Action]:
        """Use the current metadata; None if the ledger was deleted."""
        if self.failure is not None:
            return []
        assert self.change is Change.READING
        if found is None:
            return self._fail(LedgerError(f"ledger {self.ledger_id} was deleted while it was open"))
        if found.metadata.state is not LedgerState.OPEN:
            return self._fail(LedgerFenced(f"ledger {self.ledger_id} has another writer", FENCED))
        stored = found.metadata.last_ensemble()
        if stored == self._proposed.last_ensemble():
            # The write of the proposal went through although its answer was lost.
            self._proposed = found.metadata
            return self._adopt(found.version)
        if stored != self.metadata.last_ensemble():
            return self._fail(
                LedgerError(f"another client replaced bookies of ledger {self.ledger_id}")
            )
        # Earlier segments have changed, as re-replication does; the change still applies.
        self.metadata, self.version = found
        return self._propose()

    def retry(self) -> list[Action]:
        """Search again for replacements of failed bookies that have none. Bookies that failed
        before are candidates again. Called at intervals.
        """
        if not self.absent or self.failure is not None or self.is_sealed:
            return []
        self._failed.clear()
        return self._begin_change()

    def give_up(self, error: LedgerError) -> list[Action]:
        """Fail the ledger for a reason that its bookies and its metadata do not know."""
        return [] if self.failure is not None else self._fail(error)

    def bookie_of(self, slot: int) -> str | None:
        """Return the bookie in a slot; None if it was replaced."""
        index = self._index_of.get(slot)
        return None if index is None else self.ensemble[index]

    def silent_slots(self, entry_id: int, before: int) -> list[int]:
        """Return the slots below `before` that have not acknowledged an unconfirmed entry of their
        write set. The bookies of slots from next_slot on join the ensemble later.
        """
        return [
            self._slots[index]
            for index in self.pending.unacked(entry_id)
            if index not in self.absent and self._slots[index] < before
        ]

    def take_unconfirmed(self) -> list[EntryRun]:
        """Remove and return the runs that were never confirmed, after a failure."""
        return self.pending.take_all()

    # --- ensemble changes ---------------------------------------------------------------------

    def _begin_change(self) -> list[Action]:
        self._members.clear()
        if self.change is not None:
            return []  # what failed meanwhile is replaced by the next change
        self.change = Change.FINDING
        self.pending.hold()
        ensemble = tuple(self.ensemble)
        return [FindBookies(frozenset(self.absent), ensemble, frozenset(self._failed))]

    def _propose(self) -> list[Action]:
        self.change = Change.WRITING
        ensemble = tuple(self._found.get(i, each) for i, each in enumerate(self.ensemble))
        self._proposed = self.metadata.with_ensemble(self.pending.first, ensemble)
        if self._recovers_from is not None:
            return self._adopt(self.version)
        return [WriteMetadata(self._proposed, self.version)]

    def _adopt(self, version: int) -> list[Action]:
        self.metadata, self.version = self._proposed, version
        self.change = None
        for index, bookie_id in self._found.items():
            self.ensemble[index] = bookie_id
            self.pending.forget(index)
            del self._index_of[self._slots[index]]
            self._slots[index] = self.next_slot
            self._index_of[self.next_slot] = index
            self.next_slot += 1
            self.absent.discard(index)
            self._refused.pop(index, None)
        self._members.clear()
        sends = self._resends(self._found)
        return [*sends, *(self._begin_change() if self.absent else self._resume())]

    def _lacks_quorum(self) -> bool:
        """Return True if an unconfirmed entry was refused by too many bookies of its write set."""
        spare = self.metadata.write_quorum_size - self.metadata.ack_quorum_size
        for entry_id in range(self.pending.first, self.pending.next):
            refused = 0
            for index in self.pending.write_set(entry_id):
                first, last = self._refused.get(index, (0, -1))
                refused += first <= entry_id <= last
            if refused > spare:
                return True
        return False

    def _write_sets(self) -> list[list[int]]:
        """Return every write set of the ensemble: those of as many consecutive entries."""
        return [self.pending.write_set(entry_id) for entry_id in range(len(self.ensemble))]

    # --- actions ------------------------------------------------------------------------------

    def _members_of(self, indexes: Iterable[int], first: int, count: int) -> tuple[Member, ...]:
        """Return the members at some indexes of the ensemble that store an entry of a run."""
        size, quorum = len(self.ensemble), self.metadata.write_quorum_size
        members = []
        for index in indexes:
            stripe = None if size == quorum else Stripe(index, size, quorum)
            if index not in self.absent and (
                stripe is None or any(stripe.has(first + i) for i in range(min(count, size)))
            ):
                members.append(Member(self._slots[index], self.ensemble[index], stripe))
        return tuple(members)

    def _resends(self, indexes: Collection[int]) -> list[Action]:
        """Return the unconfirmed runs for the members at some indexes of the ensemble."""
        runs = self.pending.unconfirmed()
        confirmed = self.last_add_confirmed
        length = self.length - sum(run.bytes for run in runs)
        sends: list[Action] = []
        for run in runs:
            for slot, bookie_id, stripe in self._members_of(indexes, run.first_entry_id, run.count):
                sends.append(Send(slot, bookie_id, run, confirmed, length, stripe))
            length += run.bytes
        return sends

    def _resume(self) -> list[Action]:
        self.pending.resume()
        return [Confirm(run) for run in self.pending.take_confirmed()]

    def _fail(self, error: LedgerError) -> list[Action]:
        self.failure = error
        self.change = None
        return [Fail(error)]
