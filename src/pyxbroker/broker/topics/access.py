"""Who may publish to a topic beside others: the access modes of producers, and the topic's epochs.

An exclusive producer has the topic for itself, and an epoch that is one higher than that of the one
before it. The epoch is durable before anybody is told of it, so none is given twice; a producer
that comes back says which one it had, and is fenced where a later one was given since. Mirrors
incrementTopicEpochIfNeeded of Pulsar's AbstractTopic.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.errors import (
    NotAllowed,
    ProducerBusy,
    ProducerFenced,
    PulsarError,
    ServiceNotReady,
)
from pyxbroker.base.log import get_logger

if TYPE_CHECKING:
    from pyxbroker.broker.topics.producer import Producer

log = get_logger("pyxbroker.topic")

EPOCH_PROPERTY = "pulsar.topic.epoch"  # of a managed ledger, in decimals
EPOCH_MAX = (1 << 63) - 1
# Up to here a client is believed that it had a higher epoch than the topic knows of, as it is where
# the topic was deleted. No client can bring so many that there is no next one.
BROUGHT_EPOCH_MAX = 1 << 62
FENCED_PER_STEP = 50  # producers that are sent away before others have their turn


class AccessMode(enum.IntEnum):
    """How a producer wants a topic (ProducerAccessMode)."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


OnTurn = Callable[[PulsarError | None], None]


class ExclusiveTopic(Protocol):
    """The topic of a ProducerAccess (topic.py)."""

    epoch: int | None
    fenced: bool
    producers: dict[str, Producer]

    def replaced_by(self, producer: Producer) -> Producer | None: ...
    def add_producer(self, producer: Producer) -> None: ...
    def close_producer(self, producer: Producer) -> None: ...
    def on_used(self) -> None: ...
    async def keep_epoch(self, epoch: int) -> None: ...


class ProducerAccess:
    """The exclusive producer of a topic, and those that wait to be it.

    A topic has one once a producer has asked for more than to share.
    """

    def __init__(self, topic: ExclusiveTopic) -> None:
        self._topic = topic
        self._holder: Producer | None = None  # also while it gets its epoch
        self._waiting: dict[Producer, OnTurn] = {}  # in their order
        self._called: dict[Producer, OnTurn] = {}  # whose turn has come, until they are let in
        self._epochs = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """Producers that wait for their turn."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether nobody has the topic, or is to have it."""
        return self._holder is None and not (self._waiting or self._called)

    def refuse(self, producer: Producer, error: PulsarError) -> bool:
        """Whether a producer waited for its turn, or to be let in: it is told why it is not."""
        on_turn = self._waiting.get(producer) or self._called.get(producer)
        if on_turn is None:
            return False
        on_turn(error)
        self.leave(producer)
        return True

    def waiting_producers(self) -> list[Producer]:
        """Those that are no producers of the topic yet: who wait for their turn, in their order,
        and who have it and wait for what has to be stored first.
        """
        return [*self._called, *self._waiting]

    def check_shared(self) -> None:
        """Raises ProducerBusy for a producer that would share the topic with an exclusive one."""
        if self._holder is not None or self._waiting:
            raise ProducerBusy(self._taken)

    @property
    def _taken(self) -> str:
        name = self._holder.name if self._holder is not None else None
        return f"Topic has an existing exclusive producer: {name}"

    def claim(self, producer: Producer, mode: AccessMode, epoch: int | None) -> bool:
        """Whether the topic is the producer's from now on, who has to begin() then; else it may
        wait(). epoch is the one that it had before.

        Raises ProducerFenced.
        """
        replaced = self._topic.replaced_by(producer)
        returns = replaced is not None and self._holder is replaced
        is_held = not returns and (self._holder is not None or bool(self._waiting))
        shared = len(self._topic.producers) - (replaced is not None)
        if mode is AccessMode.EXCLUSIVE:
            if is_held:
                raise ProducerFenced(self._taken)
            if shared:
                raise ProducerFenced("Topic has existing shared producers")
        elif mode is AccessMode.WAIT_FOR_EXCLUSIVE and (is_held or shared):
            return False
        self._epoch_for(epoch)
        self._holder = producer
        return True

    def _epoch_for(self, brought: int | None) -> int:
        """The epoch that a producer is to have: its own where it comes back, else the next.

        Raises ProducerFenced for one that has passed.
        """
        current = -1 if self._topic.epoch is None else self._topic.epoch
        if brought is None:
            return current + 1
        if not current <= brought <= EPOCH_MAX:
            raise ProducerFenced(
                "Topic epoch has already moved."
                f" Current epoch: {current}, Producer epoch: {brought}"
            )
        is_believed = brought == current or brought <= BROUGHT_EPOCH_MAX
        return brought if is_believed else current + 1

    def wait(self, producer: Producer, on_turn: OnTurn) -> None:
        """Puts a producer into the line. When its turn comes, on_turn(None) has to begin() it; it
        is called with an error when that is never going to be.
        """
        self._waiting[producer] = on_turn

    async def begin(self, producer: Producer, epoch: int | None, *, fences: bool = False) -> None:
        """Lets the producer whose turn it is in, with an epoch that is its own; one that fences
        sends everybody else away.

        Raises ProducerFenced when another one fences it meanwhile, and what keeps the epoch from
        being stored or the producer from being added: then it is the turn of the next.
        """
        try:
            if fences:
                await self._fence_others()
            async with self._epochs:
                self._check_holder(producer)
                own = self._epoch_for(epoch)
                if own > EPOCH_MAX:
                    raise NotAllowed("The topic has given all the epochs that there are.")
                if own != self._topic.epoch:
                    await self._topic.keep_epoch(own)
            self._check_holder(producer)
            if producer.connection.closed:
                raise ServiceNotReady("The client of the producer is gone.")
            self._topic.add_producer(producer)
            self._called.pop(producer, None)
        except BaseException:
            self.leave(producer)
            raise

    def _check_holder(self, producer: Producer) -> None:
        if self._holder is not producer:
            raise ProducerFenced("Fenced out")

    async def _fence_others(self) -> None:
        """Sends away who is connected, and for good who waits."""
        self.turn_away(ProducerFenced("Fenced out"))
        for number, other in enumerate(list(self._topic.producers.values()), start=1):
            if not other.closed:
                self._topic.close_producer(other)
            if number % FENCED_PER_STEP == 0:
                await asyncio.sleep(0)

    def leave(self, producer: Producer) -> None:
        """A producer is gone, or does not wait any more; the next one may have its turn."""
        self._waiting.pop(producer, None)
        self._called.pop(producer, None)
        if self._holder is producer:
            self._holder = None
        if self._holder is None and not self._topic.producers and not self._topic.fenced:
            self._call_next()
        if self.is_idle:
            self._topic.on_used()  # also by one that only waited

    def _call_next(self) -> None:
        if self._waiting:
            producer = next(iter(self._waiting))
            on_turn = self._called[producer] = self._waiting.pop(producer)
            self._holder = producer
            on_turn(None)

    def turn_away(self, error: PulsarError) -> None:
        """Nobody waits any more; they are told why, a few in each turn."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            self._tell(waiting, error)

    def _tell(self, waiting: dict[Producer, OnTurn], error: PulsarError) -> None:
        for _ in range(min(FENCED_PER_STEP, len(waiting))):
            on_turn = waiting.pop(next(iter(waiting)))
            on_turn(error)
        if waiting:
            asyncio.get_running_loop().call_soon(self._tell, waiting, error)


def stored_epoch(text: str, topic: str) -> int:
    """The epoch that the properties of a managed ledger tell."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(EPOCH_MAX)):
        return min(int(text), EPOCH_MAX)
    # Which ones were given nobody knows, so that there is no next one.
    log.error("the epoch of a topic cannot be read: nobody has it exclusively", topic=topic,
              found=text[:40])  # fmt: skip
    return EPOCH_MAX
