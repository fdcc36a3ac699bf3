"""Prometheus' text format, version 0.0.4: families of series, and tables that become such.

The lines of one family stand together, so a table is written column by column. It keeps numbers and
labels, which are a fraction of the text; the text is made piece by piece while it is sent. A table
works in blocks: the lines of a block are one call into C (metric_lines.pyx).
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
# Of memory: a label and a tuple without what is in them, and a number with its place; many are 0.
ROW_BYTES = 100
NUMBER_BYTES = 24

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
        self.held_bytes = 0  # about
        self.of = attrgetter(*(each.field for each in stats))
        """Reads a row."""
        self._waiting_labels: list[bytes] = []
        self._waiting: list[Row] = []
        # A tuple for each block. The garbage collector looks but once at tuples of strings and
        # numbers; at what holds them it would look again and again.
        self._blocks: deque[tuple[tuple[bytes, ...], tuple[Row, ...]]] = deque()

    def append(self, label: str, row: Row) -> None:
        """One row, with its labels in braces."""
        self._waiting_labels.append(label.encode())
        self._waiting.append(row)
        if len(self._waiting) == BLOCK_ROWS:
            self.end_block()

    def end_block(self) -> None:
        """Keeps the last rows; to be called once after the last one, too."""
        if self._waiting:
            self._blocks.append((tuple(self._waiting_labels), tuple(self._waiting)))
            row_bytes = ROW_BYTES + NUMBER_BYTES * len(self.stats)
            self.held_bytes += row_bytes * len(self._waiting) + sum(map(len, self._waiting_labels))
            self._waiting_labels.clear()
            self._waiting.clear()

    def lines(self, index: int) -> Iterator[bytes]:
        """The series of a column, block by block."""
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
        """Forgets the rows, a block at each step: to free a million numbers takes a while, too."""
        while self._blocks:
            self._blocks.popleft()
            yield


def tables_text(tables: Iterable[Table]) -> Iterator[bytes]:
    """All families of some tables. A series that two of them have is one family."""
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
    """The texts in pieces that are worth a write; None for each text in between."""
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
