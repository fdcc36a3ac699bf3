"""The judges of disk errors and flipped bits must be able to find something."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest
from harness.client import Refused

from torture.episodes import random_episodes
from torture.fault_table import ROWS, STARTS
from torture.file_oracle import entries_at
from torture.flip_rounds import Flip, Reported, kind_of, random_flip
from torture.log_judge import LINES_MAX, Output, refusal_problems
from torture.model import ProducerModel, TopicCheck, TopicModel
from torture.run import main
from torture.stubborn import Session

LINE = "2026-01-01T00:00:00.000Z ERROR bookie event="


def session(in_order: bool, *got: int) -> Session:
    topic = TopicModel("topic", in_order, [])
    made = Session(topic, "a consumer", in_order, (1, 2), frozenset({(1, 4)}))
    for entry in got:
        made.take((1, entry))
    return made


def test_a_gap_in_what_an_exclusive_consumer_got_is_found() -> None:
    there = {(1, entry) for entry in range(10)}
    assert session(True, 3, 5, 6).judge(there) == []
    assert "passed over 1, first (1, 5)" in session(True, 3, 6).judge(there)[0]
    assert "out of order" in session(True, 3, 6, 5).judge(there)[0]
    assert session(False, 6, 3).judge(there) == []
    assert session(False, 6, 3).missing(there) == {(1, 5), (1, 7), (1, 8), (1, 9)}


def test_what_is_excused_is_only_what_cannot_be_read() -> None:
    producer = ProducerModel("p", "topic", 3, {0: (1, 0), 1: (1, 1), 2: (1, 2)})
    check = TopicCheck(TopicModel("topic", False, [producer]))
    check.positions = {(1, 0)}
    check.read = {"p": [(0, (1, 0))]}
    assert check.excuse({(1, 0), (1, 1)}) == {(1, 1)}
    assert ["1 acknowledged messages lost" in each for each in check.finish(True)] == [True]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LINE}fine\n", []),
        ("Traceback (most recent call last):\n  File\n", ["the log has"]),
        (f"{LINE}again\n" * (LINES_MAX + 1), ["lines"]),
        ("Task exception was never retrieved\n", ["the log has"]),
    ],
)
def test_a_log_is_judged(tmp_path: Path, text: str, found: list[str]) -> None:
    path = tmp_path / "output.log"
    path.write_text("Traceback (most recent call last): of an earlier round\n")
    output = Output(path)
    with path.open("a") as file:
        file.write(text)
    problems = output.problems()
    assert len(problems) == len(found)
    assert all(part in problem for part, problem in zip(found, problems, strict=True))


def test_a_refused_start_is_one_sentence_that_names_a_file(tmp_path: Path) -> None:
    path = tmp_path / "output.log"

    def wrong(text: str, status: int = 1) -> int:
        path.write_text(text)
        output = Output(tmp_path / "other")
        output.path = path
        return len(refusal_problems(status, output))

    assert wrong("pyxbroker: 0000000000000001.journal cannot be read: Input/output error\n") == 0
    assert wrong("pyxbroker: something is wrong\n") == 1
    assert wrong("") == 1
    assert wrong("pyxbroker: a.journal\npyxbroker: b.journal\n") == 1
    assert wrong("pyxbroker: a.journal cannot be read\n", status=-11) == 1


def test_reported_damage_is_found_in_several_wordings(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    output = Output(path)
    path.write_text(
        f'{LINE}"entry 3 of ledger 9 is damaged"\n'
        f'{LINE}"ledger 7 entry 5 is damaged"\n'
        f"{LINE}lost ledger=8 entry=6\n"
        f'{LINE}"an entry cannot be delivered" entry=5:4\n'
        f'{LINE}"0000000000000002.journal: offset 8192: a group cannot be read"\n'
    )
    reported = Reported.of(output)
    assert reported.entries == {(9, 3), (7, 5), (8, 6), (5, 4)}
    assert reported.files == {"0000000000000002.journal"}


def test_the_oracle_names_the_entry_of_a_byte(tmp_path: Path) -> None:
    def record(kind: int, ledger: int, entry: int, payload: bytes) -> bytes:
        head = struct.pack("<IIIB3xqq", 0, 0, len(payload), kind, ledger, entry)
        return head + payload + bytes(-len(payload) % 8)

    records = record(2, 5, -1, b"") + record(1, 5, 0, b"x" * 100) + record(1, 5, 1, b"y")
    group = struct.pack("<4s36xI20x", b"PBJG", 64 + len(records)) + records
    path = tmp_path / "1.journal"
    path.write_bytes(bytes(4096) + group.ljust(4096, b"\0") + bytes(4096))
    first = 4096 + 64
    assert entries_at(path, first) == set()  # the fence
    assert entries_at(path, first + 32) == {(5, 0)}
    assert entries_at(path, first + 32 + 135) == {(5, 0)}
    assert entries_at(path, first + 32 + 136) == {(5, 1)}
    assert entries_at(path, 4096 + 8) == {(5, 0), (5, 1)}
    assert entries_at(path, 9000) == set()


def test_each_kind_of_file_is_flipped_as_often_and_back(tmp_path: Path) -> None:
    names = ("bookie/journal/1.journal", "bookie/ledgers/1.log", "bookie/ledgers/2.log", "new/x-17")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 5000)
    generator = random.Random(1)
    flips = [random_flip(tmp_path, generator) for _ in range(300)]
    kinds = [flip.kind for flip in flips]
    assert {kind: 70 < kinds.count(kind) < 130 for kind in kinds} == dict.fromkeys(
        ("journal", "entry_log", "new/x-N"), True
    )
    assert {flip.path.name for flip in flips} == {"1.journal", "1.log", "2.log", "x-17"}
    flip = Flip(tmp_path / names[0], kind_of(tmp_path, tmp_path / names[0]), 17, 3)
    flip.apply()
    assert (tmp_path / names[0]).read_bytes()[17] == ord("x") ^ 8
    flip.apply()
    assert (tmp_path / names[0]).read_bytes() == b"x" * 5000


def test_episodes_reach_every_kind_of_file() -> None:
    generator = random.Random(2)
    starts = ("", *STARTS[:-1])
    drawn = (each for start in starts * 300 for each in random_episodes(generator, start))
    assert {row.kind for row in ROWS} | {"any"} <= {each.kind for each in drawn}


def test_a_topic_that_is_always_refused_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise Refused("no")

    monkeypatch.setattr("harness.client.Connection.producer", refuse)
    monkeypatch.setattr("torture.error_rounds.RESUME_S", 0.5)
    monkeypatch.setattr("torture.error_rounds.ErrorTorture.endings", ("live",))
    arguments = ["--error-rounds", "1", "--workspace", str(tmp_path), "--load-s", "0.3"]
    assert main(arguments) == 1
