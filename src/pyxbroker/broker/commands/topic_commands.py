"""Commands that open, close and move producers and consumers."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import (
    ConsumerAssignError,
    ConsumerNotFound,
    MetadataStoreError,
    NotAllowed,
    ProducerBusy,
)
from pyxbroker.base.limits import HASH_RANGES_MAX
from pyxbroker.base.signed import signed
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import replies, seek
from pyxbroker.broker.commands.exclusive_producers import admit_producer, check_not_waiting
from pyxbroker.broker.commands.liveness import Liveness
from pyxbroker.broker.commands.schema_commands import AUTO_CONSUME, SchemaCommands
from pyxbroker.broker.commands.seek import is_earliest, reader_since, reader_start
from pyxbroker.broker.commands.session import Opening, wait_for, wait_opened
from pyxbroker.broker.dispatch.selectors import KeySharedMode, KeySharedPolicy
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.broker.subscriptions.subscription import INDIVIDUAL, Subscription, SubscriptionType
from pyxbroker.broker.topics.producer import Producer
from pyxbroker.broker.topics.topic import SubscribeRequest, Topic
from pyxbroker.connection import Connection
from pyxbroker.hash_ranges import HashRanges
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker


class TopicCommands:
    """The handlers of these commands; the table in handlers.py calls them."""

    def __init__(self, broker: Broker, schemas: SchemaCommands) -> None:
        self._broker = broker
        self._schemas = schemas
        self._liveness = Liveness(broker.config.connectionLivenessCheckTimeoutMillis)

    # --- producers ----------------------------------------------------------------------------

    async def handle_producer(self, connection: Connection, message: Any, opening: Opening) -> None:
        producer_id = message.producer_id
        existing = connection.producers.get(producer_id)
        if existing is not None:
            # The client repeats the command because it has not seen the answer.
            self._answer_producer(connection, message.request_id, existing)
            return
        check_not_waiting(connection.session, producer_id)
        topic_name = TopicName.get(message.topic)
        if topic_name.is_persistent:
            self._broker.publish_gate.check()
        topic = await self._broker.topics.loader.get(topic_name, create=True)
        topic.check_encryption(message.encrypted)
        await topic.check_quotas()
        await topic.wait_for_bookies()
        schema_version = await self._schemas.of_producer(topic, message)
        name = message.producer_name
        user_provided = bool(name) and message.user_provided_producer_name
        if not name:
            name = await self._broker.producer_names.next()
        if message.initial_subscription_name:
            await self._create_initial_subscription(topic, message.initial_subscription_name)
        if connection.closed:
            return
        producer = Producer(
            connection,
            producer_id,
            topic,
            name,
            message.epoch,
            user_provided,
            {each.key: each.value for each in message.metadata},
        )
        if schema_version:
            producer.schema_version = schema_version
        if message.producer_access_mode:
            producer.access_mode = message.producer_access_mode
        await self._make_room(connection, topic.name_holder(producer))
        if connection.closed:
            return
        connection.session.memory.charge(producer.cost)
        try:
            if not await admit_producer(
                topic, producer, message, partial(self._answer_producer, connection)
            ):
                return
        except BaseException:
            producer.release()
            raise
        connection.producers[producer_id] = producer
        self._answer_producer(connection, message.request_id, producer)

    async def _make_room(self, connection: Connection, holder: Producer | Consumer | None) -> None:
        """Remove a producer or consumer that blocks this one if its client is gone."""
        if (
            holder is not None
            and holder.connection is not connection
            and not await self._liveness.is_alive(holder.connection)
        ):
            # The connection is closed, but removes its other producers and consumers one by one.
            holder.leave()

    async def _create_initial_subscription(self, topic: Topic, name: str) -> None:
        """Create a subscription before the first consumer, to retain all messages (dead letter
        topics).
        """
        if name in topic.subscriptions or not topic.name.is_persistent:
            return
        if not topic.policies.auto_subscription_creation:
            raise NotAllowed(
                "Could not create the initial subscription due to the auto subscription creation"
                " is not allowed."
            )
        await topic.subscription_for(name, topic.first_position(), {}, True)

    @staticmethod
    def _answer_producer(connection: Connection, request_id: int, producer: Producer) -> None:
        connection.send_frame(
            replies.producer_success(
                request_id,
                producer.name,
                schema_version=producer.schema_version,
                last_sequence_id=producer.topic.last_sequence_id(producer.name),
                epoch=producer.topic.epoch,
            )
        )

    async def handle_close_producer(self, connection: Connection, message: Any) -> None:
        await wait_opened(connection, ("producer", message.producer_id))
        waiting = connection.session.waiting_producers.pop(message.producer_id, None)
        if waiting is not None:
            waiting.leave()
        producer = connection.producers.get(message.producer_id)
        if producer is not None:
            await producer.idle()
            producer.forget()
            producer.topic.remove_producer(producer)
        connection.send_frame(replies.success(message.request_id))

    # --- consumers ----------------------------------------------------------------------------

    async def handle_subscribe(
        self, connection: Connection, message: Any, opening: Opening
    ) -> None:
        await opening.turn()
        consumer_id = message.consumer_id
        if consumer_id in connection.consumers:
            connection.send_frame(replies.success(message.request_id))
            return
        kind = SubscriptionType(message.subType)
        if message.read_compacted:
            _check_compacted(message, kind)
        if not message.subscription:
            raise ProducerBusy("Empty subscription name")  # Pulsar's error code
        name = TopicName.get(message.topic)
        topic = await self._broker.topics.loader.get(name, create=message.force_topic_creation)
        who = (connection.session.address, message.consumer_name, consumer_id)
        topic.check_subscribe(kind, who)
        await self._schemas.check_consumer(topic, message)
        subscription = await topic.subscribe(self._subscribe_request(message))
        subscription.arriving += 1
        try:
            key_shared = _key_shared_policy(message)
            await self._wait_for_holders(connection, opening, subscription, kind, key_shared)
            self._add_consumer(connection, subscription, kind, key_shared, message)
        finally:
            subscription.arriving -= 1
            topic.drop_unused_reader(subscription)
        if opening.is_closed:
            self._close_consumer(connection, consumer_id)

    async def _wait_for_holders(
        self,
        connection: Connection,
        opening: Opening,
        subscription: Subscription,
        kind: SubscriptionType,
        key_shared: KeySharedPolicy,
    ) -> None:
        """Wait for a seek in progress, and for the liveness check of a consumer in the way.

        Raises ServiceNotReady if the consumer was closed meanwhile.
        """
        loop = subscription.topic.loop
        until = loop.time() + seek.SEEK_MAX_S
        while True:
            await self._make_room(connection, subscription.holder(kind, key_shared))
            move = subscription.move
            if move is None:
                return
            opening.check_wanted()
            if not await wait_for(connection, move, until - loop.time(), opening.closed):
                opening.check_wanted()
                return

    def _add_consumer(
        self,
        connection: Connection,
        subscription: Subscription,
        kind: SubscriptionType,
        key_shared: KeySharedPolicy,
        message: Any,
    ) -> None:
        if connection.closed:
            return
        # The topic may have been closed since the first check, or have more consumers.
        subscription.topic.check_consumers()
        subscription.topic.check_address(connection.session.address)
        consumer = Consumer(
            connection,
            message.consumer_id,
            subscription,
            message.consumer_name,
            message.priority_level,
            {each.key: each.value for each in message.metadata},
            key_shared,
        )
        consumer.wants_broker_metadata = connection.session.takes_entry_metadata
        consumer.reads_compacted = message.read_compacted
        if message.schema.type == AUTO_CONSUME:
            consumer.auto_consume = True
        if message.HasField("consumer_epoch") and kind not in INDIVIDUAL:
            consumer.consumer_epoch = signed(message.consumer_epoch)
        seek.end_kept_reader(connection, subscription)
        consumer.charge(0 if subscription.consumers else subscription.cost_as(kind))
        try:
            subscription.add_consumer(consumer, kind)
        except BaseException:
            consumer.release()
            raise
        connection.consumers[message.consumer_id] = consumer
        connection.send_frame(replies.success(message.request_id))

    def _subscribe_request(self, message: Any) -> SubscribeRequest:
        name = message.subscription
        if not message.durable:
            return SubscribeRequest(
                name,
                durable=False,
                earliest=is_earliest(message),
                start=reader_start(message),
                since_ms=reader_since(message),
                compacted=message.read_compacted,
            )
        properties: dict[str, str] = {}
        for each in message.subscription_properties:
            properties.setdefault(each.key, each.value)
        return SubscribeRequest(
            name,
            earliest=is_earliest(message),
            properties=properties,
            replicated=message.replicate_subscription_state,
            compacted=message.read_compacted,
        )

    async def handle_close_consumer(self, connection: Connection, message: Any) -> None:
        """CLOSE_CONSUMER; it also cancels an opening in progress.

        The answer waits for a seek that has disconnected the consumer. A client that subscribes
        after the answer finds the subscription at its new position.
        """
        consumer_id = message.consumer_id
        session = connection.session
        move = seek.move_of(connection, consumer_id)
        consumer = connection.consumers.get(consumer_id)
        opening = session.opening.get(("consumer", consumer_id))
        if opening is not None:
            opening.close()
            await asyncio.wait([opening.task])
        if consumer is not None and connection.consumers.get(consumer_id) is consumer:
            # The consumer was open already: the client had repeated SUBSCRIBE.
            self._close_consumer(connection, consumer_id)
        await seek.wait_for_move(connection, move)
        connection.send_frame(replies.success(message.request_id))

    @staticmethod
    def _close_consumer(connection: Connection, consumer_id: int) -> None:
        consumer = connection.consumers.pop(consumer_id, None)
        if consumer is not None:
            consumer.subscription.remove_consumer(consumer)

    async def handle_unsubscribe(self, connection: Connection, message: Any) -> None:
        await wait_opened(connection, ("consumer", message.consumer_id))
        consumer = connection.consumers.get(message.consumer_id)
        if consumer is None or consumer.closed:
            await seek.wait_for_move(connection, seek.move_of(connection, message.consumer_id))
            raise MetadataStoreError("Consumer not found")
        subscription = consumer.subscription
        subscription.check_unsubscribe(consumer, message.force)
        subscription.closing = True
        subscription.disconnect(but=consumer)
        await subscription.topic.unsubscribe(subscription)
        connection.send_frame(replies.success(message.request_id))

    def handle_consumer_stats(self, connection: Connection, message: Any) -> None:
        consumer = connection.consumers.get(message.consumer_id)
        if consumer is None or consumer.closed:
            connection.send_frame(
                replies.consumer_stats_failed(
                    message.request_id,
                    ConsumerNotFound.code,
                    f"Consumer {message.consumer_id} not found",
                )
            )
            return
        connection.send_frame(_consumer_stats(message.request_id, consumer, consumer.subscription))


def _consumer_stats(request_id: int, consumer: Consumer, subscription: Subscription) -> bytes:
    """Encode the statistics of a consumer; rates are averages of about the last minute."""
    command = pb.BaseCommand()
    command.type = pb.BaseCommand.CONSUMER_STATS_RESPONSE
    answer = command.consumerStatsResponse
    answer.request_id = request_id
    rates = consumer.rates()
    answer.msgRateOut = rates.msg_out
    answer.msgThroughputOut = rates.bytes_out
    answer.msgRateRedeliver = rates.redelivered
    answer.messageAckRate = rates.acked
    answer.msgRateExpired = subscription.expired_rate(time.monotonic())
    answer.consumerName = consumer.name
    answer.availablePermits = max(consumer.permits, 0)
    answer.unackedMessages = consumer.unacked_messages
    answer.blockedConsumerOnUnackedMsgs = consumer.is_at_limit
    answer.address = f"/{consumer.connection.peer}"
    answer.connectedSince = consumer.connected_since
    answer.type = str(subscription.kind)
    answer.msgBacklog = subscription.backlog
    return replies.frame(command)


def _key_shared_policy(message: Any) -> KeySharedPolicy:
    meta = message.keySharedMeta
    if not meta:
        return KeySharedPolicy()
    try:
        mode, ranges, out_of_order = HashRanges.of_message(meta, HASH_RANGES_MAX)
    except ValueError as error:
        raise NotAllowed("The keySharedMeta of the command cannot be decoded.") from error
    if len(ranges) > HASH_RANGES_MAX:
        raise ConsumerAssignError(
            f"{len(ranges)} ranges are more than the {HASH_RANGES_MAX} hashes there are."
        )
    is_sticky = mode == KeySharedMode.STICKY  # protobuf reads unknown modes as the first one
    return KeySharedPolicy(
        KeySharedMode.STICKY if is_sticky else KeySharedMode.AUTO_SPLIT, ranges, out_of_order
    )


def _check_compacted(message: Any, kind: SubscriptionType) -> None:
    """Raise NotAllowed, with Pulsar's text, if the consumer cannot have the compacted view."""
    if not TopicName.get(message.topic).is_persistent:
        raise NotAllowed("readCompacted only valid on persistent topics")
    if kind in INDIVIDUAL:
        raise NotAllowed("readCompacted only allowed on failover or exclusive subscriptions")
