"""kazoo for the ZooKeeper store: a client that preserves order, and the watches."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from pyxbroker.base.slices import Slices
from pyxbroker.metadata.store import Notification, NotificationKind
from pyxbroker.metadata.zookeeper_connection import BatchingConnection, DirectHandler

_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_jitter": 0.4, "max_delay": 2.0}
"""Retries without end, at growing intervals; delays in seconds."""

CONNECT_S_MAX = 5.0
"""Time for a server to answer a new connection. Then the next server, or the same, is tried."""

_KINDS = {
    EventType.CREATED: NotificationKind.CREATED,
    EventType.CHANGED: NotificationKind.MODIFIED,
    EventType.DELETED: NotificationKind.DELETED,
    EventType.CHILD: NotificationKind.CHILDREN_CHANGED,
}

# The store logs what operators need to know of the connection; kazoo logs attempts.
_kazoo_log = logging.getLogger(__name__)
_kazoo_log.setLevel(logging.ERROR)


class GatedClient(KazooClient):
    """kazoo's client with a gate, which keeps new requests behind those lost with a connection.

    When the connection breaks, kazoo fails all its requests and immediately accepts new ones for
    the next connection. Those would be sent before the lost ones are repeated. So the gate closes
    before kazoo handles its requests, and the loop opens it after it has queued the lost ones.
    """

    chroot: str

    def __init__(self, hosts: str, session_timeout_s: float) -> None:
        self.gate = threading.Lock()
        self.is_gate_open = False
        self._has_connection = False
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_s,
            handler=DirectHandler(),
            connection_retry=_RECONNECT,
            logger=_kazoo_log,
        )
        self._connection = BatchingConnection(self, self._conn_retry.copy(), logger=_kazoo_log)
        # kazoo divides the session's timeout among its hosts, as the time to answer a new
        # connection. A starting server may accept one and never answer, so that time is limited.
        self.hosts *= math.ceil(session_timeout_s / (CONNECT_S_MAX * len(self.hosts)))

    def _session_callback(self, state: Any) -> None:
        """Update the gate; called on kazoo's thread for every change of the connection's state."""
        with self.gate:
            self._has_connection = state == KeeperState.CONNECTED
            if not self._has_connection:
                self.is_gate_open = False
        super()._session_callback(state)

    @property
    def session_id(self) -> int:
        """The id of the session; 0 before the first one."""
        return int(self._session_id or 0)

    def open_gate(self) -> bool:
        """Open the gate if there is a connection. Return True if it is open."""
        with self.gate:
            self.is_gate_open = self._has_connection
            return self.is_gate_open

    def create_outside_async(self, path: str) -> Any:
        """Create an empty node at a path that does not begin at the chroot."""
        chroot, self.chroot = self.chroot, ""
        try:
            return self.create_async(path, b"")
        finally:
            self.chroot = chroot


class WatchedPaths:
    """The paths that ZooKeeper watches for us. A watch reports one change, and ends with it.

    A path is added when the answer confirms that its watch is set: kazoo sets none for a get or a
    list of a missing node. So their number is bounded by the existing nodes, and the few for whose
    creation `exists` asked.

    kazoo calls on its own thread; `hand_over` passes that to the loop, where `notify` is called.
    That may happen before the answer is processed. Then the path is added although its watch has
    ended, and stays until it is read and changes again, or the connection is lost. The result is
    one superfluous notification, whereas a missing path would lose one.
    """

    def __init__(
        self,
        hand_over: Callable[..., None],
        notify: Callable[[Notification], None],
    ) -> None:
        self._hand_over = hand_over
        self._notify = notify
        self._nodes: set[str] = set()
        self._children: set[str] = set()
        self._missed: list[tuple[NotificationKind, set[str]]] = []
        self._notifying: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._nodes) + len(self._children)

    def note_node(self, path: str) -> None:
        """Add a path whose get or exists has set a watch with on_event."""
        self._nodes.add(path)

    def note_children(self, path: str) -> None:
        """Add a path whose list of children is watched with on_event."""
        self._children.add(path)

    def notify_all(self) -> None:
        """Notify of all paths after a reconnection: anything may have changed meanwhile."""
        nodes, self._nodes = self._nodes, set()
        children, self._children = self._children, set()
        if self._notifying is None and (nodes or children):
            self._notifying = asyncio.ensure_future(self._notify_missed())
        self._missed.append((NotificationKind.MODIFIED, nodes))
        self._missed.append((NotificationKind.CHILDREN_CHANGED, children))

    async def _notify_missed(self) -> None:
        slices = Slices()
        while self._missed:
            kind, paths = self._missed.pop(0)
            # One by one, since releasing all paths in one call would take long, too.
            while paths:
                self._notify(Notification(kind, paths.pop()))
                await slices.pause()
        self._notifying = None

    def close(self) -> None:
        """Stop notifying."""
        if self._notifying is not None:
            self._notifying.cancel()
            self._notifying = None
        for each in (self._missed, self._nodes, self._children):
            each.clear()

    def on_event(self, event: WatchedEvent) -> None:
        """Handle an event on kazoo's thread. Type NONE concerns the connection, not a node."""
        if event.type in _KINDS:
            self._hand_over(self._on_change, _KINDS[event.type], event.path)

    def _on_change(self, kind: NotificationKind, path: str) -> None:
        if kind is NotificationKind.CHILDREN_CHANGED:
            self._children.discard(path)
        else:
            self._nodes.discard(path)
        if kind is NotificationKind.DELETED:
            self._children.discard(path)
        self._notify(Notification(kind, path))
