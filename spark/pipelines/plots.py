"""Small plots as inline SVG, without a library or a script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

WIDTH = 720
BAR_HEIGHT = 22
LABEL_WIDTH = 250
PLOT_HEIGHT = 180
FOOT = 34
TICKS = 6
LABEL_CHARACTERS_MAX = 38


def bars(rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Return a plot with a line for each row: label, bar and value. Empty without rows."""
    if not rows:
        return ""
    most = max(value for _, value in rows) or 1
    room = WIDTH - LABEL_WIDTH - 110
    drawn = []
    for at, (label, value) in enumerate(rows):
        y = at * BAR_HEIGHT
        width = max(1.0, value / most * room)
        drawn.append(
            f"<g><title>{escape(label)}: {_figure(value)} {unit}</title>"
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 15}" text-anchor="end">{_short(label)}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y + 3}" width="{width:.1f}" height="{BAR_HEIGHT - 6}"/>'
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{y + 15}">{_figure(value)}</text></g>'
        )
    return _svg(len(rows) * BAR_HEIGHT + 4, drawn)


def columns(rows: Sequence[tuple[str, float]], unit: str) -> str:
    """Return a plot with a column for each row, in order, some with labels. Empty without rows."""
    if not rows:
        return ""
    most = max(value for _, value in rows) or 1
    step = WIDTH / len(rows)
    every = max(1, math.ceil(len(rows) / TICKS / 2))
    drawn = []
    for at, (label, value) in enumerate(rows):
        height = value / most * (PLOT_HEIGHT - 20)
        x, y = at * step, PLOT_HEIGHT - height
        drawn.append(
            f"<g><title>{escape(label)}: {_figure(value)} {unit}</title>"
            f'<rect x="{x + 1:.1f}" y="{y:.1f}" width="{max(1.0, step - 2):.1f}"'
            f' height="{height:.1f}"/>'
        )
        if at % every == 0:
            middle = x + step / 2
            drawn.append(
                f'<text x="{middle:.1f}" y="{PLOT_HEIGHT + 16}" text-anchor="middle">'
                f"{escape(label)}</text>"
            )
        drawn.append("</g>")
    drawn.append(f'<line x1="0" y1="{PLOT_HEIGHT}" x2="{WIDTH}" y2="{PLOT_HEIGHT}"/>')
    drawn.append(f'<text x="0" y="12">at most {_figure(most)} {unit}</text>')
    return _svg(PLOT_HEIGHT + FOOT, drawn)


def _svg(height: int, drawn: list[str]) -> str:
    inner = "\n".join(drawn)
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">\n{inner}\n</svg>'


def _short(label: str) -> str:
    """Return the end of a long label, because names of topics differ at the end."""
    if len(label) > LABEL_CHARACTERS_MAX:
        label = "…" + label[1 - LABEL_CHARACTERS_MAX :]
    return escape(label)


def _figure(value: float) -> str:
    if value and abs(value) < 10 and value != round(value):
        return f"{value:.2f}"
    return f"{value:,.0f}"
