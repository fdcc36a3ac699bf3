"""The registration of this broker in its cluster: /loadbalance/brokers/<broker id>.

The node is ephemeral, and its value is that of Pulsar's ModularLoadManagerImpl. Each broker has an
id and addresses of its own: clients reach the broker by the addresses in its nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.log import get_logger
from pyxbroker.broker.listeners import Addresses
from pyxbroker.cluster.addresses import OF_BROKER, addresses_of, read_fields
from pyxbroker.cluster.checks import StartRefused
from pyxbroker.metadata import paths
from pyxbroker.metadata.coordination import LockBusy, ResourceLock
from pyxbroker.metadata.store import (
    BadVersion,
    GetResult,
    MetadataStore,
    Notification,
    NotificationKind,
    Unavailable,
    Unsubscribe,
)
from pyxbroker.settings.sections.cluster import MODULAR

log = get_logger("pyxbroker.cluster")

STARTED = "startTimestamp"
POLL_S = 0.5
PROBE_TIMEOUT_S = 2.0
PROBE = b"GET /admin/v2/brokers/ready HTTP/1.1\r\nHost: broker\r\nConnection: close\r\n\r\n"
STARTING = b"503"
"""The status of a broker that is starting, such as this one."""
RELEASE_TIMEOUT_S = 1.0


class AnotherBroker(StartRefused):
    """Raised when another broker has this broker's id or one of its addresses."""


def check_load_manager(name: str) -> None:
    """Raise StartRefused for a class by which this broker cannot share bundles."""
    if name.rpartition(".")[2] != MODULAR.rpartition(".")[2]:
        raise StartRefused(
            f"loadManagerClassName is {name!r}: a broker of a cluster shares its bundles only by"
            f" {MODULAR}. All brokers of a cluster need the same class"
        )


class BrokerRegistration:
    """The registration of one broker. `on_lost` is called with the reason when it has ended."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: str,
        fields: Mapping[str, Any],
        on_lost: Callable[[str], None],
    ) -> None:
        self.fields = fields
        self._store = store
        self._id = broker_id
        self._path = paths.broker(broker_id)
        self._on_lost = on_lost
        self._is_registered = False
        self._lock = ResourceLock(
            store, self._path, to_short_json(fields), self._on_lock_lost, self._is_ours
        )
        self._unsubscribe: Unsubscribe | None = None

    async def check_alone(self, on_wait: Callable[[str], None]) -> None:
        """Check that no other broker has this broker's id or one of its addresses.

        `on_wait` is called with the id of a broker that had one of them and is gone, as long as its
        session lasts. Raises AnotherBroker and MetadataError.
        """
        own = addresses_of(self.fields, OF_BROKER)
        while (other := await self._other(own)) is not None:
            name, addresses = other
            if await _serves(addresses):
                raise AnotherBroker(self._reason(name))
            if name == self._id:
                return  # an earlier process of this broker, whose node is replaced
            on_wait(name)
            await asyncio.sleep(POLL_S)

    async def acquire(self) -> None:
        """Register. Raises AnotherBroker and MetadataError."""
        try:
            await self._lock.acquire()
        except LockBusy:
            raise AnotherBroker(self._reason(self._id)) from None
        self._is_registered = True
        self._unsubscribe = self._store.watch(self._on_change, prefix=self._path)
        await self._store.get(self._path)  # which sets the watch

    async def update(self, fields: Mapping[str, Any]) -> None:
        """Replace what other brokers read. Raises MetadataError."""
        self.fields = fields
        try:
            await self._lock.update(to_short_json(fields))
        except BadVersion:
            self._lock.recreate()

    async def release(self) -> None:
        """End the registration, with the session at the latest if the store is unavailable."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        with contextlib.suppress(Unavailable, asyncio.TimeoutError):
            await asyncio.wait_for(self._lock.release(), RELEASE_TIMEOUT_S)

    async def _other(self, own: Addresses) -> tuple[str, Addresses] | None:
        """Return the id and the addresses of a broker with this broker's id or an address of it."""
        names = await self._store.children(paths.BROKERS)
        found = await self._store.get_all([paths.broker(name) for name in names])
        for name, node in zip(names, found, strict=True):
            if isinstance(node, BaseException):
                raise node
            if not isinstance(node, GetResult):
                continue
            addresses = addresses_of(read_fields(node.value), OF_BROKER)
            if name == self._id:
                return name, addresses
            if any(url and url == ours for url, ours in zip(addresses, own, strict=True)):
                return name, addresses
        return None

    def _is_ours(self, value: bytes) -> bool:
        """Return True for the node of this process, and before it is registered also for that of an
        earlier process with the same id, which `check_alone` has found to be gone.
        """
        return not self._is_registered or read_fields(value).get(STARTED) == self.fields[STARTED]

    def _on_change(self, notification: Notification) -> None:
        if notification.kind is NotificationKind.DELETED:
            log.warning(
                "the registration of this broker was deleted. Another broker may have found it"
                " unreachable: check that the others reach its advertisedAddress",
                path=self._path,
                addresses=", ".join(filter(None, addresses_of(self.fields, OF_BROKER))),
            )
            self._lock.recreate()

    def _on_lock_lost(self) -> None:
        self._on_lost(self._reason(self._id))

    def _reason(self, broker_id: str) -> str:
        return (
            f"broker {broker_id} is registered with the id {self._id} of this broker, or with one"
            " of its addresses. Give each broker its own advertisedAddress and ports"
            " (advertisedListeners), or stop the other broker"
        )


async def _serves(addresses: Addresses) -> bool:
    """Return True if a broker serves one of the web addresses, except this one while it starts.

    A broker that does not answer in time is not known to have ended.
    """
    for url in (addresses.web_url, addresses.web_url_tls):
        if not url:
            continue
        host, _, port = url.partition("://")[2].rpartition(":")
        try:
            status = await asyncio.wait_for(
                _status(host.strip("[]"), int(port), url.startswith("https")), PROBE_TIMEOUT_S
            )
        except (ConnectionRefusedError, ValueError):
            continue
        except (OSError, asyncio.TimeoutError):
            return True
        if status != STARTING:
            return True
    return False


async def _status(host: str, port: int, is_tls: bool) -> bytes:
    """Return the status of the answer to PROBE; empty without an answer."""
    context = None
    if is_tls:
        # Only whether it answers counts, and nothing secret is sent.
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        writer.write(PROBE)
        line = await reader.readline()
    finally:
        writer.close()
    return [*line.split(), b"", b""][1]
