"""The record of a namespace in REST: Pulsar's Policies, as accepted in bodies and as shown.

A body becomes the record of a new namespace. Unknown fields are ignored, as in Pulsar. Invalid
values of policies are refused, so that no namespace starts with policies that the broker cannot
apply. The shown record has every field that Pulsar writes.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin import offload_policies
from pyxbroker.admin.offload_policies import OF_NAMESPACE
from pyxbroker.admin.policy_bodies import Field
from pyxbroker.admin.policy_checks import CheckContext, check_fields
from pyxbroker.admin.policy_table import BACKLOG_QUOTA, DELAYED_DELIVERY, ROWS, complete_quota
from pyxbroker.base.bundles import (
    BUNDLES_MAX,
    FIRST_BOUNDARY,
    LAST_BOUNDARY,
    bundles_data,
    bundles_of,
    text_of,
)
from pyxbroker.cluster.initialize import namespace_policies
from pyxbroker.policies.records import DELETED, Fields
from pyxbroker.policies.shapes import LONG_MAX, Level
from pyxbroker.settings.config import Config
from pyxbroker.web.coercion import is_null
from pyxbroker.web.errors import HttpError

# Pulsar's fields in Pulsar's order, and their JSON types.
FIELDS: dict[str, type] = {
    "auth_policies": dict,
    "replication_clusters": list,
    "allowed_clusters": list,
    "bundles": dict,
    "backlog_quota_map": dict,
    "clusterDispatchRate": dict,
    "topicDispatchRate": dict,
    "subscriptionDispatchRate": dict,
    "replicatorDispatchRate": dict,
    "clusterSubscribeRate": dict,
    "persistence": dict,
    "deduplicationEnabled": bool,
    "autoTopicCreationOverride": dict,
    "autoSubscriptionCreationOverride": dict,
    "publishMaxMessageRate": dict,
    "latency_stats_sample_rate": dict,
    "message_ttl_in_seconds": int,
    "subscription_expiration_time_minutes": int,
    "retention_policies": dict,
    DELETED: bool,
    "encryption_required": bool,
    "delayed_delivery_policies": dict,
    "inactive_topic_policies": dict,
    "subscription_auth_mode": str,
    "max_producers_per_topic": int,
    "max_consumers_per_topic": int,
    "max_consumers_per_subscription": int,
    "max_unacked_messages_per_consumer": int,
    "max_unacked_messages_per_subscription": int,
    "max_subscriptions_per_topic": int,
    "compaction_threshold": int,
    "offload_threshold": int,
    "offload_threshold_in_seconds": int,
    "offload_deletion_lag_ms": int,
    "max_topics_per_namespace": int,
    "schema_auto_update_compatibility_strategy": str,
    "schema_compatibility_strategy": str,
    "is_allow_auto_update_schema": bool,
    "schema_validation_enforced": bool,
    "offload_policies": dict,
    "deduplicationSnapshotIntervalSeconds": int,
    "subscription_types_enabled": list,
    "allowed_topic_property_keys_for_metrics": list,
    "properties": dict,
    "resource_group_name": str,
    "migrated": bool,
    "dispatcherPauseOnAckStatePersistentEnabled": bool,
    "entryFilters": dict,
}
KINDS: dict[type, str] = {dict: "an object", list: "a list"}
VALUES = {
    bool: Field("boolean"),
    int: Field("integer", maximum=LONG_MAX),
    str: Field("string"),
}
VALUES_OF_POLICIES = {
    row.namespace.path[0]: row.body.value
    for row in ROWS
    if row.namespace is not None and row.body is not None and row.body.value is not None
}
"""The values of fields: by type, and for policies with their limits and choices."""


def shown_record(fields: Fields, local: Fields, config: Config) -> Fields:
    """Return a record as REST shows it; missing fields have the values of a new namespace.

    `local` is the part that only this cluster has, with the current bundles.
    """
    bundles = config.defaultNumberOfNamespaceBundles
    whole = namespace_policies(config.clusterName, bundles)
    # Namespaces that Pulsar's brokers create do not store it.
    whole["is_allow_auto_update_schema"] = config.isAllowAutoUpdateSchemaEnabled
    whole |= {name: value for name, value in fields.items() if value is not None}
    whole["bundles"] = bundles_of(fields, local, bundles)
    known = {name: whole[name] for name in FIELDS if name in whole}
    return known | whole


def new_record(body: object, config: Config) -> Fields:
    """Return the record of a new namespace. Raises HttpError; clusters are not checked."""
    cluster, bundles = config.clusterName, config.defaultNumberOfNamespaceBundles
    if body is None:
        body = {}
    if not isinstance(body, dict):
        raise HttpError(400, "The policies must be a JSON object.")
    read = {name: _read(name, body[name]) for name in FIELDS if name in body}
    given = {name: value for name, value in read.items() if value is not None}
    # A new namespace is not marked as deleted.
    given.pop(DELETED, None)
    if not given.get("replication_clusters"):
        given["replication_clusters"] = [cluster]
    _check_ttl(given)
    given["bundles"] = _bundles(given.get("bundles") or {}, bundles)
    _check_policies(given, config)
    if OF_NAMESPACE in given:
        given[OF_NAMESPACE] = offload_policies.with_driver_flags(
            offload_policies.read(given[OF_NAMESPACE])
        )
    whole = namespace_policies(cluster, bundles) | {"is_allow_auto_update_schema": True} | given
    return {name: whole[name] for name in FIELDS if name in whole}


def _read(name: str, value: Any) -> Any:
    """Return the value of a field, or None if it is null. Raises HttpError 400."""
    kind = FIELDS[name]
    field = VALUES_OF_POLICIES.get(name) or VALUES.get(kind)
    if field is not None:
        return None if is_null(value) else field.read(value, name)
    if value is not None and not isinstance(value, kind):
        raise HttpError(400, f"{name} must be {KINDS[kind]}, not {value!r:.100}.")
    return value


def _check_policies(fields: Fields, config: Config) -> None:
    """Check each policy as if it were set separately, except that numbers below 0 mean
    "not set".
    """
    for row in (*ROWS, DELAYED_DELIVERY):
        if row.namespace is None or row.body is None or row.body.value is not None:
            continue
        name, *of_cluster = row.namespace.path
        value = fields.get(name)
        if value is None:
            continue
        if not of_cluster:
            fields[name] = row.body.read(value)
            row.check(fields[name], CheckContext(config, fields, is_topic=False))
            continue
        rates = {key: each for key, each in value.items() if each is not None}
        fields[name] = {key: row.body.read(each) for key, each in rates.items()}
        if config.clusterName in rates:
            row.check(
                fields[name][config.clusterName], CheckContext(config, fields, is_topic=False)
            )
    quotas, body = fields.get("backlog_quota_map"), BACKLOG_QUOTA.body
    if quotas is not None and body is not None:
        fields["backlog_quota_map"] = {
            key: complete_quota(body.read(each)) for key, each in quotas.items() if each is not None
        }
    check_fields(fields, Level.NAMESPACE, config.clusterName)


def _check_ttl(fields: Fields) -> None:
    if fields.get("message_ttl_in_seconds", 0) < 0:
        raise HttpError(412, "Invalid value for message TTL")


def _bundles(body: Fields, default: int) -> Fields:
    """Return BundlesData of a new namespace: from boundaries, from a count, or with the default."""
    count = Field("integer", 0).read(body.get("numBundles"), "numBundles")
    if count <= 0:
        return bundles_data(default)
    boundaries = body.get("boundaries") or []
    if not isinstance(boundaries, list):
        raise HttpError(400, "The boundaries of bundles must be a list.")
    if max(count, len(boundaries) - 1) > BUNDLES_MAX:
        raise HttpError(400, f"A namespace has at most {BUNDLES_MAX} bundles.")
    if not boundaries:
        return bundles_data(count)
    try:
        hashes = sorted({int(each, 16) for each in boundaries})
    except (TypeError, ValueError):
        raise HttpError(400, "A boundary of a bundle is text such as 0x40000000.") from None
    texts = [text_of(each & LAST_BOUNDARY) for each in hashes]
    if (hashes[0], hashes[-1]) != (FIRST_BOUNDARY, LAST_BOUNDARY):
        raise HttpError(
            400,
            f"Input bundles do not cover the whole hash range. first:{texts[0]}, last:{texts[-1]}",
        )
    return {"boundaries": texts, "numBundles": len(texts) - 1}
