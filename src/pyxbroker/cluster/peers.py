"""Requests to the other brokers of the cluster, over REST and the binary protocol."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from pyxbroker.base.errors import BY_CODE, ServiceNotReady
from pyxbroker.base.log import get_logger
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import CALLER, Ask, PeerRefused
from pyxbroker.client.addresses import Address
from pyxbroker.client.admin import follow, json_of, refuse_errors
from pyxbroker.client.authentication import Authentication, method_named
from pyxbroker.client.client import Client
from pyxbroker.client.connection import Connection
from pyxbroker.client.entries import OutgoingMessage
from pyxbroker.client.errors import (
    BadSetting,
    BrokerRefused,
    ClientError,
    ConnectionFailed,
    HttpRefused,
)
from pyxbroker.client.http import HttpConnections
from pyxbroker.client.producer import ProducerSettings
from pyxbroker.client.settings import ClientSettings
from pyxbroker.client.tls import TlsSettings
from pyxbroker.entry import Position
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config

log = get_logger("pyxbroker.cluster")

HOPS_MAX = 5
ANSWER_TIMEOUT_S = 60.0
"""Time limit of one answer, and of a message to be stored."""
CONNECT_TIMEOUT_S = 5.0
READY = "/admin/v2/brokers/ready"
PROBE_TIMEOUT_S = 2.0
IN_PARALLEL_MAX = 64
"""Requests to other brokers that wait for an answer."""
UNAUTHORIZED = 401


class ClusterPeers:
    """The requests of one broker (`Peers` of broker/peers.py)."""

    def __init__(self, config: Config, addresses: Addresses) -> None:
        """Read the login of the settings. Raises ConfigError if it is invalid."""
        login = _login_of(config)
        self._has_login = login is not None
        self._authentication = login or Authentication()
        if config.authenticationEnabled and login is None and not config.anonymousUserRole:
            log.warning(
                "this broker has no login at other brokers, which refuse it: set"
                " brokerClientAuthenticationPlugin",
                does_not_work="failure detection, moves of bundles by load, topic policies",
            )
        tls = TlsSettings(
            config.brokerClientTrustCertsFilePath or None,
            "brokerClientTrustCertsFilePath",
            accept_untrusted=config.tlsAllowInsecureConnection,
            verify_host=config.tlsHostnameVerificationEnabled,
        )
        own = self._authentication.certificate()
        self._is_tls = config.brokerClientTlsEnabled
        self._http = HttpConnections(lambda: tls.context(own), CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        self._settings = ClientSettings(
            addresses.broker_url_tls if self._is_tls else addresses.broker_url,
            self._authentication,
            tls,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            client_version=f"pyxbroker broker {addresses.web_name}",
        )
        self._client: Client | None = None
        self._in_parallel = asyncio.Semaphore(IN_PARALLEL_MAX)

    async def ask(self, to: Redirect, request: Ask) -> Any:
        url = self._web_url(to.urls)
        if not url:
            raise ServiceNotReady(
                "Another broker answers this, and it has no web port that this broker may use"
                " (brokerClientTlsEnabled)."
            )
        async with self._in_parallel:
            try:
                headers = {"Accept": "application/json"} | await self._login()
                if request.content_type:
                    headers["Content-Type"] = request.content_type
                exchange = follow(
                    self._http, request.method, url + request.target, headers, request.body,
                    HOPS_MAX,
                )  # fmt: skip
                return json_of(refuse_errors(await exchange))
            except HttpRefused as error:
                reason = error.reason
                if error.status == UNAUTHORIZED and not self._has_login:
                    reason += f" (asked of {url}; see brokerClientAuthenticationPlugin)"
                raise PeerRefused(error.status, reason) from error
            except ClientError as error:
                raise ServiceNotReady(
                    f"The broker at {url}, which answers this, cannot be asked: {error}"
                ) from error

    async def silence(self, to: Redirect) -> str:
        url = self._web_url(to.urls)
        if not url:
            return ""
        asking = self._http.request("GET", url + READY, {"Accept": "application/json"})
        try:
            await asyncio.wait_for(asking, PROBE_TIMEOUT_S)
        except (TimeoutError, asyncio.TimeoutError):
            return f"silent for {PROBE_TIMEOUT_S:g} s"
        except ConnectionFailed as error:
            return error.reason
        except ClientError:
            pass  # a certificate that this broker does not trust
        return ""

    async def publish(
        self, topic: TopicName, key: str, value: bytes | None, replicate_to: tuple[str, ...]
    ) -> Position:
        settings = ProducerSettings(send_timeout_s=ANSWER_TIMEOUT_S)
        try:
            producer = await self._shared_client().producer(str(topic), settings)
            try:
                stored = await producer.send(OutgoingMessage(value, key, replicate_to=replicate_to))
            finally:
                await producer.close()
        except ClientError as error:
            raise ServiceNotReady(
                f"Another broker serves {topic}, and this broker cannot publish there: {error}"
            ) from error
        return Position(stored.ledger, stored.entry)

    async def command(self, to: Redirect, topic: TopicName, command: Any, timeout_s: float) -> Any:
        client = self._shared_client()
        try:
            url = to.urls.broker_url_tls if self._is_tls else to.urls.broker_url
            if to.is_owner and url:
                address = Address(url)
            else:
                address = await client.owner_of(str(topic))
            connection = await client.pool.to(address)
            return await connection.ask(command, timeout_s)
        except BrokerRefused as error:
            raise BY_CODE[dict(pb.ServerError.items()).get(error.code, 0)](error.message) from error
        except ClientError as error:
            raise ServiceNotReady(
                f"The broker that serves {topic} cannot be asked: {error}"
            ) from error

    def _shared_client(self) -> Client:
        if self._client is None:
            self._client = Client(self._settings)
        return self._client

    async def connect(self, to: Addresses, timeout_s: float) -> Connection:
        """Open a connection, which ends when the broker is silent for a while.

        `timeout_s` is the limit for the connection and for its first answer, and the longest
        silence after that. Raises ClientError.
        """
        settings = replace(
            self._settings,
            connect_timeout_s=timeout_s,
            operation_timeout_s=timeout_s,
            keep_alive_s=timeout_s / 2,
        )
        url = to.broker_url_tls if self._is_tls else to.broker_url
        if not url:
            raise BadSetting("it has no port that this broker may use (brokerClientTlsEnabled)")
        return await Connection.open(Address(url), settings)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()
        if self._client is not None:
            self._client.close()

    def _web_url(self, urls: Addresses) -> str:
        return urls.web_url_tls if self._is_tls else urls.web_url

    async def _login(self) -> dict[str, str]:
        """Return this broker's own credentials, or those of the request that is being answered."""
        if not self._has_login:
            return dict(CALLER.get({}))
        value = self._authentication.header_of(await self._authentication.current_credentials())
        return {"Authorization": value} if value else {}


def _login_of(config: Config) -> Authentication | None:
    """Return the login of this broker at other brokers, None without one. Raises ConfigError."""
    plugin = config.brokerClientAuthenticationPlugin
    if plugin.rpartition(".")[2] in ("", "AuthenticationDisabled"):
        return None
    method = method_named(plugin)
    if method is None:
        raise ConfigError(f"brokerClientAuthenticationPlugin: {plugin!r:.100} is not known.")
    parameters = config.brokerClientAuthenticationParameters
    try:
        return method("brokerClientAuthenticationParameters", parameters)
    except BadSetting as error:
        raise ConfigError(str(error)) from error
