"""What a namespace's policies say about its topics, and the settings where they are silent.

The record is Pulsar's Policies, JSON at /admin/policies/<tenant>/<namespace>. It is read for the
fields below; what else is in it stays as it is.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.settings.config import Config

DELETE_WHEN_NO_SUBSCRIPTIONS = "delete_when_no_subscriptions"
DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP = "delete_when_subscriptions_caught_up"
INACTIVE_TOPIC_DELETE_MODES = (DELETE_WHEN_NO_SUBSCRIPTIONS, DELETE_WHEN_SUBSCRIPTIONS_CAUGHT_UP)


class AutoTopicCreation(NamedTuple):
    """What happens when a client names a topic that does not exist (autoTopicCreationOverride)."""

    allowed: bool
    partitions: int  # of the topic that is made; 0: it is not partitioned


class InactiveTopics(NamedTuple):
    """When a topic that nobody uses is deleted (inactive_topic_policies)."""

    delete: bool
    mode: str  # one of INACTIVE_TOPIC_DELETE_MODES
    max_inactive_s: float


class NamespacePolicies(NamedTuple):
    """The policies of one namespace as they hold for its topics."""

    auto_topic_creation: AutoTopicCreation
    inactive_topics: InactiveTopics
    retention_s: float  # of acknowledged messages; negative: for ever
    retention_bytes: int  # of them; negative: however many they are


def namespace_policies(namespace: str, value: bytes, config: Config) -> NamespacePolicies:
    """Decodes the policies of a namespace. Raises MetadataStoreError when they cannot be."""
    try:
        record: dict[str, Any] = json.loads(value)
        return NamespacePolicies(
            _auto_topic_creation(record.get("autoTopicCreationOverride"), config),
            _inactive_topics(record.get("inactive_topic_policies"), config),
            *_retention(record.get("retention_policies"), config),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetadataStoreError(
            f"The policies of namespace {namespace} cannot be read: {error!r}"
        ) from error


def _auto_topic_creation(record: dict[str, Any] | None, config: Config) -> AutoTopicCreation:
    """An override says all of it: what it leaves out is not looked up in the settings."""
    if record is None:
        allowed, kind = config.allowAutoTopicCreation, config.allowAutoTopicCreationType
        partitions = config.defaultNumPartitions
    else:
        allowed, kind = bool(record["allowAutoTopicCreation"]), record.get("topicType", "")
        partitions = int(record.get("defaultNumPartitions") or 0)
    return AutoTopicCreation(allowed, partitions if kind == "partitioned" else 0)


def _inactive_topics(record: dict[str, Any] | None, config: Config) -> InactiveTopics:
    if record is None:
        max_inactive_s = config.brokerDeleteInactiveTopicsMaxInactiveDurationSeconds
        return InactiveTopics(
            config.brokerDeleteInactiveTopicsEnabled,
            config.brokerDeleteInactiveTopicsMode,
            config.brokerDeleteInactiveTopicsFrequencySeconds
            if max_inactive_s is None
            else max_inactive_s,
        )
    mode = record["inactiveTopicDeleteMode"]
    if mode not in INACTIVE_TOPIC_DELETE_MODES:
        raise ValueError(f"unknown inactiveTopicDeleteMode {mode!r}")
    return InactiveTopics(
        bool(record["deleteWhileInactive"]), mode, float(record["maxInactiveDurationSeconds"])
    )


def _retention(record: dict[str, Any] | None, config: Config) -> tuple[float, int]:
    """(seconds, bytes); a size of -1 MB is no limit."""
    if record is None:
        minutes, megabytes = config.defaultRetentionTimeInMinutes, config.defaultRetentionSizeInMB
    else:
        minutes = int(record["retentionTimeInMinutes"])
        megabytes = int(record.get("retentionSizeInMB") or 0)
    return minutes * 60.0, megabytes << 20
