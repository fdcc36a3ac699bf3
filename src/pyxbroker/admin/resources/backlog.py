"""/admin/v2/{domain}/...: skips and expires backlogs; compacts, truncates, trims and unloads
topics.

As in Pulsar's PersistentTopics and NonPersistentTopics.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    check_namespace,
    check_not_system,
    read_json,
    require_persistent,
    topic_of,
)
from pyxbroker.admin.resources.topic_work import (
    NO_PLACE,
    REFUSE_AS_MISSING,
    check_changeable,
    check_persistent,
    each_topic,
    for_each_partition,
    load_persistent_topic,
    load_topic,
    place_of,
    resettable_subscription_of,
    topic_not_found,
)
from pyxbroker.admin.subscription_rights import has_subscription_right
from pyxbroker.auth.authorization import (
    ADMINISTRATE,
    COMPACT,
    EXPIRE_MESSAGES,
    SKIP,
    TRIM_TOPIC,
    UNLOAD,
)
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.compaction.compaction import Status as CompactionStatus
from pyxbroker.broker.subscriptions import expiry
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.web.endpoint import Answer, Content, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

log = get_logger(__name__)

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subName}"
EXPIRING = "Expire messages"
NOT_ISSUED = (
    "Expire message by position not issued on topic {} for subscription {} due to ongoing message"
    " expiration not finished or invalid message position provided."
)
# Verbatim, with the two blanks: clients compare the text.
NOTHING_TO_EXPIRE = (
    "Expire message by timestamp not issued on topic {} for subscription {} due to ongoing message"
    " expiration not finished or subscription almost catch  up. If it's performed on a partitioned"
    " topic operation might succeeded on other partitions, please check stats of individual"
    " partition."
)

# --- topics -----------------------------------------------------------------------------------


async def unload(request: Request) -> Response:
    """Close a topic, or all its partitions; its clients open it again."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    if name.is_transaction_internal:
        transactions = request.app.broker.transactions
        if transactions is not None:
            # The partition of a coordinator, which is no topic.
            await transactions.unload(lambda each: each == name)
            return Response.empty()
    await each_topic(request, name, request.app.broker.topics.deletion.unload)
    return Response.empty()


async def trim(request: Request) -> Response:
    """Delete ledgers that are neither needed nor retained, of all partitions."""
    return await _delete_stored(request, "Trim", PersistentTopic.trim)


async def truncate(request: Request) -> Response:
    """Acknowledge everything for all subscriptions and delete all ledgers except the open one,
    regardless of retention.
    """
    return await _delete_stored(request, "Truncate", PersistentTopic.truncate)


async def _delete_stored(
    request: Request, what: str, delete: Callable[[PersistentTopic], Awaitable[None]]
) -> Response:
    name = topic_of(request)

    async def work(topic: Topic) -> None:
        assert isinstance(topic, PersistentTopic)
        await delete(topic)

    await check_changeable(request, name, what)
    await for_each_partition(request, name, work)
    return Response.empty()


async def compact(request: Request) -> Response:
    """Start the compaction of a topic, or of all its partitions.

    The first refusal is answered after all others have started; further refusals are logged.
    """
    name = topic_of(request)
    _check_compactable(name)
    await check_changeable(request, name, "Compaction")
    refusals: list[Exception] = []

    async def begin(each: TopicName) -> None:
        try:
            topic = await load_topic(request, each)
            assert isinstance(topic, PersistentTopic)
            if topic.compacting.is_running:
                raise HttpError(409, "Compaction already in progress")
            topic.compacting.begin()
        except (HttpError, PulsarError) as error:
            note(each, error)

    def note(each: TopicName, error: Exception) -> None:
        if refusals:
            log.warning("a partition is not compacted", topic=each, error=error)
        refusals.append(error)

    await each_topic(request, name, begin, on_error=note)
    try:
        if refusals:
            raise refusals[0]
    finally:
        refusals.clear()  # leave no cycle of the error and this frame
    return Response.empty()


async def compaction_status(request: Request) -> Response:
    """Return the status of a topic's compaction since the topic was opened."""
    name = topic_of(request)
    _check_compactable(name)
    topic = await load_persistent_topic(request, "Compaction", REFUSE_AS_MISSING)
    found = topic.compaction
    status, error = ("NOT_RUN", "") if found is None else (found.status.value, found.last_error)
    return Response.json({"status": status, "lastError": error})


def _check_compactable(name: TopicName) -> None:
    if not name.is_persistent:
        # The same answer as for a topic that does not exist.
        raise topic_not_found(name)


# --- subscriptions ----------------------------------------------------------------------------


async def skip(request: Request) -> Response:
    """Acknowledge the first `numMessages` entries of a subscription's backlog."""
    name, count = topic_of(request), _not_negative(request, "numMessages")
    await check_changeable(request, name, "Skip messages")
    if (await request.app.broker.topics.partitions.read(name)).partitions:
        raise HttpError(405, "Skip messages on a partitioned topic is not allowed")

    async def work(topic: Topic) -> None:
        subscription = resettable_subscription_of(request, topic)
        if isinstance(topic, PersistentTopic):
            await subscription.skip_to(topic.mark_after(subscription, count))
            await subscription.persist()

    await for_each_partition(request, name, work)
    return Response.empty()


async def skip_all(request: Request) -> Response:
    """Acknowledge everything for a subscription, in all partitions."""
    name = topic_of(request)
    await check_changeable(request, name, "Skip messages")

    async def work(topic: Topic) -> None:
        subscription = resettable_subscription_of(request, topic)
        if isinstance(topic, PersistentTopic):
            await subscription.skip_to(topic.last_confirmed)
            await subscription.persist()

    await for_each_partition(request, name, work)
    return Response.empty()


async def expire(request: Request) -> Response:
    """Acknowledge messages older than `seconds` for a subscription, in all partitions."""

    async def named(topic: PersistentTopic) -> list[Subscription]:
        return [resettable_subscription_of(request, topic)]

    async def persist(subscriptions: Sequence[Subscription]) -> None:
        for each in subscriptions:
            await each.persist()

    return await _expire(request, EXPIRING, named, persist)


async def expire_all(request: Request) -> Response:
    """Acknowledge older messages for all subscriptions that the client may use."""

    async def usable(topic: PersistentTopic) -> list[Subscription]:
        found = []
        async for each in in_slices(expiry.expiring_subscriptions(topic)):
            if await has_subscription_right(request, each.name):
                found.append(each)
        return found

    what = f"{EXPIRING} for all subscriptions"
    return await _expire(request, what, usable, expiry.persist)


async def _expire(
    request: Request,
    what: str,
    of: Callable[[PersistentTopic], Awaitable[list[Subscription]]],
    persist: Callable[[Sequence[Subscription]], Awaitable[None]],
) -> Response:
    name, seconds = topic_of(request), _not_negative(request, "seconds")
    await check_namespace(request, name.namespace)
    await check_persistent(request, name, what)

    refusals: list[HttpError] = []

    async def work(topic: Topic) -> None:
        assert isinstance(topic, PersistentTopic)
        subscriptions = await of(topic)
        idle = await expiry.first_without_backlog(topic, subscriptions)
        await expiry.expire(topic, seconds, subscriptions)
        await persist(subscriptions)
        if idle is not None:
            refusals.append(HttpError(409, NOTHING_TO_EXPIRE.format(topic.name, idle.name)))

    check_not_system(name, EXPIRING)
    await for_each_partition(request, name, work)
    # The other subscriptions and partitions have expired nevertheless, as in Pulsar.
    if refusals:
        raise refusals[0]
    return Response.empty()


async def expire_to(request: Request) -> Response:
    """Acknowledge everything up to a message for a subscription.

    The message itself is included, unless the body excludes it.
    """
    name = topic_of(request)
    body = await read_json(request)
    if body is None:
        raise HttpError(400, NO_PLACE)
    place = place_of(body)
    position = (place.ledger_id, place.entry_id - place.is_excluded)
    await check_changeable(request, name, EXPIRING)
    if (await request.app.broker.topics.partitions.read(name)).partitions:
        raise HttpError(405, "Expire message at position is not supported for partitioned-topic")
    await check_persistent(request, name, EXPIRING)

    async def work(topic: Topic) -> None:
        assert isinstance(topic, PersistentTopic)
        subscription = resettable_subscription_of(request, topic)
        if not await expiry.expire_to(topic, subscription, position):
            raise HttpError(409, NOT_ISSUED.format(name, subscription.name))
        await subscription.persist()

    await for_each_partition(request, name, work)
    return Response.empty()


def _not_negative(request: Request, parameter: str) -> int:
    number: int = request.parameters[parameter]
    if number < 0:
        raise HttpError(412, f"{parameter} must not be negative.")
    return number


POSITION_BYTES_MAX = 16 << 10  # many times the size of a message id
POSITION = {
    "type": "object",
    "properties": {
        "ledgerId": {"type": "integer"},
        "entryId": {"type": "integer"},
        "excluded": {"type": "boolean"},
    },
}

COMPACTION_STATUS = {
    "type": "object",
    "properties": {
        "status": {
            "type": "string",
            "enum": [each.value for each in CompactionStatus],
        },
        "lastError": {"type": "string"},
    },
}

ENDPOINTS = (
    Endpoint(
        "PUT",
        TOPIC + "/unload",
        unload,
        UNLOAD,
        "Closes a topic, or all its partitions; clients open it again.",
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        TOPIC + "/trim",
        trim,
        TRIM_TOPIC,
        "Deletes ledgers that are neither needed nor retained.",
        resource=topic_of,
        precheck=require_persistent(405, "Trim on a non-persistent topic is not allowed"),
    ),
    Endpoint(
        "DELETE",
        TOPIC + "/truncate",
        truncate,
        ADMINISTRATE,
        "Acknowledges everything for all subscriptions, and deletes all ledgers except the open "
        "one.",
        resource=topic_of,
        precheck=require_persistent(412, "unsupport truncate"),
    ),
    Endpoint(
        "PUT",
        TOPIC + "/compaction",
        compact,
        COMPACT,
        "Starts the compaction of a topic, or of all its partitions.",
        resource=topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/compaction",
        compaction_status,
        COMPACT,
        "The status of a topic's compaction since the topic was opened.",
        Answer("Pulsar's LongRunningProcessStatus.", COMPACTION_STATUS),
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/skip/{numMessages:int}",
        skip,
        SKIP,
        "Acknowledges the first entries of a subscription's backlog, as many as given.",
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/skip_all",
        skip_all,
        SKIP,
        "Acknowledges everything for a subscription.",
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/expireMessages/{seconds:int}",
        expire,
        EXPIRE_MESSAGES,
        "Acknowledges messages older than the given seconds for a subscription.",
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/expireMessages",
        expire_to,
        EXPIRE_MESSAGES,
        "Acknowledges for a subscription everything up to a message.",
        resource=topic_of,
        content=Content(
            "The id of the message; with excluded, the message itself is not acknowledged.",
            {"application/json": POSITION},
            required=True,
            bytes_max=POSITION_BYTES_MAX,
        ),
    ),
    Endpoint(
        "POST",
        TOPIC + "/all_subscription/expireMessages/{seconds:int}",
        expire_all,
        EXPIRE_MESSAGES,
        "Acknowledges messages older than the given seconds for all subscriptions that the role "
        "may use.",
        resource=topic_of,
    ),
)
