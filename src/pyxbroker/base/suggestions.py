"""Suggestions for misspelled names.

Import this module only after a name turned out to be unknown: it imports difflib.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

SHOWN_MAX = 3
LIKENESS_MIN = 0.6  # difflib's ratio: twice the matching letters by all letters of both names
LIKENESS_BELOW_MAX = 0.25  # a suggestion may be this much less similar than the best one


def did_you_mean(
    name: str, names: Iterable[str], likeness_min: float = LIKENESS_MIN, shown_max: int = SHOWN_MAX
) -> str:
    """Return `did you mean a or b?` with the nearest of `names`, ignoring case.

    The result is empty if none is similar.
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
