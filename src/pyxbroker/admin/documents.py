"""What the table of endpoints says, for people and for programs: docs/rest.md and OpenAPI.

`python -m pyxbroker.admin.documents` prints the page.
"""

from __future__ import annotations

import re
from typing import Any

from pyxbroker import __version__
from pyxbroker.admin.endpoints import Content, Endpoint, Query, every_endpoint
from pyxbroker.base.errors import PulsarError
from pyxbroker.broker import refusals

PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
TYPES: dict[str, str] = {"int": "integer", "bool": "boolean", "text": "string"}
DOMAIN = {"type": "string", "enum": ["persistent", "non-persistent"]}
REFUSAL = "#/components/schemas/Refusal"

NOT_HERE = {
    "Other clusters and brokers": (
        *("clusters/{}/migrate", "clusters/{}/namespaceIsolationPolicies..."),
        *("{namespace}/migration", "{namespace}/antiAffinity", "{cluster}/antiAffinity/{group}"),
        *("{namespace}/persistence/bookieAffinity", "{topic}/replication", "{topic}/shadowTopics"),
        "{subName}/replicatedSubscriptionStatus",
    ),
    "Offloading": (
        *("{namespace}/offloadPolicies", "{namespace}/removeOffloadPolicies"),
        *("{namespace}/offloadThreshold", "{namespace}/offloadThresholdInSeconds"),
        *("{namespace}/offloadDeletionLagMs", "{namespace}/scanOffloadedLedgers"),
        *("{topic}/offload", "{topic}/offloadPolicies"),
    ),
    "Entry filters": ("{namespace}/entryFilters", "{topic}/entryFilters"),
    "Authorization by topic": (
        *("namespaces/grantPermissionsOnTopics", "namespaces/revokePermissionsOnTopics"),
        *("{topic}/permissions[/{role}]", "{namespace}/subscriptionAuthMode"),
    ),
    "Metrics by property": ("{namespace}/allowedTopicPropertyKeysForMetrics",),
}
"""What Pulsar has of the groups clusters, namespaces and topics, and this broker has not."""

INTRODUCTION = """\
The web port (`webServicePort`, 8080) answers the part of Pulsar's admin REST that is below, HTTP
lookups and `/metrics`. This table, for programs, is at `/openapi.json`.

- A path that is not here is answered with 404, another method of a path that is with 405.
- HEAD is answered as GET. A slash at the end of a path means nothing, and `%2F` does not divide.
- `{domain}` is `persistent` or `non-persistent`.
- A refusal is a status and `{"reason": "..."}`, a sentence; the statuses are below.
- *Right* is what Pulsar's authorization asks for, and who has it; a superuser has all rights.
  Authorization is not built yet: everybody may do everything.
"""


def _type_of(field: Query) -> str:
    if field.default is None:
        return "string"
    return "boolean" if isinstance(field.default, bool) else "integer"


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
    lines = [
        "Of Pulsar's clusters, namespaces and topics, whatever the method; 404:",
        "",
        "| about | endpoints |",
        "|---|---|",
    ]
    for about, names in NOT_HERE.items():
        lines.append(f"| {about} | {', '.join(f'`{name}`' for name in names)} |")
    return lines


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


if __name__ == "__main__":
    print(markdown(), end="")
