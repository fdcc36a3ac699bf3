"""Deliveries: Shared and Key_Shared dispatchers under any sequence of events, as in the unit tests.

The state machines of tests/test_dispatch_models.py take their events from the input, without what
Hypothesis does around each. They drive delivery, keys, reads, the delayed index and a connection
over a storage with entries; under the sanitizers this watches who owns an entry's bytes, and when.
"""

from __future__ import annotations

import atexit
import gc
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import driver

import test_dispatch_models as models
from dispatching import open_entries

STEPS_MAX = 40
INPUTS_PER_COLLECTION = 200
UNACKED = (0, 6)
TOGETHER = (0, 9)
AT_ONCE = (1, 2, 1000)
SECONDS = (1 / 64, 63 / 64, 1, 2, 3)
T = TypeVar("T")

kept = ExitStack()
atexit.register(kept.close)
directory = kept.enter_context(tempfile.TemporaryDirectory())
models.DispatchMachine.opened = kept.enter_context(open_entries(Path(directory)))


class Picks(models.DispatchMachine):
    """What depends on the state is taken from the input, too; `data` are its steps."""

    def pick(self, data: driver.Steps, things: Sequence[T]) -> T:
        return things[data.byte() % len(things)]

    def pick_some(self, data: driver.Steps, things: Sequence[T]) -> list[T]:
        picks = data.byte() % (models.SOME_MAX + 1)
        return list(dict.fromkeys(self.pick(data, things) for _ in range(picks)))


class Shared(Picks):
    pass


class KeyShared(Picks, models.KeySharedMachine):
    pass


def flow(machine: Any, steps: driver.Steps) -> None:
    if machine.consumers:
        machine.flow(steps, 1 + steps.byte() % 15)


def acknowledge(machine: Any, steps: driver.Steps) -> None:
    if machine.consumers:
        machine.acknowledge(steps, bool(steps.byte() & 1))


def redeliver(machine: Any, steps: driver.Steps) -> None:
    if machine.consumers:
        machine.redeliver(steps, bool(steps.byte() & 1))


def leave(machine: Any, steps: driver.Steps) -> None:
    if machine.consumers:
        machine.leave(steps)


def step(machine: Any, steps: driver.Steps) -> None:
    if machine.steps:
        machine.step()


def change_memory(machine: Any, steps: driver.Steps) -> None:
    machine.nothing_is_in_memory() if steps.byte() & 1 else machine.everything_is_in_memory()


def disk_answers(machine: Any, steps: driver.Steps) -> None:
    if machine.desk.ledger.reads:
        machine.disk_answers(steps.byte() % 4 == 3)


EVENTS: tuple[Callable[[Any, driver.Steps], None], ...] = (
    lambda machine, steps: machine.publish(1 + steps.byte() % 12),
    lambda machine, steps: machine.join(
        "abc"[steps.byte() % 3], steps.byte() & 1, steps.byte() % 16
    ),
    flow,
    acknowledge,
    redeliver,
    leave,
    step,
    change_memory,
    disk_answers,
    lambda machine, steps: machine.time_passes(SECONDS[steps.byte() % len(SECONDS)]),
    lambda machine, steps: machine.move_the_cursor(),
)


def run(machine: Any, steps: driver.Steps) -> None:
    machine.open(UNACKED[steps.byte() % 2], TOGETHER[steps.byte() % 2], AT_ONCE[steps.byte() % 3])
    try:
        for _ in range(STEPS_MAX):
            if not steps:
                break
            EVENTS[steps.byte() % len(EVENTS)](machine, steps)
            machine.one_read_at_a_time()
            machine.counts_are_right()
    finally:
        machine.teardown()


def seeds() -> list[bytes]:
    """A byte that chooses the dispatcher, three that open it, and events."""
    spread = bytes(at * 37 % 256 for at in range(160))
    # Messages and consumers first: most events are nothing without.
    begun = bytes((0, 11, 1, 0, 0, 9, 0, 11, 1, 1, 1, 5))
    return [
        bytes((which, unacked, together, at_once)) + begun + spread[at:]
        for which in (0, 1)
        for unacked, together in ((0, 0), (1, 0), (0, 1))
        for at_once in range(3)
        for at in (0, 1, 2, 40)
    ]


inputs = count(1)


def one_input(data: bytes) -> None:
    steps = driver.Steps(data)
    run((Shared, KeyShared)[steps.byte() & 1](), steps)
    # What an input leaves is a few objects that know each other, and a descriptor: the collector
    # comes by the number of objects, and descriptors are over before.
    if next(inputs) % INPUTS_PER_COLLECTION == 0:
        gc.collect()


if __name__ == "__main__":
    driver.main(seeds, one_input, input_bytes_max=256)
