"""The handover of a bundle that this broker has given up: another broker takes it, then the clients
of its topics are notified, and connect to that broker without a lookup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pyxbroker.base.bundles import bundle_of
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses, Listeners
from pyxbroker.broker.lookup import Ownership, Refuse, Serve
from pyxbroker.broker.peers import Ask, PeerRefused, Peers
from pyxbroker.cluster.addresses import OF_OWNER, of_listener, owner_value, read_fields
from pyxbroker.cluster.ownership import BundleName, BundleOwnership
from pyxbroker.metadata.store import MetadataError

if TYPE_CHECKING:
    from pyxbroker.broker.listeners import OfListener
    from pyxbroker.broker.topics.topic import Topic
    from pyxbroker.cluster.lookup import Boundaries

log = get_logger("pyxbroker.cluster")

TIMEOUT_S = 2.0
"""Time limit of a handover. Clients that get no address look their topics up."""
RETRY_S = 0.02
"""The time in which a broker sees that the node of a bundle was deleted or created."""


class Handovers:
    """The handovers of one broker. `ownership` names the broker that takes a bundle, and
    `boundaries` returns the boundaries of a namespace's bundles.
    """

    def __init__(
        self,
        ownership: Ownership,
        boundaries: Boundaries,
        owned: BundleOwnership,
        peers: Peers,
        listeners: Listeners,
    ) -> None:
        self._ownership = ownership
        self._boundaries = boundaries
        self._owned = owned
        self._peers = peers
        self._listeners = listeners
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, bundle: BundleName, topics: Sequence[Topic]) -> None:
        """Begin to hand a bundle over, and notify the clients of its closed topics then."""
        topics = [each for each in topics if each.has_notices]
        if topics:
            self._start(self._hand_over_all(bundle.namespace, topics))

    def _start(self, handover: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(handover)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until the clients of all bundles are notified."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _hand_over_all(self, namespace: str, topics: Sequence[Topic]) -> None:
        """Hand over the present bundles of topics: theirs may have been split."""
        found: dict[BundleName, list[Topic]] = {}
        try:
            boundaries = await self._boundaries(namespace)
            async for each in in_slices(topics):
                bundle = BundleName(namespace, str(bundle_of(each.name, boundaries)))
                found.setdefault(bundle, []).append(each)
        except (PulsarError, MetadataError):
            for each in topics:
                each.send_notices()
            return
        for bundle, some in found.items():
            self._start(self._hand_over(bundle, some))

    async def _hand_over(self, bundle: BundleName, topics: Sequence[Topic]) -> None:
        owner: OfListener | None = None
        try:
            owner = await asyncio.wait_for(self._placed(bundle, topics[0].name), TIMEOUT_S)
        except (PulsarError, PeerRefused, MetadataError, asyncio.TimeoutError) as error:
            log.info("clients have to look up a bundle that was moved", bundle=bundle, error=error)
        finally:
            for each in topics:
                each.send_notices(owner)

    async def _placed(self, bundle: BundleName, topic: TopicName) -> OfListener:
        """Let a broker take a bundle, and return its addresses. Raises PulsarError, PeerRefused and
        MetadataError.
        """
        while True:
            decision = await self._ownership.find(topic, authoritative=False)
            if isinstance(decision, Serve):
                return _addresses(owner_value(self._listeners))
            if isinstance(decision, Refuse):
                raise decision.error
            if not decision.is_owner:
                await self._peers.ask(decision, Ask("GET", _lookup(topic, decision.authoritative)))
            owner = await self._owned.find(bundle)
            if owner is not None and not owner.is_here:
                return _addresses(owner.value)
            # The answer was from memory: its broker has not seen yet that this one has left.
            await asyncio.sleep(RETRY_S)


def _addresses(value: bytes) -> OfListener:
    """Return the addresses in the node of a bundle; empty ones for an unknown listener."""
    fields = read_fields(value)
    return lambda listener: of_listener(fields, OF_OWNER, listener) or Addresses()


def _lookup(topic: TopicName, authoritative: bool) -> str:
    path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{quote(topic.local_name, safe='')}"
    return f"{path}?authoritative={str(authoritative).lower()}"
