"""What the table of endpoints says, for people and for programs: docs/rest.md and OpenAPI.

`python -m pyxbroker.admin.documents` prints the page; with docs/compatibility.md behind it, it
writes what becomes of Pulsar's endpoints into that page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from pyxbroker import __version__
from pyxbroker.admin.endpoints import every_endpoint
from pyxbroker.admin.not_built import NOT_BUILT, NOT_IMPLEMENTED, OFF
from pyxbroker.admin.pulsar_endpoints import ABBREVIATIONS, endpoints
from pyxbroker.base.errors import PulsarError
from pyxbroker.broker import refusals
from pyxbroker.web.endpoint import Content, Endpoint, Query

PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
TYPES: dict[str, str] = {"int": "integer", "long": "integer", "text": "string"}
DOMAIN = {"type": "string", "enum": ["persistent", "non-persistent"]}
REFUSAL = "#/components/schemas/Refusal"

INTRODUCTION = """\
The web port (`webServicePort`, 8080) answers the part of Pulsar's admin REST that is below, HTTP
lookups and `/metrics`. This table, for programs, is at `/openapi.json`.

- A path that is not here is answered with 404, another method of a path that is with 405. What
  Pulsar has besides is below: "What is not here".
- HEAD is answered as GET. A slash at the end of a path means nothing, and `%2F` does not divide.
- `{domain}` is `persistent` or `non-persistent`.
- With `authenticationEnabled` clients have to say who they are, and strangers get 401, but for
  `/status.html` and `/metrics` (unless `authenticateMetricsEndpoint`).
- A refusal is a status and `{"reason": "..."}`, a sentence; the statuses are below.
- *Right* is what Pulsar's authorization asks for, and who has it; a superuser has all rights.
  Without `authorizationEnabled` everybody has all of them. Who lacks one is answered with 401 or
  403, whichever Pulsar answers there.
"""


def _type_of(field: Query) -> str:
    return {bool: "boolean", int: "integer", str: "string"}[field.kind]


# --- OpenAPI ----------------------------------------------------------------------------------


def openapi() -> dict[str, Any]:
    """The table as an OpenAPI 3.0 document."""
    paths: dict[str, dict[str, Any]] = {}
    for group, endpoint in every_endpoint():
        path = PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(group, endpoint)
    refusal = {
        "type": "object",
        "required": ["reason"],
        "properties": {"reason": {"type": "string"}},
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "pyxbroker", "version": __version__},
        "paths": paths,
        "components": {"schemas": {"Refusal": refusal}},
    }


def _operation(group: str, endpoint: Endpoint) -> dict[str, Any]:
    answer = endpoint.answer
    answered: dict[str, Any] = {"description": answer.about}
    if answer.status != 204:
        media_type = answer.media_type.partition(";")[0]
        answered["content"] = {media_type: {"schema": answer.schema or {"type": "string"}}}
    refused = {
        "description": "A refusal.",
        "content": {"application/json": {"schema": {"$ref": REFUSAL}}},
    }
    operation: dict[str, Any] = {
        "tags": [group],
        "operationId": f"{group}_{endpoint.handler.__name__}",
        "summary": endpoint.summary,
        "x-right": str(endpoint.right),
        "parameters": _parameters(endpoint),
        "responses": {str(answer.status): answered, "default": refused},
    }
    if endpoint.content is not None:
        operation["requestBody"] = _body(endpoint.content)
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, kind in PARAMETER.findall(endpoint.path):
        schema = DOMAIN if name == "domain" else {"type": TYPES[kind or "text"]}
        rows.append({"name": name, "in": "path", "required": True, "schema": schema})
    for field in endpoint.query:
        described: dict[str, Any] = {"type": _type_of(field)}
        if field.default is not None:
            described |= {"default": field.default}
        rows.append(
            {"name": field.name, "in": "query", "description": field.about, "schema": described}
        )
    return rows


def _body(content: Content) -> dict[str, Any]:
    return {
        "description": content.about,
        "required": content.required,
        "content": {name: {"schema": schema} for name, schema in content.schemas.items()},
    }


# --- the page ---------------------------------------------------------------------------------


def markdown() -> str:
    """The table as a page."""
    lines = ["# REST", "", "Written by `make docs`.", "", INTRODUCTION]
    group = ""
    for name, endpoint in sorted(every_endpoint(), key=lambda each: each[0]):
        if name != group:
            group = name
            lines += [f"## {name}", ""]
        lines += [*_section(endpoint), ""]
    lines += ["## What is not here", "", *_not_here(), ""]
    lines += ["## Statuses of refusals", "", "| status | errors |", "|---|---|"]
    lines += [f"| {status} | {', '.join(names)} |" for status, names in _statuses().items()]
    lines += ["", "400, 408, 413, 414, 415, 422, 429 and 431 are about the request itself."]
    return "\n".join(lines) + "\n"


def _not_here() -> list[str]:
    """What Pulsar has and this broker has not, part by part."""
    lines = ["Of what Pulsar has, these are refused.", ""]
    lines += ["| about | answer | endpoints |", "|---|---|---|"]
    for part in (*OFF, *NOT_BUILT):
        answer = f"{part.status}: {part.reason}" if part.reason else str(part.status)
        listed = ", ".join(f"`{line}`" for line in part.lines.split("\n") if line)
        what = listed or f"all {sum(1 for _ in part.rows())}"
        lines.append(f"| {part.about} | {answer} | {what} |")
    shortened = ", ".join(f"{short} is `{long}`" for short, long in ABBREVIATIONS.items())
    return [*lines, "", f"{shortened}."]


def _section(endpoint: Endpoint) -> list[str]:
    lines = [f"**`{endpoint.method} {endpoint.path}`**", "", endpoint.summary, ""]
    for field in endpoint.query:
        default = "" if field.default is None else f", {str(field.default).lower()} without it"
        lines.append(f"- `?{field.name}` ({_type_of(field)}{default}): {field.about}")
    if endpoint.content is not None:
        content = endpoint.content
        kinds = ", ".join(f"`{name}`" for name in content.schemas)
        need = "needed" if content.required else "may be left out"
        size = f"up to {content.bytes_max >> 10} KiB"
        lines.append(f"- body ({kinds}; {need}; {size}): {content.about}")
    lines.append(f"- {endpoint.answer.status}: {endpoint.answer.about}")
    lines.append(f"- right: {endpoint.right}")
    return lines


def _statuses() -> dict[int, list[str]]:
    """The errors of each status, by their names."""
    names: dict[int, list[str]] = {}
    waiting: list[type[PulsarError]] = [PulsarError]
    while waiting:
        below = waiting.pop(0).__subclasses__()
        for each in (one for one in below if one.__module__ == PulsarError.__module__):
            names.setdefault(each.http_status, []).append(each.__name__)
            waiting.append(each)
    for row in refusals.TABLE:
        names.setdefault(row.refusal.http_status, []).append(row.error.__name__)
    return {status: sorted(names[status]) for status in sorted(names)}


# --- beside Pulsar ----------------------------------------------------------------------------

BEGIN = "<!-- begin: written by `python -m pyxbroker.admin.documents docs/compatibility.md` -->"
END = "<!-- end -->"


class Beside(NamedTuple):
    """What becomes of a group of Pulsar's endpoints: counts of both domains."""

    built: int
    off: int
    not_built: int


def beside_pulsar() -> dict[str, Beside]:
    """What becomes of Pulsar's endpoints, by group."""
    statuses = {
        (method, unnamed(path)): part.status
        for part in (*OFF, *NOT_BUILT)
        for method, path in part.rows()
    }
    there = {(row.method, unnamed(row.path)) for _, row in every_endpoint()}
    groups: dict[str, Beside] = {}
    for each in endpoints():
        key = each.method, unnamed(each.path)
        kind = Beside(key in there, key not in there and statuses[key] != NOT_IMPLEMENTED, 0)
        kind = kind._replace(not_built=not any(kind))
        before = groups.get(each.group, Beside(0, 0, 0))
        sums = (old + each.weight * new for old, new in zip(before, kind, strict=True))
        groups[each.group] = Beside(*sums)
    return groups


def unnamed(path: str) -> str:
    """A path without the names and types of its parameters."""
    return PARAMETER.sub("{}", path)


def with_table(page: str) -> str:
    """The page of compatibility with the table of endpoints in its place. Raises ValueError when
    the page has no place for it.
    """
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} with {END} behind it")
    groups = beside_pulsar()
    lines = ["| group | Pulsar has | here | off | not built |", "|---|---|---|---|---|"]
    for group, row in groups.items():
        cells = (group, sum(row), *row)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    total = Beside(*map(sum, zip(*groups.values(), strict=True)))
    lines.append("| " + " | ".join(map(str, ("all", sum(total), *total))) + " |")
    lines += ["", "| off | answer |", "|---|---|"]
    lines += [
        f"| {part.about} | {part.status}{part.reason and ': ' + part.reason} |" for part in OFF
    ]
    lines += ["", "| not built | answer | endpoints |", "|---|---|---|"]
    for part in NOT_BUILT:
        listed = ", ".join(f"`{line}`" for line in part.lines.split("\n") if line)
        lines.append(f"| {part.about} | {part.status}: {part.reason} | {listed} |")
    return before + "\n".join([BEGIN, *lines, END]) + after


def main(arguments: list[str]) -> None:
    """Prints rest.md, or writes the table of endpoints into the page that is named."""
    if not arguments:
        print(markdown(), end="")
        return
    page = Path(arguments[0])
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
