"""Brokers that fail, pause and lose links in virtual time, and a judge of who removes whom.

Each simulated broker has the detector of cluster/failure_detector.py. Its connections, the requests
between brokers and the registrations in the store are simulated here. A detector sees what happened
late, as a real one does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from pyxbroker.cluster.failure_detector import Answer, FailureDetector, Sight

STEP_S = 0.025
TIMEOUT_S = 1.0
SESSION_S = 6.0
SETTLED_S = 3 * TIMEOUT_S
"""After this time without a fault, all brokers know what is true."""
NEAR_S = 0.7 * TIMEOUT_S
"""A broker that was reached this long ago may have answered the question before a removal."""

MakeDetector = Callable[[str], FailureDetector]


class BrokenPromise(AssertionError):
    """Raised when a broker removes one that it must not remove, or leaves a failed one."""


@dataclass
class Link:
    """The connection of one broker to a process of another one."""

    started: int
    is_open: bool = False
    quiet_at: float = 0.0
    """The time of the last answer, or of the attempt to connect."""
    retry_at: float = 0.0


@dataclass
class Process:
    """A broker's process, and what it knows."""

    name: str
    started: int
    detector: FailureDetector
    runs: bool = True  # False: it was killed, or its machine is off
    has_machine: bool = True
    paused_until: float = 0.0
    stirred_at: float = -SETTLED_S  # the last fault that concerns it
    view: dict[str, int] = field(default_factory=dict)
    view_at: float = 0.0
    links: dict[str, Link] = field(default_factory=dict)
    asked: tuple[float, dict[str, Answer]] | None = None
    """The time at which all answers are there, and the answers."""
    registers_at: float | None = None
    failed_at: float = 0.0
    stood_at: float = 0.0


class Simulation:
    """`count` brokers from the start of a run to its end; `run` raises BrokenPromise."""

    def __init__(self, seed: int, count: int, make: MakeDetector = FailureDetector) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.make = make
        self.starts = itertools.count(1)
        self.brokers: dict[str, Process] = {}
        self.registered: dict[str, int] = {}
        self.leader = ""
        self.elects_at = 0.0
        self.cuts: dict[frozenset[str], tuple[float, float]] = {}  # with their begins and ends
        self.healed: dict[frozenset[str], float] = {}
        self.removed: list[tuple[int, int]] = []  # start times of the remover and of the removed
        self.reached_since: dict[tuple[int, int], bool] = {}
        for number in range(count):
            self.spawn(f"b{number}:8080")
        self.run_for(SETTLED_S)

    # --- faults ---------------------------------------------------------------------------------

    def spawn(self, name: str) -> None:
        """Start a process of a broker, which replaces the registration of an earlier one."""
        process = Process(name, next(self.starts), self.make(name))
        process.registers_at = self.now
        self.brokers[name] = process

    def kill(self, name: str, has_machine: bool = True) -> None:
        process = self.brokers[name]
        process.runs, process.has_machine = False, has_machine
        process.failed_at = process.stirred_at = self.now

    def pause(self, name: str, lasts_s: float) -> None:
        process = self.brokers[name]
        process.paused_until = process.stirred_at = self.now + lasts_s
        process.failed_at = self.now

    def cut(self, one: str, other: str, lasts_s: float) -> None:
        self.cuts[frozenset((one, other))] = (self.now, self.now + lasts_s)

    # --- time -----------------------------------------------------------------------------------

    def run_for(self, duration_s: float) -> None:
        end = self.now + duration_s
        while self.now < end:
            self.now += STEP_S
            for pair in [pair for pair, (_, until) in self.cuts.items() if until <= self.now]:
                del self.cuts[pair]
                self.healed[pair] = self.now
            self._keep_sessions()
            for process in self._running():
                self._step(process)

    def _running(self) -> list[Process]:
        found = [each for each in self.brokers.values() if self._works(each)]
        self.random.shuffle(found)
        return found

    def _works(self, process: Process) -> bool:
        return process.runs and process.paused_until <= self.now

    def _reaches(self, one: Process, other: Process) -> bool:
        is_cut = frozenset((one.name, other.name)) in self.cuts
        return not is_cut and self._works(one) and self._works(other)

    # --- the store ------------------------------------------------------------------------------

    def _keep_sessions(self) -> None:
        for name, process in self.brokers.items():
            is_away = not self._works(process)
            if is_away and self.now - process.failed_at > SESSION_S:
                if self.registered.get(name) == process.started:
                    del self.registered[name]
                    process.registers_at = self.now
                self._depose(name)
        if not self.leader and self.now >= self.elects_at:
            candidates = [each.name for each in self._running() if each.name in self.registered]
            self.leader = candidates[0] if candidates else ""

    def _depose(self, name: str) -> None:
        if self.leader == name:
            self.leader = ""
            self.elects_at = self.now + 0.05 * self.random.random()

    # --- a broker -------------------------------------------------------------------------------

    def _step(self, process: Process) -> None:
        if process.registers_at is not None and process.registers_at <= self.now:
            process.registers_at = None
            self.registered[process.name] = process.started
        if (
            self.now - process.stood_at > 2 * STEP_S
        ):  # it was paused: it knows that, and begins anew
            for link in process.links.values():
                link.quiet_at = self.now
        process.stood_at = self.now
        if self.now >= process.view_at:
            process.view_at = self.now + 0.05 * self.random.random()
            process.view = dict(self.registered)
            process.detector.follow(process.view)
            process.detector.elect(self.leader)
        for name, started in process.view.items():
            if name != process.name:
                self._hold(process, name, started)
        self._decide(process)

    def _hold(self, process: Process, name: str, started: int) -> None:
        """Open the connection to a process, or note that it has ended."""
        link = process.links.get(name)
        if link is None or link.started != started:
            retry_at = self.now + 0.1 * self.random.random()
            link = process.links[name] = Link(started, quiet_at=self.now, retry_at=retry_at)
        other = self.brokers[name]
        is_it = other.started == started
        if self._reaches(process, other) and is_it:
            link.quiet_at = self.now
            if not link.is_open and link.retry_at <= self.now:
                link.is_open = True
                self.reached_since[(process.started, started)] = True
                process.detector.note(name, started, Sight.REACHED, self.now)
            return
        is_cut = frozenset((process.name, name)) in self.cuts
        is_refused = not is_cut and ((not other.runs and other.has_machine) or not is_it)
        quiet_s = self.now - link.quiet_at
        if link.is_open:
            if is_refused or quiet_s > TIMEOUT_S * (0.25 + 0.25 * self.random.random()):
                link.is_open = False
                link.quiet_at = self.now - (0.0 if is_refused else TIMEOUT_S / 2)
                process.detector.note(name, started, Sight.UNKNOWN, self.now)
        elif is_refused:
            link.quiet_at = self.now
            process.detector.note(name, started, Sight.REFUSED, self.now)
            link.retry_at = self.now + 0.05
        elif quiet_s > TIMEOUT_S:
            process.detector.note(name, started, Sight.SILENT, self.now)

    def _decide(self, process: Process) -> None:
        detector = process.detector
        if process.asked is None:
            wait_s = detector.wait_s(self.now)
            if wait_s is not None and wait_s <= 0:
                witnesses = [self.brokers[each] for each in detector.witnesses()]
                answers: dict[str, Answer] = {
                    each.name: each.detector.answer()
                    for each in witnesses
                    if self._reaches(process, each)
                }
                is_slow = len(answers) < len(witnesses)
                delay_s = TIMEOUT_S / 2 if is_slow else 0.05 * self.random.random()
                process.asked = (self.now + delay_s, answers)
            return
        done_at, answers = process.asked
        if done_at > self.now:
            return
        process.asked = None
        for name in detector.decide(answers, self.now):
            self._remove(process, name)

    def _remove(self, process: Process, name: str) -> None:
        sight, started = process.detector.answer()[name]
        if self.registered.get(name) != started:
            return
        self._judge(process, self.brokers[name], started, sight)
        del self.registered[name]
        self._depose(name)
        process.detector.on_removed(name)
        self.removed.append((process.started, started))
        self.reached_since[(process.started, started)] = False
        other = self.brokers[name]
        if other.started == started:
            other.registers_at = self.now + 0.1 * self.random.random()

    # --- the judge ------------------------------------------------------------------------------

    def _judge(self, remover: Process, other: Process, started: int, sight: Sight) -> None:
        if other.started == started and (other.runs or not other.has_machine):
            self._check_count(remover)
        key = (remover.started, started)
        if key in self.removed and (sight is Sight.SILENT or not self.reached_since[key]):
            raise BrokenPromise(f"{remover.name} removed {other.name} again ({sight.value})")
        if other.started != started or not other.runs:
            return
        if self._is_calm(remover, other):
            raise BrokenPromise(f"{remover.name} removed {other.name}, which it reaches")
        for witness in self.brokers.values():
            if witness in (remover, other):
                continue
            if self._is_calm(remover, witness) and self._is_calm(witness, other):
                raise BrokenPromise(
                    f"{remover.name} removed {other.name}, which {witness.name} reaches"
                )

    def _check_count(self, remover: Process) -> None:
        """Check that the remover of a silent broker is on the larger side of a divided cluster."""
        near = [each for each in self.brokers.values() if self._was_near(remover, each)]
        if 2 * len(near) <= len(remover.view):
            raise BrokenPromise(f"{remover.name} removed a silent broker for a minority")

    def _was_near(self, one: Process, other: Process) -> bool:
        """Return True if two brokers reached each other a moment ago."""
        if one is other:
            return True
        began_s, _ = self.cuts.get(frozenset((one.name, other.name)), (self.now, 0.0))
        is_cut = self.now - began_s > NEAR_S
        is_away = not self._works(other) and self.now - other.failed_at > NEAR_S
        return not is_cut and not is_away

    def _is_calm(self, one: Process, other: Process) -> bool:
        """Return True if two brokers have reached each other all the time lately."""
        pair = frozenset((one.name, other.name))
        return (
            self._reaches(one, other)
            and self.now - max(one.stirred_at, other.stirred_at) > SETTLED_S
            and self.now - self.healed.get(pair, -SETTLED_S) > SETTLED_S
        )
