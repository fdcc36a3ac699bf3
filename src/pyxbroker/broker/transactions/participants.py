"""The participants of a transaction: topics and subscriptions, of this broker and of others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from pyxbroker.base.errors import (
    BY_CODE,
    MetadataStoreError,
    NamespaceNotFound,
    NotAllowed,
    PersistenceError,
    PulsarError,
    ServiceNotReady,
    TooManyRequests,
    TopicNotFound,
    UnknownError,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Redirect, redirect_of
from pyxbroker.broker.refusals import refusal_of
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.listeners import Addresses
    from pyxbroker.broker.lookup import Ownership
    from pyxbroker.broker.peers import Peers
    from pyxbroker.broker.topics.topics import Topics
    from pyxbroker.settings.config import Config

log = get_logger("pyxbroker.transactions")

NO_BUFFER = "Transaction buffer disable!"
REQUESTS_MIN = 100  # in progress; a lower setting has no effect, as in Pulsar
RETRIED = (ServiceNotReady, PersistenceError, MetadataStoreError, TooManyRequests)
"""Errors after which an attempt is repeated, and may succeed."""


class Host(Protocol):
    """The broker, as the ends of transactions need it."""

    config: Config
    peers: Peers | None

    @property
    def topics(self) -> Topics: ...

    @property
    def ownership(self) -> Ownership: ...


class End(NamedTuple):
    """The end of a transaction, as its participants need it."""

    txn: TxnId
    is_commit: bool
    low_water_mark: int
    """All transactions of the coordinator up to this number have ended."""


async def end_on_topic(broker: Host, name: TopicName, end: End) -> None:
    """End a transaction on a topic of this broker, which is opened if necessary. A topic that does
    not exist has nothing to end.

    Raises NotAllowed for a topic without transactions, and PulsarError.
    """
    try:
        topic = await broker.topics.loader.get(name, create=False)
    except (TopicNotFound, NamespaceNotFound):
        return
    buffer = topic.transaction_buffer
    if buffer is None:
        raise NotAllowed(NO_BUFFER)
    await buffer.end(*end)


async def end_on_subscription(broker: Host, name: TopicName, subscription: str, end: End) -> None:
    """End a transaction on a subscription, like end_on_topic."""
    try:
        topic = await broker.topics.loader.get(name, create=False)
    except (TopicNotFound, NamespaceNotFound):
        return
    found = topic.subscriptions.get(subscription)
    if found is not None:
        await found.end_transaction(*end)


class Participants:
    """Ends transactions at their participants."""

    def __init__(self, broker: Host) -> None:
        self._broker = broker
        config = broker.config
        self._timeout_s = config.transactionBufferClientOperationTimeoutInMills / 1000
        self._requests_max = max(config.transactionBufferClientMaxConcurrentRequests, REQUESTS_MIN)
        # By broker: one that does not answer delays only what it has to end.
        self._requests: dict[Addresses, asyncio.Semaphore] = {}

    async def end(self, topic: str, subscription: str | None, end: End) -> None:
        """End a transaction on a subscription, or on the topic itself, in one attempt.

        Raises PulsarError: one of RETRIED if the attempt can be repeated.
        """
        try:
            await self._end(TopicName.get(topic), subscription, end)
        except PulsarError:
            raise
        except Exception as error:
            about = {"topic": topic, "txn": end.txn}
            reported = refusal_of(error, log, "a transaction was not ended", **about)
            if reported is None:
                log.failure("a transaction was not ended", error, **about)
                reported = UnknownError()
            raise reported from error

    async def _end(self, name: TopicName, subscription: str | None, end: End) -> None:
        try:
            decision = await self._broker.ownership.find(name, authoritative=False)
        except NamespaceNotFound:
            return  # with all its topics
        to = redirect_of(decision)
        if to is not None:
            await self._end_elsewhere(to, name, subscription, end)
        elif subscription is not None:
            await end_on_subscription(self._broker, name, subscription, end)
        else:
            try:
                await end_on_topic(self._broker, name, end)
            except NotAllowed as error:
                # No message of the transaction can have been stored.
                if str(error) != NO_BUFFER:
                    raise

    async def _end_elsewhere(
        self, to: Redirect, name: TopicName, subscription: str | None, end: End
    ) -> None:
        peers = self._broker.peers
        assert peers is not None  # another broker serves the topic
        requests = self._requests.get(to.urls)
        if requests is None:
            requests = self._requests[to.urls] = asyncio.Semaphore(self._requests_max)
        async with requests:
            answer = await peers.command(
                to, name, _command(name, subscription, end), self._timeout_s
            )
        if answer.HasField("error") and answer.message != NO_BUFFER:
            raise BY_CODE.get(answer.error, UnknownError)(answer.message)


def _command(name: TopicName, subscription: str | None, end: End) -> Any:
    """Return an END_TXN_ON_PARTITION or END_TXN_ON_SUBSCRIPTION."""
    if subscription is None:
        command = pb.BaseCommand(type=pb.BaseCommand.END_TXN_ON_PARTITION)
        body = command.endTxnOnPartition
        body.topic = str(name)
    else:
        command = pb.BaseCommand(type=pb.BaseCommand.END_TXN_ON_SUBSCRIPTION)
        body = command.endTxnOnSubscription
        body.subscription.topic, body.subscription.subscription = str(name), subscription
    body.txnid_most_bits, body.txnid_least_bits = end.txn.wire()
    body.txn_action = pb.COMMIT if end.is_commit else pb.ABORT
    mark = TxnId(end.txn.most, end.low_water_mark)
    body.txnid_least_bits_of_low_watermark = mark.wire()[1]
    return command
