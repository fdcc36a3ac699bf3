"""The first command of a connection, CONNECT: negotiates the protocol and authenticates the client.

Without authentication, the broker answers a CONNECT immediately. With authentication, it handles no
other command before the client is authenticated, and checks credentials again when they expire. A
refused client learns no reason; the log has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyxbroker.auth.audit import DENIED
from pyxbroker.auth.certificates import common_name_of
from pyxbroker.auth.provider import CLIENT_ADDRESS, joined
from pyxbroker.base.clock import wall_s
from pyxbroker.base.errors import (
    AuthenticationError,
    AuthorizationError,
    NotAllowed,
    PulsarError,
    ServiceNotReady,
    TooManyRequests,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.memory_budget import COMMAND_BYTES, COMMAND_FACTOR
from pyxbroker.base.pacing import paced
from pyxbroker.broker.commands import replies
from pyxbroker.broker.commands.command_checks import check_text
from pyxbroker.broker.commands.login import Login, answer_of, log_in, shown_by
from pyxbroker.connection import Connection
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.commands.session import Session

log = get_logger("pyxbroker.connection")

PROTOCOL_VERSION = 21
PROTOCOL_VERSION_BATCHES = 4
PROTOCOL_VERSION_ENTRY_METADATA = 18

NOT_AUTHENTICATED = "Failed to authenticate"  # Pulsar's text
REFRESH = b"PulsarAuthRefresh"  # the data of a challenge

# The fields of a CONNECT that authentication needs, in addition to the feature flags.
_CREDENTIAL_FIELDS = (
    *("client_version", "protocol_version", "proxy_version", "original_principal"),
    *("auth_method", "auth_method_name", "auth_data"),
)
_PROXY_CREDENTIAL_FIELDS = ("original_auth_method", "original_auth_data")


class Handshake:
    """Authenticates the clients of all connections of one broker, and establishes connections."""

    def __init__(self, broker: Broker, on_malformed: Callable[[Connection, str], None]) -> None:
        self._broker = broker
        self._on_malformed = on_malformed

    # --- CONNECT ------------------------------------------------------------------------------

    def handle_first(self, connection: Connection, command: Any) -> None:
        """Handle a command that arrives before the connection is established."""
        if connection.session.tasks:
            self._on_malformed(connection, "a client waits for the answer to its CONNECT")
            connection.close()
            return
        if command.type != pb.BaseCommand.CONNECT or not command.HasField("connect"):
            self._on_malformed(connection, "the first command must be CONNECT")
            connection.close()
            return
        connect = command.connect
        try:
            self._check(connect)
        except PulsarError as error:
            log.warning("closed", peer=connection.peer, reason=error)
            self._refuse(connection, error.code, str(error))
            return
        authentication = self._broker.authentication
        if authentication is None:
            self._establish(connection, connect)
        else:
            self._authenticate(connection, connect, authentication)

    def end_half_open(self, session: Session) -> None:
        """Stop treating a connection as half open: it is established or closed."""
        pending, session.pending_connection = session.pending_connection, None
        if pending is not None:
            self._broker.half_open.remove(pending)

    def _check(self, connect: Any) -> None:
        check_text(connect)
        if not self._broker.is_ready:
            raise ServiceNotReady("The broker is not ready; try again.")
        if connect.protocol_version < PROTOCOL_VERSION_BATCHES:
            # Such a client cannot decode batches, and the broker cannot tell which entries are
            # batches.
            raise NotAllowed(
                f"Protocol version {connect.protocol_version} is too old: at least"
                f" {PROTOCOL_VERSION_BATCHES} is needed."
            )

    def _establish(self, connection: Connection, connect: Any) -> None:
        config, session = self._broker.config, connection.session
        self.end_half_open(session)
        connection.protocol_version = min(PROTOCOL_VERSION, connect.protocol_version)
        session.client_version = connect.client_version
        session.supports_partial_producers = connect.feature_flags.supports_partial_producer
        session.takes_entry_metadata = (
            config.exposingBrokerEntryMetadataToClientEnabled
            and connect.feature_flags.supports_broker_entry_metadata
            and connection.protocol_version >= PROTOCOL_VERSION_ENTRY_METADATA
        )
        session.memory.is_known = True
        session.step_queue = (
            self._broker.pace.queue()
        )  # no longer shared with unauthenticated connections
        connection.establish()
        self._broker.client_memory.forget_unauthenticated(connection)
        self._broker.connects_succeeded += 1
        connection.send_frame(
            replies.connected(
                self._broker.server_version,
                connection.protocol_version,
                config.maxMessageSize,
                topic_watchers=config.enableBrokerTopicListWatcher,
            )
        )
        who = {} if session.login is None else session.principal._asdict()
        log.info("connected", peer=connection.peer, client=connect.client_version, **who)

    # --- authentication -----------------------------------------------------------------------

    def _authenticate(
        self, connection: Connection, connect: Any, authentication: Authentication
    ) -> None:
        session, memory = connection.session, self._broker.client_memory
        connect = _credentials_of(connect, self._broker.config.authenticateOriginalAuthData)
        # ByteSize() requires all required fields.
        cost = COMMAND_BYTES + COMMAND_FACTOR * len(connect.SerializePartialToString())
        try:
            memory.charge_unauthenticated(connection, cost)
        except PulsarError as error:
            self._refuse(connection, error.code, str(error))
            return
        if session.pending_connection is not None:
            self._broker.half_open.mark_authenticating(session.pending_connection)
        running = self._log_in(connection, connect, authentication)
        task = asyncio.ensure_future(paced(running, session.step_queue))
        session.tasks.add(task)

        def on_done(done: asyncio.Future[None]) -> None:
            session.tasks.discard(done)
            running.close()  # if the connection closed before its first step
            memory.forget_unauthenticated(connection)
            session.memory.release(cost)

        task.add_done_callback(on_done)

    def on_closed(self, connection: Connection) -> None:
        """Cancel the login of a closed connection, because it holds the CONNECT in memory. A
        password check in progress continues, because it may be a guess and counts.
        """
        self._broker.client_memory.forget_unauthenticated(connection)
        if connection.established or not connection.session.tasks:
            return
        current = asyncio.current_task()  # may have closed the connection itself
        for task in connection.session.tasks:
            if task is not current:
                task.cancel()

    async def _log_in(
        self, connection: Connection, connect: Any, authentication: Authentication
    ) -> None:
        session = connection.session
        verify_original = self._broker.config.authenticateOriginalAuthData
        common_name = _common_name(connection)
        method, shown = shown_by(connect, common_name)
        try:
            with self._count_failures(connection, method, shown):
                async with self._broker.failed_logins.attempt(session.address, method, shown):
                    principal, login = await log_in(
                        authentication, connect, verify_original, common_name
                    )
        except Exception as error:
            self._refuse_credentials(connection, error)
            return
        self._note_success(login, method, shown)
        if connection.closed:
            return
        permissions = self._broker.permissions
        if permissions is not None:
            try:
                permissions.check_connect(principal, connect.proxy_version)
            except AuthorizationError as error:
                log.warning("refused", peer=connection.peer, reason=error, **principal._asdict())
                self._broker.audit.refused(
                    principal, session.address, "CONNECT", None, DENIED, error
                )
                self._refuse(connection, error.code, str(error))
                return
        session.principal, session.login = principal, login
        self._establish(connection, connect)

    async def _renew(
        self, connection: Connection, authentication: Authentication, method: str, shown: bytes
    ) -> None:
        """Check the answer to a challenge. An authenticated client is never limited by failed
        logins from its address, and its credentials count as proven.
        """
        login = connection.session.login
        assert login is not None
        # In the form that a CONNECT shows.
        distinguished_by = joined(shown, _common_name(connection).encode(), b"")
        try:
            with self._count_failures(connection, method, distinguished_by):
                is_same = await login.renew(authentication, method, shown)
        except Exception as error:
            self._refuse_credentials(connection, error)
            return
        if not is_same:
            log.warning("closed: the renewed credentials have another role", peer=connection.peer)
            connection.group.turn.run(connection.close)
            return
        self._note_success(login, method, distinguished_by)

    @contextmanager
    def _count_failures(self, connection: Connection, method: str, shown: bytes) -> Iterator[None]:
        """Count and audit failed logins."""
        address = connection.session.address
        CLIENT_ADDRESS.set(address)
        try:
            yield
        except (AuthenticationError, TooManyRequests) as error:
            self._broker.failed_logins.failed(address, method, shown, error)
            self._broker.audit.login_failed(address, "CONNECT", method, error)
            raise

    def _note_success(self, login: Login, method: str, shown: bytes) -> None:
        # Anonymous logins prove nothing, and would evict proven credentials.
        if login.verified.provider is not None:
            self._broker.failed_logins.succeeded(method, shown)

    def _refuse_credentials(self, connection: Connection, error: Exception) -> None:
        peer, code, text = connection.peer, AuthenticationError.code, NOT_AUTHENTICATED
        if isinstance(error, TooManyRequests):
            log.warning("refused", peer=peer, reason=error)
            code, text = error.code, str(error)
        elif isinstance(error, AuthenticationError):
            log.warning("authentication failed", peer=peer, reason=error)
        else:
            log.failure("authentication failed", error, peer=peer)
        if not connection.closed:
            self._refuse(connection, code, text)

    def _refuse(self, connection: Connection, code: int, reason: str) -> None:
        self._broker.connects_failed += not connection.established
        connection.send_frame(replies.error(replies.NO_REQUEST, code, reason))
        connection.group.turn.run(connection.close)

    def handle_auth_response(self, connection: Connection, message: Any) -> Any:
        """AUTH_RESPONSE: check the answer to a challenge. Any other AUTH_RESPONSE is a
        violation.
        """
        login, authentication = connection.session.login, self._broker.authentication
        answer = answer_of(message)
        if login is None or authentication is None or not login.is_challenged or answer is None:
            self._on_malformed(connection, "an AUTH_RESPONSE answers no challenge")
            connection.close()
            return None
        login.is_challenged = False
        return self._renew(connection, authentication, *answer)

    # --- expired credentials ------------------------------------------------------------------

    def check_credentials(self, live: list[Connection]) -> None:
        """Ask clients with expired credentials for new ones. Close clients that cannot refresh
        them, have not answered before, or whose proxy's credentials have expired.
        """
        now = wall_s()
        for connection in live:
            login = connection.session.login
            if connection.closed or login is None:
                continue
            if login.has_proxy_expired(now):
                # The client behind the proxy would answer the challenge.
                log.warning("closed: its proxy's credentials have expired", peer=connection.peer)
                connection.close()
                continue
            if not login.has_expired(now):
                continue
            if not login.can_refresh or login.is_challenged:
                log.warning("closed: its credentials have expired", peer=connection.peer,
                            was_asked=login.is_challenged)  # fmt: skip
                connection.close()
                continue
            login.is_challenged = True
            connection.send_frame(
                replies.auth_challenge(
                    self._broker.server_version, connection.protocol_version, login.method, REFRESH
                )
            )


def _credentials_of(connect: Any, verify_original: bool) -> Any:
    """Copy the fields of a CONNECT that authentication needs; the others are not held in memory."""
    kept = pb.CommandConnect()
    for name in (*_CREDENTIAL_FIELDS, *(_PROXY_CREDENTIAL_FIELDS if verify_original else ())):
        if connect.HasField(name):
            setattr(kept, name, getattr(connect, name))
    kept.feature_flags.CopyFrom(connect.feature_flags)
    return kept


def _common_name(connection: Connection) -> str:
    return "" if connection.tls is None else common_name_of(connection.tls.certificate)
