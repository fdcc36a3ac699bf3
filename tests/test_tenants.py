"""REST of tenants and clusters, in Pulsar's words; the texts are Apache Pulsar 4.2.4's."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.cluster.initialize import ClusterSettings, initialize
from pyxbroker.metadata import paths
from test_admin_topics import DONE, Rest, run

T = "/admin/v2/tenants"
N = "/admin/v2/namespaces"
HERE = '{"allowedClusters":["standalone"]}'


async def begin(rest: Rest, *clusters: str) -> None:
    """What a cluster has from the start."""
    store = rest.broker.node.store
    # The broker of these tests has another one.
    await store.delete(paths.namespace_policies("public/default"))
    await store.delete(paths.tenant("public"))
    await initialize(store, ClusterSettings("standalone", "http://here:2", "pulsar://here:1"))
    for each in clusters:
        await store.put(paths.cluster(each), b"{}")


def test_what_is_there_from_the_start(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("GET", T) == (200, ["public", "pulsar"])
        info = {"adminRoles": [], "allowedClusters": ["standalone"]}
        assert await rest("GET", f"{T}/public") == (200, info)
        assert await rest("GET", f"{N}/public") == (200, ["public/default"])
        assert await rest("GET", f"{N}/pulsar") == (200, ["pulsar/system"])
        status, cluster = await rest("GET", "/admin/v2/clusters/standalone")
        assert (status, cluster["brokerServiceUrl"]) == (200, "pulsar://here:1")
        for name in ("none", "standalone%2F..%2Fstandalone", ".."):
            missing = (404, "Cluster does not exist")
            assert await rest.reason("GET", f"/admin/v2/clusters/{name}") == missing

    run(tmp_path, scenario)


def test_a_tenant_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{T}/a", HERE) == DONE
        # What is not set is left out.
        assert await rest("GET", f"{T}/a") == (200, json.loads(HERE))
        assert await rest.reason("PUT", f"{T}/a", HERE) == (409, "Tenant already exist")
        assert await rest("GET", T) == (200, ["a", "public", "pulsar"])
        await rest.broker.node.store.put(
            paths.tenant("a"), b'{"allowedClusters":["standalone"],"of_tomorrow":1}'
        )
        whole = '{"adminRoles":["r","r"],"allowedClusters":["standalone"],"unknown":1}'
        assert await rest("POST", f"{T}/a", whole) == DONE
        info = {"adminRoles": ["r"], "allowedClusters": ["standalone"]}
        assert await rest("GET", f"{T}/a") == (200, info)
        found = await rest.broker.node.store.get(paths.tenant("a"))
        assert found is not None and json.loads(found.value)["of_tomorrow"] == 1
        assert await rest("DELETE", f"{T}/a") == DONE
        assert await rest("GET", T) == (200, ["public", "pulsar"])

    run(tmp_path, scenario)


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("", 412, "TenantInfo is null"),
        ("null", 412, "TenantInfo is null"),
        ("{}", 412, "Clusters cannot be null"),
        ('{"allowedClusters":[]}', 412, "Clusters cannot be empty or blank"),
        ('{"allowedClusters":[""]}', 412, "Clusters cannot be empty or blank"),
        ('{"allowedClusters":["none"]}', 412, "Clusters do not exist"),
        (
            '{"allowedClusters":["standalone"],"adminRoles":[" x"]}',
            412,
            "AdminRoles contains whitespace in the beginning or end.",
        ),
        ("[1]", 400, "a JSON object"),
        ('{"allowedClusters":"standalone"}', 400, "a list of strings"),
        ('{"allowedClusters":[["a"]]}', 400, "a list of strings"),
        ('{"allowedClusters":["standalone"],"adminRoles":{"a":1}}', 400, "a list of strings"),
        (json.dumps({"allowedClusters": ["a"] * 1001}), 400, "the maximum is 1000"),
        (json.dumps({"allowedClusters": ["a" * 1025]}), 400, "too long"),
        ("{", 400, "not JSON"),
    ],
)
def test_no_tenant(tmp_path: Path, method: str, body: str, status: int, reason: str) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        found = await rest.reason(method, f"{T}/public", body)
        assert found[0] == status and reason in found[1]
        assert (await rest("GET", f"{T}/public"))[1]["adminRoles"] == []

    run(tmp_path, scenario)


def test_tenants_that_there_are_not(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest.reason("GET", f"{T}/none") == (404, "Tenant does not exist")
        assert await rest.reason("POST", f"{T}/none", HERE) == (404, "Tenant none not found")
        assert await rest.reason("DELETE", f"{T}/none") == (404, "Tenant doesn't exist")
        assert await rest.reason("GET", f"{N}/none") == (404, "Tenant not found")
        for name in ("a%20b", "..", "%C3%A4", "a%2Fb"):
            wrong = (412, "Tenant name is not valid")
            assert await rest.reason("PUT", f"{T}/{name}", HERE) == wrong
            assert await rest.reason("GET", f"{N}/{name}") == wrong
        assert "at most 256" in (await rest.reason("PUT", f"{T}/{'a' * 257}", HERE))[1]
        assert await rest("GET", T) == (200, ["public", "pulsar"])

    run(tmp_path, scenario)


def test_a_tenant_with_namespaces_stays(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest, "other")
        active = (409, "The tenant still has active namespaces")
        assert await rest.reason("DELETE", f"{T}/public") == active
        forbidden = (405, "Broker doesn't allow forced deletion of tenants")
        assert await rest.reason("DELETE", f"{T}/public?force=true") == forbidden
        rest.broker.config.forceDeleteTenantAllowed = True
        forbidden = (405, "Broker doesn't allow forced deletion of namespaces")
        assert await rest.reason("DELETE", f"{T}/public?force=true") == forbidden
        assert await rest.reason("POST", f"{T}/pulsar", '{"allowedClusters":["other"]}') == (
            412,
            "Cannot remove cluster standalone from tenant pulsar: namespace pulsar/system still has"
            " it as a replication cluster",
        )

    run(tmp_path, scenario)


def test_a_tenant_is_deleted_with_all_that_is_in_it(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{T}/a", HERE) == DONE
        for name in ("x", "y"):
            assert await rest("PUT", f"{N}/a/{name}") == DONE
            assert await rest("PUT", f"/admin/v2/persistent/a/{name}/t") == DONE
        assert await rest("DELETE", f"{T}/a?force=true") == DONE
        assert await rest("GET", T) == (200, ["public", "pulsar"])
        store = rest.broker.node.store
        for above in ("/admin/policies", "/admin/partitioned-topics", "/managed-ledgers"):
            assert "a" not in await store.children(above)

    settings = {"forceDeleteTenantAllowed": True, "forceDeleteNamespaceAllowed": True}
    run(tmp_path, scenario, **settings)


def test_no_more_tenants_than_there_may_be(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        made = await asyncio.gather(*(rest("PUT", f"{T}/t{n}", HERE) for n in range(5)))
        full: Any = (412, {"reason": "Exceed the maximum number of tenants"})
        assert sorted(made, key=str) == [DONE] * 2 + [full] * 3
        # That it is there already comes first.
        assert (await rest.reason("PUT", f"{T}/public", HERE))[0] == 409

    run(tmp_path, scenario, maxTenants=4)


def test_a_namespace_comes_to_be_in_a_tenant_that_is_there(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        for _ in range(10):
            assert await rest("PUT", f"{T}/a", HERE) == DONE
            # Whichever of them comes first.
            answers = await asyncio.gather(rest("PUT", f"{N}/a/x"), rest("DELETE", f"{T}/a"))
            if answers[1] == DONE:
                assert answers[0][0] == 404
                assert not await rest.broker.node.store.exists(paths.tenant("a"))
                continue
            assert (answers[0], answers[1][0]) == (DONE, 409)
            assert await rest("DELETE", f"{N}/a/x") == DONE
            assert await rest("DELETE", f"{T}/a") == DONE

    run(tmp_path, scenario)
