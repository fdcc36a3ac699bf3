"""A table of reasons: rules in order of precedence, each with a condition over a snapshot.

A snapshot is a dataclass of plain values, which is collected from the state of the broker for one
question. The first rule whose condition holds is the answer. To add a reason, add a rule to one of
the tables (opening.py, publishing.py, delivery.py), and the state that it needs to their snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pyxbroker.base.times import iso_ms

S = TypeVar("S")

Json = dict[str, Any]


@dataclass(frozen=True)
class Rule(Generic[S]):
    """One reason. `sentence` may contain `{field}` for each field of the snapshot."""

    reason: str
    applies: Callable[[S], object]
    sentence: str
    evidence: tuple[str, ...] = ()
    """The fields of the snapshot that show the reason."""
    since: str = ""
    """The field with the time at which it began, in ms since 1970; 0: unknown."""

    def answer(self, state: S, common: Iterable[str] = ()) -> Json:
        """Return the answer about a snapshot to which the rule applies."""
        fields = vars(state)
        evidence = dict.fromkeys((*self.evidence, *common))
        answer: Json = {
            "reason": self.reason,
            # A text in it may have its own period.
            "sentence": self.sentence.format_map(fields).rstrip(".") + ".",
            "evidence": {camel_case(each): fields[each] for each in evidence},
        }
        if self.since and fields[self.since] > 0:
            answer["since"] = iso_ms(fields[self.since])
        return answer


def first(rules: Iterable[Rule[S]], state: S) -> Rule[S] | None:
    """Return the first rule that applies, or None."""
    return next((rule for rule in rules if rule.applies(state)), None)


def camel_case(name: str) -> str:
    """Return the name of a field in JSON."""
    head, *tail = name.split("_")
    return head + "".join(each.capitalize() for each in tail)
