"""The first command of a connection, CONNECT: which protocol is spoken, and who speaks.

While authentication is off a CONNECT is answered at once. Else nothing that a client sends is
looked at before it has said who it is, and what it showed is looked at again while it stays. Who is
refused is told no more than that: why is in the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyxbroker.auth.audit import DENIED
from pyxbroker.auth.certificates import common_name_of
from pyxbroker.auth.provider import CLIENT_ADDRESS, joined
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
from pyxbroker.broker.commands.border import check_text
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

NOT_AUTHENTICATED = "Failed to authenticate"  # as Pulsar says it
REFRESH = b"PulsarAuthRefresh"  # what a challenge asks for

# Of a CONNECT besides the feature flags.
_LOOKED_AT = (
    *("client_version", "protocol_version", "proxy_version", "original_principal"),
    *("auth_method", "auth_method_name", "auth_data"),
)
_LOOKED_AT_BEHIND_A_PROXY = ("original_auth_method", "original_auth_data")


class Handshake:
    """The CONNECTs of all connections of one broker, and what they showed."""

    def __init__(self, broker: Broker, on_malformed: Callable[[Connection, str], None]) -> None:
        self._broker = broker
        self._on_malformed = on_malformed

    # --- CONNECT ------------------------------------------------------------------------------

    def handle_first(self, connection: Connection, command: Any) -> None:
        """A command that comes before a connection is established."""
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

    def over(self, session: Session) -> None:
        """It is known what a client wants and who it is, or it is gone."""
        pending, session.pending_connection = session.pending_connection, None
        if pending is not None:
            self._broker.half_open.remove(pending)

    def _check(self, connect: Any) -> None:
        check_text(connect)
        if not self._broker.is_ready:
            raise ServiceNotReady("The broker is not ready; try again.")
        if connect.protocol_version < PROTOCOL_VERSION_BATCHES:
            # Such a client could not decode a batch, and nobody can tell which entries are one.
            raise NotAllowed(
                f"Protocol version {connect.protocol_version} is too old: at least"
                f" {PROTOCOL_VERSION_BATCHES} is needed."
            )

    def _establish(self, connection: Connection, connect: Any) -> None:
        config, session = self._broker.config, connection.session
        self.over(session)
        connection.protocol_version = min(PROTOCOL_VERSION, connect.protocol_version)
        session.client_version = connect.client_version
        session.supports_partial_producers = connect.feature_flags.supports_partial_producer
        session.takes_entry_metadata = (
            config.exposingBrokerEntryMetadataToClientEnabled
            and connect.feature_flags.supports_broker_entry_metadata
            and connection.protocol_version >= PROTOCOL_VERSION_ENTRY_METADATA
        )
        session.memory.is_known = True
        session.line = self._broker.pace.line()  # which it shares with no stranger any more
        connection.establish()
        self._broker.client_memory.forget_stranger(connection)
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

    # --- who it is ----------------------------------------------------------------------------

    def _authenticate(
        self, connection: Connection, connect: Any, authentication: Authentication
    ) -> None:
        session, memory = connection.session, self._broker.client_memory
        connect = _credentials_of(connect, self._broker.config.authenticateOriginalAuthData)
        # ByteSize() is for those alone that have all that is required.
        cost = COMMAND_BYTES + COMMAND_FACTOR * len(connect.SerializePartialToString())
        try:
            memory.charge_stranger(connection, cost)
        except PulsarError as error:
            self._refuse(connection, error.code, str(error))
            return
        if session.pending_connection is not None:
            self._broker.half_open.mark_authenticating(session.pending_connection)
        running = self._log_in(connection, connect, authentication)
        task = asyncio.ensure_future(paced(running, session.line))
        session.tasks.add(task)

        def on_done(done: asyncio.Future[None]) -> None:
            session.tasks.discard(done)
            running.close()  # where the client was gone before the first step of it
            memory.forget_stranger(connection)
            session.memory.release(cost)

        task.add_done_callback(on_done)

    def on_closed(self, connection: Connection) -> None:
        """Who went away before it was let in is looked at no longer, as it would hold its CONNECT;
        but for the one whose password is being checked, which may be a guess.
        """
        self._broker.client_memory.forget_stranger(connection)
        if connection.established or not connection.session.tasks:
            return
        current = asyncio.current_task()  # may be the one that has closed it
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
            with self._watched(connection, method, shown):
                async with self._broker.failed_logins.attempt(session.address, method, shown):
                    principal, login = await log_in(
                        authentication, connect, verify_original, common_name
                    )
        except Exception as error:
            self._refuse_credentials(connection, error)
            return
        self._note_right(login, method, shown)
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
        """What a client shows that was let in already is looked at whoever else guesses from its
        address, and is right when it comes back with it.
        """
        login = connection.session.login
        assert login is not None
        # As a CONNECT shows it.
        told_apart_by = joined(shown, _common_name(connection).encode(), b"")
        try:
            with self._watched(connection, method, told_apart_by):
                is_same = await login.renew(authentication, method, shown)
        except Exception as error:
            self._refuse_credentials(connection, error)
            return
        if not is_same:
            log.warning("closed: another role than before", peer=connection.peer)
            connection.group.turn.run(connection.close)
            return
        self._note_right(login, method, told_apart_by)

    @contextmanager
    def _watched(self, connection: Connection, method: str, shown: bytes) -> Iterator[None]:
        """Counts and tells that a login has failed."""
        address = connection.session.address
        CLIENT_ADDRESS.set(address)
        try:
            yield
        except (AuthenticationError, TooManyRequests) as error:
            self._broker.failed_logins.failed(address, method, shown, error)
            self._broker.audit.login_failed(address, "CONNECT", method, error)
            raise

    def _note_right(self, login: Login, method: str, shown: bytes) -> None:
        # Anonymous is who shows anything: it would push out what others have proved.
        if login.verified.provider is not None:
            self._broker.failed_logins.succeeded(method, shown)

    def _refuse_credentials(self, connection: Connection, error: Exception) -> None:
        peer, code, told = connection.peer, AuthenticationError.code, NOT_AUTHENTICATED
        if isinstance(error, TooManyRequests):
            log.warning("refused", peer=peer, reason=error)
            code, told = error.code, str(error)
        elif isinstance(error, AuthenticationError):
            log.warning("authentication failed", peer=peer, reason=error)
        else:
            log.failure("authentication failed", error, peer=peer)
        if not connection.closed:
            self._refuse(connection, code, told)

    def _refuse(self, connection: Connection, code: int, reason: str) -> None:
        self._broker.connects_failed += not connection.established
        connection.send_frame(replies.error(replies.NO_REQUEST, code, reason))
        connection.group.turn.run(connection.close)

    def handle_auth_response(self, connection: Connection, message: Any) -> Any:
        """AUTH_RESPONSE: a client answers a challenge. Nobody else sends one."""
        login, authentication = connection.session.login, self._broker.authentication
        answer = answer_of(message)
        if login is None or authentication is None or not login.is_challenged or answer is None:
            self._on_malformed(connection, "an AUTH_RESPONSE answers no challenge")
            connection.close()
            return None
        login.is_challenged = False
        return self._renew(connection, authentication, *answer)

    # --- what was shown expires ---------------------------------------------------------------

    def check_credentials(self, live: list[Connection]) -> None:
        """Asks clients for newer credentials whose ones have expired, and closes those that cannot
        have any, that were asked before, or whose proxy's have expired.
        """
        now = time.time()
        for connection in live:
            login = connection.session.login
            if connection.closed or login is None:
                continue
            if login.has_proxy_expired(now):
                # A challenge is answered by who is behind it.
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
    """What is looked at of a CONNECT: the rest need not be kept while its client waits."""
    kept = pb.CommandConnect()
    for name in (*_LOOKED_AT, *(_LOOKED_AT_BEHIND_A_PROXY if verify_original else ())):
        if connect.HasField(name):
            setattr(kept, name, getattr(connect, name))
    kept.feature_flags.CopyFrom(connect.feature_flags)
    return kept


def _common_name(connection: Connection) -> str:
    return "" if connection.tls is None else common_name_of(connection.tls.certificate)
