"""The page of `pyxbroker top` as lines of text, without a terminal and without input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyxbroker.cli.top.samples import Numbers, Row, Snapshot, ordered

TOPICS, SUBSCRIPTIONS = "topics", "subscriptions"
NAME_WIDTH_MIN = 20


class Column(NamedTuple):
    """A number of a table."""

    title: str
    name: str
    text: Callable[[float], str]


def count(value: float) -> str:
    """Return a number with at most five characters and a unit of thousands."""
    for unit in ("", "k", "M", "G"):
        if value < 999.5:
            return f"{value:.0f}{unit}" if not unit or value >= 99.5 else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}T"


def size(value: float) -> str:
    """Return bytes with a unit of 1024."""
    for unit in ("B", "K", "M", "G"):
        if value < 1023.5:
            return f"{value:.0f}{unit}" if unit == "B" or value >= 99.5 else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}T"


def age(seconds: float) -> str:
    """Return a duration in its largest two units."""
    left = round(seconds)
    for unit, length, lower, part in (("d", 86400, "h", 3600), ("h", 3600, "m", 60)):
        if left >= length:
            return f"{left // length}{unit}{left % length // part:02}{lower}"
    return f"{left // 60}m{left % 60:02}s" if left >= 60 else f"{left}s"


def milliseconds(seconds: float) -> str:
    return "more" if seconds == float("inf") else f"{seconds * 1000:.0f}ms"


def percent(value: float) -> str:
    return f"{value * 100:.0f}%"


BROKER_COLUMNS = (
    Column("IN/S", "messages_in_rate", count),
    Column("OUT/S", "messages_out_rate", count),
    Column("CONNS", "connections", count),
    Column("TOPICS", "topics", count),
    Column("BACKLOG", "backlog", count),
    Column("STORAGE", "storage_bytes", size),
    Column("FREE", "disk_free_bytes", size),
    Column("LOOP99", "loop_p99_s", milliseconds),
    Column("CPU", "cpu_s_rate", percent),
    Column("MEMORY", "memory_bytes", size),
)
COLUMNS = {
    TOPICS: (
        Column("IN/S", "messages_in_rate", count),
        Column("IN B/S", "bytes_in_rate", size),
        Column("OUT/S", "messages_out_rate", count),
        Column("PRODS", "producers", count),
        Column("SUBS", "subscriptions", count),
        Column("BACKLOG", "backlog", count),
        Column("OLDEST", "age_s", age),
        Column("STORAGE", "storage_bytes", size),
    ),
    SUBSCRIPTIONS: (
        Column("BACKLOG", "backlog", count),
        Column("OLDEST", "age_s", age),
        Column("UNACKED", "unacknowledged", count),
        Column("OUT/S", "messages_out_rate", count),
        Column("CONSUMERS", "consumers", count),
    ),
}
SORTS = {
    "i": ("messages_in_rate", "rate in"),
    "o": ("messages_out_rate", "rate out"),
    "b": ("backlog", "backlog"),
    "a": ("age_s", "age"),
    "z": ("storage_bytes", "storage"),
    "n": ("name", "name"),
}
"""The column and its name by key."""
FIRST_SORT = {TOPICS: "i", SUBSCRIPTIONS: "b"}
KEYS = "i/o/b/a/z/n sort   Tab table   / filter   Enter topic   Esc back   p pause   q quit"


@dataclass
class View:
    """The choices of the user."""

    table: str = TOPICS
    sort: str = FIRST_SORT[TOPICS]
    """A key of SORTS."""
    wanted: str = ""
    """The text that names have to contain."""
    is_typing: bool = False
    selected: int = 0
    topic: str = ""
    """The topic that is shown alone; empty: the tables are."""
    is_paused: bool = False

    def rows(self, found: Snapshot) -> list[Row]:
        rows = found.topics if self.table == TOPICS else found.subscriptions
        return ordered(rows, SORTS[self.sort][0], self.wanted)


class Line(NamedTuple):
    """A line and how it stands out: "", "head" or "selected"."""

    text: str
    style: str = ""


def shown(name: str) -> str:
    """Return a name without what a terminal would interpret."""
    if name.isprintable():
        return name
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in name)


def live_page(found: Snapshot, view: View, width: int, height: int) -> list[Line]:
    """Return the page with the brokers and one table, as many rows as there is room for."""
    lines = [*_head(found, width), Line("")]
    rows = view.rows(found)
    view.selected = max(0, min(view.selected, len(rows) - 1))
    room = max(1, height - len(lines) - 3)
    lines += [_title(view, rows), *_table(rows, view.table, width, room, view.selected)]
    state = "PAUSED   " if view.is_paused else ""
    keys = "type a part of the names, then Enter" if view.is_typing else KEYS
    lines = [*lines[: height - 1], *(Line("") for _ in range(height - 1 - len(lines)))]
    return [Line(each.text[:width], each.style) for each in (*lines, Line(state + keys))]


def whole_page(found: Snapshot, sort: str, width: int, rows_max: int) -> list[str]:
    """Return the page with the brokers and all tables. rows_max: of each table; 0: all."""
    lines = _head(found, width)
    for kind in (TOPICS, SUBSCRIPTIONS):
        view = View(kind, sort or FIRST_SORT[kind])
        rows = view.rows(found)
        lines += (Line(""), _title(view, rows))
        lines += _table(rows, kind, width, rows_max or len(rows))
    return [each.text for each in lines]


def _title(view: View, rows: Sequence[Row]) -> Line:
    wanted = f", with {shown(view.wanted)!r}" if view.wanted or view.is_typing else ""
    return Line(f"{view.table.upper()} by {SORTS[view.sort][1]}{wanted}: {len(rows)}")


def _table(rows: Sequence[Row], kind: str, width: int, room: int, selected: int = -1) -> list[Line]:
    """Return the head of a table and so many of its rows, with the selected one among them."""
    columns = COLUMNS[kind]
    name_width = max(NAME_WIDTH_MIN, width - sum(_width(each) + 1 for each in columns))
    titles = "TOPIC" if kind == TOPICS else "SUBSCRIPTION"
    lines = [Line(_joined(titles, name_width, [each.title for each in columns], columns), "head")]
    first = max(0, min(selected - room + 1, len(rows) - room)) if selected >= 0 else 0
    for at, row in enumerate(rows[first : first + room], start=first):
        name = row.names[0] if kind == TOPICS else f"{row.names[1]} {row.names[0]}"
        name, texts = _cut(shown(name), name_width), _texts(row.numbers, columns)
        text = _joined(name, name_width, texts, columns)
        lines.append(Line(text, "selected" if at == selected else ""))
    return lines


def _head(found: Snapshot, width: int) -> list[Line]:
    total = found.totals()
    brokers = len(found.brokers)
    text = (
        f"pyxbroker top: {brokers} broker{'' if brokers == 1 else 's'},"
        f" in {count(total.get('messages_in_rate', 0))}/s,"
        f" out {count(total.get('messages_out_rate', 0))}/s,"
        f" backlog {count(total.get('backlog', 0))},"
        f" connections {count(total.get('connections', 0))},"
        f" storage {size(total.get('storage_bytes', 0))}"
    )
    return [Line(text), *_brokers(found, width)]


def _brokers(found: Snapshot, width: int) -> list[Line]:
    name_width = max(NAME_WIDTH_MIN, width - sum(_width(each) + 1 for each in BROKER_COLUMNS))
    titles = [each.title for each in BROKER_COLUMNS]
    lines = [Line(_joined("BROKER", name_width, titles, BROKER_COLUMNS), "head")]
    for row in found.brokers:
        name = _cut(shown(row.names[0]), name_width)
        texts = _texts(row.numbers, BROKER_COLUMNS)
        lines.append(Line(_joined(name, name_width, texts, BROKER_COLUMNS)))
    lines += (
        Line(_cut(f"{shown(name)}: {shown(reason)}", width))
        for name, reason in found.failures.items()
    )
    return lines


def _texts(numbers: Numbers, columns: Sequence[Column]) -> list[str]:
    return [each.text(numbers[each.name]) if each.name in numbers else "-" for each in columns]


def _width(column: Column) -> int:
    return max(7, len(column.title))


def _joined(name: str, width: int, texts: Sequence[str], columns: Sequence[Column]) -> str:
    cells = (f"{text:>{_width(each)}}" for text, each in zip(texts, columns, strict=True))
    return " ".join((f"{name:{width}}", *cells)).rstrip()


def _cut(text: str, width: int) -> str:
    """Return a text with its end, which tells topics apart, if it is too long."""
    return text if len(text) <= width else "\N{HORIZONTAL ELLIPSIS}" + text[len(text) - width + 1 :]


# --- one topic ------------------------------------------------------------------------------------


def topic_page(name: str, stats: Mapping[str, Any], width: int) -> list[Line]:
    """Return the page about one topic, from the answer to its statistics."""
    lines = [
        Line(_cut(shown(name), width)),
        Line(
            f"in {count(_number(stats, 'msgRateIn'))}/s,"
            f" out {count(_number(stats, 'msgRateOut'))}/s in the last minute;"
            f" storage {size(_number(stats, 'storageSize'))},"
            f" backlog {size(_number(stats, 'backlogSize'))}"
        ),
        Line(""),
        Line(f"{'PRODUCER':40} {'IN/S':>7} {'IN B/S':>7}  ADDRESS", "head"),
    ]
    for each in _list(stats, "publishers"):
        lines.append(
            Line(
                f"{_cut(_text(each, 'producerName'), 40):40}"
                f" {count(_number(each, 'msgRateIn')):>7}"
                f" {size(_number(each, 'msgThroughputIn')):>7}  {_text(each, 'address')}"
            )
        )
    titles = "".join(f" {each:>7}" for each in ("BACKLOG", "UNACKED", "OUT/S", "PERMITS"))
    head = f"{'SUBSCRIPTION / CONSUMER':40}{titles}  TYPE / ADDRESS"
    lines += (Line(""), Line(head, "head"))
    subscriptions = stats.get("subscriptions")
    for subscription, of_it in subscriptions.items() if isinstance(subscriptions, dict) else ():
        lines.append(
            Line(
                f"{_cut(shown(subscription), 40):40} {count(_number(of_it, 'msgBacklog')):>7}"
                f" {count(_number(of_it, 'unackedMessages')):>7}"
                f" {count(_number(of_it, 'msgRateOut')):>7} {'':7}  {_text(of_it, 'type')}"
            )
        )
        for each in _list(of_it, "consumers"):
            lines.append(
                Line(
                    f"  {_cut(_text(each, 'consumerName'), 38):38} {'':7}"
                    f" {count(_number(each, 'unackedMessages')):>7}"
                    f" {count(_number(each, 'msgRateOut')):>7}"
                    f" {count(_number(each, 'availablePermits')):>7}  {_text(each, 'address')}"
                )
            )
    return [Line(each.text[:width], each.style) for each in lines]


def _number(found: Mapping[str, Any], name: str) -> float:
    value = found.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _text(found: Mapping[str, Any], name: str) -> str:
    return shown(str(found.get(name, "")))


def _list(found: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = found.get(name)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
