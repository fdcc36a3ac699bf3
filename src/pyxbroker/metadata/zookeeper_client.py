"""What the ZooKeeper store needs of kazoo: a client that keeps order, and the watches."""

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

_RECONNECT = {"max_tries": -1, "delay": 0.1, "backoff": 2, "max_jitter": 0.4, "max_delay": 2.0}
"""For ever, ever more slowly; delays in seconds."""

CONNECT_S_MAX = 5.0
"""How long a server has to answer a new connection; then the next one is tried, or it again."""

_KINDS = {
    EventType.CREATED: NotificationKind.CREATED,
    EventType.CHANGED: NotificationKind.MODIFIED,
    EventType.DELETED: NotificationKind.DELETED,
    EventType.CHILD: NotificationKind.CHILDREN_CHANGED,
}

# The store logs what an operator needs to know of the connection; kazoo's own is about attempts.
_kazoo_log = logging.getLogger(__name__)
_kazoo_log.setLevel(logging.ERROR)


class GatedClient(KazooClient):
    """kazoo's client with a gate: once a connection is lost, no request gets behind the lost ones.

    kazoo fails all requests that it has when the connection breaks, and takes new ones at once for
    the next connection. Those would be sent before the lost ones are repeated. So the gate closes
    before kazoo looks at its requests, and the loop opens it when it has sorted out the lost ones.
    """

    chroot: str

    def __init__(self, hosts: str, session_timeout_s: float) -> None:
        self.gate = threading.Lock()
        self.is_gate_open = False
        self._has_connection = False
        super().__init__(
            hosts=hosts, timeout=session_timeout_s, connection_retry=_RECONNECT, logger=_kazoo_log
        )
        # kazoo gives each of them its share of the session's time to answer a new connection. A
        # server that starts may take one and never answer: that must not last as long as a session.
        self.hosts *= math.ceil(session_timeout_s / (CONNECT_S_MAX * len(self.hosts)))

    def _session_callback(self, state: Any) -> None:
        """On kazoo's thread, for every change of the connection's state."""
        with self.gate:
            self._has_connection = state == KeeperState.CONNECTED
            if not self._has_connection:
                self.is_gate_open = False
        super()._session_callback(state)

    def open_gate(self) -> bool:
        """Lets requests through if there is a connection, and says whether."""
        with self.gate:
            self.is_gate_open = self._has_connection
            return self.is_gate_open

    def create_outside_async(self, path: str) -> Any:
        """Creates an empty node whose path does not begin at the chroot."""
        chroot, self.chroot = self.chroot, ""
        try:
            return self.create_async(path, b"")
        finally:
            self.chroot = chroot


class WatchedPaths:
    """The paths that ZooKeeper watches for us. A watch tells one change, and ends with it.

    A path is noted when the answer says that its watch is set: kazoo keeps none for a get or a list
    of what is not there. So there are as many as nodes are there, and the few that are asked for to
    come to be. kazoo calls on its own threads; `hand_over` brings that to the loop, where `notify`
    is called, be it before the answer is looked at. Then the path is noted although its watch is
    spent, and stays so until it is read and changes again, or the connection is lost: it is told
    once too often, where what was not noted by mistake would be told too seldom.
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
        self._telling: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._nodes) + len(self._children)

    def note_node(self, path: str) -> None:
        """on_event was given with a get or exists, and its watch is set."""
        self._nodes.add(path)

    def note_children(self, path: str) -> None:
        """The same of a list of children."""
        self._children.add(path)

    def tell_all(self) -> None:
        """After a reconnection: the watches have ended, and anything may have changed."""
        nodes, self._nodes = self._nodes, set()
        children, self._children = self._children, set()
        if self._telling is None and (nodes or children):
            self._telling = asyncio.ensure_future(self._tell_missed())
        self._missed.append((NotificationKind.MODIFIED, nodes))
        self._missed.append((NotificationKind.CHILDREN_CHANGED, children))

    async def _tell_missed(self) -> None:
        slices = Slices()
        while self._missed:
            kind, paths = self._missed.pop(0)
            # To let go of all the paths at once would take long as well.
            while paths:
                self._notify(Notification(kind, paths.pop()))
                await slices.pause()
        self._telling = None

    def close(self) -> None:
        """Nothing is told any more."""
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for each in (self._missed, self._nodes, self._children):
            each.clear()

    def on_event(self, event: WatchedEvent) -> None:
        """On kazoo's thread. An event of type NONE is about the connection, not about a node."""
        if event.type in _KINDS:
            self._hand_over(self._tell, _KINDS[event.type], event.path)

    def _tell(self, kind: NotificationKind, path: str) -> None:
        if kind is NotificationKind.CHILDREN_CHANGED:
            self._children.discard(path)
        else:
            self._nodes.discard(path)
        if kind is NotificationKind.DELETED:
            self._children.discard(path)
        self._notify(Notification(kind, path))
