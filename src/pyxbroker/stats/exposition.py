"""Prometheus' text format, version 0.0.4: families of series, and tables that become such.

The lines of one family stand together, so a table is written column by column. It keeps numbers and
labels, which are a fraction of the text; the text is made piece by piece while it is sent. A table
works in blocks: joining the lines of a block is a few calls into C.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import add, attrgetter
from typing import Any

from pyxbroker.stats.definitions import Stat

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BLOCK_ROWS = 128

Number = int | float
Row = tuple[Any, ...]


def escaped(value: str) -> str:
    """A label's value as it stands between quotes."""
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    if "\n" in value:
        value = value.replace("\n", "\\n")
    return value


def head(name: str, about: str, kind: str) -> str:
    """The two lines before the series of a family."""
    about = about.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def family(name: str, about: str, kind: str, rows: Iterable[tuple[str, Number]]) -> str:
    """A family of few series: labels, in braces, and a value each."""
    lines = [f"{name}{label}{value}\n" for label, value in rows]
    return head(name, about, kind) + "".join(lines)


def braced(prefix: str) -> str:
    """What stands between a series' name and its value: `name="value",...` in braces."""
    return f"{{{prefix}}} "


class Table:
    """Rows of numbers: one for each topic, for each subscription, ...; one column for each Stat."""

    def __init__(self, stats: Sequence[Stat]) -> None:
        self.stats = stats
        self.of = attrgetter(*(each.field for each in stats))
        """Reads a row."""
        self._labels: list[str] = []
        self._rows: list[Row] = []
        self._blocks: deque[tuple[list[str], tuple[Row, ...]]] = deque()

    def append(self, label: str, row: Row) -> None:
        """One row, with its labels in braces."""
        self._labels.append(label)
        self._rows.append(row)
        if len(self._rows) == BLOCK_ROWS:
            self.end_block()

    def end_block(self) -> None:
        """Turns the last rows; to be called once after the last one, too."""
        if self._rows:
            self._blocks.append((self._labels, tuple(zip(*self._rows, strict=True))))
            self._labels, self._rows = [], []

    def lines(self, index: int) -> Iterator[str]:
        """The series of a column, block by block."""
        stat = self.stats[index]
        name, separator = stat.series, "\n" + stat.series
        for label, columns in self._blocks:
            column = columns[index]
            if stat.only_set:
                yield "".join(
                    f"{name}{each}1\n" for each, value in zip(label, column, strict=True) if value
                )
            else:
                yield name + separator.join(map(add, label, map(str, column))) + "\n"

    def clear(self) -> Iterator[None]:
        """Forgets the rows, a block at each step: to free a million strings takes a while, too."""
        while self._blocks:
            self._blocks.popleft()
            yield


def tables_text(tables: Iterable[Table]) -> Iterator[str]:
    """All families of some tables. A series that two of them have is one family."""
    columns: dict[str, list[tuple[Table, int]]] = {}
    for table in tables:
        for index, stat in enumerate(table.stats):
            if stat.series:
                columns.setdefault(stat.series, []).append((table, index))
    for name, parts in columns.items():
        table, index = parts[0]
        stat = table.stats[index]
        yield head(name, stat.help, stat.kind)
        for table, index in parts:
            yield from table.lines(index)


def pieces(texts: Iterable[str], bytes_min: int) -> Iterator[bytes | None]:
    """The texts as UTF-8, in pieces that are worth a write; None for each text in between."""
    waiting: list[str] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= bytes_min:
            yield "".join(waiting).encode()
            waiting.clear()
            size = 0
        else:
            yield None
    yield "".join(waiting).encode()
