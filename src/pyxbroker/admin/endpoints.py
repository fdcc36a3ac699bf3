"""The table of endpoints.

Each file of `resources/` has its rows, `ENDPOINTS`; RESOURCES says which files have those below a
prefix, so that a file is imported with the first request for it. Routes, the answers 404 and 405,
the types of parameters, rights, the OpenAPI document and docs/rest.md all come from the rows. What
is not in the table is 404 for a path and 405 for another method of one that is, but for what Pulsar
has besides: not_built.py says what becomes of that.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from pyxbroker.web.endpoint import Endpoint

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
