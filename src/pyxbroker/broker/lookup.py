"""Lookups of the broker that serves a topic, whose results are values of an ownership rule.

LOOKUP and HTTP lookups return a Redirect to the client; commands that open a topic are refused, so
that their client looks the topic up again; REST answers with a 307 (admin/owners.py).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from pyxbroker.base.bundles import Bundle
from pyxbroker.base.errors import PulsarError
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses


class Serve(NamedTuple):
    """This broker serves the topic."""


class Redirect(NamedTuple):
    """Another broker serves the topic, or decides which broker does."""

    urls: Addresses
    authoritative: bool
    """The next broker is to take the topic's bundle if no broker owns it."""
    is_owner: bool = False
    """The other broker owns the topic: clients connect to it without asking it first."""


class Refuse(NamedTuple):
    """No broker can be named, for the reason of the error."""

    error: PulsarError


Decision = Serve | Redirect | Refuse


def redirect_of(decision: Decision) -> Redirect | None:
    """Return the other broker of a decision; None if this one serves. Raises the refusal."""
    if isinstance(decision, Refuse):
        raise decision.error
    return decision if isinstance(decision, Redirect) else None


class Ownership(Protocol):
    """Decides which broker serves a topic or a bundle."""

    async def find(self, topic: TopicName, authoritative: bool, listener: str = "") -> Decision:
        """Return the broker of a topic, as clients of a listener reach it.

        A bundle without an owner gets one. `authoritative` is what the request says: this broker
        is the one to take the bundle then.
        """

    async def find_of_bundle(
        self, namespace: str, bundle: Bundle, authoritative: bool, acquires: bool
    ) -> Decision:
        """Return the broker of a bundle.

        A bundle without an owner gets one if `acquires` is set; otherwise this broker answers.
        """

    async def release(
        self, namespace: str, bundle: Bundle, close: Callable[[], Awaitable[None]]
    ) -> None:
        """Close the topics of a bundle that this broker owns, with `close`, and own it no more."""

    def plan(self, namespace: str, bundle: Bundle, broker_id: str) -> Decision | None:
        """Make a broker the next owner of a bundle, which its present owner has to release.

        Return Serve if this broker leads the cluster, or else the leader to ask, Refuse while none
        is known. None: no such broker is registered.
        """

    async def check(self, topic: TopicName, acquires: bool = False) -> Decision:
        """Return Serve if this broker owns the topic's bundle now.

        With `acquires`, this broker takes a bundle without an owner; otherwise none gets an owner.
        """


SERVE = Serve()


class _ServeAll:
    async def find(self, topic: TopicName, authoritative: bool, listener: str = "") -> Decision:
        return SERVE

    async def find_of_bundle(
        self, namespace: str, bundle: Bundle, authoritative: bool, acquires: bool
    ) -> Decision:
        return SERVE

    async def release(
        self, namespace: str, bundle: Bundle, close: Callable[[], Awaitable[None]]
    ) -> None:
        await close()

    def plan(self, namespace: str, bundle: Bundle, broker_id: str) -> Decision | None:
        return None

    async def check(self, topic: TopicName, acquires: bool = False) -> Decision:
        return SERVE


SERVE_ALL: Ownership = _ServeAll()
"""The rule of a broker that is alone: it serves every topic."""
