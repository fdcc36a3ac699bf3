"""Handlers of client commands: the table, keep-alive, and lookups.

The handshake is in handshake.py. Commands of producers and consumers are in topic_commands.py. A
command that waits for metadata or a disk runs as a task. SEND, ACK, FLOW and MESSAGE never do.
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
from pyxbroker.base.pacing import StepQueue, paced
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS, TopicName
from pyxbroker.broker.commands import liveness, replies, seek
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
from pyxbroker.broker.commands.command_checks import check_text, exceeded_limit, request_of
from pyxbroker.broker.commands.handshake import Handshake
from pyxbroker.broker.commands.schema_commands import (
    SchemaCommands,
    get_or_create_failed,
    get_schema_failed,
)
from pyxbroker.broker.commands.session import Opening
from pyxbroker.broker.commands.topic_commands import TopicCommands
from pyxbroker.broker.commands.topic_list import TopicLists
from pyxbroker.broker.commands.transaction_commands import TransactionCommands, TransactionsOff
from pyxbroker.broker.commands.unread import note_unread
from pyxbroker.broker.refusals import refusal_of
from pyxbroker.connection import Connection
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.topics.producer import Producer
    from pyxbroker.settings.config import Config

log = get_logger("pyxbroker.connection")

COMMANDS_MAX = 1000  # in progress per connection, before the broker stops reading from it
LEAVE_PER_CALL = 4  # producers, consumers and watchers removed as soon as a connection ends
LEAVE_PER_CALL_S = 0.005  # time limit for that

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
    "transaction": NotAllowed(
        "The transaction of the SEND command is not that of the message's metadata."
    ),
}
_COORDINATORS = f"persistent://{SYSTEM_NAMESPACE}/{TRANSACTION_COORDINATORS}"


class LookupLimit:
    """Limits the lookups in progress of all clients (maxConcurrentLookupRequest)."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.admitted_now = 0

    def __enter__(self) -> None:
        """Begin a lookup. Raises TooManyRequests at the limit."""
        limit = self._config.maxConcurrentLookupRequest
        if self.admitted_now >= limit:
            raise TooManyRequests(
                f"{limit} lookups are in progress, which is the limit of this broker"
                " (maxConcurrentLookupRequest); try again."
            )
        self.admitted_now += 1

    def __exit__(self, *_: object) -> None:
        self.admitted_now -= 1


class Handlers:
    """The command handlers of all connections of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._lookups = LookupLimit(broker.config)
        self.stray_commands: Counter[str] = Counter()
        self.handshake = Handshake(broker, self.on_malformed)
        self.check_credentials = self.handshake.check_credentials
        schemas = SchemaCommands(broker)
        commands = TopicCommands(broker, schemas)
        lists = TopicLists(broker, self._lookups)
        self.watchers = lists.watchers
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
            **TransactionCommands(broker).table(),
        }

    # --- called by connections ----------------------------------------------------------------

    @staticmethod
    def may_begin(connection: Connection) -> bool:
        """Return True if this loop iteration has time for one more command."""
        queue: StepQueue = connection.session.step_queue
        return queue.pace.is_free

    @staticmethod
    def wait_turn(connection: Connection) -> None:
        """Resume a connection when it has passed the queue."""
        connection.session.step_queue.wait(connection.resume)

    def on_command(self, connection: Connection, kind: int, data: bytes, payload: bytes) -> None:
        """Handle a command outside the hot path, or one in an unusual encoding."""
        pace = connection.session.step_queue.pace
        began = pace.clock()
        try:
            self._on_command(connection, kind, data)
        finally:
            pace.spend(pace.clock() - began)

    def _on_command(self, connection: Connection, kind: int, data: bytes) -> None:
        limit = exceeded_limit(kind, data)
        if limit is not None:
            self._refuse_oversized(connection, kind, data, limit)
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
        """Report a protocol violation to the peer. The caller closes the connection."""
        log.warning("closed", peer=connection.peer, reason=what)
        connection.send_frame(
            replies.error(replies.NO_REQUEST, replies.UNKNOWN_ERROR, f"Connection closed: {what}.")
        )

    def on_frame_too_large(self, connection: Connection, first: bytes, bytes_max: int) -> None:
        """Report a frame that is too large, or another protocol; `first` has its first four
        bytes.
        """
        what = None
        if not connection.established:
            from pyxbroker.base.other_protocols import spoken_to_binary_port

            what = spoken_to_binary_port(first)
        size = int.from_bytes(first, "big")
        self.on_malformed(
            connection, what or f"a frame of {size} bytes is larger than the limit of {bytes_max}"
        )

    def on_broken_tls(self, connection: Connection, reason: str) -> None:
        """Log that the TLS handshake failed. OpenSSL has sent an alert to the peer."""
        from pyxbroker.base.other_protocols import explain_tls

        log.warning("closed", peer=connection.peer, reason=explain_tls(reason, "binary"))

    def on_too_many_unfinished(self, unfinished: Collection[Connection]) -> None:
        """Close one of the connections that have sent only a part of a large CONNECT. They are
        ordered by age.
        """
        self.broker.client_memory.close_unfinished(unfinished)

    def on_internal_error(self, connection: Connection, error: Exception) -> None:
        """Log an unexpected exception that a connection's handler has raised."""
        log.failure("internal error", error, peer=connection.peer)

    def on_refused_send(
        self,
        connection: Connection,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        reason: str,
    ) -> None:
        """Refuse a SEND that cannot be stored."""
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
        """Count a SEND, ACK or FLOW for something that is not open here (any more). It has no
        effect, and its client expects no answer.
        """
        self.stray_commands[name] += 1

    def on_stray_ack(self, connection: Connection, consumer_id: int, request_id: int) -> None:
        """Answer an ACK for a consumer that is not open here, if its client waits for an answer."""
        reason = f"Consumer {consumer_id} is not open on this connection."
        connection.send_frame(
            replies.ack_response(consumer_id, request_id, ConsumerNotFound.code, reason)
        )

    def on_closed(self, connection: Connection) -> None:
        """Release everything that the client of a closed connection has opened."""
        pace = connection.session.step_queue.pace
        began = pace.clock()
        try:
            self._on_closed(connection)
        finally:
            pace.spend(pace.clock() - began)

    def _on_closed(self, connection: Connection) -> None:
        # Commands in progress finish, so that their changes of metadata are complete.
        session = connection.session
        session.end()
        session.memory.end()
        self.handshake.end_half_open(session)
        self.handshake.on_closed(connection)
        self.broker.on_disconnected(session.address)
        liveness.on_answer(connection)
        log.info("disconnected", peer=connection.peer)
        until = session.step_queue.pace.clock() + LEAVE_PER_CALL_S
        for _ in range(LEAVE_PER_CALL):
            self._leave_one(connection)
            if session.step_queue.pace.clock() >= until:
                break
        self._leave_later(connection)

    def _leave_later(self, connection: Connection) -> None:
        """Remove what a closed connection still has open, one item per step. Removing 100,000
        producers in one loop iteration would block it.
        """
        session = connection.session
        if connection.producers or connection.consumers or session.has_more:
            session.step_queue.wait(partial(self._leave_next, connection))

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
            # An exception for one item must not keep the remaining ones attached.
            self.on_internal_error(connection, error)

    # --- running handlers ---------------------------------------------------------------------

    def _call(self, connection: Connection, command: Command, message: Any, size: int) -> None:
        memory = connection.session.memory
        cost = 0
        try:
            if command.resource is no_resource:
                waiting = command.handler(connection, message)
                if waiting is not None:
                    # Never refused: the command may close something, and so free memory.
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
            task = asyncio.ensure_future(paced(running, connection.session.step_queue))
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
            assert waiting is not None, "a command that opens something is asynchronous"
            await waiting
        if revoked is not None:
            revoked.recheck(resource, changes)

    async def _check(
        self, connection: Connection, command: Command, message: Any, resource: Resource
    ) -> None:
        """Raise PulsarError for a client without the right, and for a topic served elsewhere."""
        await self._check_right(connection, command, message, resource)
        if command.is_for_owner:
            assert isinstance(resource, TopicName), "it opens a topic"
            await self.broker.check_served(resource)

    async def _check_right(
        self, connection: Connection, command: Command, message: Any, resource: Resource
    ) -> None:
        """Raise AuthorizationError if the client lacks a right."""
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
            reported = self.client_error(connection, type(message).__name__, error)
            if command.is_for_owner:
                self.broker.last_refusals.note(message, reported, connection.peer)
            answer = command.refusal(message, reported)
        except Exception as defect:
            answer = self._answer_defect(connection, command, message, defect)
        connection.send_frame(answer)

    @staticmethod
    def _answer_defect(
        connection: Connection, command: Command, message: Any, defect: Exception
    ) -> bytes:
        """Answer a request whose refusal has raised an exception; its client would wait for its
        timeout.
        """
        about = {"peer": connection.peer, "command": type(message).__name__}
        reference = log.failure("a refusal failed", defect, **about)
        reported = UnknownError(with_reference(UnknownError.sentence, reference))
        try:
            return command.refusal(message, reported)
        except Exception as again:
            log.failure("a refusal failed again", again, **about)
            return answer_error(message, reported)

    @staticmethod
    def client_error(connection: Connection, command: str, error: Exception) -> PulsarError:
        """Return the error to send to the client. An unexpected cause goes to the log."""
        if isinstance(error, PulsarError):
            return error
        about = {"peer": connection.peer, "command": command}
        reported = refusal_of(error, log, "a command is refused", **about)
        if reported is not None:
            return reported
        reference = log.failure("a command failed", error, **about)
        return UnknownError(with_reference(UnknownError.sentence, reference))

    def _refuse(self, connection: Connection, command: Any) -> None:
        """Refuse a command that this broker does not support, or that clients do not send."""
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

    def _refuse_oversized(self, connection: Connection, kind: int, data: bytes, what: str) -> None:
        """Refuse an unparsed command that exceeds a limit."""
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
        """Refuse a command with invalid text. A command without an answer ends its connection."""
        if hasattr(message, "request_id"):
            log.warning("refused", peer=connection.peer, command=command.field, reason=error)
            self._answer_error(connection, command, message, error)
            return
        self.on_malformed(connection, f"its command {command.field} is invalid: {error}")
        connection.close()

    # --- keep-alive ---------------------------------------------------------------------------

    def _handle_ping(self, connection: Connection, message: Any) -> None:
        connection.send_frame(replies.pong())

    def _handle_pong(self, connection: Connection, message: Any) -> None:
        connection.session.ping_sent = False
        liveness.on_answer(connection)

    def check_alive(self, live: list[Connection]) -> None:
        """Ping silent peers, and close those that stay silent. Called once per keep-alive
        interval.
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
            # The client takes no data, so its own commands do not show that it is alive.
            log.warning("closed: the client reads nothing of what is sent to it",
            peer=connection.peer,
                        waiting=connection.pending_bytes)  # fmt: skip
            connection.close()
            return
        connection.sent_since_check = False
        if not connection.established:
            return  # half_open.py handles these
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
        is_off = not self.broker.config.transactionCoordinatorEnabled
        if is_off and message.topic.startswith(_COORDINATORS):
            # A Java client that the coordinator itself refuses would wait for it forever.
            raise TransactionsOff()
        with self._lookups:
            listener = message.advertised_listener_name.strip() or connection.session.listener
            found = await self.broker.lookup(
                message.topic, listener, connection.session.address, message.authoritative
            )
        connection.send_frame(replies.lookup_found(message.request_id, found))

    async def _handle_partitioned_metadata(self, connection: Connection, message: Any) -> None:
        with self._lookups:
            name = TopicName.get(message.topic)
            # Of the namespaces of a peer cluster, too: the lookup redirects to that cluster.
            await self.broker.peer_cluster_of(name.namespace)
            count = await self.broker.topics.partitioned.metadata(
                name, message.metadata_auto_creation_enabled
            )
        connection.send_frame(replies.partitions(message.request_id, count))


def _changed_by(connection: Connection, command: Command, message: Any) -> str | None:
    """Return the durable subscription that a command is about to change, before it is deleted."""
    if not command.change:
        return None
    consumer = connection.consumers.get(message.consumer_id)
    if consumer is None or not consumer.subscription.is_durable:
        return None
    return f"{consumer.subscription.topic.name} {consumer.subscription.name}"


def _lookup_failed(kind: replies.LookupKind, message: Any, reported: PulsarError) -> bytes:
    return replies.lookup_failed(kind, message.request_id, reported.code, str(reported))
