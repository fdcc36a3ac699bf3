"""Prometheus' text format, version 0.0.4: families of series, and tables of many series.

The format requires the lines of one family to be together, so a table is written column by column.
A table stores numbers and labels, which are a fraction of the text. The text is generated in pieces
while it is sent. A table works in blocks of rows: one call into C (metric_lines.pyx) formats a
block.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from pyxbroker.metric_lines import lines
from pyxbroker.stats.definitions import Stat

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

BLOCK_ROWS = 32
# Estimated memory: a label and a tuple without their contents, and a number with its slot.
ROW_BYTES = 100
NUMBER_BYTES = 24

Number = int | float
Row = tuple[Any, ...]


def escaped(value: str) -> str:
    """Return a label value escaped for use between quotes."""
    if "\\" in value:
        value = value.replace("\\", "\\\\")
    if '"' in value:
        value = value.replace('"', '\\"')
    if "\n" in value:
        value = value.replace("\n", "\\n")
    return value


def head(name: str, about: str, kind: str) -> str:
    """Return the two comment lines at the start of a family."""
    about = about.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def family(name: str, about: str, kind: str, rows: Iterable[tuple[str, Number]]) -> str:
    """Return a family of few series, given as labels in braces and values."""
    lines = [f"{name}{label}{value}\n" for label, value in rows]
    return head(name, about, kind) + "".join(lines)


def braced(prefix: str) -> str:
    """Return labels in braces, as they are between the name of a series and its value."""
    return f"{{{prefix}}} "


class Table:
    """Rows of numbers, for example one for each topic; each column belongs to a Stat."""

    def __init__(self, stats: Sequence[Stat]) -> None:
        self.stats = stats
        self.held_bytes = 0  # estimate
        self.of = attrgetter(*(each.field for each in stats))
        """Reads the row of an object."""
        self._waiting_labels: list[bytes] = []
        self._waiting: list[Row] = []
        # One tuple per block: the garbage collector stops tracking tuples of strings and numbers
        # after the first pass, but it would traverse other containers again and again.
        self._blocks: deque[tuple[tuple[bytes, ...], tuple[Row, ...]]] = deque()

    def append(self, label: str, row: Row) -> None:
        """Add one row, with its labels in braces."""
        self._waiting_labels.append(label.encode())
        self._waiting.append(row)
        if len(self._waiting) == BLOCK_ROWS:
            self.end_block()

    def end_block(self) -> None:
        """Close the current block. The caller calls it once more after the last row."""
        if self._waiting:
            self._blocks.append((tuple(self._waiting_labels), tuple(self._waiting)))
            row_bytes = ROW_BYTES + NUMBER_BYTES * len(self.stats)
            self.held_bytes += row_bytes * len(self._waiting) + sum(map(len, self._waiting_labels))
            self._waiting_labels.clear()
            self._waiting.clear()

    def lines(self, index: int) -> Iterator[bytes]:
        """Yield the series of a column, block by block."""
        stat = self.stats[index]
        name = stat.series.encode()
        further = f",{stat.label}}} ".encode()
        for labels, rows in self._blocks:
            if stat.label:
                labels = tuple(each[:-2] + further for each in labels)
            if stat.only_set:
                some = [at for at, row in enumerate(rows) if row[index]]
                yield lines(name, tuple(labels[at] for at in some), ((1,),) * len(some), 0)
            else:
                yield lines(name, labels, rows, index)

    def clear(self) -> Iterator[None]:
        """Delete the rows, one block per step, because freeing a million numbers takes long."""
        while self._blocks:
            self._blocks.popleft()
            yield


def tables_text(tables: Iterable[Table]) -> Iterator[bytes]:
    """Yield all families of some tables. Tables with the same series share a family."""
    columns: dict[str, list[tuple[Table, int]]] = {}
    for table in tables:
        for index, stat in enumerate(table.stats):
            if stat.series:
                columns.setdefault(stat.series, []).append((table, index))
    for name, parts in columns.items():
        table, index = parts[0]
        stat = table.stats[index]
        yield head(name, stat.help, stat.kind).encode()
        for table, index in parts:
            yield from table.lines(index)


def pieces(texts: Iterable[bytes], bytes_min: int) -> Iterator[bytes | None]:
    """Join texts to pieces large enough for a write, with None for each text in between."""
    waiting: list[bytes] = []
    size = 0
    for text in texts:
        waiting.append(text)
        size += len(text)
        if size >= bytes_min:
            yield b"".join(waiting)
            waiting.clear()
            size = 0
        else:
            yield None
    yield b"".join(waiting)
