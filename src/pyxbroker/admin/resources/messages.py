"""/admin/v2/{domain}/...: reads and finds messages, as in Pulsar's PersistentTopics."""

from __future__ import annotations

from typing import Any

from pyxbroker.admin.message_headers import headers_of
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import read_json, topic_of
from pyxbroker.admin.resources.topic_work import (
    NO_PLACE,
    REFUSE_AS_MISSING,
    load_persistent_topic,
    new_subscription_of,
    place_of,
    subscription_of,
)
from pyxbroker.auth.authorization import CONSUME_TOPIC, GET_BACKLOG_SIZE, PEEK_MESSAGES
from pyxbroker.base.errors import SubscriptionNotFound
from pyxbroker.broker.subscriptions import message_search as looking
from pyxbroker.broker.topics.entry_view import Position, read_view
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.web.endpoint import Answer, Content, Endpoint, Query
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import JSON, Response

TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = TOPIC + "/subscription/{subName}"
ON_PARTITIONS = ", please try do it on specific topic partition"
NO_SUBSCRIPTION = (
    "Subscription {} does not exist for topic {} and automatic subscription creation is disabled"
)


# --- single messages --------------------------------------------------------------------------


async def peek(request: Request) -> Response:
    """Return the n-th entry of a subscription's backlog.

    A missing subscription is created if policies allow it.
    """
    topic = await load_persistent_topic(request, "Peek messages")
    number: int = request.parameters["messagePosition"]
    if number < 1:
        raise HttpError(412, "messagePosition must be at least 1.")
    try:
        subscription = subscription_of(request, topic)
    except SubscriptionNotFound:
        name = new_subscription_of(request)
        if not topic.policies.auto_subscription_creation:
            raise HttpError(412, NO_SUBSCRIPTION.format(name, topic.name)) from None
        subscription = await topic.subscription_for(name, topic.first_position(), {}, create=True)
        request.has_created = True
    if number > subscription.backlog:
        raise HttpError(404, "Message not found")
    return await _answer(
        request, topic, topic.mark_after(subscription, number), "Message not found"
    )


async def get_by_id(request: Request) -> Response:
    """Return the entry with an id."""
    refusal = "GetMessageById is not allowed on partitioned-topic"
    topic = await load_persistent_topic(request, "GetMessageById", refusal)
    position = Position(request.parameters["ledgerId"], request.parameters["entryId"])
    return await _answer(request, topic, position, "Message id not found")


async def examine(request: Request) -> Response:
    """Return the n-th stored entry, counted from the first or from the last one."""
    refusal = (
        "Examine messages on a partitioned topic is not allowed, please try examine message on"
        " specific topic partition"
    )
    topic = await load_persistent_topic(request, "Examine messages", refusal)
    is_from_first = request.argument("initialPosition") == "earliest"
    number = max(request.argument("messagePosition"), 1)
    entries = topic.entries
    if entries == 0:
        raise HttpError(412, "Could not examine messages due to the total message is zero")
    if is_from_first:
        index = min(number, entries) - 1
    elif number > entries:
        raise HttpError(404, "Message not found")
    else:
        index = entries - number
    return await _answer(request, topic, topic.position_of(index), "Message not found")


async def _answer(
    request: Request, topic: PersistentTopic, position: Position, missing: str
) -> Response:
    """Return the payload of an entry, with its metadata as headers."""
    try:
        async with request.app.entries_read:
            found = await read_view(topic, position)
            if found is None:
                raise HttpError(404, missing)
            payload = await found.plain()
    except ValueError as error:
        raise HttpError(422, f"The entry {position} cannot be shown: {error}.") from None
    metadata = found.metadata
    txn = TxnId.of_wire(metadata.txnid_most_bits, metadata.txnid_least_bits)
    headers = headers_of(found, position > topic.last_readable, topic.is_aborted(txn))
    return Response(payload, JSON, headers=headers)


# --- ids --------------------------------------------------------------------------------------


async def get_last_id(request: Request) -> Response:
    """Return the id of the last message."""
    topic = await load_persistent_topic(request, "GetLastMessageId", REFUSE_AS_MISSING)
    position, batch_index = await topic.last_message()
    if position.ledger_id < 0:
        position = Position(topic.last_confirmed.ledger_id, -1)
    answer = _message_id(topic, position, batch_index)
    if batch_index >= 0:
        answer |= {"outstandingAcksInSameBatch": 0, "originalBatchSize": 0}
    return Response.json(answer)


async def get_id_by_time(request: Request) -> Response:
    """Return the id of the first message published at or after a time.

    Without such a message, return the id that the next message will get.
    """
    what = "Get message ID by timestamp"
    refusal = f"{what} on a partitioned topic is not allowed{ON_PARTITIONS}"
    topic = await load_persistent_topic(request, what, refusal)
    mark = await topic.position_before_time(request.parameters["timestamp"])
    return Response.json(_message_id(topic, topic.next_position(mark)))


async def get_id_by_index(request: Request) -> Response:
    """Return the id of the entry that contains the message with an index."""
    refusal = "GetMessageIDByIndex is not allowed on partitioned-topic"
    topic = await load_persistent_topic(request, "Get message id by index", refusal)
    if topic.entry_metadata is None or not topic.entry_metadata.has_indexes:
        raise _no_indexes()
    index = request.argument("index")
    if index < 0:
        raise HttpError(404, f"Invalid message index: {index}")
    if topic.entries == 0:
        raise HttpError(404, f"No messages found in topic {topic.name}")
    found = await looking.position_of_index(topic, index)
    if found is None:
        raise HttpError(404, f"Message not found for index {index}")
    return Response.json(_message_id(topic, found))


async def _require_indexes(request: Request) -> None:
    """Raise HttpError 412 if the broker does not assign indexes."""
    if not request.app.broker.config.brokerEntryMetadataInterceptors:
        raise _no_indexes()


def _no_indexes() -> HttpError:
    return HttpError(
        412, "GetMessageIDByIndex is not allowed when broker entry metadata is disabled"
    )


def _message_id(
    topic: PersistentTopic, position: Position, batch_index: int = -1
) -> dict[str, int]:
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": topic.partition,
        "batchIndex": batch_index,
        "batchSize": 0,
    }


# --- backlogs ---------------------------------------------------------------------------------


async def analyze(request: Request) -> Response:
    """Read a subscription's backlog and count it."""
    refusal = f"Analyze backlog on a partitioned topic is not allowed{ON_PARTITIONS}"
    body = await read_json(request)
    place = place_of(body)
    topic = await load_persistent_topic(request, "Analyze backlog", refusal)
    start = None if body is None else Position(place.ledger_id, place.entry_id)
    found = await looking.analyze_backlog(topic, subscription_of(request, topic), start)
    return Response.json(found.to_json())


async def backlog_size(request: Request) -> Response:
    """Return the approximate number of bytes after a message; -1:-1 means all."""
    refusal = "calculate backlog size is not allowed for partitioned-topic"
    body = await read_json(request)
    if not isinstance(body, dict):
        raise HttpError(400, NO_PLACE)
    place = place_of(body)
    topic = await load_persistent_topic(request, "Calculate backlog size", refusal)
    position = Position(place.ledger_id, place.entry_id)
    return Response.json(
        topic.storage_size if position.ledger_id == -1 else topic.bytes_after(position)
    )


ID_BYTES_MAX = 16 << 10  # many times the size of a message id
ID = {
    "type": "object",
    "properties": {"ledgerId": {"type": "integer"}, "entryId": {"type": "integer"}},
}
MESSAGE_ID = Answer("Pulsar's MessageIdImpl.", ID)
PAYLOAD = Answer("The payload as it was sent; headers X-Pulsar-... have the metadata.")
ANALYSIS: dict[str, Any] = {"type": "object", "additionalProperties": True}

ENDPOINTS = (
    Endpoint(
        "GET",
        SUBSCRIPTION + "/position/{messagePosition:int}",
        peek,
        PEEK_MESSAGES,
        "The n-th message, or batch, of a subscription's backlog.",
        PAYLOAD,
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/ledger/{ledgerId:long}/entry/{entryId:long}",
        get_by_id,
        PEEK_MESSAGES,
        "The message, or batch, with an id.",
        PAYLOAD,
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/examinemessage",
        examine,
        PEEK_MESSAGES,
        "The n-th stored message, or batch.",
        PAYLOAD,
        topic_of,
        (
            Query("initialPosition", "Counts from earliest, otherwise from the last message."),
            Query("messagePosition", "The number of the message, from 1.", 1),
        ),
    ),
    Endpoint(
        "GET",
        TOPIC + "/lastMessageId",
        get_last_id,
        PEEK_MESSAGES,
        "The id of the last message.",
        MESSAGE_ID,
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/messageid/{timestamp:long}",
        get_id_by_time,
        PEEK_MESSAGES,
        "The id of the first message that was published at a time, in milliseconds, or after it.",
        MESSAGE_ID,
        topic_of,
    ),
    Endpoint(
        "GET",
        TOPIC + "/getMessageIdByIndex",
        get_id_by_index,
        PEEK_MESSAGES,
        "The id of the entry that contains the message with an index.",
        MESSAGE_ID,
        topic_of,
        (Query("index", "The index among all messages ever published to the topic, from 0.", 0),),
        precheck=_require_indexes,
    ),
    Endpoint(
        "POST",
        SUBSCRIPTION + "/analyzeBacklog",
        analyze,
        CONSUME_TOPIC,
        "Reads and counts a subscription's backlog, up to 10,000 entries.",
        Answer("Pulsar's AnalyzeSubscriptionBacklogResult.", ANALYSIS),
        topic_of,
        content=Content(
            "The message id to start from.", {"application/json": ID}, bytes_max=ID_BYTES_MAX
        ),
    ),
    Endpoint(
        "PUT",
        TOPIC + "/backlogSize",
        backlog_size,
        GET_BACKLOG_SIZE,
        "The approximate number of bytes after a message.",
        Answer("The number.", {"type": "integer"}),
        topic_of,
        content=Content(
            "A message id; -1:-1 for all bytes.",
            {"application/json": ID},
            required=True,
            bytes_max=ID_BYTES_MAX,
        ),
    ),
)
