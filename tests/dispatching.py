"""Dispatchers without a broker: entries of a ledger, acks that are only counted, a manual loop.

Everything happens within the call that causes it. Reads come from memory, or, while the desk is
`cold`, from a disk that answers when the test says so.
"""

from __future__ import annotations

import asyncio
import random
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from oracles import wire
from pyxbroker import _native
from pyxbroker.ackset import AckSet
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.dispatch import kinds
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.entry_source import EntrySource
from pyxbroker.broker.dispatch.selectors import KeySharedPolicy
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.connection import Connection, Connections
from pyxbroker.entry import AckRun, EntryBatch, Position
from pyxbroker.ledger.errors import LedgerError, NoSuchEntry
from pyxbroker.policies.values import Policies
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.storage import StorageReader
from shares import without_end
from stored import LEDGER, add, storage

ENTRIES = 400
KEYS = [f"key-{random.Random(n).randrange(5)}" for n in range(ENTRIES)]
# When an entry is due, in ms since the epoch, for those that are not due at once.
DELAYED = {n: 1000 * (1 + n % 7) for n in range(ENTRIES) if n % 9 == 4}

Read = tuple[int, int, int, int, Callable[[EntryBatch | LedgerError], None]]


def open_entries(directory: Path) -> Any:
    """A context with a storage that holds ENTRIES entries, with KEYS and as DELAYED says."""
    return _Entries(directory)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_native.Storage]:
    """Those entries, for all tests of a file."""
    with open_entries(tmp_path_factory.mktemp("entries")) as storage:
        yield storage


MAKERS = [
    pytest.param(lambda subscription, kind=kind: kind(subscription, KeySharedPolicy()), id=name)
    for name, kind in [
        ("shared", kinds.shared),
        ("key_shared", kinds.key_shared),
        ("failover", kinds.failover),
    ]
]


class _Entries:
    def __init__(self, directory: Path) -> None:
        self._opened = storage(directory)

    def __enter__(self) -> _native.Storage:
        opened = self._opened.__enter__()
        entries = []
        for number, key in enumerate(KEYS):
            metadata = pb.MessageMetadata(
                producer_name="p", sequence_id=number, publish_time=1, partition_key=key
            )
            if number in DELAYED:
                metadata.deliver_at_time = DELAYED[number]
            entries.append(wire.payload_section(metadata.SerializeToString(), b"%d" % number))
        add(opened, entries)
        return opened

    def __exit__(self, *what: Any) -> None:
        self._opened.__exit__(*what)


class Timer:
    """What a loop hands out; it knows nothing of others', whose watches would keep them alive."""

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Loop:
    """As much of an event loop as connections and dispatchers ask for."""

    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []
        self._later: list[Timer] = []
        self._readers: dict[int, Callable[[], None]] = {}

    def add_reader(self, fd: int, call: Callable[[], None]) -> None:
        self._readers[fd] = call

    def call_soon(self, call: Callable[..., None], *args: Any) -> None:
        self._soon.append(lambda: call(*args))

    def call_later(self, seconds: float, call: Callable[..., None], *args: Any) -> Any:
        self._later.append(timer := Timer(lambda: call(*args)))
        return timer

    def time(self) -> float:
        return 0.0

    def run(self) -> None:
        """Everything that is due soon, and what that brings; the client must read meanwhile."""
        while True:
            calls, self._soon = self._soon, []
            readable, _, _ = select.select(self._readers, [], [], 0)
            calls.extend(self._readers[fd] for fd in readable)
            if not calls:
                return
            for call in calls:
                call()

    def run_later(self) -> None:
        timers, self._later = self._later, []
        for timer in timers:
            if timer.call is not None:
                timer.call()


class Ledger(EntrySource):
    """The entry source of the desk: LEDGER, as far as it is published."""

    def __init__(self, opened: _native.Storage) -> None:
        self.last = -1
        self.cold = False
        self.reads: list[Read] = []
        self.watchers: list[Callable[[], None]] = []
        self._reader = StorageReader(opened)

    def watch(self, wake: Callable[[], None]) -> None:
        if wake not in self.watchers:
            self.watchers.append(wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        if wake in self.watchers:
            self.watchers.remove(wake)

    def publish(self, count: int) -> None:
        """There are more entries, as far as LEDGER has them."""
        self.last = min(self.last + count, ENTRIES - 1)
        for wake in list(self.watchers):
            wake()

    def last_entry(self, ledger_id: int) -> int | None:
        return self.last if ledger_id == LEDGER else None

    def normalize(self, position: tuple[int, int]) -> Position | None:
        ledger_id, entry_id = max(position, (LEDGER, 0))
        if ledger_id > LEDGER or entry_id > self.last:
            return None
        return Position(ledger_id, entry_id)

    def next_position(self, position: tuple[int, int]) -> Position:
        return Position(LEDGER, position[1] + 1)

    def read_cached(
        self, position: Position, count_max: int, bytes_max: int, last: int | None = None
    ) -> EntryBatch | None:
        if self.cold:
            return None
        return self._read(position.entry_id, count_max, bytes_max, last)

    def _read(self, first: int, count: int, size: int, last: int | None) -> EntryBatch | None:
        end = self.last if last is None else min(last, self.last)
        return cast("EntryBatch | None", self._reader.read_cached(LEDGER, first, end, count, size))

    def read(
        self,
        position: Position,
        count_max: int,
        bytes_max: int,
        callback: Callable[[EntryBatch | LedgerError], None],
        last: int | None = None,
    ) -> None:
        end = self.last if last is None else last
        self.reads.append((position.entry_id, count_max, bytes_max, end, callback))

    def answer(self, damaged: bool = False) -> int | None:
        """The disk answers its oldest read; the entry that it could not give, if so."""
        first, count, size, last, callback = self.reads.pop(0)
        if damaged:
            callback(NoSuchEntry(f"entry {first} is gone"))
            return first
        batch = self._read(first, count, size, last)
        assert batch is not None
        callback(batch)
        return None


class Desk:
    """One subscription with its dispatcher and consumers."""

    def __init__(
        self, opened: _native.Storage, make: Callable[[Any], Dispatcher], **limits: Any
    ) -> None:
        self.loop = Loop()
        self.clock_s = 0.0
        self.ledger = Ledger(opened)
        self.acks = AckSet(LEDGER, -1)
        group = Connections(
            cast(asyncio.AbstractEventLoop, self.loop),
            SimpleNamespace(on_closed=lambda connection: None),
            frame_bytes_max=1 << 20,
            sends_max=1000,
            publish_bytes_max=1 << 30,
        )
        # How far a dispatcher comes in one turn must not depend on the machine.
        without_end(group.turn.dispatching)
        self._far, near = socket.socketpair()
        near.setblocking(False)
        self._far.setblocking(False)
        # What is done bit by bit is done soon.
        session = SimpleNamespace(step_queue=SimpleNamespace(wait=self.loop.call_soon))
        self.connection: Connection = group.accept(near, "peer", session)
        topic = SimpleNamespace(
            is_terminated=False,
            name=TopicName.get("persistent://public/default/t"),
            partition=-1,
            policies=Policies(delay_strict=True, **limits),
            unacked_in_broker=None,
            limits_dispatch=False,
            source=self.ledger,
            loop=self.loop,
            turn=group.turn,
            wall_clock=lambda: self.clock_s,
        )
        self.subscription: Any = SimpleNamespace(
            topic=topic,
            name="s",
            acks=self.acks,
            compacted=None,
            pending_acks=None,
            acknowledge_positions=self._acknowledge,
        )
        self.dispatcher = make(self.subscription)
        self.subscription.dispatcher = self.dispatcher
        self._ids = 0

    def close(self) -> None:
        # As when its last consumer leaves: the watch of the clock knows who has a timer.
        self.dispatcher.abandon()
        self.connection.close()
        self._far.close()

    def _acknowledge(self, positions: list[tuple[int, int]]) -> None:
        for position in positions:
            self.acks.add(*position)

    def publish(self, count: int) -> None:
        self.ledger.publish(count)

    def join(self, name: str, priority: int = 0) -> Consumer:
        self._ids += 1
        consumer = Consumer(
            self.connection, self._ids, self.subscription, name, priority, {}, KeySharedPolicy()
        )
        self.dispatcher.add_consumer(consumer)
        return consumer

    def leave(self, consumer: Consumer) -> None:
        consumer.closed = True
        self.dispatcher.remove_consumer(consumer)
        self.dispatcher.on_more()

    def acknowledge(self, consumer: Consumer, entries: list[int]) -> None:
        positions = [(LEDGER, entry) for entry in entries]
        self._acknowledge(positions)
        self.dispatcher.on_acknowledged(consumer, AckRun.of(positions))

    def send(self) -> None:
        """What is queued for the client goes to it, and it throws it away."""
        self.loop.run()
        try:
            while self._far.recv(1 << 20):
                self.loop.run()
        except BlockingIOError:
            return
