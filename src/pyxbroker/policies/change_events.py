"""The records of topics: Pulsar's PulsarEvent, Avro in the system topic `__change_events`.

Each namespace has one such topic. A message contains one complete record of a topic
(TopicPolicies). A topic has two records: its own, and the one that all clusters share. The key of
the message names the topic and the record. The newest message of a key counts; a null value
removes the record. Apache Pulsar 4.2 writes the fields of each Avro record sorted by name. Each
field is a union with null, except where Java has a primitive.
"""

from __future__ import annotations

import functools
import io
from typing import Any, NamedTuple

from pyxbroker.base.errors import PoliciesTooLarge
from pyxbroker.base.topic_name import TopicName

GLOBAL_KEY = "__G__"
"""Prefix of the key of a record that all clusters share."""

EVENT_BYTES_MAX = 64 << 10
"""Limit of one event: rates for a thousand subscriptions, which take some 10 ms to decode."""

ELEMENTS_MAX = 2_000
"""Limit of one list or map in a record."""

_EVENTS = "org.apache.pulsar.common.events"
_DATA = "org.apache.pulsar.common.policies.data"
_IMPL = _DATA + ".impl"


class TopicRecord(NamedTuple):
    """One record of a topic: the fields that are set."""

    topic: TopicName  # never a partition
    is_global: bool
    fields: dict[str, Any]


# --- the Avro schema ------------------------------------------------------------------------------


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


def _record(name: str, fields: dict[str, Any], namespace: str = _DATA) -> dict[str, Any]:
    """Return an Avro record type. A field whose type is a union is optional."""
    rows = [
        {"name": field, "type": kind} | ({"default": None} if isinstance(kind, list) else {})
        for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "namespace": namespace, "fields": rows}


def _enum(name: str, *symbols: str, namespace: str = _DATA) -> dict[str, Any]:
    return {"type": "enum", "name": name, "namespace": namespace, "symbols": list(symbols)}


def _map(values: Any) -> dict[str, Any]:
    return {"type": "map", "values": values}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_BOOLEAN, _INT, _LONG, _STRING = map(_optional, ("boolean", "int", "long", "string"))

_AUTO_SUBSCRIPTION_CREATION = _record(
    "AutoSubscriptionCreationOverrideImpl", {"allowAutoSubscriptionCreation": "boolean"}, _IMPL
)
_BACKLOG_QUOTA = _record(
    "BacklogQuotaImpl",
    {
        "limit": "long",
        "limitSize": _LONG,
        "limitTime": "int",
        "policy": _optional(
            _enum(
                "RetentionPolicy",
                *("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
                namespace=_DATA + ".BacklogQuota",
            )
        ),
    },
    _IMPL,
)
_DISPATCH_RATE = _record(
    "DispatchRateImpl",
    {
        "dispatchThrottlingRateInByte": "long",
        "dispatchThrottlingRateInMsg": "int",
        "ratePeriodInSecond": "int",
        "relativeToPublishRate": "boolean",
    },
    _IMPL,
)
_DISPATCH_RATE_AGAIN = _IMPL + ".DispatchRateImpl"
_INACTIVE_TOPICS = _record(
    "InactiveTopicPolicies",
    {
        "deleteWhileInactive": "boolean",
        "inactiveTopicDeleteMode": _optional(
            _enum(
                "InactiveTopicDeleteMode",
                *("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
            )
        ),
        "maxInactiveDurationSeconds": "int",
    },
)
_OFFLOAD = _record(
    "OffloadPoliciesImpl",
    {
        "fileSystemProfilePath": _STRING,
        "fileSystemURI": _STRING,
        "gcsManagedLedgerOffloadBucket": _STRING,
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes": _INT,
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": _INT,
        "gcsManagedLedgerOffloadRegion": _STRING,
        "gcsManagedLedgerOffloadServiceAccountKeyFile": _STRING,
        "managedLedgerExtraConfigurations": _optional(_map("string")),
        "managedLedgerOffloadBucket": _STRING,
        "managedLedgerOffloadDeletionLagInMillis": _LONG,
        "managedLedgerOffloadDriver": _STRING,
        "managedLedgerOffloadMaxBlockSizeInBytes": _INT,
        "managedLedgerOffloadMaxThreads": _INT,
        "managedLedgerOffloadPrefetchRounds": _INT,
        "managedLedgerOffloadReadBufferSizeInBytes": _INT,
        "managedLedgerOffloadReadThreads": _INT,
        "managedLedgerOffloadRegion": _STRING,
        "managedLedgerOffloadServiceEndpoint": _STRING,
        "managedLedgerOffloadThresholdInBytes": _LONG,
        "managedLedgerOffloadThresholdInSeconds": _LONG,
        "managedLedgerOffloadedReadPriority": _optional(
            _enum("OffloadedReadPriority", "BOOKKEEPER_FIRST", "TIERED_STORAGE_FIRST")
        ),
        "offloadersDirectory": _STRING,
        "s3ManagedLedgerOffloadBucket": _STRING,
        "s3ManagedLedgerOffloadCredentialId": _STRING,
        "s3ManagedLedgerOffloadCredentialSecret": _STRING,
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": _INT,
        "s3ManagedLedgerOffloadReadBufferSizeInBytes": _INT,
        "s3ManagedLedgerOffloadRegion": _STRING,
        "s3ManagedLedgerOffloadRole": _STRING,
        "s3ManagedLedgerOffloadRoleSessionName": _STRING,
        "s3ManagedLedgerOffloadServiceEndpoint": _STRING,
    },
)
_PERSISTENCE = _record(
    "PersistencePolicies",
    {
        "bookkeeperAckQuorum": "int",
        "bookkeeperEnsemble": "int",
        "bookkeeperWriteQuorum": "int",
        "managedLedgerMaxMarkDeleteRate": "double",
        "managedLedgerStorageClassName": _STRING,
    },
)
_PUBLISH_RATE = _record(
    "PublishRate", {"publishThrottlingRateInByte": "long", "publishThrottlingRateInMsg": "int"}
)
_RETENTION = _record(
    "RetentionPolicies", {"retentionSizeInMB": "long", "retentionTimeInMinutes": "int"}
)
_SCHEMA_COMPATIBILITY = _enum(
    "SchemaCompatibilityStrategy",
    *("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)
_SUBSCRIBE_RATE = _record(
    "SubscribeRate", {"ratePeriodInSecond": "int", "subscribeThrottlingRatePerConsumer": "int"}
)
_SUBSCRIPTION_TYPE = _enum(
    "SubType",
    *("Exclusive", "Shared", "Failover", "Key_Shared"),
    namespace="org.apache.pulsar.common.api.proto.CommandSubscribe",
)

TOPIC_POLICIES = {
    "autoSubscriptionCreationOverride": _optional(_AUTO_SUBSCRIPTION_CREATION),
    "backLogQuotaMap": _optional(_map(_BACKLOG_QUOTA)),
    "compactionThreshold": _LONG,
    "deduplicationEnabled": _BOOLEAN,
    "deduplicationSnapshotIntervalSeconds": _INT,
    "delayedDeliveryEnabled": _BOOLEAN,
    "delayedDeliveryMaxDelayInMillis": _LONG,
    "delayedDeliveryTickTimeMillis": _LONG,
    "dispatchRate": _optional(_DISPATCH_RATE),
    "dispatcherPauseOnAckStatePersistentEnabled": _BOOLEAN,
    "entryFilters": _optional(_record("EntryFilters", {"entryFilterNames": _STRING})),
    "inactiveTopicPolicies": _optional(_INACTIVE_TOPICS),
    "isGlobal": _BOOLEAN,
    "maxConsumerPerTopic": _INT,
    "maxConsumersPerSubscription": _INT,
    "maxMessageSize": _INT,
    "maxProducerPerTopic": _INT,
    "maxSubscriptionsPerTopic": _INT,
    "maxUnackedMessagesOnConsumer": _INT,
    "maxUnackedMessagesOnSubscription": _INT,
    "messageTTLInSeconds": _INT,
    "offloadPolicies": _optional(_OFFLOAD),
    "persistence": _optional(_PERSISTENCE),
    "publishRate": _optional(_PUBLISH_RATE),
    "replicationClusters": _optional(_array("string")),
    "replicatorDispatchRate": _optional(_DISPATCH_RATE_AGAIN),
    "retentionPolicies": _optional(_RETENTION),
    "schemaCompatibilityStrategy": _optional(_SCHEMA_COMPATIBILITY),
    "schemaValidationEnforced": _BOOLEAN,
    "shadowTopics": _optional(_array("string")),
    "subscribeRate": _optional(_SUBSCRIBE_RATE),
    "subscriptionDispatchRate": _optional(_DISPATCH_RATE_AGAIN),
    "subscriptionExpirationTimeInMinutes": _INT,
    "subscriptionPolicies": _optional(
        _map(_record("SubscriptionPolicies", {"dispatchRate": _optional(_DISPATCH_RATE_AGAIN)}))
    ),
    "subscriptionTypesEnabled": _optional(_array(_SUBSCRIPTION_TYPE)),
}
"""The fields of a topic's record, with their Avro types."""

# Without a type hint, fastavro matches a value of a union with each type, including all nested
# fields.
_TOPIC_POLICIES = _DATA + ".TopicPolicies"
_TOPIC_POLICIES_EVENT = _EVENTS + ".TopicPoliciesEvent"

# Fields that Apache Pulsar never writes as null.
_EMPTY: dict[str, Any] = {
    "backLogQuotaMap": {},
    "subscriptionPolicies": {},
    "subscriptionTypesEnabled": [],
}


@functools.cache
def schema() -> Any:
    """Return the Avro schema of PulsarEvent, parsed by fastavro."""
    import fastavro

    event = {
        "domain": _STRING,
        "namespace": _STRING,
        "policies": _optional(_record("TopicPolicies", TOPIC_POLICIES)),
        "tenant": _STRING,
        "topic": _STRING,
    }
    kinds = _enum(
        "EventType",
        *("TOPIC_POLICY", "TRANSACTION_BUFFER_SNAPSHOT"),
        *("TRANSACTION_BUFFER_SNAPSHOT_SEGMENTS", "TRANSACTION_BUFFER_SNAPSHOT_INDEXES"),
        namespace=_EVENTS,
    )
    actions = _enum("ActionType", "INSERT", "DELETE", "UPDATE", "NONE", namespace=_EVENTS)
    whole = _record(
        "PulsarEvent",
        {
            "actionType": _optional(actions),
            "eventType": _optional(kinds),
            "replicateTo": _optional(_array("string")),
            "topicPoliciesEvent": _optional(_record("TopicPoliciesEvent", event, _EVENTS)),
        },
        _EVENTS,
    )
    return fastavro.parse_schema(whole)


# --- messages -------------------------------------------------------------------------------------


def key_of(topic: TopicName, is_global: bool) -> str:
    """Return the key of the messages of a record."""
    return (GLOBAL_KEY if is_global else "") + str(topic)


def record_of_key(key: str) -> tuple[TopicName, bool]:
    """Return the topic that a key names, and True if all clusters share the record.

    Raise InvalidTopicName.
    """
    is_global = key.startswith(GLOBAL_KEY)
    return TopicName.get(key.removeprefix(GLOBAL_KEY)), is_global


def encode(record: TopicRecord, cluster: str) -> bytes:
    """Return the value of a message. A record of this cluster alone is marked as not replicated.

    Raise PoliciesTooLarge.
    """
    import fastavro

    topic = record.topic
    policies = {name: record.fields.get(name, _EMPTY.get(name)) for name in TOPIC_POLICIES} | {
        "isGlobal": record.is_global,
        "subscriptionPolicies": {
            name: _with_kind_of_rate(each)
            for name, each in (record.fields.get("subscriptionPolicies") or {}).items()
        },
    }
    event = {
        "domain": topic.domain,
        "tenant": topic.tenant,
        "namespace": topic.namespace_portion,
        "topic": topic.local_name,
        "policies": (_TOPIC_POLICIES, policies),
    }
    whole = {
        "actionType": "UPDATE",
        "eventType": "TOPIC_POLICY",
        "replicateTo": None if record.is_global else [cluster],
        "topicPoliciesEvent": (_TOPIC_POLICIES_EVENT, event),
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema(), whole)
    value = out.getvalue()
    trouble = _bytes_trouble(value) or _elements_trouble(record.fields)
    if trouble is not None:
        raise PoliciesTooLarge(f"The policies of topic {topic} are too large: {trouble}.")
    return value


def _with_kind_of_rate(policies: dict[str, Any]) -> dict[str, Any]:
    rate = policies.get("dispatchRate")
    return policies if rate is None else {"dispatchRate": (_DISPATCH_RATE_AGAIN, rate)}


def decode(value: bytes) -> TopicRecord | None:
    """Return the record in a message's value, or None.

    None means an event that removes the record or is not about a topic's policies. Raise ValueError
    if the value is not a PulsarEvent, or is too large.
    """
    import fastavro

    trouble = _bytes_trouble(value)
    if trouble is not None:
        raise ValueError(trouble)

    try:
        event: Any = fastavro.schemaless_reader(io.BytesIO(value), schema(), None)
        topic_event = event["topicPoliciesEvent"]
        if event["eventType"] != "TOPIC_POLICY" or topic_event is None:
            return None
        domain, tenant, namespace, topic = (
            topic_event[name] for name in ("domain", "tenant", "namespace", "topic")
        )
        name = TopicName.get(f"{domain}://{tenant}/{namespace}/{topic}")
    except Exception as error:
        # fastavro raises many kinds of errors for bytes that are not Avro.
        raise ValueError(f"the value is not a PulsarEvent: {error!r:.200}") from error
    policies = topic_event["policies"]
    if policies is None or event["actionType"] == "DELETE":
        return None
    is_global = bool(policies["isGlobal"])
    fields = {
        field: value
        for field, value in _without_null(policies).items()
        if field != "isGlobal" and value != _EMPTY.get(field)
    }
    trouble = _elements_trouble(fields)
    if trouble is not None:
        raise ValueError(trouble)
    return TopicRecord(name, is_global, fields)


def _bytes_trouble(value: bytes) -> str | None:
    """Return why an event is too large as a whole, or None."""
    if len(value) <= EVENT_BYTES_MAX:
        return None
    return f"an event of {len(value)} bytes is larger than {EVENT_BYTES_MAX}"


def _elements_trouble(fields: dict[str, Any]) -> str | None:
    """Return why a field has too many elements, or None.

    Elements of a single byte are much larger in memory.
    """
    for field, value in fields.items():
        parts = value.values() if isinstance(value, dict) else ()
        for each in (value, *parts):
            if isinstance(each, (dict, list)) and len(each) > ELEMENTS_MAX:
                return f"{field} has {len(each)} elements, more than {ELEMENTS_MAX}"
    return None


def _without_null(value: Any) -> Any:
    """Return a value without null fields, as REST shows it."""
    if not isinstance(value, dict):
        return value
    return {name: _without_null(each) for name, each in value.items() if each is not None}
