"""How REST names, takes and answers each policy, at the levels of namespaces and topics.

A row is a policy as Pulsar's REST has it, which is not always one of policies/table.py: three of
those are one object here, or two share one map. The endpoints of both levels are made of the rows
(resources/namespace_policies.py, resources/topic_policies.py). What a value means, and its type in
a record, the other table says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pyxbroker.admin.errors import HttpError
from pyxbroker.policies.resolver import Record, resolve
from pyxbroker.policies.shapes import CLUSTER, INT_MAX, LONG_MAX, Level, Path
from pyxbroker.policies.values import (
    BACKLOG_QUOTA_POLICIES,
    INACTIVE_TOPIC_DELETE_MODES,
    OLDER_SCHEMA_STRATEGIES,
    SUBSCRIBE_PERIOD_MAX_S,
    SUBSCRIPTION_TYPES,
    BacklogQuota,
    DispatchRate,
    Policies,
)
from pyxbroker.settings.config import Config
from pyxbroker.settings.sections.topics import SCHEMA_STRATEGIES

Json = Any
Schema = dict[str, Any]

QUOTA_TYPES = ("destination_storage", "message_age")


# --- bodies ---------------------------------------------------------------------------------------


class Field(NamedTuple):
    """A value of JSON, or a field of an object. A field that is not there has the default."""

    kind: str  # integer, number, boolean, string
    default: Json = None
    choices: tuple[str, ...] = ()
    maximum: int = INT_MAX

    def read(self, value: object, name: str) -> Json:
        """Raises HttpError 400."""
        if value is None:
            return self.default
        kinds: dict[str, tuple[type, ...]] = {
            "integer": (int,),
            "number": (int, float),
            "boolean": (bool,),
            "string": (str,),
        }
        if (
            not isinstance(value, kinds[self.kind])
            or isinstance(value, bool) != (self.kind == "boolean")
            or (self.choices and value not in self.choices)
            or (self.kind == "integer" and not -self.maximum - 1 <= int(str(value)) <= self.maximum)
        ):
            raise HttpError(400, f"{name} must be {self._expected()}, not {value!r:.100}.")
        if self.kind != "number":
            return value
        number = float(str(value))
        if math.isinf(number):
            raise HttpError(400, f"{name} must be {self._expected()}, not {value!r:.100}.")
        return number

    def _expected(self) -> str:
        if self.choices:
            return "one of " + ", ".join(self.choices)
        article = "an" if self.kind == "integer" else "a"
        return f"{article} {self.kind}"

    @property
    def schema(self) -> Schema:
        schema: Schema = {"type": self.kind}
        if self.choices:
            schema["enum"] = list(self.choices)
        return schema


class Body(NamedTuple):
    """What a request brings: one value, an object of fields, or a list of names."""

    value: Field | None = None
    fields: Mapping[str, Field] = MappingProxyType({})
    names: tuple[str, ...] = ()

    def read(self, value: object) -> Json:
        """The value as it goes into a record. Fields that we do not know are left out, as in
        Pulsar. Raises HttpError 400.
        """
        if self.value is not None:
            if value is None:
                raise HttpError(400, "The request entity cannot be empty.")
            return self.value.read(value, "The value")
        if self.names:
            if not isinstance(value, list):
                raise HttpError(400, f"The body must be a JSON list, not {value!r:.100}.")
            name = Field("string", choices=self.names)
            return list(dict.fromkeys(name.read(each, "A name") for each in value))
        if not isinstance(value, dict):
            raise HttpError(400, f"The body must be a JSON object, not {value!r:.100}.")
        read = {name: field.read(value.get(name), name) for name, field in self.fields.items()}
        return {name: each for name, each in read.items() if each is not None}

    @property
    def schema(self) -> Schema:
        """As OpenAPI writes it."""
        if self.value is not None:
            return self.value.schema
        if self.names:
            return {"type": "array", "items": {"type": "string", "enum": list(self.names)}}
        return {
            "type": "object",
            "properties": {name: field.schema for name, field in self.fields.items()},
        }


INTEGER = Body(Field("integer"))
BOOLEAN = Body(Field("boolean"))


# --- checks ---------------------------------------------------------------------------------------


class Asked(NamedTuple):
    """What a check may look at besides the value."""

    config: Config
    record: dict[str, Any]  # of that level, as it is
    is_topic: bool
    quota_type: str = QUOTA_TYPES[0]


Check = Callable[[Json, Asked], None]


def _unchecked(value: Json, asked: Asked) -> None:
    return None


def _from_0(reason: str, of_topic: str = "") -> Check:
    """A number below 0 is refused with a reason."""

    def check(value: int, asked: Asked) -> None:
        if value < 0:
            raise HttpError(412, of_topic if asked.is_topic and of_topic else reason)

    return check


def _retention(value: dict[str, int], asked: Asked) -> None:
    minutes, megabytes = value["retentionTimeInMinutes"], value["retentionSizeInMB"]
    start = "Invalid retention policy: "
    if megabytes < -1:
        raise HttpError(400, start + "size limit must be >= -1")
    if minutes < -1:
        raise HttpError(400, start + "time limit must be >= -1")
    if (minutes == 0) != (megabytes == 0):
        raise HttpError(
            400,
            start + "Setting a single time or size limit to 0 is invalid when one of the limits"
            " has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit."
            " To disable retention both limits must be set to 0.",
        )
    quotas = asked.record.get("backLogQuotaMap" if asked.is_topic else "backlog_quota_map")
    if isinstance(quotas, dict) and any(
        _is_over(quotas.get(each), each, value) for each in QUOTA_TYPES
    ):
        raise HttpError(
            412,
            "Retention Quota must exceed configured backlog quota for topic. Please increase"
            " retention quota and retry"
            if asked.is_topic
            else "Retention Quota must exceed configured backlog quota for namespace.",
        )


def _quota(value: dict[str, Any], asked: Asked) -> None:
    field = "retentionPolicies" if asked.is_topic else "retention_policies"
    retention = asked.record.get(field)
    if retention is not None and _is_over(value, asked.quota_type, retention):
        what = "topic" if asked.is_topic else "namespace"
        raise HttpError(
            412,
            f"Backlog Quota exceeds configured retention quota for {what}. Please increase"
            " retention quota and retry",
        )


def _is_over(quota: object, quota_type: str, retention: object) -> bool:
    """Whether a quota lets more pile up than retention keeps, where both are limits."""
    if quota_type == "destination_storage":
        limit = _whole(quota, "limitSize", _whole(quota, "limit", -1))
        kept = _whole(retention, "retentionSizeInMB", 0) << 20
    else:
        limit = _whole(quota, "limitTime", -1)
        kept = _whole(retention, "retentionTimeInMinutes", 0) * 60
    return 0 < kept <= limit


def _whole(fields: object, name: str, default: int) -> int:
    """A number of an object. What a record has there that cannot be in force decides nothing."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if type(value) is int else default


def _persistence(value: dict[str, Any], asked: Asked) -> None:
    config = asked.config
    names = ("Ensemble", "WriteQuorum", "AckQuorum")
    maxima = (
        config.managedLedgerMaxEnsembleSize,
        config.managedLedgerMaxWriteQuorum,
        config.managedLedgerMaxAckQuorum,
    )
    ensemble, write, ack = (value[f"bookkeeper{name}"] for name in names)
    for name, number, maximum in zip(names, (ensemble, write, ack), maxima, strict=True):
        if not 0 < number <= maximum:
            raise HttpError(400, f"Bookkeeper-{name} must be <= {maximum} and > 0.")
    if not ensemble >= write >= ack:
        raise HttpError(
            400,
            f"Bookkeeper Ensemble ({ensemble}) >= WriteQuorum ({write}) >= AckQuorum ({ack})",
        )


def _auto_topic_creation(value: dict[str, Any], asked: Asked) -> None:
    kind, count = value.get("topicType"), value.get("defaultNumPartitions")
    start = "Invalid configuration for autoTopicCreationOverride. the detail is "
    if not value.get("allowAutoTopicCreation"):
        return
    if kind not in ("partitioned", "non-partitioned"):
        raise HttpError(412, f"{start}Unknown topic type [{kind}]")
    if kind == "non-partitioned":
        if count is not None:
            raise HttpError(
                412,
                start + "[defaultNumPartitions] is not allowed to be set when the type is"
                " non-partition.",
            )
        return
    if count is None:
        raise HttpError(
            412, start + "[defaultNumPartitions] cannot be null when the type is partitioned."
        )
    if count < 1:
        raise HttpError(
            412, start + "[defaultNumPartitions] cannot be less than 1 for partition type."
        )
    limit = asked.config.maxNumPartitionsPerPartitionedTopic
    if limit and count > limit:
        raise HttpError(406, f"Number of partitions should be less than or equal to {limit}")


def _subscribe_period(value: dict[str, int], asked: Asked) -> None:
    if value["ratePeriodInSecond"] > SUBSCRIBE_PERIOD_MAX_S:
        raise HttpError(412, f"ratePeriodInSecond must be <= {SUBSCRIBE_PERIOD_MAX_S}.")


def _message_size(value: int, asked: Asked) -> None:
    if not 0 <= value <= asked.config.maxMessageSize:
        raise HttpError(
            412,
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than"
            " that in the broker-level",
        )


def check_fields(fields: dict[str, Any], level: Level, cluster: str) -> None:
    """Whether each policy can be what the fields of a record say. Raises HttpError 400.

    It comes last: for what Pulsar refuses too, its own words are in the checks above.
    """
    _, refusals = resolve([Record(level, "", fields)], Policies(), Policies(), cluster)
    for each in refusals:
        raise HttpError(400, f"{each.field}: {each.reason}")


# --- what holds -----------------------------------------------------------------------------------


def _number(name: str) -> Callable[[Policies], Json]:
    return lambda policies: getattr(policies, name)


def _applied_retention(policies: Policies) -> Json:
    seconds, size = policies.retention
    return {
        "retentionTimeInMinutes": int(seconds // 60),
        "retentionSizeInMB": size >> 20,
    }


def quota_json(quota: BacklogQuota, quota_type: str) -> dict[str, Json]:
    """A quota as Pulsar's REST answers it."""
    if quota_type == QUOTA_TYPES[0]:
        size, seconds = quota.limit, -1
    else:
        # Who sets the age says nothing of a size, which is 0 then.
        size, seconds = (0 if quota.limit > 0 else -1), quota.limit
    return {"limit": size, "limitSize": size, "limitTime": seconds, "policy": quota.policy}


def _applied_quotas(policies: Policies) -> Json:
    quotas = (policies.backlog_size, policies.backlog_age)
    return {each: quota_json(quota, each) for each, quota in zip(QUOTA_TYPES, quotas, strict=True)}


def _applied_persistence(policies: Policies) -> Json:
    ensemble, write, ack, rate = policies.persistence
    return {
        "bookkeeperEnsemble": ensemble,
        "bookkeeperWriteQuorum": write,
        "bookkeeperAckQuorum": ack,
        "managedLedgerMaxMarkDeleteRate": rate,
    }


def _applied_inactive_topics(policies: Policies) -> Json:
    found = policies.inactive_topics
    return {
        "inactiveTopicDeleteMode": found.mode,
        "maxInactiveDurationSeconds": int(found.max_inactive_s),
        "deleteWhileInactive": found.delete,
    }


def _applied_delayed_delivery(policies: Policies) -> Json:
    return {
        "tickTime": policies.delay_tick_ms,
        "active": policies.delayed_delivery,
        "maxDeliveryDelayInMillis": policies.delay_max_ms,
    }


def _dispatch_rate_json(rate: DispatchRate) -> Json:
    return {
        "dispatchThrottlingRateInMsg": rate.messages,
        "dispatchThrottlingRateInByte": rate.bytes,
        "relativeToPublishRate": rate.relative,
        "ratePeriodInSecond": rate.period_s,
    }


def _applied_dispatch_rate(name: str) -> Callable[[Policies], Json]:
    return lambda policies: _dispatch_rate_json(getattr(policies, name))


def _applied_subscribe_rate(policies: Policies) -> Json:
    per_consumer, period_s = policies.subscribe_rate
    return {"subscribeThrottlingRatePerConsumer": per_consumer, "ratePeriodInSecond": period_s}


def _applied_auto_subscription(policies: Policies) -> Json:
    return {"allowAutoSubscriptionCreation": policies.auto_subscription_creation}


# --- the rows -------------------------------------------------------------------------------------


class Face(NamedTuple):
    """A policy at one level: the last part of its path, and where the record has it."""

    segment: str
    path: Path
    method: str = "POST"
    query: str = ""
    """The field of the query that brings the value, where no body does."""
    removes: bool = True


class Row(NamedTuple):
    """A policy as REST has it."""

    right: str  # Pulsar's PolicyName, which the right to read and to write it is named after
    about: str
    body: Body | None  # None: to set it is to switch it on
    namespace: Face | None = None
    topic: Face | None = None
    check: Check = _unchecked
    applied: Callable[[Policies], Json] | None = None
    """What holds for a topic, where REST tells that."""
    per_cluster: bool = False
    always: Json = None
    """What is answered where nothing is set; None: 204."""


def _limit(
    right: str,
    about: str,
    namespace: tuple[str, str],
    topic: tuple[str, str],
    texts: tuple[str, str],
    applied: str = "",
) -> Row:
    """A number from 0 on; segment and field at each level, text of a refusal at each level."""
    return Row(
        right,
        about,
        INTEGER,
        Face(namespace[0], (namespace[1],)) if namespace[0] else None,
        Face(topic[0], (topic[1],)) if topic[0] else None,
        _from_0(*texts),
        _number(applied) if applied else None,
    )


_DISPATCH_RATE = Body(
    fields={
        "dispatchThrottlingRateInMsg": Field("integer", -1),
        "dispatchThrottlingRateInByte": Field("integer", -1, maximum=LONG_MAX),
        "relativeToPublishRate": Field("boolean", False),
        "ratePeriodInSecond": Field("integer", 1),
    }
)


def _dispatch_rate(segment: str, namespace: str, topic: str, about: str, applied: str) -> Row:
    return Row(
        "REPLICATION_RATE" if segment == "replicatorDispatchRate" else "RATE",
        about,
        _DISPATCH_RATE,
        Face(segment, (namespace, CLUSTER)),
        Face(segment, (topic,)),
        applied=_applied_dispatch_rate(applied) if applied else None,
    )


ROWS: tuple[Row, ...] = (
    Row(
        "RETENTION",
        "how long and how much of acknowledged messages is kept",
        Body(
            fields={
                "retentionTimeInMinutes": Field("integer", 0),
                "retentionSizeInMB": Field("integer", 0, maximum=LONG_MAX >> 20),
            }
        ),
        Face("retention", ("retention_policies",)),
        Face("retention", ("retentionPolicies",)),
        _retention,
        _applied_retention,
    ),
    Row(
        "TTL",
        "after how many seconds messages count as acknowledged",
        INTEGER,
        Face("messageTTL", ("message_ttl_in_seconds",)),
        Face("messageTTL", ("messageTTLInSeconds",), query="messageTTL"),
        _from_0(
            "Invalid value for message TTL, message TTL must >= 0", "Invalid value for message TTL"
        ),
        _number("message_ttl_s"),
    ),
    Row(
        "SUBSCRIPTION_EXPIRATION_TIME",
        "after how many minutes subscriptions without consumers are deleted",
        INTEGER,
        Face("subscriptionExpirationTime", ("subscription_expiration_time_minutes",)),
        Face(
            "subscriptionExpirationTime",
            ("subscriptionExpirationTimeInMinutes",),
            query="subscriptionExpirationTime",
        ),
        _from_0("Invalid value for subscription expiration time"),
        lambda policies: policies.subscription_expiry_s // 60,
    ),
    Row(
        "PERSISTENCE",
        "how many bookies keep an entry, and how often cursors are stored",
        Body(
            fields={
                "bookkeeperEnsemble": Field("integer", 0),
                "bookkeeperWriteQuorum": Field("integer", 0),
                "bookkeeperAckQuorum": Field("integer", 0),
                "managedLedgerMaxMarkDeleteRate": Field("number", 0.0),
                "managedLedgerStorageClassName": Field("string"),
            }
        ),
        Face("persistence", ("persistence",)),
        Face("persistence", ("persistence",)),
        _persistence,
        _applied_persistence,
    ),
    Row(
        "INACTIVE_TOPIC",
        "when topics that nobody uses are deleted",
        Body(
            fields={
                "inactiveTopicDeleteMode": Field("string", choices=INACTIVE_TOPIC_DELETE_MODES),
                "maxInactiveDurationSeconds": Field("integer", 0),
                "deleteWhileInactive": Field("boolean", False),
            }
        ),
        Face("inactiveTopicPolicies", ("inactive_topic_policies",)),
        Face("inactiveTopicPolicies", ("inactiveTopicPolicies",)),
        applied=_applied_inactive_topics,
    ),
    Row(
        "RATE",
        "what producers may publish in a second",
        Body(
            fields={
                "publishThrottlingRateInMsg": Field("integer", -1),
                "publishThrottlingRateInByte": Field("integer", -1, maximum=LONG_MAX),
            }
        ),
        Face("publishRate", ("publishMaxMessageRate", CLUSTER)),
        Face("publishRate", ("publishRate",)),
    ),
    _dispatch_rate(
        "dispatchRate",
        "topicDispatchRate",
        "dispatchRate",
        "what the consumers of a topic may be sent in each period",
        "dispatch_rate",
    ),
    _dispatch_rate(
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "subscriptionDispatchRate",
        "what the consumers of a subscription may be sent in each period",
        "subscription_dispatch_rate",
    ),
    _dispatch_rate(
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        "replicatorDispatchRate",
        "what replicators, which are not here yet, may send in each period",
        "",
    ),
    Row(
        "RATE",
        "how often a consumer may subscribe in each period",
        Body(
            fields={
                "subscribeThrottlingRatePerConsumer": Field("integer", -1),
                "ratePeriodInSecond": Field("integer", 30),
            }
        ),
        Face("subscribeRate", ("clusterSubscribeRate", CLUSTER)),
        Face("subscribeRate", ("subscribeRate",)),
        _subscribe_period,
        applied=_applied_subscribe_rate,
    ),
    _limit(
        "MAX_PRODUCERS",
        "how many producers a topic may have",
        ("maxProducersPerTopic", "max_producers_per_topic"),
        ("maxProducers", "maxProducerPerTopic"),
        ("maxProducersPerTopic must be 0 or more", "maxProducers must be 0 or more"),
        "producers_max",
    ),
    _limit(
        "MAX_CONSUMERS",
        "how many consumers a topic may have",
        ("maxConsumersPerTopic", "max_consumers_per_topic"),
        ("maxConsumers", "maxConsumerPerTopic"),
        ("maxConsumersPerTopic must be 0 or more", "maxConsumers must be 0 or more"),
        "consumers_max",
    ),
    _limit(
        "MAX_CONSUMERS",
        "how many consumers a subscription may have",
        ("maxConsumersPerSubscription", "max_consumers_per_subscription"),
        ("maxConsumersPerSubscription", "maxConsumersPerSubscription"),
        (
            "maxConsumersPerSubscription must be 0 or more",
            "Invalid value for maxConsumersPerSubscription",
        ),
    ),
    _limit(
        "MAX_SUBSCRIPTIONS",
        "how many subscriptions a topic may have",
        ("maxSubscriptionsPerTopic", "max_subscriptions_per_topic"),
        ("maxSubscriptionsPerTopic", "maxSubscriptionsPerTopic"),
        ("maxSubscriptionsPerTopic must be 0 or more", ""),
    ),
    _limit(
        "MAX_UNACKED",
        "how many messages a consumer may hold unacknowledged",
        ("maxUnackedMessagesPerConsumer", "max_unacked_messages_per_consumer"),
        ("maxUnackedMessagesOnConsumer", "maxUnackedMessagesOnConsumer"),
        ("maxUnackedMessagesPerConsumer must be 0 or more", "maxUnackedNum must be 0 or more"),
        "unacked_per_consumer_max",
    ),
    _limit(
        "MAX_UNACKED",
        "how many messages the consumers of a subscription may hold unacknowledged",
        ("maxUnackedMessagesPerSubscription", "max_unacked_messages_per_subscription"),
        ("maxUnackedMessagesOnSubscription", "maxUnackedMessagesOnSubscription"),
        ("maxUnackedMessagesPerSubscription must be 0 or more", "maxUnackedNum must be 0 or more"),
        "unacked_per_subscription_max",
    ),
    _limit(
        "MAX_TOPICS",
        "how many topics a namespace may have",
        ("maxTopicsPerNamespace", "max_topics_per_namespace"),
        ("", ""),
        ("maxTopicsPerNamespace must be 0 or more", ""),
    ),
    Row(
        # Pulsar has no PolicyName for it: it asks for the administrator of the tenant.
        "TENANT_ADMIN",
        "how many bytes a message may have",
        INTEGER,
        None,
        Face("maxMessageSize", ("maxMessageSize",)),
        _message_size,
    ),
    Row(
        # Pulsar has no PolicyName of their own for types, and takes this one.
        "SUBSCRIPTION_AUTH_MODE",
        "which types of subscriptions consumers may ask for",
        Body(names=SUBSCRIPTION_TYPES),
        Face("subscriptionTypesEnabled", ("subscription_types_enabled",)),
        Face("subscriptionTypesEnabled", ("subscriptionTypesEnabled",)),
    ),
    Row(
        "AUTO_TOPIC_CREATION",
        "whether clients create topics by naming them",
        Body(
            fields={
                "allowAutoTopicCreation": Field("boolean", False),
                "topicType": Field("string"),
                "defaultNumPartitions": Field("integer"),
            }
        ),
        Face("autoTopicCreation", ("autoTopicCreationOverride",)),
        None,
        _auto_topic_creation,
    ),
    Row(
        "AUTO_SUBSCRIPTION_CREATION",
        "whether consumers create subscriptions by naming them",
        Body(fields={"allowAutoSubscriptionCreation": Field("boolean", False)}),
        Face("autoSubscriptionCreation", ("autoSubscriptionCreationOverride",)),
        Face("autoSubscriptionCreation", ("autoSubscriptionCreationOverride",)),
        applied=_applied_auto_subscription,
    ),
    Row(
        "DISPATCHER_PAUSE_ON_ACK_STATE_PERSISTENT",
        "whether dispatch pauses while there are too many holes in what is acknowledged",
        None,
        Face(
            "dispatcherPauseOnAckStatePersistent", ("dispatcherPauseOnAckStatePersistentEnabled",)
        ),
        Face(
            "dispatcherPauseOnAckStatePersistent", ("dispatcherPauseOnAckStatePersistentEnabled",)
        ),
        applied=lambda policies: policies.pause_on_ack_state,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "which schema may follow those of a topic",
        Body(Field("string", choices=SCHEMA_STRATEGIES)),
        Face(
            "schemaCompatibilityStrategy",
            ("schema_compatibility_strategy",),
            method="PUT",
            removes=False,
        ),
        Face("schemaCompatibilityStrategy", ("schemaCompatibilityStrategy",), method="PUT"),
        applied=lambda policies: policies.schema_strategy,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "which schema may follow those of a topic, by its older names,",
        Body(Field("string", choices=tuple(OLDER_SCHEMA_STRATEGIES))),
        Face(
            "schemaAutoUpdateCompatibilityStrategy",
            ("schema_auto_update_compatibility_strategy",),
            method="PUT",
            removes=False,
        ),
        None,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "whether clients may register further schemas",
        BOOLEAN,
        Face("isAllowAutoUpdateSchema", ("is_allow_auto_update_schema",), removes=False),
        None,
    ),
    Row(
        "SCHEMA_COMPATIBILITY_STRATEGY",
        "whether producers of a topic with a schema need one",
        BOOLEAN,
        Face("schemaValidationEnforced", ("schema_validation_enforced",), removes=False),
        Face("schemaValidationEnforced", ("schemaValidationEnforced",), removes=False),
        applied=lambda policies: policies.schema_validation,
        always=False,
    ),
    Row(
        "ENCRYPTION",
        "whether producers have to encrypt",
        BOOLEAN,
        Face("encryptionRequired", ("encryption_required",), removes=False),
        always=False,
    ),
)
"""What has a plain value in a record. Quotas and delays are in maps and parts of their own."""

BACKLOG_QUOTA = Row(
    "BACKLOG",
    "how much of what is not acknowledged there may be",
    Body(
        fields={
            "limit": Field("integer", maximum=LONG_MAX),
            "limitSize": Field("integer", maximum=LONG_MAX),
            "limitTime": Field("integer", -1),
            "policy": Field("string", choices=BACKLOG_QUOTA_POLICIES),
        }
    ),
    Face("backlogQuota", ("backlog_quota_map",)),
    Face("backlogQuota", ("backLogQuotaMap",)),
    _quota,
    _applied_quotas,
)

OF_SUBSCRIPTION = Row(
    "RATE",
    "what the consumers of one subscription may be sent in each period",
    _DISPATCH_RATE,
    topic=Face("{subName}/dispatchRate", ("subscriptionPolicies",)),
)


def applied_to_subscription(policies: Policies, subscription: str) -> Json:
    """What one subscription may be sent."""
    return _dispatch_rate_json(policies.dispatch_rate_of(subscription))


DELAYED_DELIVERY = Row(
    "DELAYED_DELIVERY",
    "how messages are delayed",
    Body(
        fields={
            "tickTime": Field("integer", 0, maximum=LONG_MAX),
            "active": Field("boolean", False),
            "maxDeliveryDelayInMillis": Field("integer", 0, maximum=LONG_MAX),
        }
    ),
    Face("delayedDelivery", ("delayed_delivery_policies",)),
    Face("delayedDelivery", ()),
    applied=_applied_delayed_delivery,
)
DELAYED_DELIVERY_FIELDS = {
    "tickTime": "delayedDeliveryTickTimeMillis",
    "active": "delayedDeliveryEnabled",
    "maxDeliveryDelayInMillis": "delayedDeliveryMaxDelayInMillis",
}
"""The parts of delayed delivery, and the fields of a topic's record that have them."""
