"""Every policy: what it says, where it may be set, which setting of the broker is its default.

A policy is one row of TABLE and one attribute of Policies. Its value at a level above the broker is
one JSON field of that level's record; a field that is not there, or null, says nothing, and the
next level is asked (policies/resolver.py). docs/policies.md is written from the table.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyxbroker.settings.config import Config

DELETE_WHEN_NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"
INACTIVE_TOPIC_DELETE_MODES = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)
PARTITIONED = "partitioned"

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Level(enum.Enum):
    """Where a policy may be set; the first one that says something wins."""

    NAMESPACE = "namespace"
    BROKER = "broker"


class AutoTopicCreation(NamedTuple):
    """What happens when a client names a topic that does not exist."""

    allowed: bool = True
    partitions: int = 0  # of the topic that is made; 0: it is not partitioned


class InactiveTopics(NamedTuple):
    """When a topic that nobody uses is deleted."""

    delete: bool = True
    mode: str = DELETE_WHEN_NO_SUBSCRIPTIONS
    max_inactive_s: float = 60.0


class Retention(NamedTuple):
    """How long and how much of what every subscription has acknowledged is kept."""

    time_s: float = 0.0  # negative: for ever
    bytes_max: int = 0  # negative: however many they are


class Policies(NamedTuple):
    """What holds for one topic; the rows of TABLE say what each of them is. 0 is no limit."""

    auto_topic_creation: AutoTopicCreation = AutoTopicCreation()
    auto_subscription_creation: bool = True
    inactive_topics: InactiveTopics = InactiveTopics()
    retention: Retention = Retention()
    delayed_delivery: bool = True
    producers_max: int = 0
    consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_max: int = 0
    unacked_per_consumer_max: int = 0  # messages
    unacked_per_subscription_max: int = 0  # messages
    unacked_in_broker_max: int = 0  # messages
    unacked_share: int = 0  # messages
    read_batch_max: int = 100  # entries
    read_bytes_max: int = 5 << 20
    round_robin_max: int = 20  # entries
    failover_delay_s: float = 0.0
    failover_by_hash: bool = False
    key_shared_by_ring: bool = True
    key_shared_points: int = 100
    look_ahead_per_consumer_max: int = 2000  # entries
    look_ahead_per_subscription_max: int = 20_000  # entries
    read_retry_min_s: float = 0.05
    read_retry_max_s: float = 1.0
    skips_lost_data: bool = False
    refused: frozenset[str] = frozenset()
    """The policies that a record sets to what they cannot be: they are as they were before."""


class Part(NamedTuple):
    """One JSON value of a policy: the whole field, or, with a name, a part of the object in it."""

    kind: type[bool] | type[int] | type[str]
    name: str = ""
    minimum: int = -LONG_MAX - 1
    maximum: int = INT_MAX
    choices: tuple[str, ...] = ()
    default: Any = None  # where a part may be left out
    is_optional: bool = False

    def read(self, value: object) -> Any:
        """Raises ValueError, with what is wrong, for a value that it cannot have."""
        if value is None and self.is_optional:
            return self.default
        # To Python true is a number, to JSON it is not.
        is_kind = isinstance(value, self.kind) and isinstance(value, bool) == (self.kind is bool)
        if (
            not is_kind
            or (self.choices and value not in self.choices)
            or (isinstance(value, int) and not self.minimum <= value <= self.maximum)
        ):
            shown = "missing" if value is None else repr(value)[:100]
            raise ValueError(f"{self.name} {shown}: expected {self.expected()}".lstrip())
        return value

    def expected(self) -> str:
        """What a value looks like, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return "text"
        if self.minimum < -INT_MAX:
            return "a whole number"
        return f"a whole number from {self.minimum}"


class Policy(NamedTuple):
    """One row of the table."""

    name: str  # the attribute of Policies
    about: str
    broker: Callable[[Config], Any]  # its default: what the broker's settings say
    fields: Mapping[Level, str] = {}  # the JSON field at each other level where it may be set
    parts: tuple[Part, ...] = ()
    make: Callable[..., Any] = lambda value: value  # of what the parts say, in their order
    unset_below: int | None = None  # smaller numbers say nothing, as if the field were not there

    def says_nothing(self, value: object) -> bool:
        """Whether the next level is asked."""
        if value is None:
            return True
        return self.unset_below is not None and type(value) is int and value < self.unset_below

    def read(self, value: object) -> Any:
        """The policy's value from that of its JSON field. Raises ValueError for a wrong one."""
        if not self.parts[0].name:
            return self.make(self.parts[0].read(value))
        if not isinstance(value, dict):
            raise ValueError(f"{value!r:.100}: expected an object")
        return self.make(*(part.read(value.get(part.name)) for part in self.parts))


def _limit(name: str, field: str, about: str, broker: Callable[[Config], int]) -> Policy:
    """A number that 0 switches off; namespaces written by Pulsar have -1 for nothing."""
    parts = (Part(int, minimum=0),)
    return Policy(name, about, broker, {Level.NAMESPACE: field}, parts, unset_below=0)


def _auto_topic_creation(allowed: bool, kind: str, partitions: int) -> AutoTopicCreation:
    return AutoTopicCreation(allowed, partitions if kind == PARTITIONED else 0)


def _broker_inactive_topics(config: Config) -> InactiveTopics:
    max_inactive_s = config.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
    if max_inactive_s is None:
        max_inactive_s = config.brokerDeleteInactiveTopicsFrequencySeconds
    return InactiveTopics(
        config.brokerDeleteInactiveTopicsEnabled,
        config.brokerDeleteInactiveTopicsMode,
        max_inactive_s,
    )


def _inactive_topics(delete: bool, mode: str, seconds: int) -> InactiveTopics:
    return InactiveTopics(delete, mode, float(seconds))


def _retention(minutes: int, megabytes: int) -> Retention:
    return Retention(minutes * 60.0, megabytes << 20)


TABLE: tuple[Policy, ...] = (
    Policy(
        "auto_topic_creation",
        "Whether a client that names a topic which does not exist creates it, and with how many"
        " partitions. A record says all of it: what it leaves out is not looked up elsewhere.",
        lambda config: _auto_topic_creation(
            config.allowAutoTopicCreation,
            config.allowAutoTopicCreationType,
            config.defaultNumPartitions,
        ),
        {Level.NAMESPACE: "autoTopicCreationOverride"},
        (
            Part(bool, "allowAutoTopicCreation"),
            Part(str, "topicType", default="", is_optional=True),
            Part(int, "defaultNumPartitions", minimum=0, default=0, is_optional=True),
        ),
        _auto_topic_creation,
    ),
    Policy(
        "auto_subscription_creation",
        "Whether a consumer that names a subscription which does not exist creates it.",
        lambda config: config.allowAutoSubscriptionCreation,
        {Level.NAMESPACE: "autoSubscriptionCreationOverride"},
        (Part(bool, "allowAutoSubscriptionCreation"),),
    ),
    Policy(
        "inactive_topics",
        "Whether a topic that nobody uses is deleted, after which time, and what use is. The next"
        " look for such topics goes by it.",
        _broker_inactive_topics,
        {Level.NAMESPACE: "inactive_topic_policies"},
        (
            Part(bool, "deleteWhileInactive"),
            Part(str, "inactiveTopicDeleteMode", choices=INACTIVE_TOPIC_DELETE_MODES),
            Part(int, "maxInactiveDurationSeconds"),
        ),
        _inactive_topics,
    ),
    Policy(
        "retention",
        "How long, and how much, of acknowledged messages is kept; -1 is without limit. What is"
        " not kept any more is deleted at once.",
        lambda config: _retention(
            config.defaultRetentionTimeInMinutes, config.defaultRetentionSizeInMB
        ),
        {Level.NAMESPACE: "retention_policies"},
        (
            Part(int, "retentionTimeInMinutes"),
            Part(int, "retentionSizeInMB", maximum=LONG_MAX >> 20, default=0, is_optional=True),
        ),
        _retention,
    ),
    Policy(
        "delayed_delivery",
        "Whether Shared and Key_Shared subscriptions wait for a message's time. When it is switched"
        " off, what waits is sent. Of Pulsar's record only `active` has an effect.",
        lambda config: config.delayedDeliveryEnabled,
        {Level.NAMESPACE: "delayed_delivery_policies"},
        (Part(bool, "active"),),
    ),
    _limit(
        "producers_max",
        "max_producers_per_topic",
        "Producers of one topic; those that are there stay.",
        lambda config: config.maxProducersPerTopic,
    ),
    _limit(
        "consumers_max",
        "max_consumers_per_topic",
        "Consumers of one topic; those that are there stay.",
        lambda config: config.maxConsumersPerTopic,
    ),
    _limit(
        "consumers_per_subscription_max",
        "max_consumers_per_subscription",
        "Consumers of one subscription; those that are there stay.",
        lambda config: config.maxConsumersPerSubscription,
    ),
    _limit(
        "subscriptions_max",
        "max_subscriptions_per_topic",
        "Subscriptions of one topic; those that are there stay.",
        lambda config: config.maxSubscriptionsPerTopic,
    ),
    _limit(
        "unacked_per_consumer_max",
        "max_unacked_messages_per_consumer",
        "Messages that a consumer of a shared subscription may hold unacknowledged.",
        lambda config: config.maxUnackedMessagesPerConsumer,
    ),
    _limit(
        "unacked_per_subscription_max",
        "max_unacked_messages_per_subscription",
        "Messages that all consumers of a shared subscription may hold unacknowledged.",
        lambda config: config.maxUnackedMessagesPerSubscription,
    ),
    Policy(
        "unacked_in_broker_max",
        "Messages that all consumers of all shared subscriptions may hold unacknowledged.",
        lambda config: config.maxUnackedMessagesPerBroker,
    ),
    Policy(
        "unacked_share",
        "Messages that one subscription may hold unacknowledged while the broker has too many.",
        lambda config: int(
            config.maxUnackedMessagesPerBroker
            * config.maxUnackedMessagesPerSubscriptionOnBrokerBlocked
        ),
    ),
    Policy(
        "read_batch_max",
        "Entries that a dispatcher reads in one round.",
        lambda config: config.dispatcherMaxReadBatchSize,
    ),
    Policy(
        "read_bytes_max",
        "Bytes that a dispatcher reads in one round.",
        lambda config: config.dispatcherMaxReadSizeBytes,
    ),
    Policy(
        "round_robin_max",
        "Entries that one consumer of a shared subscription gets in one turn.",
        lambda config: config.dispatcherMaxRoundRobinBatchSize,
    ),
    Policy(
        "failover_delay_s",
        "Wait before a failover subscription goes on with its new consumer.",
        lambda config: config.activeConsumerFailoverDelayTimeMillis / 1000,
    ),
    Policy(
        "failover_by_hash",
        "Whether the active consumer on a partition is chosen by hashes of the names.",
        lambda config: config.activeConsumerFailoverConsistentHashing,
    ),
    Policy(
        "key_shared_by_ring",
        "Whether keys of a Key_Shared subscription are spread by points on a ring.",
        lambda config: config.subscriptionKeySharedUseConsistentHashing,
    ),
    Policy(
        "key_shared_points",
        "Points on the ring for each consumer.",
        lambda config: config.subscriptionKeySharedConsistentHashingReplicaPoints,
    ),
    Policy(
        "look_ahead_per_consumer_max",
        "Entries of a Key_Shared subscription that may wait for their consumer, for each consumer.",
        lambda config: config.keySharedLookAheadMsgInReplayThresholdPerConsumer,
    ),
    Policy(
        "look_ahead_per_subscription_max",
        "The same for the whole subscription.",
        lambda config: config.keySharedLookAheadMsgInReplayThresholdPerSubscription,
    ),
    Policy(
        "read_retry_min_s",
        "First wait of a dispatcher after a failed read.",
        lambda config: config.dispatcherReadFailureBackoffInitialTimeInMs / 1000,
    ),
    Policy(
        "read_retry_max_s",
        "Longest wait of a dispatcher after failed reads.",
        lambda config: config.dispatcherReadFailureBackoffMaxTimeInMs / 1000,
    ),
    Policy(
        "skips_lost_data",
        "Whether a subscription acknowledges what is lost, however much it is.",
        lambda config: config.autoSkipNonRecoverableData,
    ),
)

NAMES = frozenset(row.name for row in TABLE)


def of_broker(config: Config) -> Policies:
    """What holds where no other level says anything."""
    return Policies(**{row.name: row.broker(config) for row in TABLE})
