"""Shared and Key_Shared dispatchers against what must hold after any sequence of events."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dispatching import DELAYED, KEYS, Desk, opened
from oracles.key_shared import key_hash
from pyxbroker import _native
from pyxbroker.broker.dispatch import kinds, redelivery
from pyxbroker.broker.dispatch.key_shared import KeySlots
from pyxbroker.broker.dispatch.selectors import KeySharedPolicy
from pyxbroker.broker.subscriptions.consumer import Consumer
from pyxbroker.delivery import Rotation
from stored import LEDGER

__all__ = ["opened"]

LOOK_AHEAD = 15
SOME_MAX = 8
T = TypeVar("T")


class DispatchMachine(RuleBasedStateMachine):
    """What is true of both. `opened` is set before a machine is made."""

    opened: _native.Storage
    kind = "Shared"

    @initialize(
        unacked=st.sampled_from([0, 6]),
        together=st.sampled_from([0, 9]),
        at_once=st.sampled_from([1, 2, 1000]),
    )
    def open(self, unacked: int, together: int, at_once: int) -> None:
        self.steps: deque[Callable[[], None]] = deque()
        self.desk = Desk(
            self.opened,
            self.make,
            unacked_per_consumer_max=unacked,
            unacked_per_subscription_max=together,
            look_ahead_per_consumer_max=0,
            look_ahead_per_subscription_max=LOOK_AHEAD,
            read_batch_max=10,
            round_robin_max=3,
            key_shared_points=20,
        )
        self.numbers = itertools.count()
        self.consumers: list[Consumer] = []
        self.pending: dict[Consumer, set[int]] = {}
        self.returned: set[int] = set()  # delivered before, and to be delivered again
        self.counts: dict[int, int] = {}
        self.damaged: set[int] = set()
        self.was_read = False  # from disk, in this event
        # What is taken back comes again a few entries at a time, and other events in between.
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(redelivery, "ENTRIES_PER_STEP", at_once)
        self.desk.connection.session.step_queue.wait = self.steps.append

    def make(self, subscription: Any) -> Any:
        return kinds.shared(subscription, KeySharedPolicy())

    def teardown(self) -> None:
        if hasattr(self, "desk"):
            self.patched.undo()
            self.desk.close()

    # --- what is seen -------------------------------------------------------------------------

    def held(self, consumer: Consumer) -> set[int]:
        return {entry for _, entry in consumer.pending_positions()}

    def waiting(self) -> list[int]:
        """Entries that nobody has, and that can be read."""
        taken = set().union(*map(self.held, self.consumers)) | self.damaged
        return [
            entry
            for entry in range(self.desk.ledger.last + 1)
            if entry not in taken
            and DELAYED.get(entry, 0) <= self.desk.clock_s * 1000
            and not self.desk.acks.is_acknowledged(LEDGER, entry)
        ]

    def look(self) -> None:
        """After each event: who has got what, and whether that is right."""
        self.desk.send()
        new: dict[Consumer, set[int]] = {}
        for consumer in self.consumers:
            held = self.held(consumer)
            new[consumer] = held - self.pending.get(consumer, set())
            self.pending[consumer] = held
            assert consumer.permits >= 0
            assert consumer.unacked_messages == len(held)
            early = [each for each in held if DELAYED.get(each, 0) > self.desk.clock_s * 1000]
            assert not early, f"{early} came too early"
        all_held = [entry for held in self.pending.values() for entry in held]
        assert len(set(all_held)) == len(all_held), "two consumers have an entry"
        assert self.desk.dispatcher.limits.unacked.messages == len(all_held)
        if self.desk.dispatcher.redelivery.is_returning:
            assert not any(new.values()), "something was sent before what comes again"
        else:
            self.check(new)
        self.returned -= set().union(*new.values())

    def check(self, new: dict[Consumer, set[int]]) -> None:
        if self.desk.ledger.reads:
            return
        if not self.was_read:
            # What was on its way from the disk may come before what was returned meanwhile.
            fresh = set().union(*new.values()) - self.returned - DELAYED.keys()
            again = self.returned & set(self.waiting())
            assert not (fresh and again), f"{fresh} came before {again}"
        if self.waiting():
            assert not any(each.can_deliver for each in self.consumers), "somebody is stuck"

    @invariant()
    def one_read_at_a_time(self) -> None:
        if hasattr(self, "desk"):
            assert len(self.desk.ledger.reads) <= 1

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "desk") and not self.desk.dispatcher.redelivery.is_returning:
            kept = self.desk.dispatcher.redelivery.counts
            assert {entry: count for (_, entry), count in kept.items()} == self.counts

    # --- events -------------------------------------------------------------------------------

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        self.desk.publish(count)
        self.look()

    @rule(name=st.sampled_from("abc"), priority=st.integers(0, 1), permits=st.integers(0, 15))
    def join(self, name: str, priority: int, permits: int) -> None:
        if len(self.consumers) < 4:
            consumer = self.desk.join(f"{name}{next(self.numbers)}", priority)
            self.consumers.append(consumer)
            if permits:
                consumer.on_flow(permits)
            self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), permits=st.integers(1, 15))
    def flow(self, data: Any, permits: int) -> None:
        self.pick(data, self.consumers).on_flow(permits)
        self.look()

    # What depends on the state is chosen in these two, so that a fuzzer can choose in its own way.

    def pick(self, data: Any, things: Sequence[T]) -> T:
        picked: T = data.draw(st.sampled_from(things))
        return picked

    def pick_some(self, data: Any, things: Sequence[T]) -> list[T]:
        """Up to SOME_MAX of them, each once, in any order."""
        some: list[T] = data.draw(st.lists(st.sampled_from(things), unique=True, max_size=SOME_MAX))
        return some

    def some_of(self, data: Any, consumer: Consumer) -> list[int]:
        held = sorted(self.held(consumer))
        return self.pick_some(data, held) if held else []

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), stolen=st.booleans())
    def acknowledge(self, data: Any, stolen: bool) -> None:
        owner = self.pick(data, self.consumers)
        entries = self.some_of(data, owner)
        if self.returned:
            # What is taken back is acknowledged as well.
            entries.append(self.pick(data, sorted(self.returned)))
        who = self.pick(data, self.consumers) if stolen else owner
        for entry in entries:
            self.counts.pop(entry, None)
        self.desk.acknowledge(who, entries)
        self.look()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: Any, everything: bool) -> None:
        consumer = self.pick(data, self.consumers)
        entries = sorted(self.held(consumer)) if everything else self.some_of(data, consumer)
        for entry in entries:
            self.counts[entry] = self.counts.get(entry, 0) + 1
        self.takes_back(consumer, set(entries))
        if everything:
            self.desk.dispatcher.redeliver_all(consumer)
        else:
            # Also what it does not have, which changes nothing.
            named = [(LEDGER, entry) for entry in [*entries, 399]]
            self.desk.dispatcher.redeliver(consumer, named)
        self.look()

    def takes_back(self, consumer: Consumer, entries: set[int]) -> None:
        self.returned |= entries
        self.pending[consumer] -= entries

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        consumer = self.pick(data, self.consumers)
        self.consumers.remove(consumer)
        self.takes_back(consumer, self.held(consumer))
        del self.pending[consumer]
        self.desk.leave(consumer)
        if not self.consumers:
            self.counts.clear()
            if not self.desk.dispatcher.is_reusable:
                self.returned.clear()
                self.damaged.clear()
        self.look()

    @precondition(lambda self: self.steps)
    @rule()
    def step(self) -> None:
        self.steps.popleft()()
        self.look()

    @rule()
    def nothing_is_in_memory(self) -> None:
        self.desk.ledger.cold = True

    @rule()
    def everything_is_in_memory(self) -> None:
        self.desk.ledger.cold = False

    @precondition(lambda self: hasattr(self, "desk") and self.desk.ledger.reads)
    @rule(damaged=st.sampled_from([False, False, False, True]))
    def disk_answers(self, damaged: bool) -> None:
        entry = self.desk.ledger.reads[0][0]
        if damaged and entry in self.waiting():
            self.damaged.add(entry)
        self.desk.ledger.answer(damaged)
        self.was_read = True
        self.look()
        self.was_read = False

    # Also to a moment before something is due; what stands here adds up without being rounded.
    @rule(seconds=st.sampled_from([1 / 64, 63 / 64, 1, 2, 3]))
    def time_passes(self, seconds: float) -> None:
        self.desk.clock_s += seconds
        self.desk.loop.run_later()
        self.look()

    @rule()
    def move_the_cursor(self) -> None:
        """A seek to where it is: everything that is not acknowledged comes anew."""
        self.counts.clear()
        self.returned.clear()
        self.damaged.clear()
        for consumer in self.consumers:
            self.pending[consumer] = set()
        self.desk.dispatcher.reset()
        self.desk.dispatcher.wake()
        self.look()


class KeySharedMachine(DispatchMachine):
    """Every key goes to one consumer at a time, in order."""

    def make(self, subscription: Any) -> Any:
        return kinds.key_shared(subscription, KeySharedPolicy())

    def check(self, new: dict[Consumer, set[int]]) -> None:
        dispatcher = self.desk.dispatcher
        assert isinstance(dispatcher.chooser, KeySlots)
        keys = dispatcher.chooser.keys
        waiting: dict[str, list[int]] = {}
        for entry in self.waiting():
            waiting.setdefault(KEYS[entry], []).append(entry)
        for key in set(KEYS):
            holders = [c for c in self.consumers if any(KEYS[e] == key for e in self.pending[c])]
            assert len(holders) <= 1, f"{key} is with {len(holders)} consumers"
            slot = keys.owner_of(key_hash(b"", 0, None, key.encode(), False, keys.hashes))
            got = [entry for entry in set().union(*new.values()) if KEYS[entry] == key]
            first = min(waiting.get(key, []), default=10_000)
            # What is delayed does not hold up what is behind it, nor has it a place in its order.
            in_order = min((e for e in waiting.get(key, []) if e not in DELAYED), default=10_000)
            late = [entry for entry in got if entry not in DELAYED and entry > in_order]
            assert not late, f"{late} came before {in_order}"
            if first == 10_000 or self.desk.ledger.reads:
                continue
            owner = next((c for c in self.consumers if c.slot == slot), None)
            may_go = owner is not None and (not holders or holders[0] is owner)
            # What was set aside until it is due has to be read again.
            is_read = first not in DELAYED and (LEDGER, first) < dispatcher.read_position
            if may_go and (is_read or keys.waiting < LOOK_AHEAD):
                assert owner is not None and not owner.can_deliver, f"{first} of {key} is stuck"


@pytest.mark.parametrize("machine", [DispatchMachine, KeySharedMachine])
def test_any_sequence_of_events(opened: _native.Storage, machine: type[DispatchMachine]) -> None:
    DispatchMachine.opened = opened
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine, settings=settings(max_examples=100, stateful_step_count=60, deadline=None)
    )


class Queued(NamedTuple):
    """A consumer as the model of a rotation has it."""

    number: int  # of those that came
    state: Consumer


LEVELS = st.integers(-1, 2)
ROTATION_EVENTS = st.one_of(
    st.tuples(st.just("join"), LEVELS),
    st.tuples(st.sampled_from(["leave", "flow", "flow", "limit", "close"]), st.integers(0, 99)),
    st.tuples(st.just("serve"), st.booleans()),
    st.tuples(st.just("crowd comes"), LEVELS),
    st.tuples(st.just("crowd leaves"), st.integers(0, 99)),
)


@given(st.lists(ROTATION_EVENTS, max_size=100))
def test_who_is_next(opened_once: Desk, events: list[tuple[str, int]]) -> None:
    """The first one of the best level behind who was served last, in the order of joining."""
    rotation = Rotation()
    numbers = itertools.count()
    there: list[Queued] = []
    last = -1
    for event, which in [("join", 1), ("join", 1), *events, *[("serve", True)] * 5]:
        if event in ("join", "crowd comes"):
            for number in itertools.islice(numbers, 1 if event == "join" else 50):
                desk = opened_once
                state = Consumer(desk.connection, number, desk.subscription, "", which, {})
                there.append(Queued(number, state))
                rotation.add(state)
                # Of a crowd some have permits.
                state.permits = int(event != "join" and number % 3 == 0)
        elif event == "crowd leaves":
            for _ in range(min(50, len(there))):
                rotation.remove(there.pop(which % len(there)).state)
        elif event == "serve":
            able = [each for each in there if each.state.can_deliver]
            first = min(
                able,
                key=lambda it: (it.state.priority_level, it.number <= last, it.number),
                default=None,
            )
            assert rotation.next() is (None if first is None else first.state)
            waits = any(it.state.permits > 0 and it.state.is_blocked for it in there
                        if not it.state.closed)  # fmt: skip
            assert first is not None or rotation.is_limited >= waits
            if first is not None and which:
                last = first.number
                first.state.permits -= 2
                rotation.advance()
        elif there:
            queued = there[which % len(there)]
            if event == "flow":
                queued.state.permits += which % 9
            elif event == "limit":
                queued.state.unacked_messages = which // 3 % 3
                queued.state.set_unacked_max(which % 3)
            elif event == "close":
                queued.state.closed = True
            elif event == "leave":
                there.remove(queued)
                rotation.remove(queued.state)
                assert rotation.next() is not queued.state
    assert not rotation.take_newly_full()


@pytest.fixture(scope="module")
def opened_once(opened: _native.Storage) -> Iterator[Desk]:
    desk = Desk(opened, lambda it: kinds.shared(it, KeySharedPolicy()))
    yield desk
    desk.close()
