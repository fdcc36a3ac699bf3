"""A page of tables and plots: one HTML file without external resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #667085; --line: #d8dde5; --fill: #2f6fdb;
  --ground: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #97a1b0; --line: #353d49;
  --fill: #6ea2ff; --ground: #14181e; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
p { color: var(--soft); max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 500; }
svg { width: 100%; max-width: 45rem; height: auto; overflow: visible; margin: .5rem 0 1rem; }
svg text { fill: var(--ink); font-size: 12px; } svg rect { fill: var(--fill); }
svg line { stroke: var(--line); }
"""


class Page:
    """A page under construction."""

    def __init__(self, title: str, about: str) -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(about)}</p>"]

    def section(self, title: str, about: str) -> None:
        self._parts += [f"<h2>{escape(title)}</h2>", f"<p>{escape(about)}</p>"]

    def note(self, text: str) -> None:
        self._parts.append(f"<p>{escape(text)}</p>")

    def plot(self, svg: str) -> None:
        """Add a plot. svg: from plots.py, which escapes its texts."""
        self._parts.append(svg)

    def table(
        self, heads: Sequence[str], rows: Sequence[Sequence[object]], empty: str = ""
    ) -> None:
        """Add a table. empty: the note instead of a table without rows."""
        if not rows:
            self.note(empty)
            return
        self._parts.append(f'<div class="wide"><table><tr>{_cells("th", heads)}</tr>')
        self._parts += [f"<tr>{_cells('td', row)}</tr>" for row in rows]
        self._parts.append("</table></div>")

    def html(self) -> str:
        body = "\n".join(self._parts)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self._title)}</title><style>{STYLE}</style></head>\n"
            f"<body>\n{body}\n</body></html>\n"
        )


def shown(value: object) -> str:
    """Return the text of a value in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """Return a number of bytes with a readable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _cells(kind: str, values: Sequence[object]) -> str:
    return "".join(f"<{kind}>{escape(shown(each))}</{kind}>" for each in values)
