"""Results as an HTML page that needs no other files: tables and curves as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 20, 40
COLORS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#57606a")

STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em; color: #1f2328 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { padding: .2em .8em; text-align: right; border-bottom: 1px solid #d0d7de }
th:first-child, td:first-child { text-align: left }
svg text { font: 12px system-ui, sans-serif; fill: #57606a }
"""

COLUMNS: tuple[tuple[str, Callable[[dict[str, Any]], str]], ...] = (
    ("messages", lambda group: f"{group['messages']:,}"),
    ("msg/s", lambda group: f"{group['rate']:,.0f}"),
    ("Mbit/s", lambda group: f"{group['mbit_s']:,.1f}"),
    ("failures", lambda group: f"{group['failures']:,}"),
    ("backlog", lambda group: f"{group['backlog']:,}"),
    ("p50 ms", lambda group: f"{group['latency_ms']['p50']:,.3f}"),
    ("p99 ms", lambda group: f"{group['latency_ms']['p99']:,.3f}"),
    ("p99.9 ms", lambda group: f"{group['latency_ms']['p99.9']:,.3f}"),
    ("max ms", lambda group: f"{group['latency_ms']['max']:,.3f}"),
)


class Line(NamedTuple):
    """A curve of a chart."""

    name: str
    points: list[tuple[float, float]]


def page(results: Sequence[dict[str, Any]]) -> str:
    """Return the page about one run or several."""
    title = escape(results[0]["title"] if results else "pyxbroker perf")
    parts = [
        "<!doctype html>",
        f'<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>',
        f"<h1>{title}</h1>",
        _table(results),
    ]
    lines = [
        Line(
            _name(result, group, results),
            [(_nines(percent), ms) for percent, ms in group["curve"] if percent < 100],
        )
        for result in results
        for group in result["groups"]
    ]
    ticks = [(_nines(each), f"{each:g}") for each in (0, 50, 90, 99, 99.9, 99.99, 99.999)]
    parts += ["<h2>Latency by percentile</h2>", chart(lines, "percentile", "ms", ticks)]
    for key, title, unit in (
        ("rate", "Throughput", "msg/s"),
        ("p99_ms", "Latency over time: p99 of each second", "ms"),
    ):
        lines = [
            Line(
                _name(result, group, results),
                [(each["at_s"], each[key]) for each in group["samples"]],
            )
            for result in results
            for group in result["groups"]
        ]
        parts += [f"<h2>{title}</h2>", chart(lines, "seconds", unit)]
    return "\n".join([*parts, "</html>", ""])


def chart(
    lines: Sequence[Line],
    x_name: str,
    y_name: str,
    x_ticks: Sequence[tuple[float, str]] | None = None,
) -> str:
    """Return an SVG element with curves."""
    points = [point for line in lines for point in line.points]
    x_max = max((x for x, _ in points), default=0.0) or 1.0
    y_step = _step(max((y for _, y in points), default=0.0) or 1.0)
    y_max = y_step * math.ceil((max((y for _, y in points), default=0.0) or 1.0) / y_step)
    if x_ticks is None:
        x_step = _step(x_max)
        x_ticks = [(n * x_step, f"{n * x_step:g}") for n in range(int(x_max / x_step) + 1)]

    def x_at(x: float) -> float:
        return LEFT + x / x_max * (WIDTH - LEFT - RIGHT)

    def y_at(y: float) -> float:
        return HEIGHT - BOTTOM - y / y_max * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">']
    for number in range(round(y_max / y_step) + 1):
        y = y_at(number * y_step)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number * y_step:,g}</text>'
        )
    for x, text in x_ticks:
        if x <= x_max:
            parts.append(
                f'<text x="{x_at(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                f"{text}</text>"
            )
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
        f'{escape(x_name)}</text><text x="4" y="12">{escape(y_name)}</text>'
    )
    for index, line in enumerate(lines):
        color = COLORS[index % len(COLORS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in line.points)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
            f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 * index + 8}" style="fill:{color}">'
            f"{escape(line.name)}</text>"
        )
    return "".join([*parts, "</svg>"])


def _name(result: dict[str, Any], group: dict[str, Any], results: Sequence[dict[str, Any]]) -> str:
    name = str(group["name"])
    return f"{name}, {result['step']}" if len(results) > 1 and "step" in result else name


def _table(results: Sequence[dict[str, Any]]) -> str:
    head = "".join(f"<th>{name}</th>" for name, _ in COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(_name(result, group, results))}</td>"
        + "".join(f"<td>{text(group)}</td>" for _, text in COLUMNS)
        + "</tr>"
        for result in results
        for group in result["groups"]
    )
    return f"<table><tr><th>group</th>{head}</tr>{rows}</table>"


def _nines(percent: float) -> float:
    """Return the place of a percentile on an axis that gives each nine the same width."""
    return -math.log10(1 - percent / 100)


def _step(largest: float) -> float:
    """Return a round distance of grid lines: four to ten up to the largest value."""
    step = 10.0 ** math.floor(math.log10(largest))
    for part in (1, 2, 5):
        if largest / (step / part) >= 4:
            return step / part
    return step / 10
