"""What the broker does for each command of a client: the table, keep-alive, and lookups.

The handshake is in handshake.py, commands of producers and consumers are in topic_commands.py. A
command that has to wait (for metadata, for a disk) is one task; SEND, ACK, FLOW and MESSAGE never
are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from pyxbroker.auth.audit import DENIED, DONE
from pyxbroker.auth.authorization import (
    CONSUME_TOPIC,
    GET_TOPICS,
    LOOKUP,
    PRODUCE_TO_TOPIC,
    Resource,
    authorize,
)
from pyxbroker.base.errors import (
    AuthorizationError,
    ChecksumError,
    ConsumerNotFound,
    NotAllowed,
    PulsarError,
    TooManyRequests,
    UnknownError,
    with_reference,
)
from pyxbroker.base.limits import CHUNK_UUID_BYTES_MAX, METADATA_FIELDS_MAX
from pyxbroker.base.log import get_logger
from pyxbroker.base.memory_budget import COMMAND_BYTES, COMMAND_FACTOR
from pyxbroker.base.pacing import Line, paced
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS, TopicName
from pyxbroker.broker.commands import liveness, replies, seek
from pyxbroker.broker.commands.border import check_text, excess, request_of
from pyxbroker.broker.commands.command import (
    Command,
    answer_error,
    consumer_id,
    initially_subscribed,
    namespace_of,
    no_resource,
    producer_id,
    subscribed,
    topic_of,
    watcher_id,
)
from pyxbroker.broker.commands.handshake import Handshake
from pyxbroker.broker.commands.schema_commands import (
    SchemaCommands,
    get_or_create_failed,
    get_schema_failed,
)
from pyxbroker.broker.commands.session import Opening
from pyxbroker.broker.commands.topic_commands import TopicCommands
from pyxbroker.broker.commands.topic_list import TopicLists
from pyxbroker.broker.commands.unread import note_unread
from pyxbroker.broker.lookup import check_served
from pyxbroker.broker.refusals import refusal_of
from pyxbroker.connection import Connection
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.subscriptions.consumer import Consumer
    from pyxbroker.broker.topics.producer import Producer
    from pyxbroker.settings.config import Config

log = get_logger("pyxbroker.connection")

COMMANDS_MAX = 1000  # of one connection under way before it is not read any further
LEAVE_AT_ONCE = 4  # producers, consumers and watchers of a connection that has ended
LEAVE_AT_ONCE_S = 0.005  # and no more when that has taken so long

REFUSED_SENDS = {
    "checksum": ChecksumError(
        "The checksum of the message does not match: it was damaged on its way to the broker."
    ),
    "metadata": ChecksumError(
        "The metadata of the message cannot be decoded, so no consumer could read it."
    ),
    "uuid": NotAllowed(
        f"The uuid of the chunked message is longer than {CHUNK_UUID_BYTES_MAX} bytes."
    ),
    "fields": NotAllowed(
        f"The metadata of the message has more than {METADATA_FIELDS_MAX} fields; each property is"
        " one."
    ),
    "count": NotAllowed(
        "The metadata of the message counts more messages than its payload can have, or fewer than"
        " none."
    ),
    "transaction": NotAllowed("Sending within a transaction is not supported by this broker."),
}
_COORDINATORS = f"persistent://{SYSTEM_NAMESPACE}/{TRANSACTION_COORDINATORS}"


class LookupLimit:
    """Bounds the lookups of all clients that are under way (maxConcurrentLookupRequest)."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.admitted_now = 0

    def __enter__(self) -> None:
        """One begins. Raises TooManyRequests when there are as many as there may be."""
        limit = self._config.maxConcurrentLookupRequest
        if self.admitted_now >= limit:
            raise TooManyRequests(
                f"{limit} lookups are under way, which is the limit of this broker"
                " (maxConcurrentLookupRequest); try again."
            )
        self.admitted_now += 1

    def __exit__(self, *_: object) -> None:
        self.admitted_now -= 1


class Handlers:
    """The commands of all connections of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._lookups = LookupLimit(broker.config)
        self.stray_commands: Counter[str] = Counter()
        self.handshake = Handshake(broker, self.on_malformed)
        schemas = SchemaCommands(broker)
        commands = TopicCommands(broker, schemas)
        self.lists = lists = TopicLists(broker, self._lookups)
        kinds = pb.BaseCommand
        self._table: dict[int, Command] = {
            kinds.LOOKUP: Command(
                "lookupTopic",
                self._handle_lookup,
                LOOKUP,
                topic_of,
                partial(_lookup_failed, replies.LOOKUP),
                unauthorized="Client is not authorized to Lookup",
            ),
            kinds.PARTITIONED_METADATA: Command(
                "partitionMetadata",
                self._handle_partitioned_metadata,
                LOOKUP,
                topic_of,
                partial(_lookup_failed, replies.PARTITIONED_METADATA),
                unauthorized="Client is not authorized to Get Partition Metadata",
                no_tenant="Tenant or namespace or topic does not exist: {namespace}",
            ),
            kinds.AUTH_RESPONSE: Command("authResponse", self.handshake.handle_auth_response),
            kinds.PING: Command("ping", self._handle_ping),
            kinds.PONG: Command("pong", self._handle_pong),
            kinds.PRODUCER: Command(
                "producer",
                commands.handle_producer,
                PRODUCE_TO_TOPIC,
                topic_of,
                unauthorized="Client is not authorized to Produce",
                subscription=initially_subscribed,
                opens=producer_id,
                is_for_owner=True,
            ),
            kinds.CLOSE_PRODUCER: Command("close_producer", commands.handle_close_producer),
            kinds.SUBSCRIBE: Command(
                "subscribe",
                commands.handle_subscribe,
                CONSUME_TOPIC,
                topic_of,
                unauthorized="Client is not authorized to subscribe",
                subscription=subscribed,
                opens=consumer_id,
                is_for_owner=True,
            ),
            kinds.UNSUBSCRIBE: Command(
                "unsubscribe", commands.handle_unsubscribe, change="UNSUBSCRIBE"
            ),
            kinds.CLOSE_CONSUMER: Command("close_consumer", commands.handle_close_consumer),
            kinds.CONSUMER_STATS: Command("consumerStats", commands.handle_consumer_stats),
            kinds.SEEK: Command("seek", seek.handle_seek, change="SEEK"),
            kinds.GET_LAST_MESSAGE_ID: Command("getLastMessageId", seek.handle_get_last_message_id),
            kinds.GET_TOPICS_OF_NAMESPACE: Command(
                "getTopicsOfNamespace",
                lists.handle_get_topics,
                GET_TOPICS,
                namespace_of,
                unauthorized="Client is not authorized to GetTopicsOfNamespace",
            ),
            kinds.WATCH_TOPIC_LIST: Command(
                "watchTopicList",
                lists.handle_watch,
                GET_TOPICS,
                namespace_of,
                unauthorized="Proxy Client is not authorized to watchTopicList",
                opens=watcher_id,
            ),
            kinds.WATCH_TOPIC_LIST_CLOSE: Command("watchTopicListClose", lists.handle_watch_close),
            kinds.GET_SCHEMA: Command(
                "getSchema",
                schemas.handle_get_schema,
                LOOKUP,
                topic_of,
                get_schema_failed,
                no_tenant="Topic not found or no-schema {topic}",
            ),
            kinds.GET_OR_CREATE_SCHEMA: Command(
                "getOrCreateSchema",
                schemas.handle_get_or_create_schema,
                PRODUCE_TO_TOPIC,
                topic_of,
                get_or_create_failed,
                no_tenant="Topic not found {topic}",
                is_for_owner=True,
            ),
        }

    # --- called by connections ----------------------------------------------------------------

    @staticmethod
    def may_begin(connection: Connection) -> bool:
        """Whether there is time for one more command in this turn."""
        line: Line = connection.session.line
        return line.pace.is_free

    @staticmethod
    def wait_turn(connection: Connection) -> None:
        """A connection is told to go on when it is its turn."""
        connection.session.line.wait(connection.resume)

    def on_command(self, connection: Connection, kind: int, data: bytes, payload: bytes) -> None:
        """A command that is not hot (or not written the usual way)."""
        pace = connection.session.line.pace
        began = pace.clock()
        try:
            self._on_command(connection, kind, data)
        finally:
            pace.spend(pace.clock() - began)

    def _on_command(self, connection: Connection, kind: int, data: bytes) -> None:
        too_much = excess(kind, data)
        if too_much is not None:
            self._refuse_much(connection, kind, data, too_much)
            return
        command = pb.BaseCommand()
        try:
            command.ParseFromString(data)
        except DecodeError:
            self.on_malformed(connection, "a command could not be decoded")
            connection.close()
            return
        if not connection.established:
            self.handshake.handle_first(connection, command)
            return
        found = self._table.get(command.type)
        if found is None:
            self._refuse(connection, command)
            return
        field = found.field
        if not command.HasField(field):
            self.on_malformed(connection, f"a command of type {command.type} has no {field}")
            connection.close()
            return
        message = getattr(command, field)
        try:
            check_text(message)
        except PulsarError as error:
            self._refuse_text(connection, found, message, error)
            return
        self._call(connection, found, message, len(data))

    def on_malformed(self, connection: Connection, what: str) -> None:
        """The peer does not speak the protocol: it is told, and the connection is closed."""
        log.warning("closed", peer=connection.peer, reason=what)
        connection.send_frame(
            replies.error(replies.NO_REQUEST, replies.UNKNOWN_ERROR, f"Connection closed: {what}.")
        )

    def on_frame_too_large(self, connection: Connection, first: bytes, bytes_max: int) -> None:
        """A frame is too large, or the peer speaks another protocol; `first` has its four bytes."""
        what = None
        if not connection.established:
            from pyxbroker.base.other_protocols import spoken_to_binary_port

            what = spoken_to_binary_port(first)
        size = int.from_bytes(first, "big")
        self.on_malformed(
            connection, what or f"a frame of {size} bytes is larger than the limit of {bytes_max}"
        )

    def on_broken_tls(self, connection: Connection, reason: str) -> None:
        """The peer does not speak TLS, or its certificate is refused. OpenSSL has told it."""
        from pyxbroker.base.other_protocols import explain_tls

        log.warning("closed", peer=connection.peer, reason=explain_tls(reason, "binary"))

    def on_too_many_unfinished(self, unfinished: Collection[Connection]) -> None:
        """Too many have sent a part of a large CONNECT and no more, who was first comes first: one
        of them gives way.
        """
        self.broker.client_memory.close_unfinished(unfinished)

    def on_internal_error(self, connection: Connection, error: Exception) -> None:
        """A defect of ours, met while handling this connection."""
        log.failure("internal error", error, peer=connection.peer)

    def on_refused_send(
        self,
        connection: Connection,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        reason: str,
    ) -> None:
        """A SEND that cannot be stored."""
        error = REFUSED_SENDS[reason]
        log.warning(
            "a SEND was refused",
            peer=connection.peer,
            topic=producer.topic.name,
            producer=producer.name,
            sequence_id=sequence_id,
            reason=error,
        )
        producer.refuse(sequence_id, highest_sequence_id, error)

    def on_stray_command(self, name: str) -> None:
        """A SEND, ACK or FLOW for what is not open here (any more): it changes nothing, and its
        client waits for no answer.
        """
        self.stray_commands[name] += 1

    def on_stray_ack(self, connection: Connection, consumer_id: int, request_id: int) -> None:
        """An ACK for a consumer that is not open here, whose client waits for an answer."""
        reason = f"Consumer {consumer_id} is not open on this connection."
        connection.send_frame(
            replies.ack_response(consumer_id, request_id, ConsumerNotFound.code, reason)
        )

    def on_closed(self, connection: Connection) -> None:
        """The connection is gone, and everything that its client had open with it."""
        pace = connection.session.line.pace
        began = pace.clock()
        try:
            self._on_closed(connection)
        finally:
            pace.spend(pace.clock() - began)

    def _on_closed(self, connection: Connection) -> None:
        # Commands that are still under way finish: what they began in metadata must not be left
        # half.
        session = connection.session
        session.end()
        session.memory.end()
        self.handshake.over(session)
        self.handshake.on_closed(connection)
        self.broker.on_disconnected(session.address)
        liveness.on_answer(connection)
        log.info("disconnected", peer=connection.peer)
        until = session.line.pace.clock() + LEAVE_AT_ONCE_S
        for _ in range(LEAVE_AT_ONCE):
            self._leave_one(connection)
            if session.line.pace.clock() >= until:
                break
        self._leave_later(connection)

    def _leave_later(self, connection: Connection) -> None:
        """What a closed connection still has open leaves one after another. A list of all of it, of
        100,000 producers, would hold a turn up.
        """
        session = connection.session
        if connection.producers or connection.consumers or session.has_more:
            session.line.wait(partial(self._leave_next, connection))

    def _leave_next(self, connection: Connection) -> None:
        self._leave_one(connection)
        self._leave_later(connection)

    def _leave_one(self, connection: Connection) -> None:
        session = connection.session
        try:
            if connection.producers:
                connection.producers.popitem()[1].leave()
            elif connection.consumers:
                connection.consumers.popitem()[1].leave()
            else:
                session.forget_one()
        except Exception as error:
            # A defect met by one of them must not keep the others attached.
            self.on_internal_error(connection, error)

    # --- running handlers ---------------------------------------------------------------------

    def _call(self, connection: Connection, command: Command, message: Any, size: int) -> None:
        memory = connection.session.memory
        cost = 0
        try:
            if command.resource is no_resource:
                waiting = command.handler(connection, message)
                if waiting is not None:
                    # Not refused: it may be what closes something.
                    cost = COMMAND_BYTES + COMMAND_FACTOR * size
                    memory.take_over(cost)
            else:
                cost = COMMAND_BYTES + COMMAND_FACTOR * size
                memory.charge(cost)
                waiting = self._authorized(connection, command, message)
        except Exception as error:
            self._answer_error(connection, command, message, error)
            return
        if waiting is not None:
            running = self._run(connection, command, waiting, message)
            task = asyncio.ensure_future(paced(running, connection.session.line))
            tasks = connection.session.tasks
            tasks.add(task)
            if len(tasks) == COMMANDS_MAX:
                connection.pause_commands(True)

            def on_done(done: asyncio.Future[None]) -> None:
                tasks.discard(done)
                memory.release(cost)
                note_unread(connection, self.broker.client_memory)
                if len(tasks) == COMMANDS_MAX // 2 and not connection.closed:
                    connection.pause_commands(False)

            task.add_done_callback(on_done)

    async def _authorized(self, connection: Connection, command: Command, message: Any) -> None:
        resource = command.resource(message)
        if command.opens is None:
            await self._check(connection, command, message, resource)
            waiting = command.handler(connection, message)
            if waiting is not None:
                await waiting
            return
        revoked = self.broker.revoked_rights
        changes = 0 if revoked is None else revoked.changes
        with Opening(connection, command.opens(message)) as opening:
            await self._check(connection, command, message, resource)
            waiting = command.handler(connection, message, opening)
            assert waiting is not None, "what opens something waits for it"
            await waiting
        if revoked is not None:
            revoked.look_again(resource, changes)

    async def _check(
        self, connection: Connection, command: Command, message: Any, resource: Resource
    ) -> None:
        """Raise PulsarError for a client without the right, and for a topic served elsewhere."""
        await self._check_right(connection, command, message, resource)
        if command.is_for_owner:
            assert isinstance(resource, TopicName), "it opens a topic"
            await check_served(self.broker, resource)

    async def _check_right(
        self, connection: Connection, command: Command, message: Any, resource: Resource
    ) -> None:
        """Raises AuthorizationError."""
        permissions, principal = self.broker.permissions, connection.session.principal
        try:
            await authorize(permissions, principal, command.right, resource)
            also = None if permissions is None else command.subscription(message)
            if also is not None:
                right, subscription = also
                await authorize(permissions, principal, right, resource, subscription)
        except AuthorizationError as error:
            self.broker.audit.refused(
                *(principal, connection.session.address, command.field, resource, DENIED, error)
            )
            raise command.refused(error, resource) from None

    async def _run(
        self, connection: Connection, command: Command, waiting: Awaitable[None], message: Any
    ) -> None:
        subscription = _changed_by(connection, command, message)
        try:
            await waiting
        except Exception as error:
            self._answer_error(connection, command, message, error)
            self._audit_change(connection, command, subscription, error)
        else:
            self._audit_change(connection, command, subscription, DONE)

    def _audit_change(
        self, connection: Connection, command: Command, subscription: str | None, outcome: object
    ) -> None:
        if subscription is not None:
            session = connection.session
            self.broker.audit.changed(
                *(session.principal, session.address, command.change, subscription, outcome)
            )

    def _answer_error(
        self, connection: Connection, command: Command, message: Any, error: Exception
    ) -> None:
        try:
            answer = command.refusal(
                message, self.client_error(connection, type(message).__name__, error)
            )
        except Exception as defect:
            answer = self._answer_defect(connection, command, message, defect)
        connection.send_frame(answer)

    @staticmethod
    def _answer_defect(
        connection: Connection, command: Command, message: Any, defect: Exception
    ) -> bytes:
        """The refusal itself has met a defect. Its client would wait for its timeout."""
        about = {"peer": connection.peer, "command": type(message).__name__}
        reference = log.failure("a refusal failed", defect, **about)
        told = UnknownError(with_reference(UnknownError.sentence, reference))
        try:
            return command.refusal(message, told)
        except Exception as again:
            log.failure("a refusal failed again", again, **about)
            return answer_error(message, told)

    @staticmethod
    def client_error(connection: Connection, command: str, error: Exception) -> PulsarError:
        """The error that the client of a failed command gets; the log gets what caused it."""
        if isinstance(error, PulsarError):
            return error
        about = {"peer": connection.peer, "command": command}
        told = refusal_of(error, log, "a command is refused", **about)
        if told is not None:
            return told
        reference = log.failure("a command failed", error, **about)
        return UnknownError(with_reference(UnknownError.sentence, reference))

    def _refuse(self, connection: Connection, command: Any) -> None:
        """What is not built, or not for a broker, answers its request with a sentence."""
        name = pb.BaseCommand.Type.Name(command.type)
        for _, message in command.ListFields():
            request_id = getattr(message, "request_id", None)
            if request_id is not None:
                connection.send_frame(
                    replies.error(
                        request_id, NotAllowed.code, f"{name} is not supported by this broker."
                    )
                )
                return
        self.on_malformed(connection, f"a client does not send {name}")
        connection.close()

    def _refuse_much(self, connection: Connection, kind: int, data: bytes, what: str) -> None:
        """A command that has more than it may have, and is not parsed."""
        found, request = self._table.get(kind), request_of(kind, data)
        if found is None or request is None or not connection.established:
            self.on_malformed(connection, f"a command has more than {what}")
            connection.close()
            return
        error = NotAllowed(
            f"The command has more than {what}, which is the limit of this broker; ask for less at"
            " once."
        )
        log.warning("refused", peer=connection.peer, command=found.field, reason=error)
        self._answer_error(connection, found, request, error)

    def _refuse_text(
        self, connection: Connection, command: Command, message: Any, error: PulsarError
    ) -> None:
        """A command with text that cannot be used; one that has no answer ends its connection."""
        if hasattr(message, "request_id"):
            log.warning("refused", peer=connection.peer, command=command.field, reason=error)
            self._answer_error(connection, command, message, error)
            return
        self.on_malformed(connection, f"of its {command.field}: {error}")
        connection.close()

    # --- keep-alive ---------------------------------------------------------------------------

    def _handle_ping(self, connection: Connection, message: Any) -> None:
        connection.send_frame(replies.pong())

    def _handle_pong(self, connection: Connection, message: Any) -> None:
        connection.session.ping_sent = False
        liveness.on_answer(connection)

    def check_alive(self, live: list[Connection]) -> None:
        """Called once per keep-alive interval: pings silent peers, closes those that stay
        silent.
        """
        for connection in live:
            if connection.closed:
                continue
            try:
                self._check_alive(connection)
            except Exception as error:
                self.on_internal_error(connection, error)
                connection.close()

    @staticmethod
    def _check_alive(connection: Connection) -> None:
        session = connection.session
        if connection.writing and not connection.sent_since_check:
            # Neither its silence nor what it sends says that it is there for what it asked for.
            log.warning("closed: it takes nothing of what waits for it", peer=connection.peer,
                        waiting=connection.pending_bytes)  # fmt: skip
            connection.close()
            return
        connection.sent_since_check = False
        if not connection.established:
            return  # half_open.py looks after it
        if connection.received_since_check or connection.is_paused:
            connection.received_since_check = False
            session.ping_sent = False
        elif session.ping_sent:
            log.info("closed: silent for too long", peer=connection.peer)
            connection.close()
            return
        if not session.ping_sent:
            session.ping_sent = True
            connection.send_frame(replies.ping())

    # --- lookups ------------------------------------------------------------------------------

    async def _handle_lookup(self, connection: Connection, message: Any) -> None:
        if message.topic.startswith(_COORDINATORS):
            # A Java client that the coordinator itself refuses waits for it without an end.
            raise NotAllowed("Transactions are not supported by this broker.")
        with self._lookups:
            listener = message.advertised_listener_name.strip() or connection.session.listener
            found = await self.broker.lookup(
                message.topic, listener, connection.session.address, message.authoritative
            )
        connection.send_frame(replies.lookup_found(message.request_id, found))

    async def _handle_partitioned_metadata(self, connection: Connection, message: Any) -> None:
        with self._lookups:
            count = await self.broker.topics.partitioned.metadata(
                TopicName.get(message.topic), message.metadata_auto_creation_enabled
            )
        connection.send_frame(replies.partitions(message.request_id, count))


def _changed_by(connection: Connection, command: Command, message: Any) -> str | None:
    """The durable subscription that a command is about to change, before it is gone."""
    if not command.change:
        return None
    consumer: Consumer | None = connection.consumers.get(message.consumer_id)
    if consumer is None or not consumer.subscription.is_durable:
        return None
    return f"{consumer.subscription.topic.name} {consumer.subscription.name}"


def _lookup_failed(kind: replies.LookupKind, message: Any, told: PulsarError) -> bytes:
    return replies.lookup_failed(kind, message.request_id, told.code, str(told))
