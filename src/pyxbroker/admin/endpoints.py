"""The table of endpoints.

Each file of `resources/` has its rows in `ENDPOINTS`. RESOURCES lists the files for each prefix of
paths, so that a file is imported with the first request for it. Routes, the answers 404 and 405,
parameter types, rights, the OpenAPI document and docs/rest.md are derived from the rows. An unknown
path is answered with 404 and an unknown method of a known path with 405. not_built.py has the
answers for endpoints of Pulsar that are not in the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from pyxbroker.web.endpoint import Endpoint

OF_TOPICS = (
    *("backlog", "messages", "partitions", "positions", "statistics", "subscriptions"),
    *("topics", "topic_metadata", "topic_permissions", "topic_policies"),
    *("topic_replication", "topic_offload", "why"),
)
# For each prefix of paths, the files of resources/ that have its rows.
RESOURCES: dict[str, tuple[str, ...]] = {
    "/admin/v2/bookies": ("bookies",),
    "/admin/v2/broker-stats": ("broker_stats",),
    "/admin/v2/brokers": ("backup", "brokers", "settings"),
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
    "/admin/v3/transactions": ("transactions",),
    # All endpoints below these prefixes are refused (not_built.py).
    "/admin/v2/functions": (),
    "/admin/v2/worker": (),
    "/admin/v2/worker-stats": (),
    "/admin/v3": (),
}


def load(name: str) -> tuple[Endpoint, ...]:
    """Return the rows of one file of resources/."""
    rows: tuple[Endpoint, ...] = importlib.import_module(
        f"{__package__}.resources.{name}"
    ).ENDPOINTS
    return rows


def every_endpoint() -> Iterator[tuple[str, Endpoint]]:
    """Return all rows with the names of their files, ordered by path; imports all of them."""
    names = sorted({name for names in RESOURCES.values() for name in names})
    rows = [(name, row) for name in names for row in load(name)]
    return iter(sorted(rows, key=lambda each: (each[1].path, each[1].method)))
