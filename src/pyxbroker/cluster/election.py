"""The election of the leader of the brokers: the node /loadbalance/leader, as in Pulsar's
LeaderElectionService.

The leader chooses the owner of each bundle that has none. Two leaders for a moment do no harm: the
node of the bundle decides.
"""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.base.log import get_logger
from pyxbroker.cluster.claim import Claim, State
from pyxbroker.cluster.held_node import HeldNode
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MetadataStore,
    Notification,
    NotificationKind,
    SessionEvent,
    Unsubscribe,
)

log = get_logger("pyxbroker.cluster")

RETRY_S = 5.0


class Leader(NamedTuple):
    """The leader as its node names it (Pulsar's LeaderBroker)."""

    broker_id: str
    service_url: str

    @property
    def value(self) -> bytes:
        return to_short_json({"brokerId": self.broker_id, "serviceUrl": self.service_url})


def leader_of(value: bytes) -> Leader | None:
    """Return the leader that a node names, or None if it cannot be read."""
    try:
        fields = json.loads(value)
        url = str(fields["serviceUrl"])
        return Leader(str(fields.get("brokerId") or url.partition("://")[2]), url)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


class Election:
    """The part of one broker in the election. It takes part from `start` to `close`."""

    def __init__(self, store: MetadataStore, candidate: Leader) -> None:
        self.candidate = candidate
        self._store = store
        self._node = HeldNode(
            store, paths.LEADER, Claim(candidate.value), self._resign, self._on_settled
        )
        self._changed = asyncio.Event()
        self._is_closing = False
        self._was_leader = False
        self._retry: asyncio.TimerHandle | None = None
        self._unsubscribe: list[Unsubscribe] = []

    def start(self) -> None:
        """Begin to take part."""
        self._unsubscribe = [
            self._store.watch(self._on_change, prefix=paths.LEADER),
            self._store.on_session(self._on_session_event),
        ]
        self._stand()

    @property
    def is_leader(self) -> bool:
        """True if this broker is the leader as far as it knows."""
        return self._node.claim.is_held

    @property
    def leader(self) -> Leader | None:
        """The leader, or None while none is known."""
        claim = self._node.claim
        if claim.is_held:
            return self.candidate
        return leader_of(claim.other) if claim.state is State.TAKEN else None

    async def wait_leader(self, timeout_s: float) -> Leader | None:
        """Return the leader; wait for an election if none is known."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while (leader := self.leader) is None and not self._is_closing:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except asyncio.TimeoutError:
                break
        return leader

    async def close(self) -> None:
        """Resign, and take part no more. The node ends with the session at the latest."""
        self._is_closing = True
        self._changed.set()
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._retry is not None:
            self._retry.cancel()
        self._node.carry_out(self._node.claim.release())
        await self._node.settle()

    def _stand(self) -> None:
        self._node.carry_out(self._node.claim.claim())

    async def _resign(self) -> None:
        """Close nothing: the duties of the leader ask `is_leader` at each step."""

    def _on_change(self, notification: Notification) -> None:
        claim = self._node.claim
        self._node.carry_out(claim.on_event())
        if claim.state is State.FREE and not self._is_closing:
            self._stand()

    def _on_session_event(self, event: SessionEvent) -> None:
        if event in (SessionEvent.RECONNECTED, SessionEvent.SESSION_REESTABLISHED):
            self._on_change(Notification(NotificationKind.MODIFIED, paths.LEADER))

    def _on_settled(self, node: HeldNode) -> None:
        if self.is_leader != self._was_leader:
            self._was_leader = self.is_leader
            log.info("this broker is the leader" if self.is_leader else "another broker leads")
        self._changed.set()
        self._changed = asyncio.Event()
        if node.claim.state is State.FREE and not self._is_closing:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._stand)
