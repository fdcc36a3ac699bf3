"""The output of a command: text as pulsar-admin prints it, JSON, or a table."""

from __future__ import annotations

import json
from typing import Any

FORMATS = ("text", "json", "table")
CELL_CHARACTERS_MAX = 80
"""The characters that a table shows of an object or a list."""


def text_of(value: Any) -> str:
    """Return lines for a list, JSON for an object, and a single value as it is."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, list) and not any(isinstance(each, (dict, list)) for each in value):
        return "\n".join(map(text_of, value))
    return pretty(value)


def shown(text: str) -> str:
    """Return a text that cannot control the terminal."""
    is_safe = all(each.isprintable() for each in text.split("\n"))
    return text if is_safe else json.dumps(text)


def pretty(value: Any, indent: str = "") -> str:
    """Return JSON in the layout of pulsar-admin."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        fields = (f"{inner}{json.dumps(key)} : {pretty(value[key], inner)}" for key in value)
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}"
    if isinstance(value, dict):
        return "{ }"
    if isinstance(value, list):
        return f"[ {', '.join(pretty(each, indent) for each in value)} ]" if value else "[ ]"
    return json.dumps(value, ensure_ascii=False)


def pairs_of(value: Any) -> str:
    """Return a line `key    value` for each field of an object."""
    return "\n".join(f"{shown(key)}    {java_text(each)}" for key, each in (value or {}).items())


def java_text(value: Any) -> str:
    """Return a value as Java prints it in a line."""
    if isinstance(value, list):
        return f"[{', '.join(map(java_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={java_text(each)}" for key, each in value.items()) + "}"
    return shown(value) if isinstance(value, str) else json.dumps(value)


def table_of(value: Any) -> str:
    """Return a table: a row for each object of a list, or for each field of an object."""
    rows: list[list[str]]
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        names = list(dict.fromkeys(name for each in value for name in each))
        rows = [names, *([_cell(each.get(name)) for name in names] for each in value)]
    elif isinstance(value, dict):
        rows = [[shown(name), _cell(each)] for name, each in value.items()]
    elif isinstance(value, list):
        rows = [[_cell(each)] for each in value]
    else:
        rows = [[_cell(value)]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return shown(value)
    text = json.dumps(value)
    return text if len(text) <= CELL_CHARACTERS_MAX else f"{text[: CELL_CHARACTERS_MAX - 3]}..."
