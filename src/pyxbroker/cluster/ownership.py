"""The bundles that this broker owns: nodes /namespace/<tenant>/<namespace>/<range>.

A node is ephemeral, and its value has the addresses of the owner (Pulsar's NamespaceEphemeralData).
The safety of stored messages does not depend on it: ledgers are fenced, and metadata is written by
compare-and-set. It decides which broker opens a topic, so that brokers do not fence each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.cluster.claim import Claim, State
from pyxbroker.cluster.held_node import HeldNode
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    GetResult,
    MetadataError,
    MetadataStore,
    Notification,
    SessionEvent,
    Unsubscribe,
)

log = get_logger("pyxbroker.cluster")


class BundleName(NamedTuple):
    """A bundle of a namespace; `range` is such as 0x00000000_0x40000000."""

    namespace: str
    range: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"


class Owner(NamedTuple):
    """The owner of a bundle: this broker, or the broker that wrote `value`."""

    is_here: bool
    value: bytes = b""


HERE = Owner(True)

CloseBundle = Callable[[BundleName], Awaitable[Callable[[], None] | None]]


class BundleOwnership:
    """The bundles of one broker, and the owners of other bundles that it has read lately.

    `value` is the value of the nodes. `close` closes the topics of a bundle, and returns what is
    to be called when another broker can own it.
    """

    def __init__(self, store: MetadataStore, value: bytes, close: CloseBundle) -> None:
        self._store = store
        self._value = value
        self._close = close
        self._nodes: dict[BundleName, HeldNode] = {}
        self.is_closing = False
        self._unsubscribe: list[Unsubscribe] = []
        self._recheck: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the nodes."""
        self._unsubscribe = [
            self._store.watch(self._on_change, prefix=paths.OWNERS + "/"),
            self._store.on_session(self._on_session_event),
        ]

    def is_owned(self, bundle: BundleName) -> bool:
        """Return True if this broker owns a bundle, and is not giving it up."""
        node = self._nodes.get(bundle)
        return node is not None and node.claim.is_held

    def is_leaving(self, bundle: BundleName) -> bool:
        """Return True while this broker is giving a bundle up."""
        node = self._nodes.get(bundle)
        return node is not None and node.claim.is_leaving

    def owned(self) -> list[BundleName]:
        """Return the bundles that this broker owns."""
        return [bundle for bundle, node in self._nodes.items() if node.claim.is_held]

    async def find(self, bundle: BundleName) -> Owner | None:
        """Return the owner of a bundle, or None. Raises MetadataError."""
        return await self._settled(bundle, claims=False)

    async def acquire(self, bundle: BundleName) -> Owner | None:
        """Return the owner of a bundle, which becomes this broker if none exists.

        None: this broker was giving the bundle up. Raises MetadataError.
        """
        return await self._settled(bundle, claims=not self.is_closing)

    async def _settled(self, bundle: BundleName, claims: bool) -> Owner | None:
        node = self._nodes.get(bundle)
        if node is not None and node.claim.is_held:
            return HERE
        if node is None:
            node = self._nodes[bundle] = self._node(bundle)
        do = node.claim.claim() if claims else node.claim.read()
        node.carry_out(do)
        await node.settle()
        claim = node.claim
        if claim.state is State.HELD:
            if do is not None:
                log.info("this broker has taken a bundle", bundle=bundle)
            return HERE
        if claim.state is State.TAKEN:
            return Owner(False, claim.other)
        if claim.error is not None:
            raise claim.error.with_traceback(None)
        return None

    async def take_back(self) -> None:
        """Acquire the bundles of an earlier process of this broker, before its session ends and
        other brokers take them.
        """
        try:
            for bundle, node in await owner_nodes(self._store):
                if self.is_closing:
                    return
                if node.value == self._value:
                    await self.acquire(bundle)
        except MetadataError as error:
            # Each bundle is acquired when a client needs it.
            log.warning("the bundles of the former process are not taken back", error=error)

    async def release(self, bundle: BundleName) -> bool:
        """Close the topics of a bundle, then delete its node. Return False if this broker does not
        own it.
        """
        node = self._nodes.get(bundle)
        if node is None:
            return False
        was_held = node.claim.is_held
        node.carry_out(node.claim.release())
        await node.settle()
        if was_held:
            log.info("this broker has given a bundle up", bundle=bundle)
        return was_held

    async def release_all(self) -> None:
        """Release one bundle after the other, and acquire no more."""
        self.is_closing = True
        for bundle in self.owned():
            await self.release(bundle)

    async def close(self) -> None:
        """Stop following the nodes. Those that remain end with the session."""
        self.is_closing = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._recheck is not None:
            self._recheck.cancel()
        for node in list(self._nodes.values()):
            node.stop()

    def _node(self, bundle: BundleName) -> HeldNode:
        return HeldNode(
            self._store,
            paths.bundle_owner(*bundle),
            Claim(self._value),
            partial(self._close, bundle),
            partial(self._on_settled, bundle),
        )

    def _on_settled(self, bundle: BundleName, node: HeldNode) -> None:
        if node.claim.state is State.FREE and self._nodes.get(bundle) is node:
            del self._nodes[bundle]

    def _on_change(self, notification: Notification) -> None:
        namespace, _, hashes = notification.path[len(paths.OWNERS) + 1 :].rpartition("/")
        self._check(BundleName(namespace, hashes))

    def _check(self, bundle: BundleName) -> None:
        node = self._nodes.get(bundle)
        if node is not None:
            node.carry_out(node.claim.on_event())
            self._on_settled(bundle, node)

    def _on_session_event(self, event: SessionEvent) -> None:
        if event is SessionEvent.SESSION_REESTABLISHED:
            if self._recheck is not None:
                self._recheck.cancel()
            self._recheck = asyncio.ensure_future(self._check_all())

    async def _check_all(self) -> None:
        async for bundle in in_slices(list(self._nodes)):
            self._check(bundle)


async def owner_nodes(store: MetadataStore) -> list[tuple[BundleName, GetResult]]:
    """Return the nodes of all bundles that have owners. Raises MetadataError."""
    tenants = await store.children(paths.OWNERS)
    namespaces = await _children(store, tenants)
    bundles = [BundleName(*each.rsplit("/", 1)) for each in await _children(store, namespaces)]
    found = await store.get_all([paths.bundle_owner(*each) for each in bundles])
    for node in found:
        if isinstance(node, BaseException):
            raise node
    pairs = zip(bundles, found, strict=True)
    return [(bundle, node) for bundle, node in pairs if isinstance(node, GetResult)]


async def _children(store: MetadataStore, names: list[str]) -> list[str]:
    """Return the children of nodes below the owners, each with the name of its parent."""
    children = []
    found = await store.children_all([paths.bundle_owners(each) for each in names])
    for name, below in zip(names, found, strict=True):
        if isinstance(below, BaseException):
            raise below
        children += [f"{name}/{each}" for each in below]
    return children
