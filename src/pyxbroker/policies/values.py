"""Value types of the policies, and all policies of one topic together."""

from __future__ import annotations

from bisect import bisect_left

from pyxbroker.base.named_tuple import NamedTuple

DELETE_WHEN_NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"
INACTIVE_TOPIC_DELETE_MODES = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)
PRODUCER_REQUEST_HOLD = "producer_request_hold"
PRODUCER_EXCEPTION = "producer_exception"
CONSUMER_BACKLOG_EVICTION = "consumer_backlog_eviction"
BACKLOG_QUOTA_POLICIES = (PRODUCER_REQUEST_HOLD, PRODUCER_EXCEPTION, CONSUMER_BACKLOG_EVICTION)
OLDER_SCHEMA_STRATEGIES = {
    "AutoUpdateDisabled": "ALWAYS_INCOMPATIBLE",
    "Backward": "BACKWARD",
    "Forward": "FORWARD",
    "Full": "FULL",
    "AlwaysCompatible": "ALWAYS_COMPATIBLE",
    "BackwardTransitive": "BACKWARD_TRANSITIVE",
    "ForwardTransitive": "FORWARD_TRANSITIVE",
    "FullTransitive": "FULL_TRANSITIVE",
}
"""Names of the strategies in the older field of a namespace."""
SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")


SUBSCRIBE_PERIOD_MAX_S = 86_400  # the broker remembers subscribing consumers for this long


class AutoTopicCreation(NamedTuple):
    """The handling of a topic that does not exist when a client names it."""

    allowed: bool = True
    partitions: int = 0  # of the topic to create; 0: not partitioned


class InactiveTopics(NamedTuple):
    """Rules for deleting inactive topics."""

    delete: bool = True
    mode: str = DELETE_WHEN_NO_SUBSCRIPTIONS
    max_inactive_s: float = 60.0


class Retention(NamedTuple):
    """Limits on the age and size of acknowledged messages that are retained."""

    time_s: float = 0.0  # negative: forever
    bytes_max: int = 0  # negative: no limit


class BacklogQuota(NamedTuple):
    """Limit of a backlog, and what happens above it."""

    limit: int = -1  # bytes or seconds; negative: no limit
    policy: str = PRODUCER_REQUEST_HOLD


class Persistence(NamedTuple):
    """Storage parameters of a topic's ledgers and cursors, from the next ledger on."""

    ensemble: int = 1  # bookies
    write_quorum: int = 1
    ack_quorum: int = 1
    mark_delete_per_s: float = 1.0  # of each cursor; 0: no limit
    is_policy: bool = False  # of a topic or namespace, not the settings of the broker


class Rate(NamedTuple):
    """Limits per second; 0 is no limit."""

    messages: int = 0
    bytes: int = 0


class DispatchRate(NamedTuple):
    """Limits on dispatch per period; 0 is no limit."""

    messages: int = 0
    bytes: int = 0
    period_s: int = 1
    relative: bool = False  # added to the rate at which messages are published


class SubscribeRate(NamedTuple):
    """Limit on subscribing, for each consumer and period; 0 is no limit."""

    per_consumer: int = 0
    period_s: int = 30


class Policies(NamedTuple):
    """The policies of one topic, described by the rows of TABLE. 0 is no limit."""

    auto_topic_creation: AutoTopicCreation = AutoTopicCreation()
    auto_subscription_creation: bool = True
    inactive_topics: InactiveTopics = InactiveTopics()
    retention: Retention = Retention()
    backlog_size: BacklogQuota = BacklogQuota()
    backlog_age: BacklogQuota = BacklogQuota()
    precise_backlog_age: bool = False
    message_ttl_s: int = 0
    subscription_expiry_s: int = 0
    persistence: Persistence = Persistence()
    delayed_delivery: bool = True
    delay_tick_ms: int = 1000
    delay_max_ms: int = 0
    publish_rate: Rate = Rate()
    dispatch_rate: DispatchRate = DispatchRate()
    subscription_dispatch_rate: DispatchRate = DispatchRate()
    dispatch_rates_of: tuple[tuple[str, DispatchRate], ...] = ()  # in the order of the names
    subscribe_rate: SubscribeRate = SubscribeRate()
    subscription_types: frozenset[str] = frozenset(SUBSCRIPTION_TYPES)
    message_bytes_max: int = 0
    topics_max: int = 0
    producers_max: int = 0
    consumers_max: int = 0
    consumers_per_subscription_max: int = 0
    subscriptions_max: int = 0
    same_address_producers_max: int = 0
    same_address_consumers_max: int = 0
    unacked_per_consumer_max: int = 0  # messages
    unacked_per_subscription_max: int = 0  # messages
    pause_on_ack_state: bool = False
    encryption_required: bool = False
    deduplication: bool = False
    deduplication_snapshot_s: int = 120
    compaction_threshold: int = 0  # bytes
    schema_strategy: str = "FULL"
    schema_auto_update: bool = True
    schema_validation: bool = False
    schema_strategy_of_system_topics: str = "ALWAYS_COMPATIBLE"
    unacked_in_broker_max: int = 0  # messages
    unacked_share: int = 0  # messages
    read_batch_max: int = 100  # entries
    read_bytes_max: int = 5 << 20
    read_batch_min: int = 1  # entries, after a failed read
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
    dispatch_rate_when_caught_up: bool = True
    dispatch_rate_by_entries: bool = False
    delay_strict: bool = False
    refused: frozenset[str] = frozenset()
    """The policies with an invalid value in a record: each keeps its last value."""

    def dispatch_rate_of(self, subscription: str) -> DispatchRate:
        """Return the dispatch rate of one subscription: its own or the common one."""
        # Bisected because there may be thousands of rates and of subscriptions.
        rates = self.dispatch_rates_of
        at = bisect_left(rates, (subscription,))
        if at < len(rates) and rates[at][0] == subscription:
            return rates[at][1]
        return self.subscription_dispatch_rate
