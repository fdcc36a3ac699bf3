"""/admin/v2/{domain}/.../subscription: creates, lists, resets and describes subscriptions, as in
Pulsar's PersistentTopics.
"""

from __future__ import annotations

import struct
from typing import Any

from pyxbroker.admin.policy_bodies import BOOLEAN
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    STRING_MAP,
    STRINGS,
    check_namespace,
    read_json,
    require_persistent,
    strings_of,
    topic_of,
)
from pyxbroker.admin.resources.topic_work import (
    LATEST,
    NO_PLACE,
    Place,
    check_copies,
    each_topic,
    for_each_partition,
    load_persistent_topic,
    load_topic,
    new_subscription_of,
    place_of,
    resettable_subscription_of,
    subscription_of,
    topic_exists,
)
from pyxbroker.auth.authorization import (
    CONSUME_TOPIC,
    GET_REPLICATED_STATUS,
    GET_SUBSCRIPTIONS,
    RESET_CURSOR,
    SET_REPLICATED_STATUS,
    SUBSCRIBE,
)
from pyxbroker.base.errors import NotAllowed, TopicNotFound
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands.seek import at_time, moving
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.entry_view import Position, read_batch_size
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import Topic
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subName}"
CLOSED_BATCH = 16  # partitions per metadata read; each may have 10,000 subscriptions
EXISTS = 409
BATCH_MESSAGES_MAX = 1 << 20  # in a larger batch, single messages cannot be selected


# --- creation and lists ----------------------------------------------------------------------


async def create(request: Request) -> Response:
    """Create a subscription of a topic, or of each of its partitions.

    The topic is created, too, if clients may create it.
    """
    name = topic_of(request)
    replicated = request.argument("replicated")
    place = place_of(await read_json(request))
    if not name.is_persistent:
        reason = "Create subscription on non-persistent topic can only be done through client"
        raise HttpError(400, reason)
    await check_namespace(request, name.namespace)
    subscription = new_subscription_of(request)
    await check_copies(request, name, place.properties)
    await _ensure_topic(request, name)
    is_new = False
    failed: list[Exception] = []

    async def make(each: TopicName) -> None:
        nonlocal is_new
        topic = await load_topic(request, each)
        assert isinstance(topic, PersistentTopic)
        if subscription in topic.subscriptions:
            return
        mark, ack_set = await _mark(request, topic, place)
        if subscription in topic.subscriptions:
            # Another client has created it meanwhile, and may be using it.
            return
        is_new = True
        made = await topic.subscription_for(
            subscription, mark, dict(place.properties), True, replicated
        )
        if ack_set:
            await made.seek(mark, ack_set)

    def made_elsewhere(each: TopicName, answer: Any) -> None:
        nonlocal is_new
        is_new = True

    def on_error(each: TopicName, error: Exception) -> None:
        if not (isinstance(error, HttpError) and error.status == EXISTS):
            failed.append(error)

    await each_topic(request, name, make, made_elsewhere, on_error)
    try:
        if failed:
            raise failed[0]
    finally:
        failed.clear()  # leave no cycle of the error and this frame
    if not is_new:
        raise HttpError(EXISTS, "Subscription already exists for topic")
    return Response.empty()


async def _ensure_topic(request: Request, name: TopicName) -> None:
    """Create the topic if it does not exist and clients may create it. Raises HttpError 412."""
    topics = request.app.broker.topics
    try:
        if not await topic_exists(request, name):
            count = await topics.partitioned.metadata(name, auto_create=True)
            if count == 0:
                await topics.loader.get(name, create=True)
    except (NotAllowed, TopicNotFound):
        raise HttpError(412, "Topic does not exist and cannot be auto-created") from None


async def get_list(request: Request) -> Response:
    """Return the subscriptions of a topic, or of all its partitions.

    Those of readers are included while the readers are connected.
    """
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    found: dict[str, None] = {}
    closed: list[TopicName] = []

    async def add_closed() -> None:
        for names in await topics.registry.subscriptions_of_closed(closed):
            async for one in in_slices(names):
                found[one] = None
        closed.clear()

    async def add(each: TopicName) -> None:
        if topics.loader.is_open(each):
            topic = await load_topic(request, each)
            found.update(dict.fromkeys(one.name for one in topic.all_subscriptions()))
        elif each.is_persistent:
            closed.append(each)
            if len(closed) == CLOSED_BATCH:
                await add_closed()

    def add_all(each: TopicName, names: list[str]) -> None:
        found.update(dict.fromkeys(names))

    await each_topic(request, name, add, add_all)
    if closed:
        await add_closed()
    return await Response.long_json(list(found))


# --- reset ------------------------------------------------------------------------------------


async def reset_to_time(request: Request) -> Response:
    """Reset a subscription to the first message published at a time, in all partitions."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    timestamp: int = request.parameters["timestamp"]

    async def work(topic: Topic) -> None:
        subscription = resettable_subscription_of(request, topic)
        if isinstance(topic, PersistentTopic):
            mark, compacted_from = await at_time(topic, subscription, timestamp)
            await _move(topic, subscription, mark, (), compacted_from)

    await for_each_partition(request, name, work)
    return Response.empty()


async def reset_to_id(request: Request) -> Response:
    """Reset a subscription to a message, or to the one after it."""
    refusal = "Reset-cursor at position is not allowed for partitioned-topic"
    body = await read_json(request)
    place = place_of(body)
    topic = await load_persistent_topic(request, "Reset-cursor at position", refusal)
    if body is None:
        raise HttpError(400, NO_PLACE)
    subscription = resettable_subscription_of(request, topic)
    mark, ack_set = await _mark(request, topic, place)
    is_behind = place.is_excluded and place.batch_index < 0
    compacted_from = Position(place.ledger_id, min(place.entry_id + is_behind, LATEST))
    await _move(topic, subscription, mark, ack_set, compacted_from)
    return Response.empty()


async def _move(
    topic: PersistentTopic,
    subscription: Subscription,
    mark: Position,
    ack_set: tuple[int, ...],
    compacted_from: Position | None,
) -> None:
    topic.check_open()
    with moving(subscription):
        await subscription.seek(mark, ack_set, compacted_from)


async def _mark(
    request: Request, topic: PersistentTopic, place: Place
) -> tuple[Position, tuple[int, ...]]:
    """Return the mark-delete position before a place, and the unacknowledged messages
    of its batch.
    """
    position = Position(place.ledger_id, place.entry_id)
    if place.ledger_id < 0:
        return topic.first_position(), ()
    first = place.batch_index + place.is_excluded
    if first <= 0 and not place.is_excluded:
        return topic.mark_before(position), ()
    count = 0
    if place.batch_index >= 0:
        async with request.app.entries_read:
            count = await read_batch_size(topic, position)
    if first < count <= BATCH_MESSAGES_MAX:
        return topic.mark_before(position), _words(first, count)
    if not count and not place.is_excluded:
        return topic.mark_before(position), ()
    after = Position(position.ledger_id, min(position.entry_id + 1, LATEST))
    return topic.mark_before(after), ()


def _words(first: int, count: int) -> tuple[int, ...]:
    """Return the ack set of a batch as signed words. The bits from `first` on are set."""
    size = (count + 63) // 64
    bits = ((1 << count) - 1) >> first << first
    return struct.unpack(f"<{size}q", bits.to_bytes(size * 8, "little"))


# --- properties -------------------------------------------------------------------------------


async def get_properties(request: Request) -> Response:
    """Return the properties of a subscription; those of all partitions are merged."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    found: dict[str, str] = {}

    async def work(topic: Topic) -> None:
        found.update(subscription_of(request, topic).properties)

    def add(each: TopicName, properties: dict[str, str]) -> None:
        found.update(properties)

    await for_each_partition(request, name, work, add)
    return Response.json(found)


async def set_properties(request: Request) -> Response:
    """Replace the properties of a subscription, in all partitions."""
    name = topic_of(request)
    properties = strings_of(await read_json(request), "The subscription's properties")
    await check_namespace(request, name.namespace)
    await check_copies(request, name, properties)

    async def work(topic: Topic) -> None:
        await subscription_of(request, topic).set_properties(dict(properties))

    await for_each_partition(request, name, work)
    return Response.empty()


async def get_replicated(request: Request) -> Response:
    """Return True for each topic or partition in which the subscription is replicated."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    found: dict[str, bool] = {}

    async def work(topic: Topic) -> None:
        found[str(topic.name)] = subscription_of(request, topic).replicated

    def add(each: TopicName, answer: dict[str, bool]) -> None:
        found.update(answer)

    await for_each_partition(request, name, work, add)
    return Response.json(found)


async def set_replicated(request: Request) -> Response:
    """Set whether a subscription is replicated.

    Stored without effect: there is no other cluster.
    """
    name = topic_of(request)
    enabled = BOOLEAN.read(await read_json(request))
    if not name.is_persistent:
        reason = "Cannot enable/disable replicated subscriptions on non-persistent topics"
        raise HttpError(405, reason)
    await check_namespace(request, name.namespace)

    async def work(topic: Topic) -> None:
        await subscription_of(request, topic).set_replicated(enabled)

    await for_each_partition(request, name, work)
    return Response.empty()


BODY_BYTES_MAX = 320 << 10  # a message id and properties
PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "ledgerId": {"type": "integer"},
        "entryId": {"type": "integer"},
        "batchIndex": {"type": "integer"},
        "excluded": {"type": "boolean"},
        "properties": STRING_MAP,
    },
}
FLAGS = {"type": "object", "additionalProperties": {"type": "boolean"}}

ENDPOINTS = (
    Endpoint(
        "PUT",
        SUBSCRIPTION,
        create,
        SUBSCRIBE,
        "Creates a subscription, and the topic if clients may create it.",
        resource=topic_of,
        query=(Query("replicated", "The subscription is replicated.", False),),
        content=Content(
            "The position: a message id (with excluded, the message after it), latest or "
            "earliest; and properties. Without a body, after the last message.",
            {"application/json": PLACE},
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "GET",
        TOPIC + "/subscriptions",
        get_list,
        GET_SUBSCRIPTIONS,
        "The subscriptions of a topic.",
        Answer("The names.", STRINGS),
        topic_of,
        queue="subscriptions",
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/resetcursor/{timestamp:long}",
        reset_to_time,
        RESET_CURSOR,
        "Resets a subscription to the first message published at a time, in milliseconds.",
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/resetcursor",
        reset_to_id,
        RESET_CURSOR,
        "Resets a subscription to a message.",
        resource=topic_of,
        content=Content(
            "A message id (with excluded, the message after it), latest or earliest.",
            {"application/json": PLACE},
            required=True,
            bytes_max=BODY_BYTES_MAX,
        ),
    ),
    Endpoint(
        "GET",
        SUBSCRIPTION + "/properties",
        get_properties,
        CONSUME_TOPIC,
        "The properties of a subscription.",
        Answer("The properties.", STRING_MAP),
        topic_of,
    ),
    Endpoint(
        "PUT",
        SUBSCRIPTION + "/properties",
        set_properties,
        SUBSCRIBE,
        "Replaces the properties of a subscription.",
        resource=topic_of,
        content=Content("All properties.", {"application/json": STRING_MAP}),
    ),
    Endpoint(
        "GET",
        SUBSCRIPTION + "/replicatedSubscriptionStatus",
        get_replicated,
        GET_REPLICATED_STATUS,
        "Returns whether a subscription is replicated.",
        Answer("True or false, by topic or partition.", FLAGS),
        topic_of,
        precheck=require_persistent(
            405, "Cannot get replicated subscriptions on non-persistent topics"
        ),
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/replicatedSubscriptionStatus",
        set_replicated,
        SET_REPLICATED_STATUS,
        "Sets whether a subscription is replicated to other clusters.",
        resource=topic_of,
        content=Content(
            "True or false.", {"application/json": {"type": "boolean"}}, required=True, bytes_max=64
        ),
    ),
)
