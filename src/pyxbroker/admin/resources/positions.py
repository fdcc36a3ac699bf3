"""/admin/v2/{domain}/.../subscription: subscriptions are made, listed, moved and described, as in
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
    stored_first,
    strings_of,
    topic_of,
)
from pyxbroker.admin.resources.topic_work import (
    LATEST,
    NO_PLACE,
    Place,
    check_copies,
    is_there,
    moved_subscription_of,
    names_of,
    new_subscription_of,
    opened,
    place_of,
    stored_topic,
    subscription_of,
    with_each,
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
from pyxbroker.base.slices import Slices
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
CLOSED_AT_ONCE = 16  # partitions of which the store is asked; each may have 10,000 subscriptions
BATCH_MESSAGES_MAX = 1 << 20  # of which one is chosen; of a larger one all come


# --- made and listed --------------------------------------------------------------------------


async def create(request: Request) -> Response:
    """Makes a subscription of a topic, or of each of its partitions; the topic as well, where a
    client might.
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
    await _make(request, name)
    is_new = False
    async for each in names_of(request, name):
        topic = await opened(request, each)
        assert isinstance(topic, PersistentTopic)
        if subscription in topic.subscriptions:
            continue
        mark, ack_set = await _mark(request, topic, place)
        if subscription in topic.subscriptions:
            # Somebody else has made it meanwhile, and may have begun to use it.
            continue
        is_new = True
        made = await topic.subscription_for(
            subscription, mark, dict(place.properties), True, replicated
        )
        if ack_set:
            await made.seek(mark, ack_set)
    if not is_new:
        raise HttpError(409, "Subscription already exists for topic")
    return Response.empty()


async def _make(request: Request, name: TopicName) -> None:
    """Makes the topic, or says how many partitions it has, if need be. Raises HttpError 412."""
    topics = request.app.broker.topics
    try:
        if not await is_there(request, name):
            count = await topics.partitioned.metadata(name, auto_create=True)
            if count == 0:
                await topics.loader.get(name, create=True)
    except (NotAllowed, TopicNotFound):
        raise HttpError(412, "Topic does not exist and cannot be auto-created") from None


async def get_list(request: Request) -> Response:
    """The subscriptions of a topic, or of all its partitions; those of readers while they are
    there.
    """
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    topics = request.app.broker.topics
    found: dict[str, None] = {}
    closed: list[TopicName] = []
    slices = Slices()

    async def add_closed() -> None:
        for names in await topics.registry.subscriptions_of_closed(closed):
            for one in names:
                found[one] = None
                await slices.pause()
        closed.clear()

    async for each in names_of(request, name):
        if topics.loader.is_open(each):
            topic = await opened(request, each)
            found.update(dict.fromkeys(one.name for one in topic.all_subscriptions()))
        elif each.is_persistent:
            closed.append(each)
            if len(closed) == CLOSED_AT_ONCE:
                await add_closed()
    if closed:
        await add_closed()
    return await Response.long_json(list(found))


# --- moved ------------------------------------------------------------------------------------


async def reset_to_time(request: Request) -> Response:
    """Moves a subscription to the first message that was published at a time, in all partitions."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    timestamp: int = request.parameters["timestamp"]

    async def work(topic: Topic) -> None:
        subscription = moved_subscription_of(request, topic)
        if isinstance(topic, PersistentTopic):
            mark, compacted_from = await at_time(topic, subscription, timestamp)
            await _move(topic, subscription, mark, (), compacted_from)

    await with_each(request, name, work)
    return Response.empty()


async def reset_to_id(request: Request) -> Response:
    """Moves a subscription to a message, or behind it."""
    refusal = "Reset-cursor at position is not allowed for partitioned-topic"
    body = await read_json(request)
    place = place_of(body)
    topic = await stored_topic(request, "Reset-cursor at position", refusal)
    if body is None:
        raise HttpError(400, NO_PLACE)
    subscription = moved_subscription_of(request, topic)
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
    """The mark after which a place is, and the messages that are wanted of the batch there."""
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
    """A bit for each message of a batch, set for those from `first` on, in signed words."""
    size = (count + 63) // 64
    bits = ((1 << count) - 1) >> first << first
    return struct.unpack(f"<{size}q", bits.to_bytes(size * 8, "little"))


# --- described --------------------------------------------------------------------------------


async def get_properties(request: Request) -> Response:
    """The properties of a subscription; of a partitioned topic those of all partitions together."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    found: dict[str, str] = {}

    async def work(topic: Topic) -> None:
        found.update(subscription_of(request, topic).properties)

    await with_each(request, name, work)
    return Response.json(found)


async def set_properties(request: Request) -> Response:
    """Gives a subscription other properties, in all partitions."""
    name = topic_of(request)
    properties = strings_of(await read_json(request), "The subscription's properties")
    await check_namespace(request, name.namespace)
    await check_copies(request, name, properties)

    async def work(topic: Topic) -> None:
        await subscription_of(request, topic).set_properties(dict(properties))

    await with_each(request, name, work)
    return Response.empty()


async def get_replicated(request: Request) -> Response:
    """Whether the position is to be replicated, by topic or partition."""
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    found: dict[str, bool] = {}

    async def work(topic: Topic) -> None:
        found[str(topic.name)] = subscription_of(request, topic).replicated

    await with_each(request, name, work)
    return Response.json(found)


async def set_replicated(request: Request) -> Response:
    """Says whether the position is to be replicated; kept, since there is no other cluster."""
    name = topic_of(request)
    enabled = BOOLEAN.read(await read_json(request))
    if not name.is_persistent:
        reason = "Cannot enable/disable replicated subscriptions on non-persistent topics"
        raise HttpError(405, reason)
    await check_namespace(request, name.namespace)

    async def work(topic: Topic) -> None:
        await subscription_of(request, topic).set_replicated(enabled)

    await with_each(request, name, work)
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
        "Makes a subscription, and the topic where a client might.",
        resource=topic_of,
        query=(Query("replicated", "Its position is to be replicated.", False),),
        content=Content(
            "Where it begins: a message id (excluded: behind it), latest or earliest; and its"
            " properties. Without it, after the last message.",
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
        line="subscriptions",
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/resetcursor/{timestamp:long}",
        reset_to_time,
        RESET_CURSOR,
        "Moves a subscription to the first message that was published at a time, in milliseconds.",
        resource=topic_of,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/resetcursor",
        reset_to_id,
        RESET_CURSOR,
        "Moves a subscription to a message.",
        resource=topic_of,
        content=Content(
            "A message id (excluded: behind it), latest or earliest.",
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
        "Gives a subscription other properties.",
        resource=topic_of,
        content=Content("All of them.", {"application/json": STRING_MAP}),
    ),
    Endpoint(
        "GET",
        SUBSCRIPTION + "/replicatedSubscriptionStatus",
        get_replicated,
        GET_REPLICATED_STATUS,
        "Whether the position of a subscription is to be replicated.",
        Answer("True or false, by topic or partition.", FLAGS),
        topic_of,
        first=stored_first(405, "Cannot get replicated subscriptions on non-persistent topics"),
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/replicatedSubscriptionStatus",
        set_replicated,
        SET_REPLICATED_STATUS,
        "Says whether the position of a subscription is to be replicated to other clusters.",
        resource=topic_of,
        content=Content(
            "True or false.", {"application/json": {"type": "boolean"}}, required=True, bytes_max=64
        ),
    ),
)
