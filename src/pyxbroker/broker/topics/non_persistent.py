"""Non-persistent topics: what is published is handed to who is there to take it, and forgotten.

An entry goes to each subscription within the turn that brings it. Who has no permits, or does not
read its socket, does not get it; it is dropped and counted. There are no positions: every message
has the id 0:0, nothing is acknowledged, redelivered or moved, and a subscription lives as long as
it has consumers. Mirrors Pulsar's NonPersistentTopic and its dispatchers, of which there are four
as for persistent topics: who is chosen is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from pyxbroker.base.errors import NotAllowed
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.dispatch.entry_source import EntrySource
from pyxbroker.broker.topics.subscription import Subscription
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.entry import EntryBatch, EntryRun, Position
from pyxbroker.ledger.handle import LedgerError, NoSuchEntry
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.limits import ManagedLedgerLimits
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.policies.table import Policies
from pyxbroker.turn import Turn

NOWHERE = Position(0, -1)  # before the only id there is


class NoLedger(EntrySource):
    """In the place of a managed ledger: keeps nothing, and gives what is appended to its topic.

    To dispatchers and cursors it is a log that is always empty.
    """

    def __init__(self) -> None:
        self.listener: Any = None
        self.on_confirmed: Any = None  # nothing is ever confirmed
        self.limits = ManagedLedgerLimits()  # of what is kept
        self.cursors: dict[str, Any] = {}
        self.unreadable: frozenset[str] = frozenset()
        self.last_confirmed = NOWHERE
        self.entries = 0
        self.size = 0
        self.is_dead = False
        self.is_terminated = False
        self.write_failure: ManagedLedgerError | None = None

    def append(self, run: EntryRun) -> None:
        """Hands a run out; its owner is told at once. Raises ManagedLedgerError when closed."""
        if self.is_dead:
            raise ManagedLedgerError("The topic is closed.")
        run.keep()
        run.ledger_id, run.first_entry_id = 0, 0
        self.listener.hand_out(EntryBatch.of_run(run))
        run.owner.on_run_added(run)

    def watch(self, wake: Callable[[], None]) -> None:
        """Nobody waits: entries are handed out when they come, or never."""

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Nobody waits."""

    def first_position(self) -> Position:
        return NOWHERE

    def next_position(self, position: tuple[int, int]) -> Position:
        return Position(0, 0)

    def normalize(self, position: tuple[int, int]) -> Position | None:
        return None

    def last_entry(self, ledger_id: int) -> int | None:
        return None

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        return None

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        """Nobody reads where nothing is next."""
        raise AssertionError(f"{position} of a log that keeps nothing")

    async def read_one(self, position: Position) -> EntryBatch:
        raise NoSuchEntry(f"entry {position} was not kept")

    def entries_between(self, after: tuple[int, int], last: tuple[int, int]) -> int:
        return 0

    def trim(self) -> None:
        """There is nothing to trim."""

    def take_back(self) -> None:
        """Nothing ever waits."""

    def check_age(self) -> None:
        """Nothing grows old."""

    async def settle(self) -> None:
        """Nothing is ever under way."""

    async def close(self) -> None:
        self.is_dead = True


class NonPersistentTopic(Topic):
    """One non-persistent topic that this broker serves."""

    def __init__(self, name: TopicName, turn: Turn, policies: Policies) -> None:
        super().__init__(name, cast(ManagedLedger, NoLedger()), turn, policies)

    def _apply(self, policies: Policies) -> None:
        super()._apply(_of_its_own(policies))

    async def subscription_for(
        self,
        name: str,
        mark_delete: Position,
        properties: dict[str, str],
        create: bool,
        replicated: bool = False,
    ) -> Subscription:
        """The subscription of that name, which goes with its last consumer."""
        subscription = self.reader_for(name, mark_delete)
        if not subscription.consumers:
            subscription.cursor.properties = properties
        return subscription

    def hand_out(self, batch: EntryBatch) -> None:
        """Gives entries to every subscription."""
        for subscription in self.all_subscriptions():
            chooser = subscription.dispatcher.chooser
            subscription.msg_drop += chooser.hand_out(batch, subscription.acks)

    async def terminate(self) -> Position:
        raise NotAllowed(f"Topic {self.name} is non-persistent; it has no end.")

    async def delete(self) -> None:
        """Sends the clients away; there is nothing else to delete."""
        await self.close()


def _of_its_own(policies: Policies) -> Policies:
    """What is not kept is not limited either, and nobody waits for what another has not
    acknowledged.
    """
    return policies._replace(
        unacked_per_consumer_max=0,
        unacked_per_subscription_max=0,
        failover_delay_s=0.0,
        delayed_delivery=False,
    )
