"""Commands about topics, their subscriptions and messages."""

from __future__ import annotations

import re
import time
from argparse import ArgumentTypeError, Namespace
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyxbroker.base.command_line import fail
from pyxbroker.cli.admin.messages import messages_of, messages_text
from pyxbroker.cli.admin.output import pairs_of, pretty, text_of
from pyxbroker.cli.admin.rows import (
    Option,
    choice,
    delete,
    flag,
    function,
    get,
    namespace,
    option,
    pair,
    pairs,
    post,
    put,
    seconds,
    size,
    switch,
    topic,
    words,
)
from pyxbroker.cli.admin.tables import policies, topic_policies
from pyxbroker.cli.admin.tables.policies import APPLIED, NAMESPACE, TOPIC, number, of_topic
from pyxbroker.client.admin import AdminClient
from pyxbroker.client.errors import HttpRefused
from pyxbroker.client.http import HttpAnswer

PATH = "/admin/v2/{topic}"
SUBSCRIPTION = option("-s --subscription", "The subscription.", "{subscription}", required=True)
ONE = f"{PATH}/subscription/{{subscription}}"
SYSTEM_TOPICS = flag("-ist --include-system-topic", "List topics of the system, too.")
FORCE = flag("-f --force", "Disconnect its clients first.", "?force")
DELETE_SCHEMA = flag("-d --deleteSchema", "No effect: schemas are deleted anyway.")
STATISTICS = (
    flag("-gpb --get-precise-backlog", "Count backlogs message by message.", "?getPreciseBacklog"),
    flag(
        "-sbs --get-subscription-backlog-size",
        "Leave out the sizes of backlogs.",
        "?subscriptionBacklogSize",
        value=False,
    ),
    flag(
        "-etb --get-earliest-time-in-backlog",
        "Print the age of the oldest message of backlogs.",
        "?getEarliestTimeInBacklog",
    ),
)
WITH_PROPERTIES = "application/vnd.partitioned-topic-metadata+json"
LATEST, EARLIEST = 2**63 - 1, -1


def _id(text: str) -> dict[str, int]:
    """Return the JSON of a message id: `latest`, `earliest` or `ledger:entry`."""
    if text in ("latest", "earliest"):
        ledger = entry = LATEST if text == "latest" else EARLIEST
    else:
        found = re.fullmatch(r"(-?\d+):(-?\d+)", text, re.ASCII)
        if not found:
            raise ArgumentTypeError(f"{text!r} is no message id, such as 12:3.")
        ledger, entry = int(found[1]), int(found[2])
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1, "batchIndex": -1}


def _time(text: str) -> int:
    """Return a time such as 2020-01-31T12:00:00+02:00 in milliseconds."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} is no time, such as 2020-01-31T12:00:00Z.")
    return int(found.timestamp() * 1_000)


# --- functions of commands that have not exactly one request -------------------------------------


async def _list(client: AdminClient, values: Namespace) -> list[str]:
    query = {"bundle": values.bundle} if values.bundle else {}
    if values.include_system_topic:
        query["includeSystemTopic"] = "true"
    domains = [values.topic_domain] if values.topic_domain else ["non-persistent", "persistent"]
    return [
        each
        for domain in domains
        for each in await client.get(f"/admin/v2/{domain}/{values.namespace}", **query)
    ]


async def _list_partitioned(client: AdminClient, values: Namespace) -> list[str]:
    query = {"includeSystemTopic": "true"} if values.include_system_topic else {}
    found: list[str] = []
    for domain in ("non-persistent", "persistent"):
        found += await client.get(f"/admin/v2/{domain}/{values.namespace}/partitioned", **query)
    return found


async def _delete(client: AdminClient, values: Namespace) -> None:
    """Delete a topic, those that match a regular expression, or those in a file."""
    if values.from_file:
        names = _names_in(values.topic)
    elif values.regex:
        tenant, name, pattern = values.topic.rpartition("://")[2].split("/", 2)
        space = Namespace(namespace=namespace(f"{tenant}/{name}"), bundle=None, topic_domain=None)
        space.include_system_topic = False
        found = await _list(client, space)
        names = [each for each in found if re.fullmatch(pattern, each.split("/", 4)[4])]
    else:
        names = [values.topic]
    for each in names:
        query = {"force": "true"} if values.force else {}
        await client.delete(f"/admin/v2/{topic(each)}", **query)


def _names_in(file: str) -> list[str]:
    try:
        return Path(file).read_text().split()
    except OSError as error:
        fail(f"Cannot read {file}: {error.strerror}")


async def _partitioned_lookup(client: AdminClient, values: Namespace) -> dict[str, Any]:
    found = await client.get(f"/admin/v2/{values.topic}/partitions")
    urls: dict[str, Any] = {}
    for index in range(found["partitions"]):
        path = f"{values.topic}-partition-{index}"
        urls[_name(path)] = (await client.get(f"/lookup/v2/topic/{path}"))["brokerUrl"]
    if not values.sort_by_broker:
        return urls
    return {
        url: [each for each, its in urls.items() if its == url]
        for url in dict.fromkeys(urls.values())
    }


def _name(path: str) -> str:
    domain, _, rest = path.partition("/")
    return f"{domain}://{rest}"


async def _create_partitioned(client: AdminClient, values: Namespace) -> None:
    path = f"/admin/v2/{values.topic}/partitions"
    if not values.metadata:
        await client.put(path, values.partitions)
        return
    body = {"partitions": values.partitions, "deleted": False, "properties": values.metadata}
    await client.request("PUT", path, body, content_type=WITH_PROPERTIES)


async def _create_shadow(client: AdminClient, values: Namespace) -> None:
    source = {"PULSAR.SHADOW_SOURCE": _name(values.source)}
    await client.put(f"/admin/v2/{values.topic}", source | (values.properties or {}))


async def _shadow_source(client: AdminClient, values: Namespace) -> Any:
    found = await client.get(f"/admin/v2/{values.topic}/properties")
    return (found or {}).get("PULSAR.SHADOW_SOURCE")


async def _create_subscription(client: AdminClient, values: Namespace) -> None:
    path = f"/admin/v2/{values.topic}/subscription/{quote(values.subscription, safe='')}"
    body: dict[str, Any] = values.messageId
    if values.property:
        body = {**body, "properties": values.property}
    query = {"replicated": "true"} if values.replicated else {}
    await client.put(path, body, **query)


async def _update_properties(client: AdminClient, values: Namespace) -> None:
    path = f"/admin/v2/{values.topic}/subscription/{quote(values.subscription, safe='')}/properties"
    await client.put(path, values.property or {})


def _check_properties(values: Namespace) -> str:
    is_wrong = bool(values.property) == bool(values.clear)
    return "Exactly one of --property and --clear is needed." if is_wrong else ""


async def _expire(client: AdminClient, values: Namespace) -> None:
    path = f"/admin/v2/{values.topic}/subscription/{quote(values.subscription, safe='')}"
    if values.expireTime is not None:
        await client.post(f"{path}/expireMessages/{values.expireTime}")
        return
    body = {**values.position, "excluded": values.exclude_reset_position}
    await client.post(f"{path}/expireMessages", body)


def _check_expire(values: Namespace) -> str:
    is_wrong = (values.expireTime is None) == (values.position is None)
    return "Exactly one of --expireTime and --position is needed." if is_wrong else ""


async def _reset_cursor(client: AdminClient, values: Namespace) -> None:
    path = f"/admin/v2/{values.topic}/subscription/{quote(values.subscription, safe='')}"
    if values.messageId is not None:
        body = {**values.messageId, "excluded": values.exclude_reset_position}
        await client.post(f"{path}/resetcursor", body)
        return
    await client.post(f"{path}/resetcursor/{int(time.time() * 1_000) - values.time * 1_000}")


def _check_reset(values: Namespace) -> str:
    is_wrong = values.messageId is None and values.time is None
    return "One of --time and --messageId is needed." if is_wrong else ""


async def _peek(client: AdminClient, values: Namespace) -> list[Any]:
    path = f"/admin/v2/{values.topic}/subscription/{quote(values.subscription, safe='')}"
    found: list[Any] = []
    position = 0
    while len(found) < values.count:
        position += 1
        try:
            answer = await client.request("GET", f"{path}/position/{position}")
        except HttpRefused as error:
            if position > 1 and error.status == 404:  # behind the last message
                break
            raise
        if _is_shown(answer, values):
            found += messages_of(answer)
    return found[: values.count]


def _is_shown(answer: HttpAnswer, values: Namespace) -> bool:
    """Return True unless the options leave the entry out: it ends a transaction, or belongs to one
    that is not committed, or follows a message of an open one.
    """
    if "x-pulsar-marker-type" in answer.headers and not values.show_server_marker:
        return False
    if values.transaction_isolation_level == "READ_UNCOMMITTED":
        return True
    states = ("x-pulsar-txn-aborted", "x-pulsar-txn-uncommitted")
    return all(answer.headers.get(each) != "true" for each in states)


async def _examine(client: AdminClient, values: Namespace) -> list[Any]:
    query = {"initialPosition": values.initialPosition, "messagePosition": values.messagePosition}
    path = f"/admin/v2/{values.topic}/examinemessage"
    return messages_of(await client.request("GET", path, query=query))


async def _message(client: AdminClient, values: Namespace) -> list[Any]:
    path = f"/admin/v2/{values.topic}/ledger/{values.ledgerId}/entry/{values.entryId}"
    return messages_of(await client.request("GET", path))


async def _compact(client: AdminClient, values: Namespace) -> str:
    await client.put(f"/admin/v2/{values.topic}/compaction")
    return f"Topic compaction requested for {_name(values.topic)}"


async def _compaction_status(client: AdminClient, values: Namespace) -> str:
    return await _status(client, values, "compaction", _COMPACTION)


async def _offload_status(client: AdminClient, values: Namespace) -> str:
    return await _status(client, values, "offload", _OFFLOAD)


_COMPACTION = {
    "NOT_RUN": "Compaction has not been run for {topic} since broker startup",
    "RUNNING": "Compaction is currently running",
    "SUCCESS": "Compaction was a success",
    "ERROR": "Error in compaction: {error}",
}
_OFFLOAD = {
    "NOT_RUN": "Offload has not been run for {topic} since broker startup",
    "RUNNING": "Offload is currently running",
    "SUCCESS": "Offload was a success",
    "ERROR": "Error in offload: {error}",
}
WAIT_S = 1.0


async def _status(
    client: AdminClient, values: Namespace, resource: str, texts: dict[str, str]
) -> str:
    import asyncio

    while True:
        found = await client.get(f"/admin/v2/{values.topic}/{resource}")
        if not values.wait_complete or found["status"] != "RUNNING":
            break
        await asyncio.sleep(WAIT_S)
    return texts[found["status"]].format(topic=_name(values.topic), error=found.get("lastError"))


async def _offload(client: AdminClient, values: Namespace) -> str:
    """Offload the ledgers before those that together have the size that may stay."""
    path = f"/admin/v2/{values.topic}"
    ledgers = (await client.get(f"{path}/internalStats"))["ledgers"]
    left = values.size_threshold
    for index in range(len(ledgers) - 1, -1, -1):
        left -= ledgers[index]["size"]
        if left < 0:
            break
    if left >= 0 or index == len(ledgers) - 1:
        return "Nothing to offload"
    ledger = ledgers[index + 1]["ledgerId"]
    body = {**_id(f"{ledger}:0"), "batchSize": 0}
    await client.put(f"{path}/offload", body)
    return f"Offload triggered for {_name(values.topic)} for messages before {ledger}:0:-1"


async def _terminate(client: AdminClient, values: Namespace) -> str:
    found = await client.post(f"/admin/v2/{values.topic}/terminate")
    place = f"{found['ledgerId']}:{found['entryId']}:{found.get('partitionIndex', -1)}"
    return f"Topic successfully terminated at {place}"


async def _partitioned_terminate(client: AdminClient, values: Namespace) -> str:
    found = await client.post(f"/admin/v2/{values.topic}/terminate/partitions")
    lines = [
        f"Partition {index} is terminated at {each['ledgerId']}:{each['entryId']}:{index}"
        for index, each in found.items()
    ]
    return "\n".join(lines)


async def _get_message_id(client: AdminClient, values: Namespace) -> Any:
    found = await client.get(f"/admin/v2/{values.topic}/messageid/{values.datetime}")
    if found is None:
        return f"Cannot find any messages based on timestamp {values.datetime}"
    return found


def _replicated(answer: dict[str, Any]) -> str:
    return pairs_of(answer)


def _compact_json(answer: Any) -> str:
    import json

    return json.dumps(answer, separators=(",", ":"))


def number_of(name: str, resource: str, about: str, names: str, applied: Option | None) -> Any:
    """Return the commands of a policy whose value is a number, by an older name."""
    return of_topic(
        name, resource, about, number(names, "The number; 0: no limit."), applied=applied, scope=()
    )


RATE = f"{PATH}/subscriptionDispatchRate"
COMMANDS = {
    "list": function(
        "List the topics of a namespace.",
        _list,
        NAMESPACE,
        option(
            "-td --topic-domain",
            "persistent or non_persistent.",
            "",
            lambda text: choice("persistent", "non-persistent")(text.replace("_", "-")),
        ),
        option("-b --bundle", "Only those of a bundle."),
        SYSTEM_TOPICS,
    ),
    "list-partitioned-topics": function(
        "List the partitioned topics of a namespace.",
        _list_partitioned,
        NAMESPACE,
        SYSTEM_TOPICS,
    ),
    "create": put(
        "Create a topic without partitions.",
        PATH,
        TOPIC,
        option("-m --metadata", "A property: key=value. May be repeated.", "=", pair),
        body={},
    ),
    "create-partitioned-topic": function(
        "Create a partitioned topic.",
        _create_partitioned,
        TOPIC,
        option("-p --partitions", "The number of partitions.", "", int, required=True),
        option("-m --metadata", "A property: key=value. May be repeated.", "", pair),
    ),
    "update-partitioned-topic": post(
        "Add partitions.",
        f"{PATH}/partitions",
        TOPIC,
        option("-p --partitions", "The new number of partitions.", "=", int, required=True),
        flag("-ulo --update-local-only", "Only in this cluster.", "?updateLocalTopicOnly"),
        flag("-f --force", "Do not check the topics that exist.", "?force"),
    ),
    "create-missed-partitions": post(
        "Create the partitions that are missing.", f"{PATH}/createMissedPartitions", TOPIC
    ),
    "get-partitioned-topic-metadata": get(
        "Print the number of partitions.", f"{PATH}/partitions", TOPIC
    ),
    "delete": function(
        "Delete a topic.",
        _delete,
        TOPIC._replace(convert=str),
        FORCE,
        DELETE_SCHEMA,
        flag("-r --regex", "TOPIC ends with a regular expression."),
        flag("--from-file", "TOPIC is a file with names of topics."),
        destroys="deletes {topic} with its messages and subscriptions",
    ),
    "delete-partitioned-topic": delete(
        "Delete a partitioned topic.",
        f"{PATH}/partitions",
        TOPIC,
        FORCE,
        DELETE_SCHEMA,
        destroys="deletes {topic} with all its partitions and messages",
    ),
    "truncate": delete(
        "Acknowledge and delete all messages.",
        f"{PATH}/truncate",
        TOPIC,
        destroys="deletes all messages of {topic}",
    ),
    "unload": put("Unload a topic from its broker.", f"{PATH}/unload", TOPIC),
    "lookup": get(
        "Print the broker of a topic.",
        "/lookup/v2/topic/{topic}",
        TOPIC,
        printed=lambda answer: text_of(answer["brokerUrl"]),
    ),
    "partitioned-lookup": function(
        "Print the broker of each partition.",
        _partitioned_lookup,
        TOPIC,
        flag("-s --sort-by-broker", "Print the partitions of each broker."),
        printed=pairs_of,
    ),
    "bundle-range": get("Print the bundle of a topic.", "/lookup/v2/topic/{topic}/bundle", TOPIC),
    "stats": get("Print the statistics of a topic.", f"{PATH}/stats", TOPIC, *STATISTICS),
    "stats-internal": get(
        "Print the ledgers and cursors of a topic.",
        f"{PATH}/internalStats",
        TOPIC,
        flag("-m --metadata", "Print the metadata of ledgers, too.", "?metadata"),
    ),
    "info-internal": get(
        "Print the metadata of the managed ledger.", f"{PATH}/internal-info", TOPIC
    ),
    "partitioned-stats": get(
        "Print the statistics of a partitioned topic.",
        f"{PATH}/partitioned-stats",
        TOPIC,
        flag("--per-partition", "Print those of each partition, too.", "?perPartition"),
        *STATISTICS,
    ),
    "partitioned-stats-internal": get(
        "Print the ledgers and cursors of all partitions.",
        f"{PATH}/partitioned-internalStats",
        TOPIC,
    ),
    # Rights and properties
    "permissions": get(
        "Print the rights of roles.", f"{PATH}/permissions", TOPIC, printed=pairs_of
    ),
    "grant-permission": post(
        "Grant rights to a role.",
        f"{PATH}/permissions/{{role}}",
        TOPIC,
        option("-r --role", "The role.", "{role}", required=True),
        option(
            "-a --actions", "produce, consume, ..., separated by commas.", "=", words, required=True
        ),
    ),
    "revoke-permission": delete(
        "Revoke the rights of a role.",
        f"{PATH}/permissions/{{role}}",
        TOPIC,
        option("-r --role", "The role.", "{role}", required=True),
    ),
    "get-properties": get("Print the properties.", f"{PATH}/properties", TOPIC, printed=pairs_of),
    "update-properties": put(
        "Set properties.",
        f"{PATH}/properties",
        TOPIC,
        option("-p --property", "key=value. May be repeated.", "=", pair),
        body={},
    ),
    "remove-properties": delete(
        "Remove a property.",
        f"{PATH}/properties",
        TOPIC,
        option("-k --key", "Its name.", "?key"),
    ),
    # Subscriptions
    "subscriptions": get("List the subscriptions.", f"{PATH}/subscriptions", TOPIC),
    "create-subscription": function(
        "Create a subscription.",
        _create_subscription,
        TOPIC,
        SUBSCRIPTION,
        option(
            "-m --messageId",
            "Where it begins: latest, earliest or ledger:entry.",
            "",
            _id,
            default=_id("latest"),
        ),
        flag("-r --replicated", "Replicate it to other clusters."),
        option("-p --property", "key=value. May be repeated.", "", pair),
    ),
    "unsubscribe": delete(
        "Delete a subscription.",
        ONE,
        TOPIC,
        SUBSCRIPTION,
        flag("-f --force", "Disconnect its consumers first.", "?force"),
        destroys="deletes the subscription {subscription} of {topic} with its backlog",
    ),
    "get-subscription-properties": get(
        "Print the properties of a subscription.",
        f"{ONE}/properties",
        TOPIC,
        SUBSCRIPTION,
        printed=_compact_json,
    ),
    "update-subscription-properties": function(
        "Set the properties of a subscription.",
        _update_properties,
        TOPIC,
        SUBSCRIPTION,
        option("-p --property", "key=value. May be repeated.", "", pair),
        flag("-c --clear", "Remove all."),
        check=_check_properties,
    ),
    "get-replicated-subscription-status": get(
        "Print whether a subscription is replicated.",
        f"{ONE}/replicatedSubscriptionStatus",
        TOPIC,
        SUBSCRIPTION,
        printed=_replicated,
    ),
    "set-replicated-subscription-status": post(
        "Set whether a subscription is replicated.",
        f"{ONE}/replicatedSubscriptionStatus",
        TOPIC,
        SUBSCRIPTION,
        *switch("-e --enable", "-d --disable", "replication", "="),
    ),
    "skip": post(
        "Acknowledge messages.",
        f"{ONE}/skip/{{count}}",
        TOPIC,
        SUBSCRIPTION,
        option("-n --count", "The number of messages.", "{count}", int, required=True),
    ),
    "clear-backlog": post(
        "Acknowledge all messages.",
        f"{ONE}/skip_all",
        TOPIC,
        SUBSCRIPTION,
        destroys="clears the backlog of {subscription} of {topic}",
    ),
    "expire-messages": function(
        "Acknowledge messages that are older than a time.",
        _expire,
        TOPIC,
        SUBSCRIPTION,
        option("-t --expireTime", "The time: 90 (seconds), 10m, 3h.", "", seconds),
        option("-p --position", "The last message: ledger:entry.", "", _id),
        flag("-e --exclude-reset-position", "Not that message itself."),
        check=_check_expire,
    ),
    "expire-messages-all-subscriptions": post(
        "Acknowledge messages that are older than a time, in all subscriptions.",
        f"{PATH}/all_subscription/expireMessages/{{time}}",
        TOPIC,
        option(
            "-t --expireTime", "The time: 90 (seconds), 10m, 3h.", "{time}", seconds, required=True
        ),
    ),
    "reset-cursor": function(
        "Move a subscription to a message or a time.",
        _reset_cursor,
        TOPIC,
        SUBSCRIPTION,
        option("-t --time", "How far back: 90 (seconds), 10m, 3h.", "", seconds),
        option("-m --messageId", "latest, earliest or ledger:entry.", "", _id),
        flag("-e --exclude-reset-position", "Begin behind that message."),
        check=_check_reset,
    ),
    "analyze-backlog": post(
        "Count what a subscription has not acknowledged.",
        f"{ONE}/analyzeBacklog",
        TOPIC,
        SUBSCRIPTION,
        option("-p --position", "Where to begin: ledger:entry.", "=", _id),
    ),
    "get-backlog-size": put(
        "Print how many bytes follow a message.",
        f"{PATH}/backlogSize",
        TOPIC,
        option("-m --messageId", "ledger:entry; -1:-1: all.", "=", _id, default=_id("earliest")),
    ),
    # Messages
    "peek-messages": function(
        "Print the first messages that a subscription has not acknowledged.",
        _peek,
        TOPIC,
        SUBSCRIPTION,
        option("-n --count", "The number of messages.", "", int, default=1),
        flag("-ssm --show-server-marker", "Include the markers that end transactions."),
        option(
            "-til --transaction-isolation-level",
            "READ_UNCOMMITTED: Include messages of open and aborted transactions.",
            "",
            choice("READ_COMMITTED", "READ_UNCOMMITTED"),
            default="READ_COMMITTED",
        ),
        printed=messages_text,
    ),
    "examine-messages": function(
        "Print a message by its distance from the first or the last.",
        _examine,
        TOPIC,
        option("-i --initialPosition", "latest or earliest.", "", default="latest"),
        option("-m --messagePosition", "The distance.", "", int, default=1),
        printed=messages_text,
    ),
    "get-message-by-id": function(
        "Print a message.",
        _message,
        TOPIC,
        option("-l --ledgerId", "Its ledger.", "", int, required=True),
        option("-e --entryId", "Its entry.", "", int, required=True),
        printed=messages_text,
    ),
    "get-message-id": function(
        "Print the id of the first message at or behind a time.",
        _get_message_id,
        TOPIC,
        option("-d --datetime", "The time: 2020-01-31T12:00:00Z.", "", _time, required=True),
    ),
    "get-message-id-by-index": get(
        "Print the id of the message with an index.",
        f"{PATH}/getMessageIdByIndex",
        TOPIC,
        option("-i --index", "The index.", "?index", int, required=True),
    ),
    "last-message-id": get("Print the id of the last message.", f"{PATH}/lastMessageId", TOPIC),
    "terminate": function("Accept no more messages.", _terminate, TOPIC),
    "partitioned-terminate": function(
        "Accept no more messages in all partitions.", _partitioned_terminate, TOPIC
    ),
    "trim-topic": post("Delete ledgers that all subscriptions have passed.", f"{PATH}/trim", TOPIC),
    "compact": function("Compact a topic.", _compact, TOPIC),
    "compaction-status": function(
        "Print the state of compaction.",
        _compaction_status,
        TOPIC,
        flag("-w --wait-complete", "Wait until it has ended."),
    ),
    "offload": function(
        "Offload ledgers to other storage.",
        _offload,
        TOPIC,
        option("-s --size-threshold", "What stays: 10M, 5G.", "", size, required=True),
    ),
    "offload-status": function(
        "Print the state of offloading.",
        _offload_status,
        TOPIC,
        flag("-w --wait-complete", "Wait until it has ended."),
    ),
    # Replication
    **of_topic(
        "replication-clusters",
        "replication",
        "the clusters that replicate the topic",
        option("-c --clusters", "Clusters, separated by commas.", "=", words, required=True),
        scope=(),
        printed=pretty,
    ),
    "create-shadow-topic": function(
        "Create a shadow of a topic.",
        _create_shadow,
        TOPIC,
        option("-s --source", "The topic.", "", topic, required=True),
        option("-p --properties", "key=value,key=value.", "", pairs),
    ),
    "get-shadow-source": function("Print the topic of a shadow.", _shadow_source, TOPIC)._replace(
        method="GET"
    ),
    "get-shadow-topics": get("List the shadows.", f"{PATH}/shadowTopics", TOPIC),
    "set-shadow-topics": put(
        "Set the shadows.",
        f"{PATH}/shadowTopics",
        TOPIC,
        option("-t --topics", "Topics, separated by commas.", "=", words, required=True),
    ),
    "remove-shadow-topics": delete("Remove the shadows.", f"{PATH}/shadowTopics", TOPIC),
    # Policies, which pulsar-admin has here for scripts of older versions
    **topic_policies.shared(()),
    "get-message-ttl": get(
        "Print the time after which messages count as acknowledged.",
        f"{PATH}/messageTTL",
        TOPIC,
        APPLIED,
    ),
    "set-message-ttl": post(
        "Set the time after which messages count as acknowledged.",
        f"{PATH}/messageTTL",
        TOPIC,
        option(
            "-t --ttl", "The time: 90 (seconds), 10m, 3h.", "?messageTTL", seconds, required=True
        ),
    ),
    "remove-message-ttl": delete(
        "Remove the time after which messages count as acknowledged.", f"{PATH}/messageTTL", TOPIC
    ),
    "get-backlog-quotas": get(
        "Print the quotas of the backlog.",
        f"{PATH}/backlogQuotaMap",
        TOPIC,
        APPLIED,
        printed=policies.quotas_text,
    ),
    "set-backlog-quota": post(
        "Set a quota of the backlog.",
        f"{PATH}/backlogQuota",
        TOPIC,
        *policies.QUOTA,
        body=policies.QUOTA_FIELDS,
    ),
    "remove-backlog-quota": delete(
        "Remove a quota of the backlog.", f"{PATH}/backlogQuota", TOPIC, policies.QUOTA_TYPE
    ),
    "get-subscription-dispatch-rate": get(
        "Print the rate of dispatch of subscriptions.", RATE, TOPIC, APPLIED
    ),
    "set-subscription-dispatch-rate": post(
        "Set the rate of dispatch of subscriptions.", RATE, TOPIC, *policies.DISPATCH_RATE
    ),
    "remove-subscription-dispatch-rate": delete(
        "Remove the rate of dispatch of subscriptions.", RATE, TOPIC
    ),
    "get-deduplication-enabled": get(
        "Print the deduplication of messages.", f"{PATH}/deduplicationEnabled", TOPIC
    ),
    "enable-deduplication": post(
        "Enable the deduplication of messages.", f"{PATH}/deduplicationEnabled", TOPIC, body=True
    ),
    "disable-deduplication": post(
        "Disable the deduplication of messages.", f"{PATH}/deduplicationEnabled", TOPIC, body=False
    ),
    **number_of(
        "maxProducers",
        "maxProducers",
        "the largest number of producers",
        "-p --max-producers",
        APPLIED,
    ),
    **number_of(
        "max-subscriptions",
        "maxSubscriptionsPerTopic",
        "the largest number of subscriptions",
        "-m --max-subscriptions-per-topic",
        None,
    ),
    **number_of(
        "max-unacked-messages-on-consumer",
        "maxUnackedMessagesOnConsumer",
        "the largest number of unacknowledged messages of a consumer",
        "-m --maxNum",
        APPLIED,
    ),
    **number_of(
        "max-unacked-messages-on-subscription",
        "maxUnackedMessagesOnSubscription",
        "the largest number of unacknowledged messages of a subscription",
        "-m --maxNum",
        APPLIED,
    ),
    **of_topic(
        "offload-policies",
        "offloadPolicies",
        "where ledgers are offloaded to",
        *policies.offload_options(**policies.WITH_UNITS),
        body=policies.OFFLOAD_FIELDS,
        scope=(),
    ),
    "get-schema-validation-enforce": get(
        "Print whether producers need a schema.",
        f"{PATH}/schemaValidationEnforced",
        TOPIC,
        APPLIED,
    ),
    "set-schema-validation-enforce": post(
        "Set whether producers need a schema.",
        f"{PATH}/schemaValidationEnforced",
        TOPIC,
        flag("-e --enable", "They do.", "="),
    ),
}
