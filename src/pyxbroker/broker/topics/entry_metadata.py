"""Broker entry metadata: what the broker puts in front of each entry that it stores.

A block of 0x0e02, the size of a BrokerEntryMetadata and that: when the entry was appended, and the
index of its last message among all that the topic ever had. Which of the two is there the settings
say (brokerEntryMetadataInterceptors). The index goes on after a restart: the list of ledgers has
what it was when that was written, and the last entry what it is. Mirrors Pulsar's
ManagedLedgerInterceptorImpl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.base.log import get_logger
from pyxbroker.broker.broker_limits import EntryMetadataKinds
from pyxbroker.broker.topics.messages import BROKER_METADATA_MAGIC
from pyxbroker.entry import EntryRun
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry
from pyxbroker.ledger.patience import Patience
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger

if TYPE_CHECKING:
    from pyxbroker.entry import EntryBatch

log = get_logger("pyxbroker.topic")

INDEX_PROPERTY = "index"  # of a managed ledger, in decimals
INDEX_DIGITS_MAX = 18  # far from what 64 bits hold
NO_INDEX = -2
"""For prefix(): the index before the first one is -1, and this one says that there is none."""


class EntryMetadata:
    """Appends runs to one topic's log with a block before each entry."""

    def __init__(
        self,
        managed_ledger: ManagedLedger,
        kinds: EntryMetadataKinds,
        wall_clock: Callable[[], float],
    ) -> None:
        self._managed_ledger = managed_ledger
        self._kinds = kinds
        self._wall_clock = wall_clock
        self.index = -1  # of the last message

    @property
    def has_indexes(self) -> bool:
        """Whether entries get the indexes of their messages."""
        return self._kinds.indexes

    async def open(self) -> None:
        """Learns the index of the last message. Raises LedgerError."""
        if not self._kinds.indexes:
            return
        found = self._managed_ledger.properties.get(INDEX_PROPERTY, "-1")
        # Whoever makes a topic may give it properties of any name.
        is_number = found.isascii() and found.isdecimal() and len(found) <= INDEX_DIGITS_MAX
        self.index = int(found) if is_number else -1
        last = self._managed_ledger.last_confirmed
        position = self._managed_ledger.normalize(last) if last.entry_id >= 0 else None
        if position is not None:
            patience = Patience(f"the last index of {self._managed_ledger.name}")
            try:
                batch = await patience.ask(lambda: self._managed_ledger.read_one(position))
            except (EntryDamaged, NoSuchEntry) as error:
                log.error("the index of the last entry is lost", error=error,
                          managed_ledger=self._managed_ledger.name)  # fmt: skip
            else:
                self.index = max(self.index, index_of(batch))
        self._managed_ledger.before_list_write = self._note_index

    def _note_index(self) -> None:
        self._managed_ledger.properties[INDEX_PROPERTY] = str(self.index)

    def append(self, run: EntryRun) -> None:
        """Raises ManagedLedgerError like the log's own."""
        timestamp_ms = int(self._wall_clock() * 1000) if self._kinds.timestamps else 0
        index = run.add_broker_metadata(
            timestamp_ms, self.index if self._kinds.indexes else NO_INDEX
        )
        if self._kinds.indexes:
            self.index = index
        try:
            self._managed_ledger.append(run)
        except ManagedLedgerError:
            self.take_back(run)
            raise

    def take_back(self, run: EntryRun) -> None:
        """A run was not stored, nor any that was appended behind it."""
        self.index -= run.messages


def index_of(batch: EntryBatch) -> int:
    """The index in the first entry of a batch; -1: it has none."""
    from google.protobuf.message import DecodeError

    from pyxbroker.proto import PulsarApi as pb

    entry = batch.data(0)
    if entry[:2] != BROKER_METADATA_MAGIC:
        return -1
    block = pb.BrokerEntryMetadata()
    try:
        block.ParseFromString(entry[6 : 6 + int.from_bytes(entry[2:6], "big")])
    except DecodeError:
        return -1
    return block.index if block.HasField("index") else -1
