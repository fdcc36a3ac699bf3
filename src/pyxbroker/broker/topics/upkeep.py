"""What policies ask to be done with topics from time to time: expiry, quotas, inactive topics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from pyxbroker.base.errors import PulsarError
from pyxbroker.base.log import get_logger
from pyxbroker.broker.topics import expiry, quotas
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.ledger.handle import LedgerError
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError

if TYPE_CHECKING:
    from pyxbroker.broker.topics.topic import Topic

log = get_logger("pyxbroker.topics")

TOPICS_PER_LOOK = 256  # then the look yields


async def in_slices(topics: Iterator[Topic]) -> AsyncIterator[PersistentTopic]:
    """The persistent topics among those that are open; yields to the loop now and then."""
    for number, topic in enumerate(topics):
        if number % TOPICS_PER_LOOK == 0:
            await asyncio.sleep(0)
        if isinstance(topic, PersistentTopic) and not topic.fenced:
            yield topic


class Upkeep:
    """Looks after the topics that are open. `topics` gives them."""

    def __init__(self, topics: Callable[[], Iterator[Topic]]) -> None:
        self._topics = topics
        self._due: dict[PersistentTopic, None] = {}  # whose TTL has changed
        self._task: asyncio.Task[None] | None = None

    async def expire_messages(self) -> None:
        """Called now and then: what is older than the TTL counts as acknowledged."""
        async for topic in in_slices(self._topics()):
            await attempt("messages did not expire", topic, expire_messages)

    def expire_soon(self, topic: PersistentTopic) -> None:
        """The TTL of a topic has changed. One is looked at after the other, however many have."""
        self._due[topic] = None
        if self._task is None:
            self._task = asyncio.ensure_future(self._expire_due())
            self._task.add_done_callback(self._on_done)

    async def _expire_due(self) -> None:
        while self._due:
            topic = next(iter(self._due))
            del self._due[topic]
            if not topic.fenced:
                await attempt("messages did not expire", topic, expire_messages)
            await asyncio.sleep(0)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None

    async def expire_subscriptions(self) -> None:
        """Called now and then: subscriptions that nobody has used for long enough are deleted."""
        async for topic in in_slices(self._topics()):
            await attempt("a subscription was not deleted", topic, expiry.expire_subscriptions)

    async def check_quotas(self) -> None:
        """Called now and then: topics whose backlog exceeds a quota."""
        async for topic in in_slices(self._topics()):
            await attempt("a backlog quota was not looked at", topic, quotas.check)

    def close(self) -> None:
        """Nothing more is begun."""
        self._due.clear()
        if self._task is not None:
            self._task.cancel()


async def expire_messages(topic: PersistentTopic) -> None:
    """Raises LedgerError."""
    ttl_s = topic.policies.message_ttl_s
    is_refused = "message_ttl_s" in topic.policies.refused
    if ttl_s > 0 and not topic.name.is_system and not is_refused:
        await expiry.expire(topic, ttl_s)


async def attempt(
    event: str, topic: PersistentTopic, look: Callable[[PersistentTopic], Awaitable[None]]
) -> bool:
    """Looks at one topic; whether that went well. Its trouble is not one of the others."""
    try:
        await look(topic)
    except (PulsarError, LedgerError, ManagedLedgerError, MetadataError) as error:
        log.warning(event, topic=topic.name, error=error)
        return False
    except Exception as error:
        log.failure(event, error, topic=topic.name)
        return False
    return True
