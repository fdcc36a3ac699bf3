"""The brokers that are registered in the cluster, with their load reports.

The nodes below /loadbalance/brokers are Pulsar's LocalBrokerData. While the store is unavailable
the last known state stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from pyxbroker.base.log import get_logger
from pyxbroker.cluster.addresses import read_fields
from pyxbroker.cluster.load_report import LocalBrokerData, report_of
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    GetResult,
    MetadataError,
    MetadataStore,
    Notification,
    Unsubscribe,
)

log = get_logger("pyxbroker.cluster")

RETRY_S = 1.0


class Report(NamedTuple):
    """The registration of a broker, with its last load report."""

    broker_id: str
    fields: Mapping[str, Any]
    """The fields of LocalBrokerData; empty if they cannot be read."""
    load: LocalBrokerData


class RegisteredBrokers:
    """Follows the registrations."""

    def __init__(self, store: MetadataStore) -> None:
        self.reports: Mapping[str, Report] = MappingProxyType({})
        self._store = store
        self._listeners: list[Callable[[], None]] = []
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Event()
        self._read_once = asyncio.Event()
        self._is_stale = False
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Unsubscribe | None = None

    async def start(self) -> None:
        """Begin to follow the store, and wait until it has answered once."""
        self._unsubscribe = self._store.watch(self._on_notification, prefix=paths.BROKERS)
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._follow())
        await self._read_once.wait()

    def listen(self, listener: Callable[[], None]) -> None:
        """Call a function after each change of a registration."""
        self._listeners.append(listener)

    async def close(self) -> None:
        """Stop following."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _on_notification(self, notification: Notification) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._read()
            except MetadataError as error:
                if not self._is_stale:
                    self._is_stale = True
                    log.warning("the list of brokers may be outdated", error=error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()
                continue
            self._is_stale = False
            self._read_once.set()

    async def _read(self) -> None:
        # Of the node itself, too: it may not exist before the first broker registers.
        if not await self._store.exists(paths.BROKERS, watch=True):
            names = []
        else:
            names = await self._store.children(paths.BROKERS)
        found = await self._store.get_all([paths.broker(name) for name in names])
        reports = {}
        for name, node in zip(names, found, strict=True):
            if isinstance(node, GetResult):
                former = self.reports.get(name)
                if former is not None and self._values.get(name) == node.value:
                    reports[name] = former
                else:
                    fields = read_fields(node.value)
                    reports[name] = Report(name, fields, report_of(fields))
                    self._values[name] = node.value
            elif node is not None:
                raise node
        self._values = {name: self._values[name] for name in reports}
        if reports.keys() != self.reports.keys():
            log.info("registered brokers", brokers=", ".join(reports) or "none")
        self.reports = MappingProxyType(reports)
        for listener in self._listeners:
            listener()
