"""The claim on an ephemeral node: its rules, and any interleaving of brokers and sessions."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pyxbroker.cluster.claim import Claim, Do, State
from pyxbroker.metadata.store import GetResult, Unavailable

OURS, THEIRS = b"ours", b"theirs"


def node(value: bytes = OURS, *, is_own: bool = False, version: int = 0) -> GetResult:
    return GetResult(value, version, True, 0, 0, is_own)


OWN = node(is_own=True)


def held() -> Claim:
    claim = Claim(OURS)
    assert claim.claim() is Do.CREATE
    assert claim.on_answer(OWN) is None
    assert claim.state is State.HELD
    return claim


def test_a_read_without_a_node_leaves_the_claim_free() -> None:
    claim = Claim(OURS)
    assert claim.read() is Do.READ
    assert claim.on_answer(None) is None
    assert (claim.state, claim.is_held) == (State.FREE, False)


def test_a_read_that_becomes_a_claim_creates_the_node() -> None:
    claim = Claim(OURS)
    claim.read()
    assert claim.claim() is None
    assert claim.on_answer(None) is Do.CREATE
    assert claim.on_answer(OWN) is None
    assert claim.is_held


def test_a_node_of_another_broker_is_left_to_it_until_it_changes() -> None:
    claim = Claim(OURS)
    claim.claim()
    assert claim.on_answer(node(THEIRS)) is None
    assert (claim.state, claim.other) == (State.TAKEN, THEIRS)
    assert claim.claim() is None
    assert claim.on_event() is None
    assert claim.state is State.FREE


@pytest.mark.parametrize("begin", [Claim.read, Claim.claim])
def test_a_node_of_an_earlier_session_of_this_broker_is_replaced(begin: object) -> None:
    claim = Claim(OURS)
    begin(claim)  # type: ignore[operator]
    assert claim.on_answer(node(version=3)) is Do.REPLACE
    assert claim.version == 3
    assert claim.on_answer(OWN) is None
    assert claim.is_held


def test_a_deleted_node_is_created_again_and_held_meanwhile() -> None:
    claim = held()
    assert claim.on_event() is Do.READ
    assert claim.is_held
    assert claim.on_answer(None) is Do.CREATE
    assert claim.is_held
    assert claim.on_answer(OWN) is None
    assert claim.state is State.HELD


def test_a_holder_that_finds_another_broker_closes_and_deletes_nothing() -> None:
    claim = held()
    claim.on_event()
    assert claim.on_answer(node(THEIRS)) is Do.CLOSE
    assert not claim.is_held
    assert claim.on_closed() is None
    assert claim.state is State.FREE


def test_a_holder_that_cannot_read_the_node_holds_it_and_tries_again() -> None:
    claim = held()
    claim.on_event()
    for _ in range(3):
        assert claim.on_answer(Unavailable("away")) is Do.RETRY
        assert claim.is_held
        assert claim.on_retry() is Do.READ
    assert claim.on_answer(OWN) is None
    assert claim.state is State.HELD


def test_a_release_closes_before_it_deletes() -> None:
    claim = held()
    assert claim.release() is Do.CLOSE
    assert not claim.is_held
    assert claim.on_event() is None
    assert claim.on_closed() is Do.DELETE
    assert claim.on_deleted() is None
    assert claim.state is State.FREE


def test_a_release_during_a_check_takes_effect_after_it() -> None:
    for answer, deletes in ((OWN, True), (None, False), (Unavailable("away"), True)):
        claim = held()
        claim.on_event()
        assert claim.release() is None
        assert not claim.is_held
        assert claim.on_answer(answer) is Do.CLOSE
        assert claim.on_closed() is (Do.DELETE if deletes else None)


def test_a_change_during_an_action_is_checked_after_it() -> None:
    claim = Claim(OURS)
    claim.claim()
    assert claim.on_event() is None
    assert claim.on_answer(OWN) is Do.READ
    assert claim.on_answer(OWN) is None
    claim = Claim(OURS)
    claim.read()
    claim.on_event()
    assert claim.on_answer(node(THEIRS)) is Do.READ
    assert claim.on_answer(None) is None
    assert claim.state is State.FREE


def test_a_node_that_is_changed_all_the_time_fails_the_claim() -> None:
    claim = Claim(OURS)
    claim.claim()
    attempts = 0
    while claim.on_answer(None) is Do.CREATE:
        attempts += 1
    assert attempts < 20
    assert claim.state is State.FREE
    assert claim.error is not None


# --- any interleaving -----------------------------------------------------------------------------


class _Store:
    """One node, the sessions of several brokers, and watches that report one change each."""

    def __init__(self) -> None:
        self.value = b""
        self.session = 0  # of the node; 0: it does not exist
        self.watching: set[_Broker] = set()

    def change(self, value: bytes, session: int) -> None:
        self.value, self.session = value, session
        watching, self.watching = self.watching, set()
        for broker in watching:
            broker.events += 1


class _Broker:
    """A broker with one claim. An action takes any time: its writes and its read happen when they
    are drawn, and so does the arrival of the answer.
    """

    def __init__(self, store: _Store, number: int, sessions: Iterator[int]) -> None:
        self.store = store
        self.claim = Claim(b"%d" % number)
        self.sessions = sessions
        self.session = next(sessions)
        self.is_open = False  # topics of the bundle
        self.events = 0
        self.steps: list[object] = []
        self.answer: GetResult | Unavailable | None = None

    def begin(self, do: Do | None) -> None:
        if do is not None:
            assert not self.steps, "two actions at a time"
            self.steps = {
                Do.READ: [self.read, self.on_answer],
                Do.CREATE: [self.create, self.read, self.on_answer],
                Do.REPLACE: [self.delete_version, self.create, self.read, self.on_answer],
                Do.CLOSE: [self.close, self.claim.on_closed],
                Do.DELETE: [self.delete, self.claim.on_deleted],
                Do.RETRY: [self.claim.on_retry],
            }[do]

    def step(self) -> None:
        step = self.steps.pop(0)
        do = step()  # type: ignore[operator]
        if not self.steps:
            self.begin(do)
        if self.claim.is_held and not self.steps:
            self.is_open = True

    def create(self) -> None:
        if not self.store.session:
            self.store.change(self.claim.value, self.session)

    def read(self) -> None:
        store = self.store
        self.answer = None
        if store.session:
            self.answer = node(store.value, is_own=store.session == self.session)
            store.watching.add(self)

    def on_answer(self) -> Do | None:
        return self.claim.on_answer(self.answer)

    def delete_version(self) -> None:
        # Each new node has version 0, so that this may be a node of another broker.
        if self.store.session:
            self.store.change(b"", 0)

    def delete(self) -> None:
        if self.store.session == self.session:
            self.store.change(b"", 0)

    def close(self) -> None:
        self.is_open = False

    def expire(self) -> None:
        if self.store.session == self.session:
            self.store.change(b"", 0)
        self.session = next(self.sessions)
        self.store.watching.discard(self)
        self.events += 1

    def deliver(self) -> None:
        self.events -= 1
        self.begin(self.claim.on_event())


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_after_any_interleaving_one_broker_at_most_has_the_topics_open(first: int) -> None:
    for seed in range(first, first + 250):
        draw = random.Random(seed)
        store = _Store()
        sessions = iter(range(1, 10_000))
        brokers = [_Broker(store, number, sessions) for number in range(3)]
        for _ in range(300):
            one = draw.choice(brokers)
            request = draw.random()
            if one.steps and request < 0.7:
                one.step()
            elif one.events and request < 0.85:
                one.deliver()
            elif request < 0.9:
                one.begin(one.claim.claim())
            elif request < 0.93:
                one.begin(one.claim.read())
            elif request < 0.96:
                one.begin(one.claim.release())
            elif request < 0.97:
                one.expire()
            elif request < 0.98 and store.session:
                store.change(b"", 0)  # a broker removes another one that it takes for a failed one
            elif one.steps and one.steps[-1] == one.on_answer:
                one.steps = [lambda one=one: one.claim.on_answer(Unavailable("lost"))]
        busy = list(brokers)
        while busy := [each for each in busy if each.steps or each.events]:
            one = draw.choice(busy)
            if one.steps:
                one.step()
            else:
                one.deliver()
        held = [each for each in brokers if each.claim.is_held]
        assert [each for each in brokers if each.is_open] == held, seed
        assert len(held) <= 1, seed
        if held:
            assert (store.session, store.value) == (held[0].session, held[0].claim.value), seed
