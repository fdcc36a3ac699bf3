"""Offload policies as Pulsar's REST accepts, stores and shows them: its OffloadPoliciesImpl.

This broker does not offload. The policies are stored for tools that read what they have set, and
for Apache Pulsar's brokers on the same metadata.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.resources.names import strings_of
from pyxbroker.policies.change_events import TOPIC_POLICIES
from pyxbroker.policies.records import Fields
from pyxbroker.policies.shapes import INT_MAX, LONG_MAX
from pyxbroker.web.errors import HttpError

OF_NAMESPACE = "offload_policies"
OF_TOPIC = "offloadPolicies"
"""The fields in the records of namespaces and of topics."""

THRESHOLD_BYTES = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_SECONDS = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG = "managedLedgerOffloadDeletionLagInMillis"
LEGACY_FIELDS = {
    THRESHOLD_BYTES: ("offload_threshold", -1),
    THRESHOLD_SECONDS: ("offload_threshold_in_seconds", -1),
    DELETION_LAG: ("offload_deletion_lag_ms", None),
}
"""The fields of namespace records in which older brokers store these policies, and their values if
nothing is set.
"""

DRIVER = "managedLedgerOffloadDriver"
BUCKET = "managedLedgerOffloadBucket"
S3, GCS = ("s3", "aws-s3"), ("google-cloud-storage",)
FILES, OTHER_DRIVERS = ("filesystem",), ("azureblob", "aliyun-oss")
UNKNOWN_DRIVER = (
    "The driver is not supported, support value:"
    " S3,aws-s3,google-cloud-storage,filesystem,azureblob,aliyun-oss"
)
NO_BUCKET = "The bucket must be specified for namespace offload."
NO_POLICIES = "The offloadPolicies must be specified for namespace offload."

EXTRA = "managedLedgerExtraConfigurations"
DEFAULTS: dict[str, Any] = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadReadThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    EXTRA: {},
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 64 << 20,
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1 << 20,
    "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 128 << 20,
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1 << 20,
}


def _field(kind: Any) -> Field:
    """Return the field of a body for a type of the Avro schema."""
    if kind in ("int", "long"):
        return Field("integer", maximum=LONG_MAX if kind == "long" else INT_MAX)
    return Field("string", choices=() if kind == "string" else tuple(kind["symbols"]))


BODY = Body(
    fields={
        each["name"]: _field(each["type"][1])
        for each in TOPIC_POLICIES[OF_TOPIC][1]["fields"]
        if each["name"] != EXTRA
    }
)


def read(body: object) -> Fields:
    """Return the policies of a body, completed with Pulsar's defaults. Raises HttpError 400."""
    given = BODY.read(body)
    assert isinstance(body, dict)
    texts = body.get(EXTRA)
    if isinstance(texts, dict):
        texts = {name: text for name, text in texts.items() if text is not None}
    return DEFAULTS | given | {EXTRA: strings_of(texts, EXTRA)}


def check(policies: Fields) -> None:
    """Raise HttpError 412 for an unknown driver, or for one without a bucket."""
    driver = policies.get(DRIVER, "").lower()
    if driver not in (*S3, *GCS, *FILES, *OTHER_DRIVERS):
        raise HttpError(412, UNKNOWN_DRIVER)
    older = "s3" if driver in S3 else "gcs" if driver in GCS else ""
    buckets = (BUCKET, f"{older}ManagedLedgerOffloadBucket" if older else BUCKET)
    if driver not in FILES and not any(policies.get(name) for name in buckets):
        raise HttpError(412, NO_BUCKET)


def with_driver_flags(policies: Fields) -> Fields:
    """Return policies as Pulsar writes them: without unset fields, with flags for the driver."""
    driver = str(policies.get(DRIVER)).lower()
    return {name: value for name, value in policies.items() if value is not None} | {
        "s3Driver": driver in S3,
        "gcsDriver": driver in GCS,
        "fileSystemDriver": driver in FILES,
    }


def of_namespace(record: Fields) -> Fields | None:
    """Return the policies of a namespace, also from the older fields, or None if nothing is set."""
    found = record.get(OF_NAMESPACE)
    if isinstance(found, dict):
        return found
    older = {name: record.get(field, unset) for name, (field, unset) in LEGACY_FIELDS.items()}
    given = {name: value for name, value in older.items() if value != LEGACY_FIELDS[name][1]}
    return DEFAULTS | given if given else None


def set_of_namespace(record: Fields, policies: Fields | None) -> None:
    """Set or remove (None) the policies of a namespace record.

    The older fields are reset, as in Apache Pulsar.
    """
    for field, unset in LEGACY_FIELDS.values():
        record[field] = unset
    record[OF_NAMESPACE] = None if policies is None else with_driver_flags(policies)
    for field in (OF_NAMESPACE, LEGACY_FIELDS[DELETION_LAG][0]):
        if record[field] is None:
            del record[field]
