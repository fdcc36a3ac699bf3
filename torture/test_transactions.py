"""A short storm of transactions, and that its judge finds what breaks exactly-once processing."""

from __future__ import annotations

import pytest

from torture.transaction_judge import Input, Ledger, Output, judge
from torture.transactions import main

pytestmark = [pytest.mark.interop, pytest.mark.slow(60)]

FIRST, SECOND, ABORTED = (0, 1), (3, 1), (0, 2)
WHOLE = ["7:0 (0, 1)", "8:0 (0, 1)", "7:1 (3, 1)"]


def problems(read: list[str], is_ordered: bool = True) -> list[str]:
    """Judge an output, "key:number transaction" each, of the inputs 7:0, 8:0 and 7:1."""
    ledger = Ledger()
    sources = [ledger.send(7), ledger.send(8), ledger.send(7)]
    ledger.committed = {FIRST: sources[:2], SECOND: sources[2:]}
    ledger.aborted.add(ABORTED)
    ids = {str(each): each for each in (FIRST, SECOND, ABORTED)}
    outputs = []
    for each in read:
        source, _, transaction = each.partition(" ")
        key, number = (int(part) for part in source.split(":"))
        outputs.append(Output(Input(key, number), ids[transaction]))
    return judge(ledger, outputs, is_ordered)


def test_an_output_with_each_input_once_passes() -> None:
    assert problems(WHOLE) == []
    assert problems([WHOLE[1], WHOLE[0], WHOLE[2]]) == []
    assert problems([WHOLE[2], *WHOLE[:2]], is_ordered=False) == []


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (WHOLE[:2], "7:1 is in the output 0 times"),
        (WHOLE[:2], "(3, 1) was committed, but its 7:1 at None is not in the output"),
        ([*WHOLE, WHOLE[2]], "7:1 is in the output 2 times"),
        ([*WHOLE, "7:2 (3, 1)"], "7:2 is in the output, but was never sent"),
        ([*WHOLE, "8:0 (0, 2)"], "8:0 is in the output although (0, 2) was aborted"),
        ([WHOLE[2], *WHOLE[:2]], "7:0 comes after 7:1"),
    ],
    ids=["missing", "committed", "twice", "unknown", "aborted", "order"],
)
def test_the_judge_finds_a_planted_fault(read: list[str], problem: str) -> None:
    assert problem in problems(read)


def test_each_input_is_once_in_the_output_while_workers_and_brokers_are_killed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main("--rounds 1 --seed 1 --cut --verbose".split()) == 0, capsys.readouterr().out
    assert "0 broken promises" in capsys.readouterr().out
