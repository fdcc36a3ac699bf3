"""Checks of policy values, with Pulsar's statuses and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pyxbroker.admin.policy_bodies import Json
from pyxbroker.policies.resolver import Record, resolve
from pyxbroker.policies.shapes import Level
from pyxbroker.policies.values import SUBSCRIBE_PERIOD_MAX_S, Policies
from pyxbroker.settings.config import Config
from pyxbroker.web.errors import HttpError

QUOTA_TYPES = ("destination_storage", "message_age")


class CheckContext(NamedTuple):
    """The context of a check: the settings and the record that the value belongs to."""

    config: Config
    record: dict[str, Any]  # of the same level, before the change
    is_topic: bool
    quota_type: str = QUOTA_TYPES[0]


Check = Callable[[Json, CheckContext], None]


def unchecked(value: Json, context: CheckContext) -> None:
    return None


def at_least_zero(reason: str, of_topic: str = "") -> Check:
    """Return a check that refuses numbers below 0 with a reason."""

    def check(value: int, context: CheckContext) -> None:
        if value < 0:
            raise HttpError(412, of_topic if context.is_topic and of_topic else reason)

    return check


def check_retention(value: dict[str, int], context: CheckContext) -> None:
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
    quotas = context.record.get("backLogQuotaMap" if context.is_topic else "backlog_quota_map")
    if isinstance(quotas, dict) and any(
        _exceeds(quotas.get(each), each, value) for each in QUOTA_TYPES
    ):
        raise HttpError(
            412,
            "Retention Quota must exceed configured backlog quota for topic. Please increase"
            " retention quota and retry"
            if context.is_topic
            else "Retention Quota must exceed configured backlog quota for namespace.",
        )


def check_quota(value: dict[str, Any], context: CheckContext) -> None:
    field = "retentionPolicies" if context.is_topic else "retention_policies"
    retention = context.record.get(field)
    if retention is not None and _exceeds(value, context.quota_type, retention):
        what = "topic" if context.is_topic else "namespace"
        raise HttpError(
            412,
            f"Backlog Quota exceeds configured retention quota for {what}. Please increase"
            " retention quota and retry",
        )


def _exceeds(quota: object, quota_type: str, retention: object) -> bool:
    """Return True if both are limits and the quota allows more backlog than retention stores."""
    if quota_type == "destination_storage":
        limit = _int_field(quota, "limitSize", _int_field(quota, "limit", -1))
        kept = _int_field(retention, "retentionSizeInMB", 0) << 20
    else:
        limit = _int_field(quota, "limitTime", -1)
        kept = _int_field(retention, "retentionTimeInMinutes", 0) * 60
    return 0 < kept <= limit


def _int_field(fields: object, name: str, default: int) -> int:
    """Return an integer field of an object; a value of another type counts as missing."""
    value = fields.get(name) if isinstance(fields, dict) else None
    return value if type(value) is int else default


def check_persistence(value: dict[str, Any], context: CheckContext) -> None:
    config = context.config
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


def check_auto_topic_creation(value: dict[str, Any], context: CheckContext) -> None:
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
    limit = context.config.maxNumPartitionsPerPartitionedTopic
    if limit and count > limit:
        raise HttpError(406, f"Number of partitions should be less than or equal to {limit}")


def check_subscribe_period(value: dict[str, int], context: CheckContext) -> None:
    if value["ratePeriodInSecond"] > SUBSCRIBE_PERIOD_MAX_S:
        raise HttpError(412, f"ratePeriodInSecond must be <= {SUBSCRIBE_PERIOD_MAX_S}.")


def check_message_size(value: int, context: CheckContext) -> None:
    if not 0 <= value <= context.config.maxMessageSize:
        raise HttpError(
            412,
            "topic-level maxMessageSize must be greater than or equal to 0 and must be smaller than"
            " that in the broker-level",
        )


def check_fields(fields: dict[str, Any], level: Level, cluster: str) -> None:
    """Raise HttpError 400 for a policy that cannot be applied.

    Called after the checks above, which have Pulsar's messages.
    """
    _, refusals = resolve([Record(level, "", fields)], Policies(), Policies(), cluster)
    for each in refusals:
        raise HttpError(400, f"{each.field}: {each.reason}")
