"""The hostile suite: every row of the tables has its input, and a short form of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.brokers import Broker

from pyxbroker.admin.endpoints import every_endpoint
from pyxbroker.broker.commands.handlers import Handlers
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.settings.config import Config
from torture.hostile import Attack, attack_all, flood_all, longest_ms, turns_of
from torture.hostile_floods import PEERS
from torture.hostile_inputs import COMMANDS, ENDPOINTS

HOT = {"CONNECT", "SEND", "ACK", "FLOW", "REDELIVER_UNACKNOWLEDGED_MESSAGES"}
TIMES = 20
BYTES_MAX = 6 << 20
# Many times what they take alone, since others use the machine as well: of the most expensive
# input, of each in a flood, of each thing that many peers do. What grows faster than its number is
# over them at once.
CPU_MS_MAX = 1_000
FLOOD_CPU_MS_MAX = 20
PEERS_CPU_MS_MAX = 2
MEMORY_KIB_MAX = 700 << 10


def test_every_command_has_its_input() -> None:
    service: Any = SimpleNamespace(config=Config(), metadata=None, topics=None)
    table = Handlers(cast(Any, service))._table
    assert {pb.BaseCommand.Type.Name(kind) for kind in table} | HOT == set(COMMANDS)


def test_every_endpoint_has_its_input() -> None:
    assert {f"{row.method} {row.path}" for _, row in every_endpoint()} == set(ENDPOINTS)


def test_the_longest_turn_is_the_highest_bucket_that_grew() -> None:
    name = "pyxbroker_loop_turn_seconds_bucket"
    before, after = (
        turns_of("".join(f'{name}{{le="{bound}"}} {n}\n' for bound, n in rows))
        for rows in (
            [("0.001", 5), ("0.1", 7), ("+Inf", 8)],
            [("0.001", 9), ("0.1", 12), ("+Inf", 13)],
        )
    )
    assert longest_ms(before, after) == 100
    assert longest_ms(before, before) == 1


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    broker = Broker("pyxbroker", Path(tmp_path_factory.mktemp("hostile")) / "broker")
    try:
        broker.start()
        attack = Attack(broker)
        yield attack
        assert attack.polite.end() > 100
    finally:
        broker.close()


def test_no_input_costs_the_others_much(attack: Attack) -> None:
    wrong = []
    for cost in attack_all(attack, TIMES, BYTES_MAX):
        if not cost.is_answered and cost.name != "CONNECT":
            wrong.append(f"{cost.name} x {cost.times} is not answered to its end")
        if cost.cpu_ms / cost.times > CPU_MS_MAX:
            wrong.append(f"{cost.name} x {cost.times} takes {cost.cpu_ms:.0f} ms of CPU")
    for cost in flood_all(attack, 10 * TIMES):
        # Who sends more requests ahead than there is room for may be sent away.
        if not cost.is_answered and "pipelined" not in cost.name:
            wrong.append(f"{cost.name} x {cost.times} is not answered to its end")
        each_ms_max = PEERS_CPU_MS_MAX if cost.name in PEERS else FLOOD_CPU_MS_MAX
        if cost.cpu_ms > CPU_MS_MAX + cost.times * each_ms_max:
            wrong.append(f"{cost.name} x {cost.times} takes {cost.cpu_ms:.0f} ms of CPU")
    assert not wrong, "\n" + "\n".join(wrong)
    assert attack.broker.memory_kib() < MEMORY_KIB_MAX
