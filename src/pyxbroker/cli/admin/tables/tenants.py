"""Commands about tenants."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from pyxbroker.cli.admin.rows import argument, delete, flag, function, get, option, words
from pyxbroker.client.admin import AdminClient

TENANT = argument("tenant", "The tenant.")
ROLES = option("-r --admin-roles", "Roles that administer it, separated by commas.", "", words)
CLUSTERS = option("-c --allowed-clusters", "Its clusters, separated by commas.", "", words)


async def _create(client: AdminClient, values: Namespace) -> None:
    """Create a tenant; without clusters it may use all that there are."""
    clusters = values.allowed_clusters or await client.get("/admin/v2/clusters")
    await client.put(
        f"/admin/v2/tenants/{values.tenant}",
        {"adminRoles": values.admin_roles or [], "allowedClusters": clusters},
    )


async def _update(client: AdminClient, values: Namespace) -> None:
    """Update a tenant; what is not given stays."""
    path = f"/admin/v2/tenants/{values.tenant}"
    found: dict[str, Any] = {}
    if values.admin_roles is None or values.allowed_clusters is None:
        found = await client.get(path)
    if values.admin_roles is not None:
        found["adminRoles"] = values.admin_roles
    if values.allowed_clusters is not None:
        found["allowedClusters"] = values.allowed_clusters
    await client.post(path, found)


COMMANDS = {
    "list": get("List the tenants.", "/admin/v2/tenants"),
    "get": get("Print the settings of a tenant.", "/admin/v2/tenants/{tenant}", TENANT),
    "create": function("Create a tenant.", _create, TENANT, ROLES, CLUSTERS),
    "update": function("Change the settings of a tenant.", _update, TENANT, ROLES, CLUSTERS),
    "delete": delete(
        "Delete a tenant.",
        "/admin/v2/tenants/{tenant}",
        TENANT,
        flag("-f --force", "Delete its namespaces and topics, too.", "?force"),
        destroys="deletes the tenant {tenant} with all its data",
        unless="-force",
    ),
}
