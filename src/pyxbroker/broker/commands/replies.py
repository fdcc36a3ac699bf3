"""Frames that answer commands outside the hot path, encoded by protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pyxbroker.base.varint import encode_varint
from pyxbroker.broker.listeners import Addresses, OfListener
from pyxbroker.broker.lookup import Redirect
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.commands.topics_pattern import Pause
    from pyxbroker.connection import Connection

_SIZES = struct.Struct(">II")

TEXTS_PER_STEP = 1000  # encoded per step, of a list in an answer
LENGTH_DELIMITED = 2  # wire type of a nested message

UNKNOWN_ERROR = 0
PERSISTENCE_ERROR = 2
NOT_ALLOWED = 22

NOWHERE = Addresses()
NO_REQUEST = 2**64 - 1  # request id of an error that answers no request
MINUS_ONE = 2**64 - 1  # -1 as an unsigned id of a position


class LookupKind(NamedTuple):
    """A request whose response type has a field for errors of its own."""

    response_type: int
    field: str  # of BaseCommand
    failed: int  # value of the response's field `response`


LOOKUP = LookupKind(
    pb.BaseCommand.LOOKUP_RESPONSE, "lookupTopicResponse", pb.CommandLookupTopicResponse.Failed
)
PARTITIONED_METADATA = LookupKind(
    pb.BaseCommand.PARTITIONED_METADATA_RESPONSE,
    "partitionMetadataResponse",
    pb.CommandPartitionedTopicMetadataResponse.Failed,
)


def frame(command: Any) -> bytes:
    """Encode a BaseCommand as a frame without payload."""
    body: bytes = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def _command(kind: int) -> Any:
    command = pb.BaseCommand()
    command.type = kind
    return command


def connected(
    server_version: str, protocol_version: int, max_message_size: int, *, topic_watchers: bool
) -> bytes:
    command = _command(pb.BaseCommand.CONNECTED)
    answer = command.connected
    answer.server_version = server_version
    answer.protocol_version = protocol_version
    answer.max_message_size = max_message_size
    flags = answer.feature_flags
    flags.supports_get_partitioned_metadata_without_auto_creation = True
    flags.supports_topic_watchers = topic_watchers
    flags.supports_topic_watcher_reconcile = topic_watchers
    return frame(command)


def auth_challenge(server_version: str, protocol_version: int, method: str, data: bytes) -> bytes:
    command = _command(pb.BaseCommand.AUTH_CHALLENGE)
    question = command.authChallenge
    question.server_version = server_version
    question.protocol_version = protocol_version
    question.challenge.auth_method_name = method
    question.challenge.auth_data = data
    return frame(command)


def ping() -> bytes:
    command = _command(pb.BaseCommand.PING)
    command.ping.SetInParent()
    return frame(command)


def pong() -> bytes:
    command = _command(pb.BaseCommand.PONG)
    command.pong.SetInParent()
    return frame(command)


def success(request_id: int) -> bytes:
    command = _command(pb.BaseCommand.SUCCESS)
    command.success.request_id = request_id
    return frame(command)


def error(request_id: int, code: int, message: str) -> bytes:
    command = _command(pb.BaseCommand.ERROR)
    command.error.request_id = request_id
    command.error.error = code
    command.error.message = message
    return frame(command)


def send_error(producer_id: int, sequence_id: int, code: int, message: str) -> bytes:
    command = _command(pb.BaseCommand.SEND_ERROR)
    answer = command.send_error
    answer.producer_id = producer_id
    answer.sequence_id = sequence_id
    answer.error = code
    answer.message = message
    return frame(command)


def send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, position: tuple[int, int]
) -> bytes:
    """Encode one receipt outside the hot path; see ProducerState.send_receipts."""
    command = _command(pb.BaseCommand.SEND_RECEIPT)
    answer = command.send_receipt
    answer.producer_id = producer_id
    answer.sequence_id = sequence_id
    if highest_sequence_id:
        answer.highest_sequence_id = highest_sequence_id
    ids = answer.message_id
    ids.ledgerId, ids.entryId = (_unsigned(part) for part in position)
    return frame(command)


def producer_success(
    request_id: int,
    name: str,
    *,
    schema_version: bytes = b"",
    last_sequence_id: int = -1,
    epoch: int | None = None,
    is_ready: bool = True,
) -> bytes:
    """Encode the answer to a PRODUCER: it is open, or (not ready) waits for access.

    last_sequence_id: the last one that a producer of this name has sent, -1 if unknown. epoch: of
    the topic, if it ever had an exclusive producer.
    """
    command = _command(pb.BaseCommand.PRODUCER_SUCCESS)
    answer = command.producer_success
    answer.request_id = request_id
    answer.producer_name = name
    answer.last_sequence_id = last_sequence_id
    answer.schema_version = schema_version
    if epoch is not None:
        answer.topic_epoch = epoch
    answer.producer_ready = is_ready
    return frame(command)


def schema(
    request_id: int,
    schema_id: str,
    found: tuple[int, bytes, Iterable[tuple[str, str]]],
    version: bytes,
) -> bytes:
    """Encode a version of a topic's schema: its type, definition and properties."""
    command = _command(pb.BaseCommand.GET_SCHEMA_RESPONSE)
    answer = command.getSchemaResponse
    answer.request_id = request_id
    answer.schema.name = schema_id
    answer.schema.type, answer.schema.schema_data, properties = found
    for key, value in properties:
        answer.schema.properties.add(key=key, value=value)
    answer.schema_version = version
    return frame(command)


def schema_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the refusal of a GET_SCHEMA."""
    command = _command(pb.BaseCommand.GET_SCHEMA_RESPONSE)
    return _failed(command, command.getSchemaResponse, request_id, code, message)


def schema_version(request_id: int, version: bytes) -> bytes:
    """Encode the version under which a schema is registered; empty: no schema was sent."""
    command = _command(pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    answer = command.getOrCreateSchemaResponse
    answer.request_id = request_id
    answer.schema_version = version
    return frame(command)


def schema_version_failed(request_id: int, code: int, message: str) -> bytes:
    """Encode the refusal of a GET_OR_CREATE_SCHEMA."""
    command = _command(pb.BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    return _failed(command, command.getOrCreateSchemaResponse, request_id, code, message)


def _failed(command: Any, answer: Any, request_id: int, code: int, message: str) -> bytes:
    answer.request_id = request_id
    answer.error_code = code
    answer.error_message = message
    return frame(command)


def lookup_found(request_id: int, found: Addresses | Redirect) -> bytes:
    """Encode a lookup result: the broker that serves the topic, or the one to ask instead."""
    command, answer = _lookup_answer(LOOKUP, request_id)
    if isinstance(found, Redirect):
        answer.response = pb.CommandLookupTopicResponse.Redirect
        answer.authoritative = found.authoritative
        addresses = found.urls
    else:
        answer.response = pb.CommandLookupTopicResponse.Connect
        answer.authoritative = True
        addresses = found
    if addresses.broker_url:
        answer.brokerServiceUrl = addresses.broker_url
    if addresses.broker_url_tls:
        answer.brokerServiceUrlTls = addresses.broker_url_tls
    answer.proxy_through_service_url = False
    return frame(command)


def partitions(request_id: int, count: int) -> bytes:
    """Encode a topic's number of partitions; 0: it is not partitioned."""
    command, answer = _lookup_answer(PARTITIONED_METADATA, request_id)
    answer.response = pb.CommandPartitionedTopicMetadataResponse.Success
    answer.partitions = count
    return frame(command)


def lookup_failed(kind: LookupKind, request_id: int, code: int, message: str) -> bytes:
    """Encode the refusal of a LOOKUP or PARTITIONED_METADATA; clients expect no ERROR for these."""
    command, answer = _lookup_answer(kind, request_id)
    answer.response = kind.failed
    answer.error = code
    answer.message = message
    return frame(command)


def _lookup_answer(kind: LookupKind, request_id: int) -> tuple[Any, Any]:
    """Return the BaseCommand and its message, for a response type with a field for errors."""
    command = _command(kind.response_type)
    answer = getattr(command, kind.field)
    answer.request_id = request_id
    return command, answer


async def topics_of_namespace(
    request_id: int,
    topics: list[str],
    filtered: bool,
    topics_hash: str,
    changed: bool,
    pause: Pause,
) -> bytes:
    """filtered: by the pattern; changed: the hash differs from the client's."""
    answer = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, filtered=filtered, topics_hash=topics_hash, changed=changed
    )
    kind = pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE
    return await _long(kind, "getTopicsOfNamespaceResponse", answer, pause, topics=topics)


async def watch_topic_list_success(
    request_id: int, watcher_id: int, topics: list[str], topics_hash: str, pause: Pause
) -> bytes:
    answer = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topics_hash=topics_hash
    )
    kind = pb.BaseCommand.WATCH_TOPIC_LIST_SUCCESS
    return await _long(kind, "watchTopicListSuccess", answer, pause, topic=topics)


async def topic_update(
    watcher_id: int, new: list[str], deleted: list[str], topics_hash: str, pause: Pause
) -> bytes:
    """Encode a change of a topic list; the hash is that of the whole list after it."""
    update = pb.CommandWatchTopicUpdate(watcher_id=watcher_id, topics_hash=topics_hash)
    kind = pb.BaseCommand.WATCH_TOPIC_UPDATE
    lists = {"new_topics": new, "deleted_topics": deleted}
    return await _long(kind, "watchTopicUpdate", update, pause, **lists)


async def _long(kind: int, field: str, message: Any, pause: Pause, **lists: list[str]) -> bytes:
    """Encode a command whose message, in the field of this name, has long lists of texts.

    The encoding of a message is the concatenation of the encodings of its parts.
    """
    pieces = [message.SerializeToString()]
    for name, texts in lists.items():
        for at in range(0, len(texts), TEXTS_PER_STEP):
            some = type(message)(**{name: texts[at : at + TEXTS_PER_STEP]})
            pieces.append(some.SerializePartialToString())
            await pause()
    command = pb.BaseCommand(type=kind).SerializeToString()
    number = pb.BaseCommand.DESCRIPTOR.fields_by_name[field].number
    message_bytes = sum(map(len, pieces))
    command += encode_varint(number << 3 | LENGTH_DELIMITED) + encode_varint(message_bytes)
    body_bytes = len(command) + message_bytes
    return b"".join([_SIZES.pack(body_bytes + 4, body_bytes), command, *pieces])


def last_message_id(
    request_id: int,
    position: tuple[int, int],
    partition: int,
    batch_index: int,
    mark_delete: tuple[int, int] | None,
) -> bytes:
    command = _command(pb.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    answer = command.getLastMessageIdResponse
    answer.request_id = request_id
    last = answer.last_message_id
    last.ledgerId, last.entryId = (_unsigned(part) for part in position)
    last.partition = partition
    last.batch_index = batch_index
    if mark_delete is not None:
        mark = answer.consumer_mark_delete_position
        mark.ledgerId, mark.entryId = (_unsigned(part) for part in mark_delete)
    return frame(command)


def ack_response(consumer_id: int, request_id: int, code: int | None, message: str) -> bytes:
    command = _command(pb.BaseCommand.ACK_RESPONSE)
    answer = command.ackResponse
    answer.consumer_id = consumer_id
    answer.request_id = request_id
    if code is not None:
        answer.error = code
        answer.message = message
    return frame(command)


def coordinator_connected(request_id: int) -> bytes:
    """Encode the answer to a TC_CLIENT_CONNECT_REQUEST."""
    command = _command(pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
    command.tcClientConnectResponse.request_id = request_id
    return frame(command)


def coordinator_refused(request_id: int, code: int, message: str) -> bytes:
    """Encode the refusal of a TC_CLIENT_CONNECT_REQUEST."""
    command = _command(pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE)
    answer = command.tcClientConnectResponse
    answer.request_id, answer.error, answer.message = request_id, code, message
    return frame(command)


def transaction(
    kind: int, request: Any, txn: tuple[int, int], refusal: tuple[int, str] | None = None
) -> bytes:
    """Encode the answer to a command about a transaction: its id (most, least bits), and the error
    and text of a refusal.
    """
    # The type of an answer follows that of its command.
    command = _command(kind + 1)
    answer = getattr(command, pb.BaseCommand.DESCRIPTOR.fields_by_number[kind + 1].name)
    answer.request_id = request.request_id
    answer.txnid_most_bits, answer.txnid_least_bits = txn
    if refusal is not None:
        answer.error, answer.message = refusal
    return frame(command)


def reached_end_of_topic(consumer_id: int) -> bytes:
    """Encode that the topic is terminated, and the subscription has acknowledged everything."""
    command = _command(pb.BaseCommand.REACHED_END_OF_TOPIC)
    command.reachedEndOfTopic.consumer_id = consumer_id
    return frame(command)


def close_producer(producer_id: int, url: str = "", url_tls: str = "") -> bytes:
    command = _command(pb.BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id = producer_id
    _set_closing(command.close_producer, url, url_tls)
    return frame(command)


def close_consumer(consumer_id: int, url: str = "", url_tls: str = "") -> bytes:
    command = _command(pb.BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id = consumer_id
    _set_closing(command.close_consumer, url, url_tls)
    return frame(command)


def _set_closing(closing: Any, url: str, url_tls: str) -> None:
    """Set the broker that the client connects to next, without a lookup; empty: it looks up."""
    closing.request_id = NO_REQUEST
    if url:
        closing.assignedBrokerServiceUrl = url
    if url_tls:
        closing.assignedBrokerServiceUrlTls = url_tls


class ClosedNotice(NamedTuple):
    """A notice to a client about its producer or consumer, whose id is not in use any more."""

    connection: Connection
    id: int
    of_producer: bool

    def send(self, owner: OfListener | None = None) -> None:
        """Notify the client, which connects to `owner`; without one it looks the topic up."""
        connection = self.connection
        # A client that has closed it meanwhile may have reused the id.
        if self.id not in (connection.producers if self.of_producer else connection.consumers):
            command = close_producer if self.of_producer else close_consumer
            to = NOWHERE if owner is None else owner(connection.session.listener)
            connection.send_frame(command(self.id, to.broker_url, to.broker_url_tls))


def consumer_stats_failed(request_id: int, code: int, message: str) -> bytes:
    command = _command(pb.BaseCommand.CONSUMER_STATS_RESPONSE)
    answer = command.consumerStatsResponse
    answer.request_id = request_id
    answer.error_code = code
    answer.error_message = message
    return frame(command)


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    """Encode a change of the active consumer of a Failover subscription."""
    command = _command(pb.BaseCommand.ACTIVE_CONSUMER_CHANGE)
    command.active_consumer_change.consumer_id = consumer_id
    command.active_consumer_change.is_active = is_active
    return frame(command)


def _unsigned(value: int) -> int:
    return value & MINUS_ONE
