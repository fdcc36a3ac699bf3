"""Finds the broker that owns a topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pyxbroker.base.backoff import pauses_s
from pyxbroker.client.addresses import Address
from pyxbroker.client.connection import Connection
from pyxbroker.client.errors import (
    BrokerRefused,
    ConnectionFailed,
    NoSuchListener,
    RedirectLoop,
    code_name,
)
from pyxbroker.client.pool import ConnectionPool, shared
from pyxbroker.proto import PulsarApi as pb

T = TypeVar("T")
REDIRECTS_MAX = 20


class Lookup:
    """Lookups of one client. Equal lookups that run at the same time are one."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._running: dict[str, asyncio.Task[Address]] = {}

    async def owner_of(self, topic: str) -> Address:
        """Return where to connect for a topic. Raises ClientError."""
        return await shared(self._running, topic, lambda: self.retried(self._find(topic)))

    async def from_service(self, question: Callable[[Connection], Awaitable[T]]) -> T:
        """Ask any broker of the service URL; see `retried`."""

        async def ask() -> T:
            return await question(await self._pool.to_service())

        return await self.retried(ask)

    async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat an attempt that fails for the moment, up to `lookup_retry_s`."""
        end = time.monotonic() + self._pool.settings.lookup_retry_s
        for pause_s in pauses_s():
            try:
                return await attempt()
            except (BrokerRefused, ConnectionFailed) as error:
                is_final = isinstance(error, BrokerRefused) and not error.is_retriable
                if is_final or time.monotonic() + pause_s > end:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("pauses have no end")

    def _find(self, topic: str) -> Callable[[], Awaitable[Address]]:
        async def find() -> Address:
            asked, is_authoritative = await self._pool.to_service(), False
            for _ in range(REDIRECTS_MAX):
                answer = await self._ask(asked, topic, is_authoritative)
                url = url_in(answer, asked.address, topic)
                if answer.response != answer.Redirect:
                    if answer.proxy_through_service_url:
                        return Address(asked.url, url)
                    return Address(url)
                # The next broker decides by itself only if this one says so.
                is_authoritative = answer.authoritative
                asked = await self._pool.to(Address(url))
            raise RedirectLoop(f"brokers redirect the lookup of {topic} to each other.")

        return find

    async def _ask(self, connection: Connection, topic: str, is_authoritative: bool) -> Any:
        command = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        command.lookupTopic.topic = topic
        command.lookupTopic.authoritative = is_authoritative
        if self._pool.settings.listener:
            command.lookupTopic.advertised_listener_name = self._pool.settings.listener
        answer = await connection.ask(command)
        if answer.response == answer.Failed:
            raise BrokerRefused(code_name(answer.error), answer.message, connection.url)
        return answer


def url_in(answer: Any, asked: Address, topic: str) -> str:
    """Return the URL in a lookup's answer that has TLS, or not, as the asked broker's has."""
    url = answer.brokerServiceUrlTls if asked.is_tls else answer.brokerServiceUrl
    if not url:
        kind = "with TLS" if asked.is_tls else "without TLS"
        raise NoSuchListener(f"the broker that has {topic} cannot be reached {kind}.")
    return str(url)
