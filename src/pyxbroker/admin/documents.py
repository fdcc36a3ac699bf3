"""Pages from the table of endpoints: docs/rest.md and the OpenAPI document.

`python -m pyxbroker.admin.documents` prints docs/rest.md. With docs/compatibility.md as its
argument it updates the table of Pulsar's endpoints in that page.
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
The web port (`webServicePort`, 8080) answers the following part of Pulsar's admin REST, HTTP
lookups and `/metrics`. `/openapi.json` has this table for programs.

- An unknown path is answered with 404, an unknown method of a known path with 405. The section
  "Refused endpoints" lists further endpoints of Pulsar.
- HEAD is answered like GET. A trailing slash is ignored, and `%2F` does not separate segments.
- `{domain}` is `persistent` or `non-persistent`.
- With `authenticationEnabled`, unauthenticated clients get 401, except for `/status.html` and
  `/metrics` (unless `authenticateMetricsEndpoint` is set).
- A refusal is a status and `{"reason": "..."}`; the statuses are listed at the end.
- *Right* is the right that Pulsar's authorization checks, and who has it; a superuser has all
  rights. Without `authorizationEnabled` all clients have all rights. A client without the right
  gets 401 or 403, as from Pulsar.
"""


def _type_of(field: Query) -> str:
    return {bool: "boolean", int: "integer", str: "string"}[field.kind]


# --- OpenAPI ----------------------------------------------------------------------------------


def openapi() -> dict[str, Any]:
    """Return the table as an OpenAPI 3.0 document."""
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
    """Return the table as docs/rest.md."""
    lines = ["# REST", "", "Written by `make docs`.", "", INTRODUCTION]
    group = ""
    for name, endpoint in sorted(every_endpoint(), key=lambda each: each[0]):
        if name != group:
            group = name
            lines += [f"## {name}", ""]
        lines += [*_section(endpoint), ""]
    lines += ["## Refused endpoints", "", *_refused_rows(), ""]
    lines += ["## Statuses of refusals", "", "| status | errors |", "|---|---|"]
    lines += [f"| {status} | {', '.join(names)} |" for status, names in _statuses().items()]
    lines += ["", "400, 408, 413, 414, 415, 422, 429 and 431 are errors of the request itself."]
    return "\n".join(lines) + "\n"


def _refused_rows() -> list[str]:
    """Return the rows of the endpoints of Pulsar that this broker refuses."""
    lines = ["These endpoints of Pulsar are refused.", ""]
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
        default = "" if field.default is None else f", default {str(field.default).lower()}"
        lines.append(f"- `?{field.name}` ({_type_of(field)}{default}): {field.about}")
    if endpoint.content is not None:
        content = endpoint.content
        kinds = ", ".join(f"`{name}`" for name in content.schemas)
        need = "required" if content.required else "optional"
        size = f"up to {content.bytes_max >> 10} KiB"
        lines.append(f"- body ({kinds}; {need}; {size}): {content.about}")
    lines.append(f"- {endpoint.answer.status}: {endpoint.answer.about}")
    lines.append(f"- right: {endpoint.right}")
    return lines


def _statuses() -> dict[int, list[str]]:
    """Return the names of the errors of each status."""
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


# --- comparison with Pulsar -------------------------------------------------------------------

BEGIN = "<!-- begin: written by `python -m pyxbroker.admin.documents docs/compatibility.md` -->"
END = "<!-- end -->"


class EndpointCounts(NamedTuple):
    """Counts of a group of Pulsar's endpoints, over both domains of topics."""

    built: int
    off: int
    not_built: int


def count_pulsar_endpoints() -> dict[str, EndpointCounts]:
    """Count the endpoints of Pulsar that are built, switched off and not built, by group."""
    statuses = {
        (method, unnamed(path)): part.status
        for part in (*OFF, *NOT_BUILT)
        for method, path in part.rows()
    }
    there = {(row.method, unnamed(row.path)) for _, row in every_endpoint()}
    groups: dict[str, EndpointCounts] = {}
    for each in endpoints():
        key = each.method, unnamed(each.path)
        kind = EndpointCounts(
            key in there, key not in there and statuses[key] != NOT_IMPLEMENTED, 0
        )
        kind = kind._replace(not_built=not any(kind))
        before = groups.get(each.group, EndpointCounts(0, 0, 0))
        sums = (old + each.weight * new for old, new in zip(before, kind, strict=True))
        groups[each.group] = EndpointCounts(*sums)
    return groups


def unnamed(path: str) -> str:
    """Return a path without the names and types of its parameters."""
    return PARAMETER.sub("{}", path)


def with_table(page: str) -> str:
    """Return docs/compatibility.md with an updated table of endpoints.

    Raises ValueError if the page has no marks for the table.
    """
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} followed by {END}")
    groups = count_pulsar_endpoints()
    lines = ["| group | Pulsar has | here | off | not built |", "|---|---|---|---|---|"]
    for group, row in groups.items():
        cells = (group, sum(row), *row)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    total = EndpointCounts(*map(sum, zip(*groups.values(), strict=True)))
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
    """Print docs/rest.md, or update the table of endpoints in the given page."""
    if not arguments:
        print(markdown(), end="")
        return
    page = Path(arguments[0])
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    main(sys.argv[1:])
