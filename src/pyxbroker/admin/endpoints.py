"""The table of endpoints: what each one takes, answers and needs.

Each file of `resources/` has its rows, `ENDPOINTS`; RESOURCES says which files have those below a
prefix, so that a file is imported with the first request for it. Routes, the answers 404 and 405,
the types of parameters, rights, the OpenAPI document and docs/rest.md all come from the rows. What
is not in the table is 404 for a path and 405 for another method of one that is, but for what Pulsar
has besides: not_built.py says what becomes of that.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyxbroker.admin.response import JSON, Response
from pyxbroker.auth.authorization import Resource, Right
from pyxbroker.base.json_weight import TOKENS_MAX
from pyxbroker.base.named_tuple import NamedTuple

if TYPE_CHECKING:
    from pyxbroker.admin.request import Request

OF_TOPICS = (
    *("backlog", "messages", "partitions", "positions", "statistics", "subscriptions"),
    *("topics", "topic_metadata", "topic_permissions", "topic_policies"),
    *("topic_replication", "topic_offload"),
)
# For each prefix of paths, the files of resources/ that have its rows.
RESOURCES: dict[str, tuple[str, ...]] = {
    "/admin/v2/bookies": ("bookies",),
    "/admin/v2/broker-stats": ("broker_stats",),
    "/admin/v2/brokers": ("brokers", "settings"),
    "/admin/v2/clusters": ("clusters", "isolation"),
    "/admin/v2/metadata": ("metadata_migration",),
    "/admin/v2/namespaces": (
        *("namespaces", "namespace_topics", "permissions", "bundles"),
        *("namespace_policies", "namespace_resource_group", "affinity", "metric_labels"),
        "namespace_offload",
    ),
    "/admin/v2/non-persistent": OF_TOPICS,
    "/admin/v2/persistent": OF_TOPICS,
    "/admin/v2/resource-quotas": ("resource_quotas",),
    "/admin/v2/resourcegroups": ("resource_groups",),
    "/admin/v2/schemas": ("schemas",),
    "/admin/v2/tenants": ("tenants",),
    "/lookup/v2/topic": ("lookup",),
    "/metrics": ("metrics",),
    "/openapi.json": ("openapi",),
    "/status.html": ("status",),
    "/topics": ("rest_topics",),
    # All that is below these is refused (not_built.py).
    "/admin/v2/functions": (),
    "/admin/v2/worker": (),
    "/admin/v2/worker-stats": (),
    "/admin/v3": (),
}

BODY_BYTES_MAX = 1 << 20

Handler = Callable[["Request"], Awaitable[Response]]
Schema = dict[str, Any]  # of JSON, as OpenAPI writes it


def _no_resource(request: Request) -> Resource:
    return None


class Query(NamedTuple):
    """A field of the query. Its type is that of the default, or text when there is none,
    unless it is a number."""

    name: str
    about: str
    default: bool | int | None = None
    is_number: bool = False

    @property
    def kind(self) -> type[bool] | type[int] | type[str]:
        """The type of its value."""
        if self.default is not None:
            return type(self.default)
        return int if self.is_number else str


class Content(NamedTuple):
    """The JSON body of a request: its media types, and the schema for each. It has at most so many
    bytes, and values and names: legal ones have fewer.
    """

    about: str
    schemas: dict[str, Schema]
    required: bool = False
    bytes_max: int = BODY_BYTES_MAX
    tokens_max: int = TOKENS_MAX


class Answer(NamedTuple):
    """What is answered when nothing is in the way."""

    about: str
    schema: Schema | None = None
    media_type: str = JSON
    status: int = 200


DONE = Answer("Done.", status=204)


class Endpoint(NamedTuple):
    """One row. A segment of `path` is literal or a parameter: `{name}`, `{name:int}`, ...

    `resource` makes what the right is checked on from a request; a name that cannot be is refused
    there. `first` checks what Pulsar checks before the right. `summary` is one sentence. `line`
    names the kind of long answers (app.py) in whose line it waits, whatever it is about.
    """

    method: str
    path: str
    handler: Handler
    right: Right
    summary: str
    answer: Answer = DONE
    resource: Callable[[Request], Resource] = _no_resource
    query: tuple[Query, ...] = ()
    content: Content | None = None
    line: str = ""
    first: Callable[[Request], Awaitable[None]] | None = None

    def field(self, name: str) -> Query:
        """A field of the query that this endpoint takes. Raises KeyError for any other one."""
        for each in self.query:
            if each.name == name:
                return each
        raise KeyError(f"{self.method} {self.path} does not take {name}")


def load(name: str) -> tuple[Endpoint, ...]:
    """The rows of one file of resources/."""
    rows: tuple[Endpoint, ...] = importlib.import_module(
        f"{__package__}.resources.{name}"
    ).ENDPOINTS
    return rows


def every_endpoint() -> Iterator[tuple[str, Endpoint]]:
    """All rows with the names of their files, in the order of the paths; imports all of them."""
    names = sorted({name for names in RESOURCES.values() for name in names})
    rows = [(name, row) for name in names for row in load(name)]
    return iter(sorted(rows, key=lambda each: (each[1].path, each[1].method)))
