"""Broker entry metadata: a header that the broker puts in front of each entry that it stores.

The header is 0x0e02, the size of a BrokerEntryMetadata, and the BrokerEntryMetadata. It holds the
time at which the entry was appended, and the index of its last message among all messages that the
topic ever had. The setting brokerEntryMetadataInterceptors selects either or both. The index
continues after a restart: the record of the managed ledger has the index as of its last write, and
the last entry has the current one. Mirrors Pulsar's ManagedLedgerInterceptorImpl.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyxbroker.base.log import get_logger
from pyxbroker.broker.broker_limits import EntryMetadataKinds
from pyxbroker.broker.topics.messages import BROKER_METADATA_MAGIC
from pyxbroker.entry import EntryRun
from pyxbroker.ledger.errors import EntryDamaged, NoSuchEntry
from pyxbroker.ledger.retries import Retries
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger

if TYPE_CHECKING:
    from pyxbroker.entry import EntryBatch

log = get_logger("pyxbroker.topic")

INDEX_PROPERTY = "index"  # property of the managed ledger; a decimal number
INDEX_DIGITS_MAX = 18  # fewer than the largest number of 64 bits has
NO_INDEX = -2
"""No index is added. (-1 is the index before the first message.)"""


class EntryMetadata:
    """Appends runs to the log of one topic, with a header before each entry."""

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
        """True if entries get the indexes of their messages."""
        return self._kinds.indexes

    async def open(self) -> None:
        """Read the index of the last message. Raises LedgerError."""
        if not self._kinds.indexes:
            return
        found = self._managed_ledger.properties.get(INDEX_PROPERTY, "-1")
        # Clients may set any property when they create a topic.
        is_number = found.isascii() and found.isdecimal() and len(found) <= INDEX_DIGITS_MAX
        self.index = int(found) if is_number else -1
        last = self._managed_ledger.last_confirmed
        position = self._managed_ledger.normalize(last) if last.entry_id >= 0 else None
        if position is not None:
            retries = Retries(f"the last index of {self._managed_ledger.name}")
            try:
                batch = await retries.call(lambda: self._managed_ledger.read_one(position))
            except (EntryDamaged, NoSuchEntry) as error:
                log.error("the index of the last entry is lost", error=error,
                          managed_ledger=self._managed_ledger.name)  # fmt: skip
            else:
                self.index = max(self.index, index_of(batch))
        self._managed_ledger.before_list_write = self._note_index

    def _note_index(self) -> None:
        self._managed_ledger.properties[INDEX_PROPERTY] = str(self.index)

    def append(self, run: EntryRun) -> None:
        """Append a run with headers. Raises ManagedLedgerError as the log does."""
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
        """Take back the indexes of a run that was not stored; no later run was stored either."""
        self.index -= run.messages


def index_of(batch: EntryBatch) -> int:
    """Return the index in the header of a batch's first entry, -1 without one."""
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
