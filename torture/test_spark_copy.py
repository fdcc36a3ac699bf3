"""The short form of the copy by Spark, and that its judge can find fault."""

from __future__ import annotations

from typing import Any

import pytest

from torture.spark_copy import Judge, main


@pytest.mark.spark
def test_what_spark_copies_is_there_once_whoever_is_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--kills", "2", "--seed", "3"]) == 0, capsys.readouterr().out


class Message:
    def __init__(self, text: str) -> None:
        self._text = text

    def data(self) -> bytes:
        return self._text.encode()

    def partition_key(self) -> str:
        return self._text.partition(":")[0]

    def message_id(self) -> str:
        return "id"


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (("a:0:", "b:0:", "a:1:"), None),
        (("a:0:", "a:0:"), "a:0 is there twice"),
        (("a:0:", "a:2:"), "a:2 comes too soon"),
        (("a:0:", "a:2:", "a:1:"), "a:2 comes too soon"),
    ],
)
def test_the_judge_finds_what_must_not_be(texts: tuple[str, ...], problem: str | None) -> None:
    judge = Judge()
    for text in texts:
        message: Any = Message(text)
        judge._take(0, message)
    assert [each.partition(":")[0] for each in judge.problems[:1]] == ["a"] * bool(problem)
    assert problem is None or judge.problems[0].startswith(problem)
