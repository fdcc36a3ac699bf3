"""The other brokers of the cluster, as topics and REST ask them for what they own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol
from urllib.parse import quote

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Redirect
from pyxbroker.entry import Position

FORWARDED = frozenset({"authorization", "x-pulsar-auth-method-name", "x-original-principal"})
CALLER: ContextVar[Mapping[str, str]] = ContextVar("CALLER")
"""The headers with the credentials of the request that is being answered."""


def note_caller(headers: Mapping[str, str]) -> None:
    """Remember the credentials in the headers of a request for what its task asks of peers."""
    CALLER.set({name: headers[name] for name in FORWARDED & headers.keys()})


class Ask(NamedTuple):
    """A request of REST for another broker."""

    method: str
    target: str
    """The path and the query, percent-encoded."""
    content_type: str = ""
    body: bytes = b""


class Peers(Protocol):
    """The requests of a broker to the other brokers of its cluster."""

    async def ask(self, to: Redirect, request: Ask) -> Any:
        """Return the JSON of the answer to a request, None if it is empty.

        `to` names the first broker to ask; a few redirects are followed. Raises PeerRefused, and
        ServiceNotReady without an answer.
        """

    async def silence(self, to: Redirect) -> str:
        """Return why a broker does not answer; empty if it does, or if it cannot be asked."""

    async def publish(
        self, topic: TopicName, key: str, value: bytes | None, replicate_to: tuple[str, ...]
    ) -> Position:
        """Publish a message to a topic of another broker; return its position. Raises
        ServiceNotReady.
        """

    async def command(self, to: Redirect, topic: TopicName, command: Any, timeout_s: float) -> Any:
        """Send a command of the binary protocol to the broker that owns a topic; return the answer.

        `to` names the owner, or a broker that knows it. Raises PulsarError: that of an ERROR, and
        ServiceNotReady without an answer.
        """


class CopiedSubscription(NamedTuple):
    """A subscription of a topic, as its other partitions get it."""

    name: str
    properties: Mapping[str, str]
    replicated: bool


class TopicsElsewhere(Protocol):
    """The topics that other brokers of the cluster serve.

    The methods raise PulsarError if a broker cannot be asked or refuses.
    """

    async def delete(self, topic: TopicName) -> bool:
        """Delete a topic with its clients. Return False if this broker serves it."""

    async def clients(self, topic: TopicName) -> tuple[int, int] | None:
        """Return the number of producers and of consumers; None if this broker serves the topic."""

    async def subscriptions(self, topic: TopicName) -> Mapping[str, CopiedSubscription] | None:
        """Return the subscriptions by their names; None if this broker serves the topic."""

    async def subscribe(
        self, topic: TopicName, subscriptions: Sequence[CopiedSubscription]
    ) -> bool:
        """Create subscriptions at the first message; existing ones stay as they are. Return False
        if this broker serves the topic.
        """


class ClusterView(Protocol):
    """The brokers of the cluster as far as this one knows."""

    def brokers(self) -> Mapping[str, Addresses]:
        """Return the addresses of the registered brokers by their ids."""

    def leader(self) -> tuple[str, str] | None:
        """Return the id and the web URL of the leader, or None while none is known."""

    def owned_bundles(self) -> list[tuple[str, str]]:
        """Return namespace and range of each bundle that this broker owns."""

    def peers(self) -> dict[str, Any]:
        """Return by their ids what this broker knows about the processes of the others."""

    def removed_peers(self) -> int:
        """Return the number of failed brokers that this one has removed."""


def topic_path(topic: TopicName) -> str:
    """Return the percent-encoded path of a topic in REST."""
    return f"/admin/v2/{topic.domain}/{topic.namespace}/{quote(topic.local_name, safe='')}"


class PeerRefused(Exception):
    """Raised with the status and the reason of the broker that refuses a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
