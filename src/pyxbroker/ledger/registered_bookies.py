"""The bookies of a BookKeeper cluster, as they register in the metadata store.

    <root>/available/<bookie id>            ephemeral: writable, its BookieServiceInfo
    <root>/available/readonly/<bookie id>   ephemeral: read-only
    <root>/cookies/<bookie id>              every bookie that ever joined the cluster
    /bookies                                JSON: the rack of each bookie, by group (Pulsar's)

All four are followed by watches. While the store is unavailable the last known state stays.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pyxbroker.base.log import get_logger
from pyxbroker.metadata import paths
from pyxbroker.metadata.protobuf_records import MalformedRecord, parse, text_of
from pyxbroker.metadata.store import (
    GetResult,
    MetadataError,
    MetadataStore,
    Notification,
    Unsubscribe,
)

log = get_logger("pyxbroker.ledger")

RETRY_S = 1.0
READ_ONLY = "readonly"  # the one child of <root>/available that is not a bookie
PROTOCOL = "bookie-rpc"
PORT_MAX = 65_535

Groups = Mapping[str, frozenset[str]]


class Address(NamedTuple):
    """The address at which a bookie serves BookKeeper's protocol."""

    host: str
    port: int


class BookiesView(NamedTuple):
    """The bookies at one moment.

    An address is None where a registration without one has an id that is no address either.
    `known` has every bookie of the cluster, `groups` the bookies of each group, and `racks` the
    rack by the id or the host of a bookie.
    """

    writable: Mapping[str, Address | None] = MappingProxyType({})
    read_only: Mapping[str, Address | None] = MappingProxyType({})
    known: frozenset[str] = frozenset()
    groups: Groups = MappingProxyType({})
    racks: Mapping[str, str] = MappingProxyType({})

    def address_of(self, bookie_id: str) -> Address | None:
        """Return the address of a bookie; one that is not registered may have it as its id."""
        found = self.writable.get(bookie_id) or self.read_only.get(bookie_id)
        return found or address_in(bookie_id)

    def rack_of(self, bookie_id: str) -> str:
        """Return the rack that /bookies names for a bookie or for its host, or an empty text."""
        rack = self.racks.get(bookie_id, "")
        if not rack and (address := self.address_of(bookie_id)) is not None:
            rack = self.racks.get(address.host, "")
        return rack


class RegisteredBookies:
    """Follows the registrations below `root`, the ledgers root path of the metadata service URI."""

    def __init__(self, store: MetadataStore, root: str = paths.LEDGERS) -> None:
        self.view = BookiesView()
        self._store = store
        self._available = f"{root}/available"
        self._read_only = f"{self._available}/{READ_ONLY}"
        self._cookies = f"{root}/cookies"
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._changed = asyncio.Event()
        self._read_once = asyncio.Event()
        self._is_stale = False
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: list[Unsubscribe] = []

    def start(self) -> None:
        """Begin to follow the store."""
        for prefix in (self._available, self._cookies, paths.BOOKIE_RACKS):
            self._unsubscribe.append(self._store.watch(self._on_notification, prefix=prefix))
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def wait_read(self) -> None:
        """Wait until the store has answered once."""
        await self._read_once.wait()

    def address_of(self, bookie_id: str) -> Address:
        """Return the present address of a bookie. Raises LookupError if it is unknown."""
        address = self.view.address_of(bookie_id)
        if address is None:
            raise LookupError(
                f"bookie {bookie_id} is not registered with an address, and its id is no host:port"
            )
        return address

    def on_change(self, callback: Callable[[], None]) -> Unsubscribe:
        """Call callback() after each change of `view`."""
        key = object()
        self._callbacks[key] = callback
        return lambda: self._forget(key)

    async def close(self) -> None:
        """Stop following."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _forget(self, key: object) -> None:
        self._callbacks.pop(key, None)

    def _on_notification(self, notification: Notification) -> None:
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                view = await self._read()
            except MetadataError as error:
                if not self._is_stale:
                    self._is_stale = True
                    log.warning("the list of bookies may be outdated", error=error)
                await asyncio.sleep(RETRY_S)
                self._changed.set()
                continue
            self._is_stale = False
            self._read_once.set()
            self._adopt(view)

    def _adopt(self, view: BookiesView) -> None:
        before, self.view = self.view, view
        if view == before:
            return
        if (before.writable.keys(), before.read_only.keys()) != (
            view.writable.keys(),
            view.read_only.keys(),
        ):
            log.info(
                "registered bookies",
                writable=", ".join(view.writable) or "none",
                read_only=", ".join(view.read_only) or "none",
            )
        for callback in list(self._callbacks.values()):
            try:
                callback()
            except Exception as error:
                log.failure("a listener failed to handle a change of bookies", error)

    # --- reading ------------------------------------------------------------------------------

    async def _read(self) -> BookiesView:
        # A bookie that becomes read-only registers as such before it leaves the writable ones: in
        # this order it is in one of the lists, and may be in both.
        writable = [each for each in await self._children(self._available) if each != READ_ONLY]
        read_only = await self._children(self._read_only)
        known = await self._children(self._cookies)
        infos = await self._store.get_all(
            [f"{self._available}/{each}" for each in writable]
            + [f"{self._read_only}/{each}" for each in read_only]
        )
        addresses = [
            _address(bookie_id, info)
            for bookie_id, info in zip([*writable, *read_only], infos, strict=True)
        ]
        count = len(writable)
        read_only_addresses = dict(zip(read_only, addresses[count:], strict=True))
        groups, racks = await self._groups_and_racks()
        return BookiesView(
            {
                bookie_id: address
                for bookie_id, address in zip(writable, addresses[:count], strict=True)
                if bookie_id not in read_only_addresses
            },
            read_only_addresses,
            frozenset(known),
            groups,
            racks,
        )

    async def _children(self, path: str) -> list[str]:
        """Return the names of a node's children, and watch the node even while it is missing."""
        names = await self._store.children(path)
        if not names and await self._store.exists(path, watch=True):
            names = await self._store.children(path)
        return names

    async def _groups_and_racks(self) -> tuple[Groups, Mapping[str, str]]:
        """Return what /bookies says. A value that cannot be read leaves both as they are."""
        found = await self._store.get(paths.BOOKIE_RACKS)
        if found is None and await self._store.exists(paths.BOOKIE_RACKS, watch=True):
            found = await self._store.get(paths.BOOKIE_RACKS)
        try:
            return ({}, {}) if found is None else groups_and_racks(found.value)
        except ValueError as error:
            log.warning("the racks of bookies cannot be read", path=paths.BOOKIE_RACKS, error=error)
            return self.view.groups, self.view.racks


def groups_and_racks(value: bytes) -> tuple[Groups, Mapping[str, str]]:
    """Return the bookies by group, and the racks by bookie and by host, in a value of /bookies:
    {group: {bookie id: {"rack": ..., "hostname": ...}}}. Raises ValueError.
    """
    groups: dict[str, frozenset[str]] = {}
    racks: dict[str, str] = {}
    hosts: dict[str, str] = {}
    try:
        for group, bookies in json.loads(value or b"{}").items():
            groups[group] = frozenset(bookies)
            for bookie_id, info in bookies.items():
                rack = str(info.get("rack") or "")
                racks.setdefault(bookie_id, rack)
                address = address_in(bookie_id)
                hosts.setdefault(address.host if address else bookie_id, rack)
    except (AttributeError, RecursionError, TypeError) as error:
        raise ValueError(f"it is not an object of groups of bookies: {error}") from error
    return groups, hosts | racks


def address_in(bookie_id: str) -> Address | None:
    """Return the address that an id of the form "host:port" is."""
    host, _, port = bookie_id.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > PORT_MAX:
        return None
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _address(bookie_id: str, info: GetResult | BaseException | None) -> Address | None:
    """Return the address in a registration, or the one that the bookie's id is.

    A bookie that has left since, whose node is None, is reported by the next notification.
    """
    if isinstance(info, BaseException):
        raise info
    if info is not None and info.value:
        from pyxbroker.proto import DataFormats

        try:
            service = parse(DataFormats.BookieServiceInfoFormat, info.value)
            for each in service.endpoints:
                if each.protocol == PROTOCOL and 0 < each.port <= PORT_MAX:
                    return Address(text_of(each.host), each.port)
        except MalformedRecord as error:
            log.warning("a registration cannot be read", bookie=bookie_id, error=error)
    return address_in(bookie_id)
