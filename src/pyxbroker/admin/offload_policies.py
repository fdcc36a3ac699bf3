"""Offload policies as Pulsar's REST takes, stores and shows them: its OffloadPoliciesImpl.

This broker offloads nothing. The policies are stored for tools that read back what they set, and
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
"""The fields of the records of namespaces and of topics."""

THRESHOLD_BYTES = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_SECONDS = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG = "managedLedgerOffloadDeletionLagInMillis"
OLDER = {
    THRESHOLD_BYTES: ("offload_threshold", -1),
    THRESHOLD_SECONDS: ("offload_threshold_in_seconds", -1),
    DELETION_LAG: ("offload_deletion_lag_ms", None),
}
"""The field of a namespace's record that older brokers have each of them in, and its value when
nothing is set.
"""

DRIVER = "managedLedgerOffloadDriver"
BUCKET = "managedLedgerOffloadBucket"
S3, GCS = ("s3", "aws-s3"), ("google-cloud-storage",)
FILES, OTHERS = ("filesystem",), ("azureblob", "aliyun-oss")
UNKNOWN_DRIVER = (
    "The driver is not supported, support value:"
    " S3,aws-s3,google-cloud-storage,filesystem,azureblob,aliyun-oss"
)
NO_BUCKET = "The bucket must be specified for namespace offload."
NO_POLICIES = "The offloadPolicies must be specified for namespace offload."

TEXTS = "managedLedgerExtraConfigurations"
DEFAULTS: dict[str, Any] = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadReadThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    TEXTS: {},
    "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 64 << 20,
    "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1 << 20,
    "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
    "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 128 << 20,
    "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1 << 20,
}


def _field(kind: Any) -> Field:
    """The field of a body for a type of the Avro schema."""
    if kind in ("int", "long"):
        return Field("integer", maximum=LONG_MAX if kind == "long" else INT_MAX)
    return Field("string", choices=() if kind == "string" else tuple(kind["symbols"]))


BODY = Body(
    fields={
        each["name"]: _field(each["type"][1])
        for each in TOPIC_POLICIES[OF_TOPIC][1]["fields"]
        if each["name"] != TEXTS
    }
)


def read(body: object) -> Fields:
    """The policies of a body, with Pulsar's defaults. Raises HttpError 400."""
    given = BODY.read(body)
    assert isinstance(body, dict)
    texts = body.get(TEXTS)
    if isinstance(texts, dict):
        texts = {name: text for name, text in texts.items() if text is not None}
    return DEFAULTS | given | {TEXTS: strings_of(texts, TEXTS)}


def check(policies: Fields) -> None:
    """Raises HttpError 412 for a driver that does not exist, or that has no bucket."""
    driver = policies.get(DRIVER, "").lower()
    if driver not in (*S3, *GCS, *FILES, *OTHERS):
        raise HttpError(412, UNKNOWN_DRIVER)
    older = "s3" if driver in S3 else "gcs" if driver in GCS else ""
    buckets = (BUCKET, f"{older}ManagedLedgerOffloadBucket" if older else BUCKET)
    if driver not in FILES and not any(policies.get(name) for name in buckets):
        raise HttpError(412, NO_BUCKET)


def shown(policies: Fields) -> Fields:
    """Policies as Pulsar writes them: without what is not set, and with the kind of the driver."""
    driver = str(policies.get(DRIVER)).lower()
    return {name: value for name, value in policies.items() if value is not None} | {
        "s3Driver": driver in S3,
        "gcsDriver": driver in GCS,
        "fileSystemDriver": driver in FILES,
    }


def of_namespace(record: Fields) -> Fields | None:
    """The policies of a namespace, also where only the older fields have some; None: nothing is
    set.
    """
    found = record.get(OF_NAMESPACE)
    if isinstance(found, dict):
        return found
    older = {name: record.get(field, unset) for name, (field, unset) in OLDER.items()}
    given = {name: value for name, value in older.items() if value != OLDER[name][1]}
    return DEFAULTS | given if given else None


def set_of_namespace(record: Fields, policies: Fields | None) -> None:
    """Change the record of a namespace; None removes its policies. The older fields are reset, as
    Apache Pulsar resets them.
    """
    for field, unset in OLDER.values():
        record[field] = unset
    record[OF_NAMESPACE] = None if policies is None else shown(policies)
    for field in (OF_NAMESPACE, OLDER[DELETION_LAG][0]):
        if record[field] is None:
            del record[field]
