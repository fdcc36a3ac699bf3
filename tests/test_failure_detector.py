"""Failed brokers: the rules of their detection, any faults in virtual time, and planted bugs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from random import Random

import pytest

from pyxbroker.cluster.failure_detector import Answer, FailureDetector, Sight
from simulate_failures import TIMEOUT_S, BrokenPromise, MakeDetector, Simulation

OWN, B, C, D = "a:1", "b:1", "c:1", "d:1"


def detector(*peers: str, leader: str = OWN, sight: Sight = Sight.REACHED) -> FailureDetector:
    made = FailureDetector(OWN)
    made.follow({OWN: 1, **dict.fromkeys(peers, 1)})
    made.elect(leader)
    for each in peers:
        made.note(each, 1, sight, 0.0)
    return made


def about(name: str, sight: Sight, started: int = 1) -> Answer:
    return {name: (sight, started)}


def test_a_peer_that_refuses_connections_has_failed_unless_another_one_reaches_it() -> None:
    for sight, failed in (
        (Sight.REFUSED, [B]),
        (Sight.SILENT, [B]),
        (Sight.REACHED, []),
        (Sight.UNKNOWN, []),
    ):
        made = detector(B, C)
        made.note(B, 1, Sight.REFUSED, 0.0)
        assert made.witnesses() == [C]
        assert made.decide({C: about(B, sight)}, 0.0) == failed
    made = detector(B)
    made.note(B, 1, Sight.REFUSED, 0.0)
    assert made.decide({}, 0.0) == [B]


def test_a_silent_peer_has_failed_if_most_brokers_find_so() -> None:
    made = detector(B)
    made.note(B, 1, Sight.SILENT, 0.0)
    assert made.decide({}, 0.0) == []
    answers: dict[str, Answer]
    for answers in ({C: about(B, Sight.SILENT)}, {}):
        made = detector(B, C, D)
        made.note(B, 1, Sight.SILENT, 0.0)
        assert made.decide(answers, 0.0) == []
    made = detector(B, C, D)
    made.note(B, 1, Sight.SILENT, 0.0)
    assert made.decide({C: about(B, Sight.SILENT), D: about(B, Sight.REFUSED)}, 0.0) == [B]


def test_what_is_known_about_an_earlier_process_does_not_count() -> None:
    made = detector(B, C)
    made.note(B, 1, Sight.REFUSED, 0.0)
    made.follow({OWN: 1, B: 2, C: 1})
    assert made.decide({}, 0.0) == []
    made.note(B, 1, Sight.REFUSED, 0.0)
    assert made.answer()[B] == (Sight.UNKNOWN, 2)
    made.note(B, 2, Sight.REFUSED, 0.0)
    assert made.decide({C: about(B, Sight.REFUSED)}, 0.0) == []


def test_the_leader_decides_or_the_lowest_id_without_it() -> None:
    for leader, sights, decides in (
        (B, {B: Sight.REACHED}, False),
        (B, {B: Sight.REFUSED}, True),
        ("apache:1", {B: Sight.REACHED}, True),
        (B, {B: Sight.UNKNOWN}, False),
    ):
        made = detector(B, C, D, leader=leader)
        for name, sight in sights.items():
            made.note(name, 1, sight, 0.0)
        made.note(C, 1, Sight.REFUSED, 0.0)
        assert (C in made.decide({}, 0.0)) is decides
    lower = FailureDetector(D)
    lower.follow({B: 1, C: 1, D: 1})
    lower.note(B, 1, Sight.REACHED, 0.0)
    lower.note(C, 1, Sight.REFUSED, 0.0)
    assert lower.wait_s(0.0) is None


def test_a_removed_peer_that_lives_is_not_removed_again_for_its_silence() -> None:
    made = detector(B, C)
    silent = {C: about(B, Sight.SILENT)}
    made.note(B, 1, Sight.SILENT, 0.0)
    assert made.decide(silent, 0.0) == [B]
    made.on_removed(B)
    made.follow({OWN: 1, C: 1})
    made.follow({OWN: 1, B: 1, C: 1})
    assert made.wait_s(10.0) is None
    made.note(B, 1, Sight.REFUSED, 0.0)
    assert made.wait_s(10.0) is None
    made.note(B, 1, Sight.REACHED, 0.0)
    made.note(B, 1, Sight.SILENT, 0.0)
    assert made.wait_s(10.0) is None
    made.note(B, 1, Sight.REFUSED, 0.0)
    assert made.decide(silent, 10.0) == [B]


def test_the_silence_of_a_removed_peer_counts_again_after_it_answered_for_some_minutes() -> None:
    for answered_s, failed in ((500.0, []), (700.0, [B])):
        made = detector(B, C)
        made.note(B, 1, Sight.SILENT, 0.0)
        made.on_removed(B)
        made.note(B, 1, Sight.REACHED, 10.0)
        made.note(B, 1, Sight.SILENT, 10.0 + answered_s)
        assert made.decide({C: about(B, Sight.SILENT)}, 1000.0) == failed


def test_peers_are_asked_again_after_growing_pauses() -> None:
    made = detector(B, C)
    made.note(B, 1, Sight.REFUSED, 0.0)
    now, pauses = 0.0, []
    for _ in range(9):
        assert made.wait_s(now) == 0
        assert made.decide({C: about(B, Sight.REACHED)}, now) == []
        pause_s = made.wait_s(now)
        assert pause_s is not None
        pauses.append(pause_s)
        now += pause_s
    assert pauses[0] < 0.2
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0


# --- any faults -----------------------------------------------------------------------------------


def run(seed: int, make: MakeDetector = FailureDetector) -> Simulation:
    """Run a schedule of faults; raise BrokenPromise."""
    draw = Random(seed)
    count = draw.choice((2, 3, 3, 4, 5))
    simulation = Simulation(seed, count, make)
    names = list(simulation.brokers)
    for _ in range(draw.choice((1, 1, 2, 3))):
        name = draw.choice(names)
        kind = draw.choice(("kill", "off", "restart", "pause", "cut", "divide"))
        if kind in ("kill", "off"):
            simulation.kill(name, has_machine=kind == "kill")
        elif kind == "restart":
            simulation.kill(name)
            simulation.run_for(draw.choice((0.05, 0.3, 1.0)))
            simulation.spawn(name)
        elif kind == "pause":
            simulation.pause(name, draw.choice((0.2, 0.7, 2.0, 9.0)))
        elif kind == "cut":
            one, other = draw.sample(names, 2)
            simulation.cut(one, other, draw.choice((0.3, 2.0, 9.0)))
        else:
            side = draw.sample(names, draw.randrange(1, count))
            for one, other in itertools.product(side, set(names) - set(side)):
                simulation.cut(one, other, draw.choice((2.0, 9.0)))
        simulation.run_for(2.0 * draw.random() ** 2)
    simulation.run_for(12.0)
    for name, process in simulation.brokers.items():
        if not process.runs:
            simulation.spawn(name)
    simulation.run_for(12.0)
    if len(simulation.registered) < count or not simulation.leader:
        raise BrokenPromise(f"registered in the end: {simulation.registered}")
    return simulation


def took_s(seed: int, count: int, has_machine: bool, make: MakeDetector = FailureDetector) -> float:
    """Return the time until a killed broker, which may lead, is removed."""
    simulation = Simulation(seed, count, make)
    name = Random(seed).choice(list(simulation.brokers))
    simulation.kill(name, has_machine)
    began = simulation.now
    while name in simulation.registered:
        simulation.run_for(0.025)
    return simulation.now - began


def check_times(seed: int, make: MakeDetector = FailureDetector) -> None:
    for count in (2, 3, 5):
        if took_s(seed, count, True, make) > 0.4:
            raise BrokenPromise("a killed process was removed late")
        if count > 2 and took_s(seed, count, False, make) > 2 * TIMEOUT_S:
            raise BrokenPromise("a machine that is off was removed late")


@pytest.mark.parametrize("first", [0, 100])
def test_no_faults_let_a_broker_remove_one_that_it_or_another_one_reaches(first: int) -> None:
    removed = sum(len(run(seed).removed) for seed in range(first, first + 100))
    assert removed > 60


def test_failed_brokers_are_removed_soon() -> None:
    for seed in range(20):
        check_times(seed)
    assert took_s(1, 2, False) > 5  # there is no other broker to agree


class IgnoresObjections(FailureDetector):
    def decide(self, answers: Mapping[str, Answer], now_s: float) -> list[str]:
        changed: dict[str, Answer] = {
            of: {name: (Sight.SILENT, started) for name, (_, started) in answer.items()}
            for of, answer in answers.items()
        }
        return super().decide(changed, now_s)


class NeedsNoMajority(FailureDetector):
    def _has_failed(self, name: str, peer: object, answers: Mapping[str, Answer]) -> bool:
        peer.sight = Sight.REFUSED  # type: ignore[attr-defined]
        return super()._has_failed(name, peer, answers)  # type: ignore[arg-type]


class TakesAProcessForTheNext(FailureDetector):
    def follow(self, registered: Mapping[str, int]) -> None:
        for name, peer in self._peers.items():
            peer.started = registered.get(name, peer.started)
        super().follow(registered)


class ForgetsRemovals(FailureDetector):
    def on_removed(self, name: str) -> None:
        pass


class WaitsForTheLeader(FailureDetector):
    def _is_decider(self) -> bool:
        return self._leader == self._id


class AsksOnce(FailureDetector):
    def decide(self, answers: Mapping[str, Answer], now_s: float) -> list[str]:
        found = super().decide(answers, now_s)
        for name in self._suspects():
            self._peers[name].ask_at = now_s + 1000
        return found


class IgnoresSilence(FailureDetector):
    def note(self, name: str, started: int, sight: Sight, now_s: float) -> None:
        if sight is not Sight.SILENT:
            super().note(name, started, sight, now_s)


@pytest.mark.parametrize(
    "planted",
    [
        IgnoresObjections,
        NeedsNoMajority,
        TakesAProcessForTheNext,
        ForgetsRemovals,
        WaitsForTheLeader,
        AsksOnce,
        IgnoresSilence,
    ],
)
def test_the_simulation_finds_a_planted_bug(planted: type[FailureDetector]) -> None:
    with pytest.raises(BrokenPromise):
        for seed in range(100):
            check_times(seed, planted)
            run(seed, planted)
