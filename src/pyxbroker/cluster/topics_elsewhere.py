"""Operations on topics that other brokers serve, by requests to their REST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pyxbroker.base.compact_json import to_json
from pyxbroker.base.errors import NotAllowed, PulsarError, ServiceNotReady, TopicBusy
from pyxbroker.base.system_cursors import is_system_cursor
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.lookup import Ownership, Redirect, redirect_of
from pyxbroker.broker.peers import Ask, CopiedSubscription, PeerRefused, Peers, topic_path

NOT_FOUND, CONFLICT, BUSY = 404, 409, 412
JSON = "application/json"
FIRST = {"ledgerId": -1, "entryId": -1}
"""The place before the first message."""


class ClusterTopics:
    """The topics of the other brokers of a cluster (`TopicsElsewhere` of broker/peers.py)."""

    def __init__(self, ownership: Ownership, peers: Peers) -> None:
        self._ownership = ownership
        self._peers = peers

    async def delete(self, topic: TopicName) -> bool:
        to = await self._owner(topic)
        if to is None:
            return False
        await self._ask(to, topic, "DELETE", "", "force=true", harmless=NOT_FOUND)
        return True

    async def clients(self, topic: TopicName) -> tuple[int, int] | None:
        to = await self._owner(topic)
        if to is None:
            return None
        stats = await self._ask(to, topic, "GET", "/stats", harmless=NOT_FOUND) or {}
        subscriptions = stats.get("subscriptions", {}).values()
        consumers = sum(len(each.get("consumers", ())) for each in subscriptions)
        return len(stats.get("publishers", ())), consumers

    async def subscriptions(self, topic: TopicName) -> Mapping[str, CopiedSubscription] | None:
        to = await self._owner(topic)
        if to is None:
            return None
        stats = await self._ask(to, topic, "GET", "/stats", harmless=NOT_FOUND) or {}
        return {
            name: CopiedSubscription(
                name, fields.get("subscriptionProperties") or {}, bool(fields.get("isReplicated"))
            )
            for name, fields in stats.get("subscriptions", {}).items()
        }

    async def subscribe(
        self, topic: TopicName, subscriptions: Sequence[CopiedSubscription]
    ) -> bool:
        to = await self._owner(topic)
        if to is None:
            return False
        for each in subscriptions:
            if is_system_cursor(each.name):
                continue  # the first compaction creates it
            body = to_json(FIRST | {"properties": dict(each.properties)})
            query = f"replicated={str(each.replicated).lower()}"
            path = f"/subscription/{quote(each.name, safe='')}"
            await self._ask(to, topic, "PUT", path, query, body, harmless=CONFLICT)
        return True

    async def _owner(self, topic: TopicName) -> Redirect | None:
        """Return the other broker that serves a topic, or None. Raises PulsarError."""
        return redirect_of(await self._ownership.find(topic, authoritative=False))

    async def _ask(
        self,
        to: Redirect,
        topic: TopicName,
        method: str,
        resource: str,
        query: str = "",
        body: bytes = b"",
        harmless: int = 0,
    ) -> Any:
        """Return the JSON of an answer; None for a refusal with the status `harmless`."""
        fields = [*([query] if query else ()), f"authoritative={str(to.authoritative).lower()}"]
        target = f"{topic_path(topic)}{resource}?{'&'.join(fields)}"
        try:
            return await self._peers.ask(to, Ask(method, target, JSON if body else "", body))
        except PeerRefused as error:
            if error.status == harmless:
                return None
            raise _error_of(topic, error) from error


def _error_of(topic: TopicName, error: PeerRefused) -> PulsarError:
    sentence = f"The broker that serves {topic} refuses ({error.status}): {error.reason}"
    if error.status == BUSY:
        return TopicBusy(sentence)
    return NotAllowed(sentence) if error.status in (401, 403, 405) else ServiceNotReady(sentence)
