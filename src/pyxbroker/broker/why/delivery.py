"""Reasons why a subscription of an open topic, or one of its consumers, does not get messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from pyxbroker.base.slices import Slices
from pyxbroker.base.system_cursors import COMPACTION
from pyxbroker.base.times import iso_ms
from pyxbroker.broker.dispatch.choosers import SingleActive
from pyxbroker.broker.dispatch.failover import Failover
from pyxbroker.broker.dispatch.key_shared import ENTRY_ID_MAX, KeySlots
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.why.rules import Json, Rule, first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.subscriptions.subscription import Subscription
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.broker.transactions.ids import TxnId
    from pyxbroker.broker.why.open_transactions import OpenTransactions
    from pyxbroker.broker.why.refusals import LastRefusals

CONSUMERS_MAX = 20  # that an answer describes
KEYS_MAX = 5  # blocked keys that an answer describes
SCANNED_MAX = 10_000  # deliveries that are scanned for the oldest one of a key
PART = 256


@dataclass
class ConsumerState:
    """One consumer, and what its subscription allows it."""

    permits: int
    unacked_messages: int
    unacked_messages_max: int
    unsent_bytes: int
    is_waiting: bool  # for its turn to be the active consumer
    is_at_limit: bool  # of its own unacknowledged messages
    is_blocked: bool  # also by those of its subscription or of the broker
    can_take: bool


CONSUMER_RULES: tuple[Rule[ConsumerState], ...] = (
    Rule("waits_for_turn", lambda s: s.is_waiting, "Another consumer is the active one."),
    Rule("ready", lambda s: s.can_take, "The consumer can take messages."),
    Rule("no_permits", lambda s: s.permits <= 0, "The client has asked for no more messages."),
    Rule("unacked_limit", lambda s: s.is_at_limit, "Too many of its messages are unacknowledged."),
    Rule(
        "subscription_blocked",
        lambda s: s.is_blocked,
        "The subscription or the broker has too many unacknowledged messages.",
    ),
    Rule("does_not_read", lambda s: True, "The client does not read what the broker has sent."),
)


@dataclass
class DeliveryState:
    """A subscription, as its dispatcher meets it."""

    subscription: str
    type: str = ""
    is_persistent: bool = True
    durable: bool = True
    replicated: bool = False  # has no effect
    # Positions
    backlog: int = 0
    has_next: bool = False  # something can be sent to a consumer that can take it
    mark_delete_position: str = ""
    read_position: str = ""
    last_confirmed_entry: str = ""
    is_terminated: bool = False
    is_compacted_view: bool = False
    compaction_horizon: str = ""
    compaction_threshold: int = 0
    is_compacting: bool = False
    # State of the cursor
    is_unreadable: bool = False
    is_moving: bool = False
    is_being_deleted: bool = False
    last_active_ms: int = 0  # when a consumer joined or left
    last_flow_ms: int = 0
    last_acked_ms: int = 0
    # Consumers
    consumer_count: int = 0
    consumers_joining: int = 0
    consumers: list[Json] = field(default_factory=list)  # the first ones
    ready: int = 0  # consumers that can take messages
    without_permits: int = 0
    at_unacked_limit: int = 0
    not_reading: int = 0
    unacked_messages: int = 0
    active_consumer: str = ""
    next_active_consumer: str = ""
    failover_delay_ms: int = 0
    last_refusal: dict[str, str] | None = None  # of a consumer
    refused_message: str = ""
    refused_ms: int = 0
    # Limits
    unacked_messages_per_consumer_max: int = 0
    unacked_messages_per_subscription_max: int = 0
    is_subscription_at_limit: bool = False
    unacked_messages_in_broker: int = 0
    unacked_messages_per_broker_max: int = 0
    is_broker_at_limit: bool = False
    exceeded_limit: str = ""  # BrokerLimit, TopicLimit or SubscriptionLimit
    dispatch_rate: str = ""
    waits_for_fewer_ranges: bool = False
    acknowledged_ranges: int = 0
    acknowledged_ranges_max: int = 0
    # Delayed and chunked messages
    delayed_entries: int = 0
    next_due: str = ""
    is_delayed_index_full: bool = False
    chunks_held_by: str = ""  # consumer
    # Reads
    is_reading: bool = False
    is_returning: bool = False  # deliveries are being taken back
    read_error: str = ""
    read_error_ms: int = 0  # when reads began to fail
    damage: str = ""
    has_lost_entries: bool = False
    # Keys
    waiting_entries: int = 0  # for a consumer or an earlier entry of their key
    look_ahead_max: int = 0
    are_keys_stuck: bool = False  # nothing but waiting entries can be sent
    ownerless_entries: int = 0
    blocked_keys: list[Json] = field(default_factory=list)
    keys_ready: int = 0  # hashes with entries that only wait for their consumer
    blocking_consumer: str = ""
    dropped_messages: int = 0  # of a non-persistent topic
    # Transactions
    is_recovering_transactions: bool = False
    unreadable_transactions: str | None = None
    recovery_ms: int = 0  # when it began
    transaction: str = ""  # the oldest open one, if messages wait for its end
    transaction_start: str = ""  # its first message
    transaction_about: str = ""
    transaction_owner: str = ""
    transaction_ms: int = 0  # when it began
    transaction_timeout_ms: int = 0
    open_transactions: int = 0
    pending_acks_state: str = ""
    pending_acks_ms: int = 0  # when the broker began to read their log
    pending_transactions: int = 0  # with pending acknowledgements
    pending_transaction: str = ""  # the oldest one


async def delivery_state(
    topic: Topic,
    subscription: Subscription,
    refusals: LastRefusals,
    transactions: OpenTransactions,
) -> DeliveryState:
    """Return the snapshot of a subscription."""
    state = DeliveryState(subscription.name, str(subscription.kind), topic.name.is_persistent)
    _add_positions(state, topic, subscription)
    await _add_consumers(state, topic, subscription)
    _add_limits(state, topic, subscription)
    _add_reads(state, topic, subscription)
    _add_keys(state, subscription)
    if isinstance(topic, PersistentTopic):
        await _add_transactions(state, topic, subscription, transactions)
    refusal = refusals.recent(topic.name, subscription.name)
    if refusal is not None:
        state.last_refusal, state.refused_message = refusal.as_json(), refusal.message
        state.refused_ms = int(refusal.time_s * 1000)
    return state


def unreadable_state(topic: PersistentTopic, name: str) -> DeliveryState | None:
    """Return the snapshot of a subscription whose cursor cannot be read, None if it can."""
    if name not in topic.managed_ledger.unreadable:
        return None
    return DeliveryState(name, is_unreadable=True)


def _add_positions(state: DeliveryState, topic: Topic, subscription: Subscription) -> None:
    dispatcher, cursor = subscription.dispatcher, subscription.cursor
    state.durable, state.replicated = subscription.is_durable, subscription.replicated
    state.backlog = subscription.backlog
    state.mark_delete_position = _text(subscription.acks.mark_delete)
    state.read_position = _text(dispatcher.read_position)
    state.is_terminated = topic.is_terminated
    state.is_moving = subscription.move is not None
    state.is_being_deleted = subscription.closing or cursor.closed
    state.last_active_ms = cursor.last_active_ms
    state.last_flow_ms = int(subscription.last_flow_s * 1000)
    state.last_acked_ms = int(subscription.last_acked_s * 1000)
    state.dropped_messages = subscription.msg_drop
    if not isinstance(topic, PersistentTopic):
        state.has_next = True  # whatever is published next
        return
    state.last_confirmed_entry = _text(topic.last_confirmed)
    state.is_compacted_view = subscription.compacted is not None
    state.compaction_horizon = _text(topic.horizon)
    state.compaction_threshold = topic.policies.compaction_threshold
    state.is_compacting = topic.compaction is not None and topic.compaction.is_running
    replay, queue = dispatcher.replay, dispatcher.key_queue
    has_new = dispatcher.source.normalize(dispatcher.read_position) is not None
    state.has_next = (
        has_new
        or (replay is not None and replay.may_have_positions)
        or (queue is not None and queue.keys.waiting > 0)
    )


# --- consumers --------------------------------------------------------------------------------


async def _add_consumers(state: DeliveryState, topic: Topic, subscription: Subscription) -> None:
    dispatcher, slices = subscription.dispatcher, Slices()
    chooser, policies = dispatcher.chooser, topic.policies
    active: Consumer | None = None
    if isinstance(chooser, SingleActive):
        active = chooser.active
        state.active_consumer = "" if active is None else active.name
    if isinstance(dispatcher.redelivery, Failover):
        chosen = dispatcher.redelivery.chosen
        state.next_active_consumer = "" if chosen is None else chosen.name
        state.failover_delay_ms = int(policies.failover_delay_s * 1000)
    state.consumers_joining = subscription.arriving
    for consumer in list(subscription.consumers):
        state.consumer_count += 1
        is_waiting = isinstance(chooser, SingleActive) and consumer is not active
        found = _consumer_state(consumer, policies.unacked_per_consumer_max, is_waiting)
        rule = first(CONSUMER_RULES, found)
        assert rule is not None, "the last rule always applies"
        state.unacked_messages += found.unacked_messages if consumer.tracks_pending else 0
        state.ready += rule.reason == "ready"
        state.without_permits += rule.reason == "no_permits"
        state.at_unacked_limit += rule.reason == "unacked_limit"
        state.not_reading += rule.reason == "does_not_read"
        if len(state.consumers) < CONSUMERS_MAX:
            state.consumers.append(_about(consumer, found, rule.reason))
        await slices.pause()


def _consumer_state(consumer: Consumer, unacked_max: int, is_waiting: bool) -> ConsumerState:
    return ConsumerState(
        consumer.permits,
        consumer.unacked_messages,
        unacked_max,
        consumer.connection.pending_bytes,
        is_waiting,
        consumer.is_at_limit,
        consumer.is_blocked,
        # Delivery resumes only after the client has read much more than it needs to stop.
        consumer.can_deliver and not consumer.connection.is_delivery_paused,
    )


def _about(consumer: Consumer, state: ConsumerState, reason: str) -> Json:
    return {
        "consumerName": consumer.name,
        "address": f"/{consumer.connection.peer}",
        "connectedSince": consumer.connected_since,
        "reason": reason,
        "availablePermits": state.permits,
        "unackedMessages": state.unacked_messages,
        "unsentBytes": state.unsent_bytes,
    }


# --- limits, reads and keys -------------------------------------------------------------------


def _add_limits(state: DeliveryState, topic: Topic, subscription: Subscription) -> None:
    dispatcher, policies = subscription.dispatcher, topic.policies
    unacked, in_broker = dispatcher.limits.unacked, topic.unacked_in_broker
    state.unacked_messages_per_consumer_max = policies.unacked_per_consumer_max
    state.unacked_messages_per_subscription_max = unacked.limit
    state.is_subscription_at_limit = unacked.blocked
    if in_broker is not None:
        state.unacked_messages_in_broker = in_broker.messages
        state.unacked_messages_per_broker_max = in_broker.limit
        state.is_broker_at_limit = unacked.is_stopped and not unacked.blocked
    if dispatcher.throttle is not None:
        for name, limiter in dispatcher.throttle.waits_for:
            rate = limiter.rate
            parts = ((rate.messages, "messages"), (rate.bytes, "bytes"))
            limits = ", ".join(f"{limit} {unit}" for limit, unit in parts if limit)
            state.exceeded_limit, state.dispatch_rate = name, f"{limits} per {rate.period_s} s"
    state.waits_for_fewer_ranges = dispatcher.waits_for_acks
    state.acknowledged_ranges_max = topic.ack_ranges_max
    if dispatcher.waits_for_acks:
        state.acknowledged_ranges = dispatcher.acks.count_ranges()


def _add_reads(state: DeliveryState, topic: Topic, subscription: Subscription) -> None:
    dispatcher = subscription.dispatcher
    replay, trouble = dispatcher.replay, dispatcher.trouble
    state.is_reading = dispatcher.is_reading
    state.is_returning = dispatcher.redelivery.is_returning
    state.damage = dispatcher.stopped_by_damage or ""
    if trouble is not None:
        state.has_lost_entries = trouble.has_lost
        retried = trouble.retried
        if retried is not None:
            error, seconds = retried
            state.read_error = str(error)
            state.read_error_ms = int((topic.wall_clock() - seconds) * 1000)
    if replay is not None:
        state.delayed_entries = replay.delayed_entries
        state.is_delayed_index_full = replay.is_full
        if replay.delayed_index is not None and replay.delayed_index.next_time >= 0:
            state.next_due = iso_ms(replay.delayed_index.next_time)
    chunked = dispatcher.chooser.chunked
    if chunked is not None:
        holder = chunked.held_by
        state.chunks_held_by = "" if holder is None else holder.name


def _add_keys(state: DeliveryState, subscription: Subscription) -> None:
    dispatcher = subscription.dispatcher
    slots = dispatcher.chooser
    if not isinstance(slots, KeySlots):
        return
    keys = slots.keys
    state.waiting_entries, state.look_ahead_max = keys.waiting, slots.look_ahead
    has_new = dispatcher.source.normalize(dispatcher.read_position) is not None
    state.are_keys_stuck = keys.waiting > 0 and (not has_new or keys.waiting >= slots.look_ahead)
    if not state.are_keys_stuck:
        return
    state.ownerless_entries, state.keys_ready = keys.ownerless(), keys.queued
    blocked = [each for each in keys.draining() if each[3]]
    for slot, key_hash, held, waiting in blocked[:KEYS_MAX]:
        holder, owner = slots.slots[slot], slots.owner_of(key_hash)
        if holder is None or owner is None:
            continue
        state.blocking_consumer = state.blocking_consumer or holder.name
        state.blocked_keys.append(
            {
                "hash": key_hash,
                "unackedBy": holder.name,
                "unackedEntries": held,
                "oldestUnacked": _oldest(holder, key_hash),
                "waitingEntries": waiting,
                "waitsFor": owner.name,
                "connectedSince": owner.connected_since,
            }
        )
    if not state.blocked_keys:
        blocking = (each for each in subscription.consumers if not each.can_deliver)
        state.blocking_consumer = next((each.name for each in blocking), "")


# --- transactions -----------------------------------------------------------------------------


async def _add_transactions(
    state: DeliveryState,
    topic: PersistentTopic,
    subscription: Subscription,
    transactions: OpenTransactions,
) -> None:
    buffer, handle = topic.transactions, subscription.pending_acks
    waiting: TxnId | None = None
    if buffer is not None:
        state.is_recovering_transactions = buffer.is_recovering
        state.unreadable_transactions = buffer.unreadable
        state.recovery_ms = buffer.recover_start_ms
        state.open_transactions = buffer.ongoing
        has_more = topic.managed_ledger.normalize(subscription.dispatcher.read_position) is not None
        if buffer.oldest is not None and has_more and not state.has_next:
            waiting, start = buffer.oldest
            state.transaction, state.transaction_start = str(waiting), _text(start)
    if handle is not None:
        state.pending_acks_state = handle.state.value
        state.pending_acks_ms = handle.recover_start_ms
        pending = handle.acks.transactions()
        state.pending_transactions = len(pending)
        if pending:
            state.pending_transaction = str(pending[0])
            waiting = waiting or pending[0]
    if waiting is not None:
        found = await transactions.find(waiting)
        state.transaction_about = found.about
        state.transaction_owner, state.transaction_ms = found.owner, found.begun_ms
        state.transaction_timeout_ms = found.timeout_ms


def _oldest(consumer: Consumer, key_hash: int) -> str:
    """Return the first unacknowledged entry of a key; empty if it is not among the scanned ones."""
    parts = consumer.pending_up_to(ENTRY_ID_MAX, ENTRY_ID_MAX, PART)
    some = islice(chain.from_iterable(parts), SCANNED_MAX)
    found = (each for each in some if consumer.key_hash_of(*each) == key_hash)
    return next(map(_text, found), "")


def _text(position: Sequence[int]) -> str:
    return "{}:{}".format(*position)


COMMON = (
    *("type", "backlog", "mark_delete_position", "read_position", "last_confirmed_entry"),
    *("durable", "replicated", "last_refusal", "consumer_count", "consumers"),
)
"""The evidence of each answer about a subscription."""
UNACKED = ("unacked_messages", "unacked_messages_per_consumer_max")
KEYS = ("waiting_entries", "look_ahead_max", "blocking_consumer", "blocked_keys")
RATE = ("exceeded_limit", "dispatch_rate")
TRANSACTION = ("transaction_owner", "transaction_timeout_ms")


def _is_blocked(state: DeliveryState) -> bool:
    """Return True if something could be sent, and no consumer can take it."""
    return state.has_next and not state.ready


RULES: tuple[Rule[DeliveryState], ...] = (
    Rule(
        "cursor_unreadable",
        lambda s: s.is_unreadable,
        "The state of the subscription cannot be read, so its consumers are refused and nothing of"
        " the topic is deleted. The broker's log has the reason.",
    ),
    Rule(
        "seeking",
        lambda s: s.is_moving,
        "The subscription is being moved to another position; consumers wait until that is done.",
    ),
    Rule(
        "subscription_being_deleted",
        lambda s: s.is_being_deleted,
        "The subscription is being deleted, or its topic is being closed.",
    ),
    Rule(
        "pending_acks_unreadable",
        lambda s: s.pending_acks_state == "Error" and not s.consumer_count,
        "The log of the pending acknowledgements cannot be read, so consumers are refused. The next"
        " consumer tries again, and the broker's log has the reason.",
        ("pending_acks_state",),
        "pending_acks_ms",
    ),
    Rule(
        "pending_acks_recovering",
        lambda s: s.pending_acks_state == "Initializing",
        "The broker reads the log of the pending acknowledgements. Consumers wait until it has read"
        " them.",
        ("pending_acks_state",),
        "pending_acks_ms",
    ),
    Rule(
        "moved_by_compaction",
        lambda s: s.subscription == COMPACTION,
        "The broker uses this subscription for compaction, which moves it.",
        ("compaction_horizon", "compaction_threshold", "is_compacting"),
    ),
    Rule(
        "end_of_topic",
        lambda s: s.is_terminated and not s.backlog and not s.has_next,
        "The topic is terminated, and all of its messages are acknowledged.",
    ),
    Rule(
        "nothing_to_deliver",
        lambda s: s.is_persistent and not s.backlog and not s.has_next,
        "All messages are acknowledged. The next one will be at {read_position} or after it.",
    ),
    Rule(
        "consumer_joining",
        lambda s: not s.consumer_count and s.consumers_joining,
        "A consumer is about to join. It waits for the answer of the client that has its place, or"
        " for the topic's state.",
        ("consumers_joining",),
    ),
    Rule(
        "consumer_refused",
        lambda s: not s.consumer_count and s.last_refusal,
        "No consumer is connected. The last one was refused: {refused_message}",
        (),
        "refused_ms",
    ),
    Rule(
        "no_consumer",
        lambda s: not s.consumer_count,
        "No consumer is connected to the subscription. Entries in its backlog: {backlog}.",
        (),
        "last_active_ms",
    ),
    Rule(
        "failover_delay",
        lambda s: s.next_active_consumer and not s.active_consumer,
        "The consumer {next_active_consumer} becomes the active one after a delay of"
        " {failover_delay_ms} ms (activeConsumerFailoverDelayTimeMillis).",
        ("next_active_consumer", "failover_delay_ms"),
    ),
    Rule(
        "damaged_entries",
        lambda s: s.damage,
        "{damage} Seek or reset the subscription to a position behind them, or set"
        " autoSkipNonRecoverableData=true.",
    ),
    Rule(
        "read_fails",
        lambda s: s.read_error,
        "The entries at {read_position} cannot be read now, and the broker retries: {read_error}.",
        ("read_error",),
        "read_error_ms",
    ),
    Rule(
        "returning_deliveries",
        lambda s: s.is_returning,
        "The broker takes back deliveries of a consumer, and sends nothing until that is done.",
    ),
    Rule(
        "subscription_unacked_limit",
        lambda s: _is_blocked(s) and s.is_subscription_at_limit,
        "{unacked_messages} messages are delivered and not acknowledged, and the subscription may"
        " have {unacked_messages_per_subscription_max} (maxUnackedMessagesPerSubscription). It"
        " continues when fewer than half of these are unacknowledged.",
        ("unacked_messages", "unacked_messages_per_subscription_max"),
        "last_acked_ms",
    ),
    Rule(
        "broker_unacked_limit",
        lambda s: _is_blocked(s) and s.is_broker_at_limit,
        "{unacked_messages_in_broker} messages of all subscriptions are delivered and not"
        " acknowledged, and the broker allows {unacked_messages_per_broker_max}"
        " (maxUnackedMessagesPerBroker). This subscription has more than its share.",
        ("unacked_messages", "unacked_messages_in_broker", "unacked_messages_per_broker_max"),
        "last_acked_ms",
    ),
    Rule(
        "consumer_unacked_limit",
        lambda s: _is_blocked(s) and s.at_unacked_limit,
        "No consumer can take messages: {at_unacked_limit} of {consumer_count} have"
        " {unacked_messages_per_consumer_max} unacknowledged messages, which is their limit"
        " (maxUnackedMessagesPerConsumer).",
        UNACKED,
        "last_acked_ms",
    ),
    Rule(
        "consumer_does_not_read",
        lambda s: _is_blocked(s) and s.not_reading,
        "No consumer can take messages: the clients of {not_reading} of {consumer_count} do not"
        " read what the broker has sent.",
        ("not_reading",),
    ),
    Rule(
        "no_permits",
        _is_blocked,
        "No consumer has permits: the clients' receive queues are full, or the applications do"
        " not receive.",
        ("without_permits", "unacked_messages", "dropped_messages"),
        "last_flow_ms",
    ),
    Rule(
        "broker_dispatch_rate",
        lambda s: s.exceeded_limit == "BrokerLimit",
        "The dispatch rate of the broker ({dispatch_rate}) is used up; the subscription continues"
        " when it allows more.",
        RATE,
    ),
    Rule(
        "topic_dispatch_rate",
        lambda s: s.exceeded_limit == "TopicLimit",
        "The dispatch rate of the topic ({dispatch_rate}) is used up; the subscription continues"
        " when it allows more.",
        RATE,
    ),
    Rule(
        "subscription_dispatch_rate",
        lambda s: s.exceeded_limit == "SubscriptionLimit",
        "The dispatch rate of the subscription ({dispatch_rate}) is used up; it continues when the"
        " rate allows more.",
        RATE,
    ),
    Rule(
        "too_many_acknowledged_ranges",
        lambda s: s.waits_for_fewer_ranges,
        "The acknowledged messages form {acknowledged_ranges} ranges, and at most"
        " {acknowledged_ranges_max} can be stored: new messages wait until gaps are acknowledged"
        " (dispatcherPauseOnAckStatePersistentEnabled).",
        ("acknowledged_ranges", "acknowledged_ranges_max", "unacked_messages"),
    ),
    Rule(
        "delayed_messages_full",
        lambda s: s.is_delayed_index_full,
        "The memory for delayed messages is full (maxDelayedDeliveryStateSizeInMB), so new messages"
        " are not read until some are due. The next one is due at {next_due}.",
        ("delayed_entries", "next_due"),
    ),
    Rule(
        "chunks_wait",
        lambda s: s.chunks_held_by,
        "Chunks of messages wait for the consumer {chunks_held_by}, which has the earlier chunks"
        " and cannot take more now.",
        ("chunks_held_by",),
    ),
    Rule(
        "key_without_consumer",
        lambda s: s.are_keys_stuck and s.ownerless_entries,
        "{ownerless_entries} messages have keys in hash ranges for which no consumer has asked.",
        ("ownerless_entries", *KEYS),
    ),
    Rule(
        "blocked_key",
        lambda s: s.are_keys_stuck and s.blocked_keys,
        "{waiting_entries} messages wait for earlier ones of their keys, which {blocking_consumer}"
        " has not acknowledged. Their keys belong to another consumer by now.",
        KEYS,
        "last_acked_ms",
    ),
    Rule(
        "key_owner_blocked",
        lambda s: s.are_keys_stuck and s.keys_ready and s.blocking_consumer,
        "{waiting_entries} messages wait for the consumers of their keys, such as"
        " {blocking_consumer}, which cannot take more now.",
        KEYS,
    ),
    Rule(
        "reading",
        lambda s: s.is_reading,
        "The broker reads the next messages from storage.",
    ),
    Rule(
        "transactions_unreadable",
        lambda s: s.unreadable_transactions,
        "{unreadable_transactions} Consumers wait, and the broker tries again every 30 s. To leave"
        " out what is lost, set autoSkipNonRecoverableData=true.",
        (),
        "recovery_ms",
    ),
    Rule(
        "transactions_recovering",
        lambda s: s.is_recovering_transactions,
        "The broker reads which transactions of the topic have ended, and sends nothing until that"
        " is known.",
        ("open_transactions",),
        "recovery_ms",
    ),
    Rule(
        "open_transaction",
        lambda s: s.transaction,
        "Messages from {transaction_start} on wait for the end of the transaction {transaction}."
        " {transaction_about}",
        ("transaction", "transaction_start", "open_transactions", *TRANSACTION),
        "transaction_ms",
    ),
    Rule(
        "delayed",
        lambda s: s.delayed_entries and not s.has_next,
        "{delayed_entries} messages are delayed. The next one is due at {next_due}.",
        ("delayed_entries", "next_due", "unacked_messages"),
    ),
    Rule(
        "lost_entries",
        lambda s: s.has_lost_entries and not s.has_next and s.backlog,
        "Messages of the backlog are lost or damaged, and cannot be delivered. Skip them, or set"
        " autoSkipNonRecoverableData=true.",
        ("unacked_messages",),
    ),
    Rule(
        "end_of_compacted_view",
        lambda s: s.is_compacted_view and not s.has_next and s.backlog,
        "The consumer reads the compacted view, and has received all of it. The backlog counts"
        " messages that the view leaves out, and those not acknowledged.",
        ("compaction_horizon",),
    ),
    Rule(
        "pending_in_transactions",
        lambda s: s.pending_transactions and not s.has_next and not s.unacked_messages,
        "Transactions that have not ended ({pending_transactions}) have acknowledged messages of"
        " the backlog; the oldest is {pending_transaction}. {transaction_about}",
        ("pending_transactions", "pending_transaction", *TRANSACTION),
        "transaction_ms",
    ),
    Rule(
        "waits_for_acknowledgements",
        lambda s: s.is_persistent and not s.has_next,
        "All entries of the backlog ({backlog}) are delivered. The consumers have not acknowledged"
        " them yet.",
        ("unacked_messages",),
        "last_acked_ms",
    ),
    Rule(
        "moving",
        lambda s: True,
        "Nothing stops the subscription: {ready} of {consumer_count} consumers can take messages.",
        ("ready", "unacked_messages", "dropped_messages"),
    ),
)
