"""What resources of topics have in common: the topic of a path is opened, and its subscription
found; for a partitioned topic each of its partitions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple

from pyxbroker.admin.policy_bodies import Body, Field
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import (
    check_length,
    check_namespace,
    check_not_system,
    strings_of,
    topic_of,
)
from pyxbroker.base import limits
from pyxbroker.base.errors import SubscriptionNotFound, TopicNotFound
from pyxbroker.base.slices import Slices
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import NO_PROPERTIES, Topic
from pyxbroker.policies.shapes import LONG_MAX
from pyxbroker.web.errors import HttpError

Work = Callable[[Topic], Awaitable[None]]
EARLIEST, LATEST = -1, LONG_MAX
NO_PLACE = "The body must be a message id, latest or earliest."


async def check_changeable(request: Request, name: TopicName, what: str) -> None:
    """Whether a topic may be changed. Raises HttpError."""
    check_not_system(name, what)
    await check_namespace(request, name.namespace)


async def stored_topic(request: Request, what: str, partitioned: str = "") -> PersistentTopic:
    """The topic of a path, opened, which stores messages and is not partitioned.

    what: is not allowed on any other one; partitioned: the sentence, where it is another one.
    Raises HttpError.
    """
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    if await partitions_of(request, name):
        if partitioned == MISSING:
            raise missing(name)
        raise HttpError(405, partitioned or f"{what} on a partitioned topic is not allowed")
    await check_stored(request, name, what)
    topic = await opened(request, name)
    assert isinstance(topic, PersistentTopic)
    return topic


async def check_stored(request: Request, name: TopicName, what: str) -> None:
    """Whether a topic stores messages; what is not allowed on any other one. Raises HttpError, also
    for a topic that would not and is not there.
    """
    if name.is_persistent:
        return
    if not await is_there(request, name):
        raise missing(name)
    raise HttpError(405, f"{what} on a non-persistent topic is not allowed")


MISSING = "missing"
"""For stored_topic(): a partitioned topic is one that is not there."""


async def opened(request: Request, name: TopicName) -> Topic:
    """A topic that is there. Raises HttpError 404."""
    try:
        return await request.app.broker.topics.loader.get(name, create=False)
    except TopicNotFound:
        raise missing(name) from None


def subscription_of(request: Request, topic: Topic) -> Subscription:
    """The subscription of a path: durable, but for topics that keep nothing.

    Raises SubscriptionNotFound, ServiceNotReady while it is deleted or moved.
    """
    name = request.parameters["subName"]
    found = topic.find_subscription(name)
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    found.check_settled()
    return found


def new_subscription_of(request: Request) -> str:
    """The name in a path of a subscription that is about to be made. Raises HttpError 412 for one
    that is too long.
    """
    name: str = request.parameters["subName"]
    check_length("subscription name", name, limits.SUBSCRIPTION_BYTES_MAX)
    return name


def moved_subscription_of(request: Request, topic: Topic) -> Subscription:
    """The subscription of a path, which is about to be moved. Raises HttpError 405 for that of
    compaction, which would lose what is not compacted yet, and as subscription_of().
    """
    subscription = subscription_of(request, topic)
    if is_system_cursor(subscription.name):
        raise HttpError(405, f"Subscription {subscription.name} is moved by compaction only")
    return subscription


async def partitions_of(request: Request, name: TopicName) -> int:
    """How many partitions a topic has; 0 when it is not partitioned."""
    return (await request.app.broker.topics.partitions.read(name)).partitions


async def is_there(request: Request, name: TopicName) -> bool:
    """Whether there is such a topic, partitioned or not."""
    return bool(
        await partitions_of(request, name)
    ) or await request.app.broker.topics.registry.exists(name)


async def check_there(request: Request, name: TopicName) -> None:
    """Raises HttpError 404 where there is no such topic, partitioned or not."""
    if not await is_there(request, name):
        raise HttpError(404, f"Topic {name} not found")


async def check_topic(request: Request, name: TopicName) -> None:
    """The same, after its namespace was looked for."""
    await check_namespace(request, name.namespace)
    await check_there(request, name)


async def names_of(request: Request, name: TopicName) -> AsyncIterator[TopicName]:
    """The topic, or the partitions of it that there are, one at a time; between two of them others
    have a turn. Raises HttpError 404.
    """
    topics = request.app.broker.topics
    count = await partitions_of(request, name)
    if not count:
        if not await topics.registry.exists(name):
            raise missing(name)
        yield name
        return
    slices = Slices()
    for index in await topics.partitions.existing(name, count):
        yield name.partition(index)
        # Of a topic that is open, or is not, much is done without waiting for anything.
        await slices.pause()


async def check_copies(request: Request, name: TopicName, properties: Mapping[str, str]) -> None:
    """Whether properties of a subscription can be written into each partition of a topic. Raises
    HttpError 412.
    """
    count = await partitions_of(request, name)
    trouble = limits.copies_trouble(limits.properties_bytes(properties), count)
    if trouble is not None:
        raise HttpError(412, trouble)


async def with_each(request: Request, name: TopicName, work: Work) -> None:
    """Does work with a topic, or with each of its partitions; what some of them do not have is
    missing only when none has it.
    """
    missed: SubscriptionNotFound | None = None
    is_done = False
    async for each in names_of(request, name):
        topic = await opened(request, each)
        try:
            await work(topic)
            is_done = True
        except SubscriptionNotFound as error:
            missed = error
    try:
        if missed is not None and not is_done:
            raise missed
    finally:
        del missed  # whose traceback has this frame


def missing(name: TopicName) -> HttpError:
    """The refusal for a topic that is not there."""
    if name.is_partitioned:
        return HttpError(404, "Topic partitions were not yet created")
    return HttpError(404, f"Topic {name} not found")


# --- places -----------------------------------------------------------------------------------


class Place(NamedTuple):
    """A message of a topic, in a body: Pulsar's ResetCursorData."""

    ledger_id: int = LATEST
    entry_id: int = LATEST
    batch_index: int = -1
    is_excluded: bool = False
    properties: Mapping[str, str] = NO_PROPERTIES


_ID = Body(
    fields={
        "ledgerId": Field("integer", 0, maximum=LONG_MAX),
        "entryId": Field("integer", 0, maximum=LONG_MAX),
        "partitionIndex": Field("integer", -1),
        "batchIndex": Field("integer", -1),
        "excluded": Field("boolean", False),
    }
)


def place_of(body: object) -> Place:
    """The place in a body: an id, or the words latest and earliest; latest without a body. A field
    that is not there is 0. Raises HttpError 400.
    """
    if body is None or body == "latest":
        return Place()
    if body == "earliest":
        return Place(EARLIEST, EARLIEST)
    if not isinstance(body, dict):
        raise HttpError(400, NO_PLACE)
    found = _ID.read(body)
    return Place(
        found["ledgerId"],
        found["entryId"],
        found["batchIndex"],
        found["excluded"],
        strings_of(body.get("properties"), "properties"),
    )
