"""The names that somebody who wrote another one may have meant.

Imported when there is such a name: it brings difflib, which nobody else needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

SHOWN_MAX = 3
LIKENESS_MIN = 0.6  # of difflib: twice the equal letters, of all letters of both names
LIKENESS_BELOW_MAX = 0.25  # the nearest one: who is further from the name was hardly meant


def did_you_mean(
    name: str, names: Iterable[str], likeness_min: float = LIKENESS_MIN, shown_max: int = SHOWN_MAX
) -> str:
    """`did you mean a or b?` for those of `names` that are nearest, upper and lower case being one;
    empty when none is near.
    """
    spelled = {each.lower(): each for each in names}
    meant = name.lower()
    found = get_close_matches(meant, spelled, shown_max, likeness_min)
    if not found:
        return ""
    likeness = {each: SequenceMatcher(None, each, meant).ratio() for each in found}
    found = [each for each in found if likeness[each] > likeness[found[0]] - LIKENESS_BELOW_MAX]
    *others, last = [spelled[each] for each in found]
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"
