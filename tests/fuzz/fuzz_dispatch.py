"""Deliveries: Shared and Key_Shared dispatchers under any sequence of events, as in the unit tests.

The state machines of tests/test_dispatch_models.py take their choices from the input. They drive
delivery, keys, reads, the delayed index and a connection over a storage with entries; under the
sanitizers this watches who owns an entry's bytes, and when.
"""

from __future__ import annotations

import atexit
import gc
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import driver
from hypothesis import HealthCheck, settings
from hypothesis.stateful import get_state_machine_test

import test_dispatch_models as models
from dispatching import open_entries

STEPS = 25
INPUTS_PER_COLLECTION = 200

kept = ExitStack()
atexit.register(kept.close)
directory = kept.enter_context(tempfile.TemporaryDirectory())
models.DispatchMachine.opened = kept.enter_context(open_entries(Path(directory)))

SETTINGS = settings(
    database=None,
    deadline=None,
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
)
RUNS = [
    get_state_machine_test(machine, settings=SETTINGS).hypothesis.fuzz_one_input
    for machine in (models.DispatchMachine, models.KeySharedMachine)
]


def seeds() -> list[bytes]:
    """A byte that chooses the dispatcher, and what choices are made of."""
    spread = bytes(at * 37 % 256 for at in range(1500))
    slow = bytes(at // 7 % 256 for at in range(1500))
    return [bytes([which]) + each for which in (0, 1) for each in (spread, slow, bytes(1500))]


inputs = count(1)


def one_input(data: bytes) -> None:
    if data:
        RUNS[data[0] & 1](data[1:])
    # What an input leaves is a few objects that know each other, and a descriptor: the collector
    # comes by the number of objects, and descriptors are over before.
    if next(inputs) % INPUTS_PER_COLLECTION == 0:
        gc.collect()


if __name__ == "__main__":
    driver.main(seeds, one_input, input_bytes_max=2048)
