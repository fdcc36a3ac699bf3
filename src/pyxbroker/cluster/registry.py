"""The registration of this broker in its cluster: /loadbalance/brokers/<broker id>.

The node is ephemeral, and its value is that of Pulsar's ModularLoadManagerImpl. It ends with the
session of this broker, so that an Apache broker can follow. One broker serves a cluster at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.log import get_logger
from pyxbroker.cluster.checks import StartRefused
from pyxbroker.metadata import paths
from pyxbroker.metadata.coordination import LockBusy, ResourceLock
from pyxbroker.metadata.store import (
    GetResult,
    MetadataError,
    MetadataStore,
    SessionEvent,
    Unavailable,
)

log = get_logger("pyxbroker.cluster")

URLS = ("webServiceUrl", "webServiceUrlTls", "pulsarServiceUrl", "pulsarServiceUrlTls")
MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
POLL_S = 0.5
CONNECT_TIMEOUT_S = 2.0
RECHECK_DELAY_S = 1.0
RELEASE_TIMEOUT_S = 1.0


class AnotherBroker(StartRefused):
    """Raised when another broker serves the cluster."""


def broker_data(urls: Mapping[str, str], version: str, started_ms: int) -> bytes:
    """Return the smallest LocalBrokerData that other brokers use."""
    loads = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")
    rates = ("msgThroughputIn", "msgThroughputOut", "msgRateIn", "msgRateOut")
    counts = ("numTopics", "numBundles", "numConsumers", "numProducers")
    return to_short_json(
        {
            **{name: url for name, url in urls.items() if url},
            "persistentTopicsEnabled": True,
            "nonPersistentTopicsEnabled": True,
            **{name: {"usage": 0.0, "limit": 0.0} for name in loads},
            **dict.fromkeys(rates, 0.0),
            "lastUpdate": started_ms,
            "lastStats": {},
            **dict.fromkeys(counts, 0),
            "bundles": [],
            "lastBundleGains": [],
            "lastBundleLosses": [],
            "brokerVersionString": version,
            "protocols": {},
            "advertisedListeners": {},
            "loadManagerClassName": MODULAR,
            "startTimestamp": started_ms,
            "loadReportType": "LocalBrokerData",
        }
    )


def urls_of(value: bytes) -> dict[str, str]:
    """Return the URLs in a registration; none if it cannot be read."""
    try:
        data: Any = json.loads(value)
        return {name: str(data[name]) for name in URLS if data.get(name)}
    except (AttributeError, ValueError):
        return {}


class BrokerRegistration:
    """The registration of one broker. `on_lost` is called with the reason when it has ended."""

    def __init__(
        self, store: MetadataStore, broker_id: str, value: bytes, on_lost: Callable[[str], None]
    ) -> None:
        self._store = store
        self._id = broker_id
        self._on_lost = on_lost
        self._urls = urls_of(value)
        self._lock = ResourceLock(
            store, paths.broker(broker_id), value, self._on_lock_lost, self._is_ours
        )
        self._recheck: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None

    async def acquire(self, on_wait: Callable[[str], None]) -> None:
        """Register. `on_wait` is called with the id of a broker that is gone and whose session has
        not ended yet. Raises AnotherBroker and MetadataError.
        """
        while (other := await self._other()) is not None:
            other_id, urls = other
            if await _serves(urls):
                raise AnotherBroker(_reason(other_id))
            on_wait(other_id)
            await asyncio.sleep(POLL_S)
        try:
            await self._lock.acquire()
        except LockBusy:
            raise AnotherBroker(_reason(self._id)) from None
        other = await self._other(is_registered=True)
        if other is not None:
            await self.release()
            raise AnotherBroker(_reason(other[0]))
        self._unsubscribe = self._store.on_session(self._on_session_event)

    async def release(self) -> None:
        """End the registration, with the session at the latest if the store is unavailable."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        if self._recheck is not None:
            self._recheck.cancel()
        with contextlib.suppress(Unavailable, asyncio.TimeoutError):
            await asyncio.wait_for(self._lock.release(), RELEASE_TIMEOUT_S)

    async def _other(self, is_registered: bool = False) -> tuple[str, dict[str, str]] | None:
        """Return the id and the URLs of another broker. Once this one is registered, only a broker
        that has registered earlier counts.
        """
        names = await self._store.children(paths.BROKERS)
        found = await self._store.get_all([paths.broker(name) for name in names])
        nodes: dict[str, GetResult] = {}
        for name, node in zip(names, found, strict=True):
            if isinstance(node, BaseException):
                raise node
            if node is not None:
                nodes[name] = node
        own = nodes.pop(self._id, None)
        for name, node in nodes.items():
            if (
                not is_registered
                or own is None
                or (node.created_ms, name) < (own.created_ms, self._id)
            ):
                return name, urls_of(node.value)
        return None

    def _is_ours(self, value: bytes) -> bool:
        """Return True for the node of an earlier process with this broker's addresses. Its ports
        are those of this process now, so it has ended.
        """
        return urls_of(value) == self._urls

    def _on_lock_lost(self) -> None:
        self._on_lost(_reason(self._id))

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED:
            if self._recheck is not None:
                self._recheck.cancel()
            self._recheck = asyncio.ensure_future(self._check_alone())

    async def _check_alone(self) -> None:
        """End this broker if another one has registered while it had no session."""
        while True:
            try:
                other = await self._other(is_registered=True)
            except MetadataError as error:
                log.warning("the list of brokers cannot be read yet", error=error)
                await asyncio.sleep(RECHECK_DELAY_S)
                continue
            if other is not None:
                self._on_lost(_reason(other[0]))
            return


def _reason(broker_id: str) -> str:
    return (
        f"broker {broker_id} serves this cluster, and a cluster has one broker at a time: stop that"
        " broker first"
    )


async def _serves(urls: Mapping[str, str]) -> bool:
    """Return True if a broker accepts connections at one of its addresses, or has none."""
    if not urls:
        return True
    for url in urls.values():
        host, _, port = url.partition("://")[2].rpartition(":")
        try:
            _, writer = await asyncio.wait_for(
                asyncio.open_connection(host.strip("[]"), int(port)), CONNECT_TIMEOUT_S
            )
        except ConnectionRefusedError:
            continue
        except (OSError, ValueError, asyncio.TimeoutError):
            return True  # unreachable from here, which does not show that it has ended
        writer.close()
        return True
    return False
