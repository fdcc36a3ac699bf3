"""Which mutants are tried: COUNT of them by a seed, so that each language has its share and each
operator its weight, however many places it has.
"""

from __future__ import annotations

import hashlib
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from mutants.operators import OPERATORS, Edit, edits
from mutants.sources import LANGUAGES, Source

SHARES = {"python": 0.4, "cython": 0.3, "c": 0.3}
FOLDERS = {
    "python": ("src/pyxbroker", "**/*.py"),
    "cython": ("src/pyxbroker", "*.pyx"),
    "c": ("src/bookie_native", "*.c"),
}


@dataclass(frozen=True)
class Mutant:
    """One bug. Its id stays while its line, its function and its file do."""

    id: str
    path: str
    line: int
    function: str
    operator: str
    before: str  # the lines that it changes, as they are
    after: str
    text: str  # of the whole file
    name: str = ""  # of those that are listed by name

    @property
    def language(self) -> str:
        return LANGUAGES[Path(self.path).suffix]

    @property
    def diff(self) -> str:
        before = [f"- {each}" for each in self.before.splitlines()]
        return "\n".join([*before, *(f"+ {each}" for each in self.after.splitlines())])


def mutant_of(source: Source, edit: Edit, name: str = "") -> Mutant:
    text = source.text[: edit.start] + edit.text + source.text[edit.end :]
    first = source.text.rfind("\n", 0, edit.start) + 1
    last = source.text.find("\n", edit.end)
    before = source.text[first:last]
    after = text[first : last + len(text) - len(source.text)]
    parts = (source.path, edit.function, edit.operator, before.strip(), after.strip())
    # The same line may be twice in a function, also deeper in it than the first time.
    earlier = source.text[: edit.start]
    twins = max(earlier.count(before), len(_twins(before).findall(earlier)))
    id_ = hashlib.sha1("\0".join([*parts, str(twins)]).encode()).hexdigest()[:8]
    line = source.line_of(edit.start)
    return Mutant(id_, source.path, line, edit.function, edit.operator, before, after, text, name)


@lru_cache(maxsize=64)
def _twins(before: str) -> re.Pattern[str]:
    return re.compile(rf"^[ \t]*{re.escape(before.strip())}$", re.MULTILINE)


def sources_of(root: Path, language: str) -> Iterator[Source]:
    folder, pattern = FOLDERS[language]
    # Path.glob() does not follow the symbolic link to spark/.
    places = (root / folder, root / folder / "spark")
    for path in sorted(path for place in places for path in place.glob(pattern)):
        yield Source(path.relative_to(root).as_posix(), path.read_text())


def draw(sources: Sequence[Source], seed: str) -> Iterator[Mutant]:
    """All mutants of these files in an order by chance, each once."""
    chance = random.Random(seed)
    places: dict[str, list[tuple[Source, Edit]]] = defaultdict(list)
    for source in sources:
        for edit in edits(source):
            places[edit.operator].append((source, edit))
    while places:
        names = sorted(places)
        operator = chance.choices(names, [OPERATORS[each] for each in names])[0]
        left = places[operator]
        source, edit = left.pop(chance.randrange(len(left)))
        if not left:
            del places[operator]
        mutant = mutant_of(source, edit)
        if mutant.language != "python" or _compiles(mutant):
            yield mutant


def _compiles(mutant: Mutant) -> bool:
    try:
        compile(mutant.text, mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def quotas(count: int) -> dict[str, int]:
    """How many of each language."""
    result = {language: int(count * share) for language, share in SHARES.items()}
    for language in list(SHARES)[: count - sum(result.values())]:
        result[language] += 1
    return result


class Drawing:
    """Hands mutants out to the workers, the languages in turn. Any thread."""

    def __init__(self, root: Path, seed: int, count: int) -> None:
        self._left = quotas(count)
        self._quota = dict(self._left)
        self._order = {
            language: draw(list(sources_of(root, language)), f"{seed}/{language}")
            for language, quota in self._left.items()
            if quota
        }
        self._lock = threading.Lock()

    def next(self) -> Mutant | None:
        with self._lock:
            while any(self._left.values()):
                language = max(
                    self._left, key=lambda each: self._left[each] / (self._quota[each] or 1)
                )
                self._left[language] -= 1
                mutant = next(self._order[language], None)
                if mutant is not None:
                    return mutant
            return None

    def again(self, mutant: Mutant) -> None:
        """This one does not count: another one of its language is drawn."""
        with self._lock:
            self._left[mutant.language] += 1
