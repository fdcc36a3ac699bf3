"""Helpers of the topic resources: load the topic of a path, its partitions and its subscription."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from pyxbroker.admin.fan_out import Take, elsewhere, for_each_topic
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
from pyxbroker.base.slices import in_slices
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.subscriptions.subscription import Subscription
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.topics.topic import NO_PROPERTIES, Topic
from pyxbroker.policies.shapes import LONG_MAX
from pyxbroker.web.errors import HttpError

Work = Callable[[Topic], Awaitable[None]]
EARLIEST, LATEST = -1, LONG_MAX
NO_PLACE = "The body must be a message id, latest or earliest."


async def check_changeable(request: Request, name: TopicName, what: str) -> None:
    """Raise HttpError if a topic may not be changed."""
    check_not_system(name, what)
    await check_namespace(request, name.namespace)


async def load_persistent_topic(
    request: Request, what: str, partitioned: str = ""
) -> PersistentTopic:
    """Load the topic of a path, which must be persistent and not partitioned.

    `what` names the operation in refusals; `partitioned` is the refusal of partitioned topics.
    Raises HttpError.
    """
    name = topic_of(request)
    await check_namespace(request, name.namespace)
    if await partitions_of(request, name):
        if partitioned == REFUSE_AS_MISSING:
            raise topic_not_found(name)
        raise HttpError(405, partitioned or f"{what} on a partitioned topic is not allowed")
    await check_persistent(request, name, what)
    topic = await load_topic(request, name)
    assert isinstance(topic, PersistentTopic)
    return topic


async def check_persistent(request: Request, name: TopicName, what: str) -> None:
    """Raise HttpError if a topic is not persistent; `what` names the operation.

    A missing topic gets the refusal of a missing one.
    """
    if name.is_persistent:
        return
    if not await topic_exists(request, name):
        raise topic_not_found(name)
    raise HttpError(405, f"{what} on a non-persistent topic is not allowed")


REFUSE_AS_MISSING = "missing"
"""For load_persistent_topic(): partitioned topics are refused like missing ones."""


async def load_topic(request: Request, name: TopicName) -> Topic:
    """Load an existing topic. Raises HttpError 404."""
    try:
        return await request.app.broker.topics.loader.get(name, create=False)
    except TopicNotFound:
        raise topic_not_found(name) from None


def subscription_of(request: Request, topic: Topic) -> Subscription:
    """Return the subscription of a path; it is durable, unless the topic is non-persistent.

    Raises SubscriptionNotFound, and ServiceNotReady while it is being deleted or reset.
    """
    name = request.parameters["subName"]
    found = topic.find_subscription(name)
    if found is None:
        raise SubscriptionNotFound(f"Subscription {name} not found for topic {topic.name}")
    found.check_settled()
    return found


def new_subscription_of(request: Request) -> str:
    """Return the name of a new subscription of a path. Raises HttpError 412 if it is too long."""
    name: str = request.parameters["subName"]
    check_length("subscription name", name, limits.SUBSCRIPTION_BYTES_MAX)
    return name


def resettable_subscription_of(request: Request, topic: Topic) -> Subscription:
    """Return the subscription of a path for moving its cursor.

    Raises HttpError 405 for compaction's subscription, whose reset would lose messages, and the
    errors of subscription_of().
    """
    subscription = subscription_of(request, topic)
    if is_system_cursor(subscription.name):
        raise HttpError(405, f"Subscription {subscription.name} is moved by compaction only")
    return subscription


async def partitions_of(request: Request, name: TopicName) -> int:
    """Return the number of partitions of a topic; 0 if it is not partitioned."""
    return (await request.app.broker.topics.partitions.read(name)).partitions


async def topic_exists(request: Request, name: TopicName) -> bool:
    """Return True if a topic exists, partitioned or not."""
    return bool(
        await partitions_of(request, name)
    ) or await request.app.broker.topics.registry.exists(name)


async def check_exists(request: Request, name: TopicName) -> None:
    """Raise HttpError 404 if a topic does not exist, partitioned or not."""
    if not await topic_exists(request, name):
        raise HttpError(404, f"Topic {name} not found")


async def check_topic(request: Request, name: TopicName) -> None:
    """Raise HttpError 404 if the namespace or the topic does not exist."""
    await check_namespace(request, name.namespace)
    await check_exists(request, name)


async def existing_topics_of(request: Request, name: TopicName) -> AsyncIterator[TopicName]:
    """Yield the topic, or its existing partitions, with pauses. Raises HttpError 404."""
    topics = request.app.broker.topics
    count = await partitions_of(request, name)
    if not count:
        if not await topics.registry.exists(name):
            raise topic_not_found(name)
        yield name
        return
    # Work on topics often completes without waiting.
    async for index in in_slices(await topics.partitions.existing(name, count)):
        yield name.partition(index)


async def check_copies(request: Request, name: TopicName, properties: Mapping[str, str]) -> None:
    """Raise HttpError 412 if properties are too large to be copied to each partition of a topic."""
    count = await partitions_of(request, name)
    trouble = limits.copies_trouble(limits.properties_bytes(properties), count)
    if trouble is not None:
        raise HttpError(412, trouble)


async def each_topic(
    request: Request,
    name: TopicName,
    work: Callable[[TopicName], Awaitable[None]],
    take: Take | None = None,
    on_error: Callable[[TopicName, Exception], None] | None = None,
) -> None:
    """Apply work to the topic, or to those of its existing partitions that this broker serves; send
    the request to the owners of the others and pass their answers to `take`.

    Raises HttpError 404, the errors of work, and those of other brokers unless `on_error` takes
    them.
    """
    others: list[tuple[TopicName, Redirect]] = []
    async for each in existing_topics_of(request, name):
        # A topic that is not partitioned was redirected to its owner before.
        to = None if each == name else await elsewhere(request, each)
        if to is None:
            await work(each)
        else:
            others.append((each, to))
    if others:
        await for_each_topic(request, others, take, on_error)


async def for_each_partition(
    request: Request, name: TopicName, work: Work, take: Take | None = None
) -> None:
    """Apply work to a topic, or to each of its partitions, as each_topic does.

    SubscriptionNotFound is raised only if all partitions raise it.
    """
    missed: list[SubscriptionNotFound] = []
    failed: list[Exception] = []
    is_done = False

    async def one(each: TopicName) -> None:
        nonlocal is_done
        topic = await load_topic(request, each)
        try:
            await work(topic)
            is_done = True
        except SubscriptionNotFound as error:
            missed.append(error)

    def taken(each: TopicName, answer: Any) -> None:
        nonlocal is_done
        is_done = True
        if take is not None:
            take(each, answer)

    def on_error(each: TopicName, error: Exception) -> None:
        if isinstance(error, SubscriptionNotFound):
            missed.append(error)
        else:
            failed.append(error)

    await each_topic(request, name, one, taken, on_error)
    try:
        if failed:
            raise failed[0]
        if missed and not is_done:
            raise missed[0]
    finally:
        # Leave no cycle of the errors and this frame.
        failed.clear()
        missed.clear()


def topic_not_found(name: TopicName) -> HttpError:
    """Return the refusal for a missing topic."""
    if name.is_partitioned:
        return HttpError(404, "Topic partitions were not yet created")
    return HttpError(404, f"Topic {name} not found")


# --- message positions ------------------------------------------------------------------------


class Place(NamedTuple):
    """A message position in a body: Pulsar's ResetCursorData."""

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
    """Return the position in a body: a message id, "latest" (default) or "earliest".

    Missing fields of an id are 0. Raises HttpError 400.
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
