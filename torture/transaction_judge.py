"""The judge of exactly-once processing: each input once in the output, and keys in order."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

Id = tuple[int, int]
SHOWN = 5  # of many, so many are named


class Input(NamedTuple):
    """A message of the input: a number of a key, from 0 on."""

    key: int
    number: int

    def __str__(self) -> str:
        return f"{self.key}:{self.number}"


class Output(NamedTuple):
    """A message of the output: its input, and the transaction that produced it."""

    source: Input
    transaction: Id


@dataclass
class Ledger:
    """What was sent, and what the broker answered to the ends of transactions."""

    sent: Counter[int] = field(default_factory=Counter)  # key -> messages
    committed: dict[Id, list[Input]] = field(default_factory=dict)
    aborted: set[Id] = field(default_factory=set)
    stored: dict[Output, tuple[int, int]] = field(default_factory=dict)  # ledger and entry

    def send(self, key: int) -> Input:
        self.sent[key] += 1
        return Input(key, self.sent[key] - 1)


def judge(ledger: Ledger, read: list[Output], is_ordered: bool) -> list[str]:
    """Return a sentence for each broken promise; of one key all messages are in one partition."""
    problems = []
    by_key: dict[int, list[int]] = {key: [] for key in ledger.sent}
    for source, transaction in read:
        if not source.number < ledger.sent[source.key]:
            problems.append(f"{source} is in the output, but was never sent")
            continue
        by_key[source.key].append(source.number)
        if transaction in ledger.aborted:
            problems.append(f"{source} is in the output although {transaction} was aborted")
    for key, numbers in sorted(by_key.items()):
        times = Counter(numbers)
        for number in range(ledger.sent[key]):
            if times[number] != 1:
                problems.append(f"{key}:{number} is in the output {times[number]} times")
        if is_ordered and numbers != sorted(numbers):
            pairs = itertools.pairwise(numbers)
            before, after = next(pair for pair in pairs if pair[0] > pair[1])
            problems.append(f"{key}:{after} comes after {key}:{before}")
    present = set(read)
    for transaction, inputs in ledger.committed.items():
        lost = [each for each in inputs if Output(each, transaction) not in present]
        if lost:
            named = ", ".join(
                f"{each} at {ledger.stored.get(Output(each, transaction))}" for each in lost[:SHOWN]
            )
            problems.append(f"{transaction} was committed, but its {named} is not in the output")
    return problems
