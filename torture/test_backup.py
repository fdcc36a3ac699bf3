"""The short form of backups under load, and that its judge can find fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torture.backup import Operation, State, main, prefix_problems, state_problems
from torture.model import ProducerModel, TopicCheck, TopicModel

pytestmark = pytest.mark.slow

METADATA_LATE = """
mark = EmbeddedStore.mark

async def marked_later(store):
    await asyncio.sleep(1)
    return await mark(store)

EmbeddedStore.mark = lambda store: asyncio.ensure_future(marked_later(store))
"""
MESSAGES_LATE = """
take_moment = StandaloneBackup._take_moment

async def taken_later(source, store):
    mark = store.mark()
    await asyncio.sleep(1)
    return (await take_moment(source, store))._replace(mark=mark)

StandaloneBackup._take_moment = taken_later
"""
PROGRAM = """
import asyncio
from pyxbroker.cli import main
from pyxbroker.metadata.embedded import EmbeddedStore
from pyxbroker.roles.backup_source import StandaloneBackup
{}
main()
"""


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


@pytest.mark.parametrize("bug", [METADATA_LATE, MESSAGES_LATE], ids=["metadata", "messages"])
def test_a_moment_of_its_own_for_metadata_or_messages_is_found_out(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    bug: str,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(bug))
    monkeypatch.setenv("PYXBROKER_COMMAND", f"{sys.executable} {program}")
    assert main("--rounds 1 --seed 13 --load-s 0.8".split()) == 1
    assert "after operation" in capsys.readouterr().out


def test_a_state_of_another_moment_than_that_of_the_messages_is_found_out() -> None:
    issued = [
        Operation("topic", 1),
        Operation("subscription", 1),
        Operation("retention", 1),
        Operation("topic", 1, is_there=False),
    ]
    for number, state, found in (
        (0, State(set(), set(), None), 0),
        (1, State({1}, set(), None), 0),
        (1, State({1}, {1}, None), 0),
        (1, State({1}, {1}, 1), 1),
        (2, State({1}, set(), None), 1),
        (3, State({1}, {1}, 1), 0),
        (3, State(set(), {1}, 1), 0),
        (4, State({1}, {1}, 1), 1),
    ):
        assert len(state_problems(state, issued, number)) == found, (number, state)
