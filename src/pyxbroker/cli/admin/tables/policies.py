"""Rows of policies: for each policy the commands get, set and remove, and the options of set.

The options of one policy are the same in `namespaces`, `topics` and `topicPolicies`.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from pyxbroker.cli.admin.output import pairs_of
from pyxbroker.cli.admin.rows import (
    Command,
    Option,
    Print,
    argument,
    choice,
    delete,
    flag,
    function,
    get,
    megabytes,
    milliseconds,
    minutes,
    namespace,
    option,
    request,
    seconds,
    size,
    switch,
    topic,
    words,
)
from pyxbroker.client.admin import AdminClient

NAMESPACE = argument("namespace", "tenant/namespace.", namespace)
TOPIC = argument("topic", "A topic: persistent://tenant/namespace/topic, or less of it.", topic)
APPLIED = flag("-ap --applied", "Print what applies, with namespace and broker.", "?applied")
APPLIED_SHORT = flag("-a --applied", APPLIED.about, "?applied")
GLOBAL = flag("-g --global", "The policy of all clusters.", "?isGlobal")


def of_namespace(
    name: str,
    resource: str,
    about: str,
    *options: Option,
    body: Any = None,
    method: str = "POST",
    check: Any = None,
    printed: Print | None = None,
    commands: tuple[str, ...] = ("get", "set", "remove"),
) -> dict[str, Command]:
    """Return the commands of a policy of namespaces."""
    path = f"/admin/v2/namespaces/{{namespace}}/{resource}"
    rows = {
        "get": get(f"Print {about}.", path, NAMESPACE, printed=printed),
        "set": request(method, f"Set {about}.", path, NAMESPACE, *options, body=body, check=check),
        "remove": delete(f"Remove {about}; that of the broker applies.", path, NAMESPACE),
    }
    return {f"{each}-{name}": rows[each] for each in commands}


def of_topic(
    name: str,
    resource: str,
    about: str,
    *options: Option,
    applied: Option | None = APPLIED,
    scope: tuple[Option, ...] = (GLOBAL,),
    body: Any = None,
    method: str = "POST",
    check: Any = None,
    printed: Print | None = None,
    read: str = "",
) -> dict[str, Command]:
    """Return the commands of a policy of topics. read: the resource that get asks for."""
    path = f"/admin/v2/{{topic}}/{resource}"
    shown = (*scope, applied) if applied else scope
    return {
        f"get-{name}": get(
            f"Print {about}.",
            f"/admin/v2/{{topic}}/{read}" if read else path,
            TOPIC,
            *shown,
            printed=printed,
        ),
        f"set-{name}": request(
            method, f"Set {about}.", path, TOPIC, *options, *scope, body=body, check=check
        ),
        f"remove-{name}": delete(
            f"Remove {about}; that of the namespace applies.", path, TOPIC, *scope
        ),
    }


# --- options of set -------------------------------------------------------------------------------


def number(names: str, about: str, *, to: str = "=") -> Option:
    """Return a required option whose value is a number."""
    return option(names, about, to, int, required=True)


RETENTION = (
    option(
        "-t --time",
        "How long acknowledged messages stay: 90 (seconds), 10m, 3h, 7d; 0: not, -1: for ever.",
        "retentionTimeInMinutes",
        minutes,
        required=True,
    ),
    option(
        "-s --size",
        "How much of them stays: 4096 (bytes), 10M, 16G, 3T; 0: nothing, -1: no limit.",
        "retentionSizeInMB",
        megabytes,
        required=True,
    ),
)
QUOTA_TYPE = option(
    "-t --type",
    "destination_storage, a limit of the size, or message_age.",
    "?backlogQuotaType",
    choice("destination_storage", "message_age"),
    default="destination_storage",
)
QUOTA = (
    option("-l --limit", "The size of a backlog: 10M, 16G.", "limitSize", size),
    option("-lt --limitTime", "The age of its oldest message: 100m, 3h.", "limitTime", seconds),
    option(
        "-p --policy",
        "What happens then: producer_request_hold, producer_exception, consumer_backlog_eviction.",
        "policy",
        choice("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
        required=True,
    ),
    QUOTA_TYPE,
)
QUOTA_FIELDS = {"limitSize": -1, "limitTime": -1}


def set_quota(path: str, *options: Option) -> Command:
    """Return the command that sets a quota; a limit of the other type is not sent."""

    async def run(client: AdminClient, values: Namespace) -> None:
        is_age = values.type == "message_age"
        limits = {"limitTime": values.limitTime} if is_age else {"limitSize": values.limit}
        query = {"backlogQuotaType": values.type}
        if getattr(values, "global", False):
            query["isGlobal"] = "true"
        target = path.format_map(vars(values))
        await client.post(target, QUOTA_FIELDS | limits | {"policy": values.policy}, **query)

    return function("Set a quota of backlogs.", run, *options, *QUOTA, check=_check_quota)


def _check_quota(values: Namespace) -> str:
    if values.type == "message_age":
        return "" if values.limitTime is not None else "--type message_age needs --limitTime."
    return "" if values.limit is not None else "--type destination_storage needs --limit."


def quotas_text(quotas: Any) -> str:
    """Return a line for each quota, as pulsar-admin prints it."""
    return pairs_of(
        {
            name: f"BacklogQuotaImpl(limit={each.get('limitSize')},"
            f" limitSize={each.get('limitSize')}, limitTime={each.get('limitTime')},"
            f" policy={each.get('policy')})"
            for name, each in (quotas or {}).items()
        }
    )


PERSISTENCE = (
    option(
        "-e --bookkeeper-ensemble", "Bookies of a ledger.", "bookkeeperEnsemble", int, default=2
    ),
    option(
        "-w --bookkeeper-write-quorum",
        "Bookies that store an entry.",
        "bookkeeperWriteQuorum",
        int,
        default=2,
    ),
    option(
        "-a --bookkeeper-ack-quorum",
        "Bookies that have stored an entry before its receipt.",
        "bookkeeperAckQuorum",
        int,
        default=2,
    ),
    option(
        "-r --ml-mark-delete-max-rate",
        "Writes of a cursor per second; 0: no limit.",
        "managedLedgerMaxMarkDeleteRate",
        float,
        default=0.0,
    ),
    option("-c --ml-storage-class", "A class of storage.", "managedLedgerStorageClassName"),
)
_DISPATCH_RATE = (
    option(
        "-md --msg-dispatch-rate",
        "Messages per period; -1: no limit.",
        "dispatchThrottlingRateInMsg",
        int,
        default=-1,
    ),
    option(
        "-bd --byte-dispatch-rate",
        "Bytes per period; -1: no limit.",
        "dispatchThrottlingRateInByte",
        int,
        default=-1,
    ),
    option(
        "-dt --dispatch-rate-period", "The period in seconds.", "ratePeriodInSecond", int, default=1
    ),
)
DISPATCH_RATE = (
    *_DISPATCH_RATE,
    flag(
        "-rp --relative-to-publish-rate",
        "Add the rates to the rate of publishing.",
        "relativeToPublishRate",
    ),
)
REPLICATOR_RATE = _DISPATCH_RATE
SUBSCRIBE_RATE = (
    option(
        "-sr --subscribe-rate",
        "Subscribe commands of a consumer per period; -1: no limit.",
        "subscribeThrottlingRatePerConsumer",
        int,
        default=-1,
    ),
    option(
        "-st --subscribe-rate-period",
        "The period in seconds.",
        "ratePeriodInSecond",
        int,
        default=30,
    ),
)
PUBLISH_RATE = (
    option(
        "-m --msg-publish-rate",
        "Messages per second; -1: no limit.",
        "publishThrottlingRateInMsg",
        int,
        default=-1,
    ),
    option(
        "-b --byte-publish-rate",
        "Bytes per second; -1: no limit.",
        "publishThrottlingRateInByte",
        int,
        default=-1,
    ),
)
SUBSCRIPTION_TYPES = (
    option(
        "-t --types",
        "Exclusive, Shared, Failover, Key_Shared, separated by commas.",
        "=",
        words,
        required=True,
    ),
)
DEDUPLICATION = switch("-e --enable", "-d --disable", "deduplication", "=")
DELAYED_DELIVERY = (
    *switch("-e --enable", "-d --disable", "delayed delivery", "active"),
    option(
        "-t --time",
        "The tick of delayed delivery: 1s, 1m.",
        "tickTime",
        milliseconds,
        default=1_000,
    ),
    option(
        "-md --maxDelay",
        "The longest delay that a message may have: 1h, 2d; 0: no limit.",
        "maxDeliveryDelayInMillis",
        milliseconds,
        default=0,
    ),
)
INACTIVE_TOPICS = (
    *switch(
        "-e --enable-delete-while-inactive",
        "-d --disable-delete-while-inactive",
        "the deletion of inactive topics",
        "deleteWhileInactive",
    ),
    option(
        "-t --max-inactive-duration",
        "How long a topic is inactive before it is deleted: 60 (seconds), 3h, 7d.",
        "maxInactiveDurationSeconds",
        seconds,
        required=True,
    ),
    option(
        "-m --delete-mode",
        "delete_when_no_subscriptions or delete_when_subscriptions_caught_up.",
        "inactiveTopicDeleteMode",
        choice("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        required=True,
    ),
)
COMPACTION_THRESHOLD = (
    option(
        "-t --threshold",
        "The size of a backlog before the topic is compacted: 10M, 1G; 0: never.",
        "=",
        size,
        required=True,
    ),
)
ENTRY_FILTERS = (
    option(
        "-efn --entry-filters-name",
        "Names of filters, separated by commas.",
        "entryFilterNames",
        required=True,
    ),
)
STRATEGIES = (
    *("UNDEFINED", "ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)
# What the OffloadPoliciesImpl of pulsar-admin has when it is new.
OFFLOAD_FIELDS = {
    "offloadersDirectory": "./offloaders",
    "managedLedgerOffloadMaxThreads": 2,
    "managedLedgerOffloadPrefetchRounds": 1,
    "managedLedgerExtraConfigurations": {},
}


def offload_options(
    convert_bytes: Any = int,
    convert_seconds: Any = int,
    convert_ms: Any = int,
    more: Mapping[str, str] | None = None,
) -> Iterator[Option]:
    """Return the options of offload policies; more: further names of some of them."""

    def names(text: str) -> str:
        return f"{text} {(more or {}).get(text, '')}"

    yield option(
        "-d --driver",
        "The driver: aws-s3, filesystem, ...",
        "managedLedgerOffloadDriver",
        required=True,
    )
    yield option("-r --region", "The region.", "managedLedgerOffloadRegion")
    yield option("-b --bucket", "The bucket.", "managedLedgerOffloadBucket")
    yield option(
        "-e --endpoint", "The endpoint of the service.", "managedLedgerOffloadServiceEndpoint"
    )
    yield option("-i --aws-id", "The id of AWS credentials.", "s3ManagedLedgerOffloadCredentialId")
    yield option(
        "-s --aws-secret",
        "The secret of AWS credentials.",
        "s3ManagedLedgerOffloadCredentialSecret",
    )
    yield option("-ro --ro --s3-role", "A role of AWS.", "s3ManagedLedgerOffloadRole")
    yield option(
        "-rsn --s3-role-session-name", "Its session.", "s3ManagedLedgerOffloadRoleSessionName"
    )
    yield option(
        names("-m --maxBlockSizeInBytes"),
        "The size of a block.",
        "managedLedgerOffloadMaxBlockSizeInBytes",
        convert_bytes,
        default=64 << 20,
    )
    yield option(
        names("-rb --readBufferSizeInBytes"),
        "The size of a read.",
        "managedLedgerOffloadReadBufferSizeInBytes",
        convert_bytes,
        default=1 << 20,
    )
    yield option(
        names("-t --offloadThresholdInBytes"),
        "Offload what is above this size.",
        "managedLedgerOffloadThresholdInBytes",
        convert_bytes,
    )
    yield option(
        names("-ts --offloadThresholdInSeconds"),
        "Offload what is older.",
        "managedLedgerOffloadThresholdInSeconds",
        convert_seconds,
    )
    yield option(
        names("-dl --offloadDeletionLagInMillis"),
        "How long offloaded ledgers stay on bookies.",
        "managedLedgerOffloadDeletionLagInMillis",
        convert_ms,
    )
    yield option(
        "-orp --offloadedReadPriority",
        "tiered-storage-first or bookkeeper-first.",
        "managedLedgerOffloadedReadPriority",
        _priority,
    )


# The units that some of pulsar-admin's groups accept, and the further names that they have.
WITH_UNITS: dict[str, Any] = {
    "convert_bytes": size,
    "convert_seconds": seconds,
    "convert_ms": milliseconds,
    "more": {
        "-m --maxBlockSizeInBytes": "-mbs --maxBlockSize",
        "-rb --readBufferSizeInBytes": "-rbs --readBufferSize",
        "-t --offloadThresholdInBytes": "-oat --offloadAfterThreshold",
        "-ts --offloadThresholdInSeconds": "-oats --offloadAfterThresholdInSeconds",
        "-dl --offloadDeletionLagInMillis": "-oae --offloadAfterElapsed",
    },
}


def _priority(text: str) -> str:
    return choice("TIERED_STORAGE_FIRST", "BOOKKEEPER_FIRST")(text.replace("-", "_"))
