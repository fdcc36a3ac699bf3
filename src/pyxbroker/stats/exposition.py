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

BLOCK_ROWS = 32

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
        self._waiting_labels: list[str] = []
        self._waiting: list[Row] = []
        # A tuple for each block. The garbage collector looks but once at tuples of strings and
        # numbers; at what holds them it would look again and again.
        self._labels: deque[tuple[str, ...]] = deque()
        self._columns: tuple[deque[Row], ...] = tuple(deque() for _ in stats)

    def append(self, label: str, row: Row) -> None:
        """One row, with its labels in braces."""
        self._waiting_labels.append(label)
        self._waiting.append(row)
        if len(self._waiting) == BLOCK_ROWS:
            self.end_block()

    def end_block(self) -> None:
        """Turns the last rows; to be called once after the last one, too."""
        if self._waiting:
            self._labels.append(tuple(self._waiting_labels))
            for column, block in zip(self._columns, zip(*self._waiting, strict=True), strict=True):
                column.append(block)
            self._waiting_labels.clear()
            self._waiting.clear()

    def lines(self, index: int) -> Iterator[str]:
        """The series of a column, block by block."""
        stat = self.stats[index]
        name = stat.series
        for label, column in zip(self._labels, self._columns[index], strict=True):
            if stat.only_set:
                yield "".join(
                    f"{name}{each}1\n" for each, value in zip(label, column, strict=True) if value
                )
            else:
                yield _joined(name, label, column)

    def clear(self) -> Iterator[None]:
        """Forgets the rows, a block at each step: to free a million strings takes a while, too."""
        for blocks in (self._labels, *self._columns):
            while blocks:
                blocks.popleft()
                yield


def _joined(name: str, label: tuple[str, ...], column: Row) -> str:
    """Lines of one series. In most blocks most columns have the same number in each row."""
    first = column[0]
    if column.count(first) == len(column):
        return name + f"{first}\n{name}".join(label) + f"{first}\n"
    return name + f"\n{name}".join(map(add, label, map(str, column))) + "\n"


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
