"""A broker with transactions for tests, and what stands for topics that take part in them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from one_broker import Broker, Client
from pyxbroker.auth.principal import ANONYMOUS
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS, TopicName
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.transactions.coordinators import Transactions
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.metadata import paths
from pyxbroker.proto import PulsarApi as pb

NOBODY = ANONYMOUS


class Buffer:
    """Stands for the transaction buffer of a topic: it notes what ended, or raises an error."""

    def __init__(self) -> None:
        self.ended: list[tuple[TxnId, bool, int]] = []
        self.errors: list[Exception] = []
        self.blocked: asyncio.Event | None = None

    def stop(self) -> None:
        """Close it with its topic."""

    async def end(self, txn: TxnId, is_commit: bool, low_water_mark: int) -> None:
        if self.blocked is not None:
            await self.blocked.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.ended.append((txn, is_commit, low_water_mark))


async def with_buffer(broker: Broker, name: str) -> tuple[str, Buffer]:
    """Create a topic whose transaction buffer is a stand-in; return its full name and that."""
    topic = await broker.topics.loader.get(TopicName.get(name), create=True)
    assert isinstance(topic, PersistentTopic)
    buffer = Buffer()
    stand_in: Any = buffer
    topic.transactions = stand_in
    return str(topic.name), buffer


def run(
    tmp_path: Path,
    scenario: Callable[[Broker], Awaitable[None]],
    coordinators: int = 1,
    **settings: Any,
) -> None:
    """Run a scenario with a broker that has transactions."""

    async def main() -> None:
        settings.setdefault("transactionCoordinatorEnabled", True)
        async with Broker(tmp_path / "bookie", **settings) as broker:
            await add_coordinators(broker, coordinators)
            try:
                await scenario(broker)
            finally:
                if broker.service.transactions is not None:
                    await broker.service.transactions.close()

    asyncio.run(main())


async def add_coordinators(broker: Broker, count: int) -> None:
    """Create the metadata that the coordinators need."""
    store = broker.node.store
    await store.put(paths.namespace_policies(SYSTEM_NAMESPACE), b"{}")
    path = paths.partitioned_topic(SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS)
    await store.put(path, b'{"partitions": %d, "deleted": false}' % count)


def transactions_of(broker: Broker) -> Transactions:
    found = broker.service.transactions
    assert found is not None
    return found


async def new(client: Client, coordinator: int = 0, timeout_ms: int = 60_000) -> TxnId:
    """Begin a transaction."""
    command = pb.CommandNewTxn(tc_id=coordinator, txn_ttl_seconds=timeout_ms)
    answer = await client.request(command, "newTxnResponse")
    assert not answer.HasField("error"), answer.message
    return TxnId.of_wire(answer.txnid_most_bits, answer.txnid_least_bits)


async def add_partition(client: Client, txn: TxnId, *names: str) -> Any:
    command = pb.CommandAddPartitionToTxn(partitions=names, **ids(txn))
    return await client.request(command, "addPartitionToTxnResponse")


async def add_subscription(client: Client, txn: TxnId, *pairs: tuple[str, str]) -> Any:
    command = pb.CommandAddSubscriptionToTxn(**ids(txn))
    for topic, subscription in pairs:
        command.subscription.add(topic=topic, subscription=subscription)
    return await client.request(command, "addSubscriptionToTxnResponse")


async def end(client: Client, txn: TxnId, is_commit: bool = True) -> Any:
    return await client.request(end_command(txn, is_commit), "endTxnResponse")


def end_command(txn: TxnId, is_commit: bool = True) -> Any:
    return pb.CommandEndTxn(txn_action=pb.COMMIT if is_commit else pb.ABORT, **ids(txn))


def ids(txn: TxnId) -> dict[str, int]:
    """The fields of a command that name a transaction."""
    most, least = txn.wire()
    return {"txnid_most_bits": most, "txnid_least_bits": least}
