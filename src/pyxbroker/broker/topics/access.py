"""The access modes of producers, and the epochs of a topic.

An exclusive producer is the only producer of its topic. Its epoch is one higher than that of the
exclusive producer before it. An epoch is durable before the client receives it, so none is assigned
twice. A producer that reconnects sends its epoch, and is fenced if a later one was assigned since.
Mirrors incrementTopicEpochIfNeeded of Pulsar's AbstractTopic.
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

EPOCH_PROPERTY = "pulsar.topic.epoch"  # property of the managed ledger; a decimal number
EPOCH_MAX = (1 << 63) - 1
# A client may send a higher epoch than the topic knows, since the topic may have been deleted and
# created again. Higher ones than this are ignored, so that no client can use up all epochs.
CLIENT_EPOCH_MAX = 1 << 62
FENCED_PER_STEP = 50  # producers that are disconnected before other tasks run


class AccessMode(enum.IntEnum):
    """The access that a producer requests (ProducerAccessMode)."""

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
    async def store_epoch(self, epoch: int) -> None: ...


class ProducerAccess:
    """The exclusive producer of a topic, and the producers that wait to become it.

    Created when a producer requests a mode other than SHARED for the first time.
    """

    def __init__(self, topic: ExclusiveTopic) -> None:
        self._topic = topic
        self._holder: Producer | None = None  # set before it gets its epoch
        self._waiting: dict[Producer, OnTurn] = {}  # in order of arrival
        self._chosen: dict[Producer, OnTurn] = {}  # chosen as holder, but not added yet
        self._epochs = asyncio.Lock()

    @property
    def holder(self) -> Producer | None:
        """The exclusive producer, which may wait for its epoch."""
        return self._holder

    @property
    def waiting(self) -> int:
        """The number of producers that wait for exclusive access."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """True if no producer has exclusive access or waits for it."""
        return self._holder is None and not (self._waiting or self._chosen)

    def refuse(self, producer: Producer, error: PulsarError) -> bool:
        """Send an error to a waiting producer and remove it. Return False if it does not wait."""
        on_turn = self._waiting.get(producer) or self._chosen.get(producer)
        if on_turn is None:
            return False
        on_turn(error)
        self.leave(producer)
        return True

    def waiting_producers(self) -> list[Producer]:
        """Return the producers that are not added to the topic yet.

        These wait for exclusive access, in order of arrival, or for their epoch to be stored.
        """
        return [*self._chosen, *self._waiting]

    def check_shared(self) -> None:
        """Raise ProducerBusy if an exclusive producer has the topic or waits for it."""
        if self._holder is not None or self._waiting:
            raise ProducerBusy(self._taken)

    @property
    def _taken(self) -> str:
        name = self._holder.name if self._holder is not None else None
        return f"Topic has an existing exclusive producer: {name}"

    def claim(self, producer: Producer, mode: AccessMode, epoch: int | None) -> bool:
        """Make a producer the holder, which must begin() then. Return False if it has to wait().

        epoch: the one that the producer had before it reconnected. Raises ProducerFenced.
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
        """Return the epoch for a producer: its own if it reconnects, else the next one.

        Raises ProducerFenced if a later epoch was assigned since.
        """
        current = -1 if self._topic.epoch is None else self._topic.epoch
        if brought is None:
            return current + 1
        if not current <= brought <= EPOCH_MAX:
            raise ProducerFenced(
                "Topic epoch has already moved."
                f" Current epoch: {current}, Producer epoch: {brought}"
            )
        is_believed = brought == current or brought <= CLIENT_EPOCH_MAX
        return brought if is_believed else current + 1

    def wait(self, producer: Producer, on_turn: OnTurn) -> None:
        """Queue a producer. When it becomes the holder, on_turn(None) has to begin() it.

        on_turn is called with an error instead if the producer is refused.
        """
        self._waiting[producer] = on_turn

    async def begin(self, producer: Producer, epoch: int | None, *, fences: bool = False) -> None:
        """Store an epoch for the holder and add it to the topic.

        fences: disconnect all other producers first. Raises ProducerFenced if another producer
        fences this one meanwhile, and the errors of storing the epoch and of adding the producer.
        After an error the next waiting producer becomes the holder.
        """
        try:
            if fences:
                await self._fence_others()
            async with self._epochs:
                self._check_holder(producer)
                own = self._epoch_for(epoch)
                if own > EPOCH_MAX:
                    raise NotAllowed("The topic has used all epochs. Delete it to start anew.")
                if own != self._topic.epoch:
                    await self._topic.store_epoch(own)
            self._check_holder(producer)
            if producer.connection.closed:
                raise ServiceNotReady("The client of the producer has disconnected.")
            self._topic.add_producer(producer)
            self._chosen.pop(producer, None)
        except BaseException:
            self.leave(producer)
            raise

    def _check_holder(self, producer: Producer) -> None:
        if self._holder is not producer:
            raise ProducerFenced("Fenced out")

    async def _fence_others(self) -> None:
        """Disconnect the connected producers and refuse the waiting ones."""
        self.refuse_waiting(ProducerFenced("Fenced out"))
        for number, other in enumerate(list(self._topic.producers.values()), start=1):
            if not other.closed:
                self._topic.close_producer(other)
            if number % FENCED_PER_STEP == 0:
                await asyncio.sleep(0)

    def leave(self, producer: Producer) -> None:
        """Remove a producer that was closed or stops waiting; another may become the holder."""
        self._waiting.pop(producer, None)
        self._chosen.pop(producer, None)
        if self._holder is producer:
            self._holder = None
        if self._holder is None and not self._topic.producers and not self._topic.fenced:
            self._call_next()
        if self.is_idle:
            self._topic.on_used()  # a producer that only waited counts too

    def _call_next(self) -> None:
        if self._waiting:
            producer = next(iter(self._waiting))
            on_turn = self._chosen[producer] = self._waiting.pop(producer)
            self._holder = producer
            on_turn(None)

    def refuse_waiting(self, error: PulsarError) -> None:
        """Send an error to all waiting producers, in batches, and remove them."""
        waiting, self._waiting = self._waiting, {}
        if waiting:
            self._refuse_in_batches(waiting, error)

    def _refuse_in_batches(self, waiting: dict[Producer, OnTurn], error: PulsarError) -> None:
        for _ in range(min(FENCED_PER_STEP, len(waiting))):
            on_turn = waiting.pop(next(iter(waiting)))
            on_turn(error)
        if waiting:
            asyncio.get_running_loop().call_soon(self._refuse_in_batches, waiting, error)


def parse_epoch(text: str, topic: str) -> int:
    """Return the epoch from a property of a managed ledger, EPOCH_MAX if it is unreadable."""
    if text.isascii() and text.isdecimal() and len(text) <= len(str(EPOCH_MAX)):
        return min(int(text), EPOCH_MAX)
    # Any epoch may have been assigned already, so there is no next one.
    log.error("the epoch of a topic cannot be read: exclusive producers are refused", topic=topic,
              found=text[:40])  # fmt: skip
    return EPOCH_MAX
