"""The short form of backups under load, and that its judge can find fault."""

from __future__ import annotations

import pytest

from torture.backup import main, prefix_problems
from torture.model import ProducerModel, TopicCheck, TopicModel

pytestmark = pytest.mark.slow


def test_a_backup_under_load_is_one_moment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--rounds 2 --seed 5 --load-s 0.8".split()) == 0, capsys.readouterr().out


def test_a_gap_and_a_message_from_afterwards_are_found_out() -> None:
    producer = ProducerModel("p", "t", 3, {0: (1, 0), 1: (1, 1), 2: (1, 2)})
    topic = TopicModel("t", cumulative=False, producers=[producer])
    for sequences, found in (((0, 1), 0), ((0, 2), 2), ((0, 1, 2, 3), 1)):
        check = TopicCheck(topic)
        check.read["p"] = [(each, (1, each)) for each in sequences]
        check.positions = {(1, each) for each in sequences}
        assert len(prefix_problems(check, topic)) == found
