"""REST of isolation policies, of anti-affinity and of the bookies of a namespace, in the words of
Apache Pulsar 4.2.4.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.broker import clusters
from pyxbroker.metadata import paths
from test_admin_topics import DONE, Rest, run
from test_clusters import SET, C
from test_tenants import HERE, N, T, begin

AT = f"{C}/standalone/namespaceIsolationPolicies"
FAILOVER = {
    "policy_type": "min_available",
    "parameters": {"min_limit": "1", "usage_threshold": "80"},
}
GOOD: dict[str, Any] = {
    "namespaces": ["public/.*"],
    "primary": ["here:.*"],
    "secondary": ["b.*"],
    "auto_failover_policy": FAILOVER,
}


def failover(**parameters: Any) -> dict[str, Any]:
    return {"auto_failover_policy": FAILOVER | {"parameters": parameters}}


def test_isolation_policies_are_set_told_and_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        never = (404, "NamespaceIsolationPolicies for cluster standalone does not exist")
        for path in ("", "/brokers", "/brokers/b", "/p"):
            assert await rest.reason("GET", AT + path) == never
        assert await rest("POST", f"{AT}/p", json.dumps(GOOD | {"unknown": 5})) == DONE
        assert await rest("GET", AT) == (200, {"p": GOOD})
        assert await rest("GET", f"{AT}/p") == (200, GOOD)
        stored = await rest.broker.node.store.get(
            "/admin/clusters/standalone/namespaceIsolationPolicies"
        )
        assert stored is not None and json.loads(stored.value) == {"p": GOOD}
        missing = (404, "Cannot find NamespaceIsolationPolicy q for cluster standalone")
        assert await rest.reason("GET", f"{AT}/q") == missing
        for _ in range(2):
            assert await rest("DELETE", f"{AT}/p") == DONE
        assert await rest("GET", AT) == (200, {})
        for method, path, status in (
            ("GET", "", 404),
            *(("GET", path, 412) for path in ("/brokers", "/brokers/b", "/p")),
            *((method, "/p", 412) for method in ("POST", "DELETE")),
        ):
            body = json.dumps(GOOD) if method == "POST" else ""
            for name in ("none", ".."):
                at = AT.replace("standalone", name) + path
                found = await rest.reason(method, at, body)
                assert found == (status, f"Cluster {name} does not exist.")

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespaces": None}, {"namespaces": []}, {"namespaces": [" "]}, {"namespaces": ["("]},
        {"primary": None}, {"primary": []}, {"primary": ["("]}, {"primary": ["(?=a)"]},
        {"secondary": None}, {"secondary": ["["]},
        {"auto_failover_policy": None},
        {"auto_failover_policy": {"policy_type": "min_available"}},
        {"auto_failover_policy": {"policy_type": "x", "parameters": FAILOVER["parameters"]}},
        failover(min_limit=1), failover(min_limit="a", usage_threshold=1),
        failover(min_limit=1, usage_threshold=1.5),
    ],
)  # fmt: skip
def test_no_isolation_policy(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        status, reason = await rest.reason("POST", f"{AT}/p", json.dumps(GOOD | wrong))
        assert status == 400
        assert reason.startswith("Invalid format of input policy data. policy: p; data: {")
        assert (await rest("GET", AT))[0] == 404  # Nothing was kept of it.

    run(tmp_path, scenario)


def test_an_isolation_policy_that_is_none_is_refused(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        many = GOOD | {"primary": [f"b{n}" for n in range(101)]}
        long = GOOD | {"primary": ["x" * 300]}
        for body in ("", "null", "[]", "{", json.dumps(many), json.dumps(long)):
            assert (await rest.reason("POST", f"{AT}/p", body))[0] == 400
        assert (await rest.reason("POST", f"{AT}/{'x' * 300}", json.dumps(GOOD)))[0] == 412

    run(tmp_path, scenario)


def test_numbers_of_a_failover_are_texts_and_an_unknown_scope_is_none(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        for scope in ("none", "all_matching", "changed"):
            body = GOOD | {"unload_scope": scope, "secondary": []}
            assert await rest("POST", f"{AT}/p", json.dumps(body)) == DONE
            assert await rest("GET", f"{AT}/p") == (200, body)
        numbers = FAILOVER | {"parameters": {"min_limit": 1, "usage_threshold": 80, "more": "x"}}
        body = GOOD | {"unload_scope": "x", "auto_failover_policy": numbers}
        assert await rest("POST", f"{AT}/p", json.dumps(body)) == DONE
        texts = FAILOVER | {"parameters": {"min_limit": "1", "usage_threshold": "80", "more": "x"}}
        assert await rest("GET", f"{AT}/p") == (200, GOOD | {"auto_failover_policy": texts})

    run(tmp_path, scenario)


def test_what_isolation_policies_say_of_a_broker(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        this = rest.broker.service.broker_id
        host = this.partition(":")[0].replace(".", r"\.")
        port = GOOD | {"primary": [this.replace(".", r"\.")]}  # placement matches hosts, too
        assert await rest("POST", f"{AT}/p", json.dumps(port)) == DONE
        unnamed = {"brokerName": this, "namespaceRegex": [], "primary": False}
        assert await rest("GET", f"{AT}/brokers") == (200, [unnamed])
        body = GOOD | {"primary": [host]}
        assert await rest("POST", f"{AT}/p", json.dumps(body)) == DONE
        more = GOOD | {"namespaces": ["c/.*"], "primary": ["x"], "secondary": [".*"]}
        assert await rest("POST", f"{AT}/q", json.dumps(more)) == DONE
        # The last policy is named, the namespaces are those of both.
        both = {"policyName": "q", "namespaceRegex": ["public/.*", "c/.*"], "primary": False}
        assert await rest("GET", f"{AT}/brokers") == (200, [{"brokerName": this} | both])
        assert await rest("GET", f"{AT}/brokers/{this}") == (200, {"brokerName": this} | both)
        one = {"policyName": "q", "namespaceRegex": ["c/.*"], "primary": True}
        assert await rest("GET", f"{AT}/brokers/x") == (200, {"brokerName": "x"} | one)
        assert await rest("DELETE", f"{AT}/q") == DONE
        none = {"brokerName": "x", "namespaceRegex": [], "primary": False}
        assert await rest("GET", f"{AT}/brokers/x") == (200, none)

    run(tmp_path, scenario)


def test_what_another_broker_wrote_of_isolation_is_told_as_far_as_it_can_be_read(
    tmp_path: Path,
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        record = {"p": GOOD | {"primary": ["(?!b)b"]}, "q": 5, "r": {"primary": "x"}}
        path = paths.isolation_policies("standalone")
        await rest.broker.node.store.put(path, json.dumps(record).encode())
        told = {"brokerName": "b", "policyName": "p", "namespaceRegex": ["public/.*"]}
        assert await rest("GET", f"{AT}/brokers/b") == (200, told | {"primary": False})
        assert await rest("GET", f"{AT}/p") == (200, record["p"])

    run(tmp_path, scenario)


def test_there_are_no_more_isolation_policies_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "POLICIES_MAX", 2)

    async def scenario(rest: Rest) -> None:
        await begin(rest)
        asked = [rest("POST", f"{AT}/p{n}", json.dumps(GOOD)) for n in range(4)]
        answers = await asyncio.gather(*asked)
        assert sorted(status for status, _ in answers) == [204, 204, 412, 412]
        [kept, _] = (await rest("GET", AT))[1]
        assert await rest("POST", f"{AT}/{kept}", json.dumps(GOOD)) == DONE  # One that is there.

    run(tmp_path, scenario)


def test_a_cluster_with_isolation_policies_stays(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        at = f"{C}/c1/namespaceIsolationPolicies/p"
        assert await rest("PUT", f"{C}/c1", "{}") == SET
        assert await rest("POST", at, json.dumps(GOOD)) == DONE
        assert await rest.reason("DELETE", f"{C}/c1") == (412, "Cluster not empty")
        assert await rest("DELETE", at) == DONE
        assert await rest("DELETE", f"{C}/c1") == DONE
        assert await rest.broker.node.store.children(paths.CLUSTERS) == ["standalone"]

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("scope", "query", "stays"),
    [
        ("all_matching", "", False),
        ("all_matching", "?unloadBundles=false", True),
        ("none", "", True),
        ("changed", "", True),
        (None, "", True),
    ],
)
def test_an_isolation_policy_unloads_what_it_says(
    tmp_path: Path, scope: str | None, query: str, stays: bool
) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{T}/a", HERE) == DONE
        for name in ("a/x", "a/y"):
            assert await rest("PUT", f"{N}/{name}") == DONE
            assert await rest("PUT", f"/admin/v2/persistent/{name}/t") == DONE
        body = GOOD | {"namespaces": ["a/x"], "unload_scope": scope}
        assert await rest("POST", f"{AT}/p{query}", json.dumps(body)) == DONE
        served = {each.name.namespace for each in rest.broker.topics.registry}
        assert served == ({"a/x", "a/y"} if stays else {"a/y"})

    run(tmp_path, scenario)


# --- anti-affinity and bookies ----------------------------------------------------------------


async def _namespace(rest: Rest) -> None:
    await begin(rest)
    assert await rest("PUT", f"{T}/a", HERE) == DONE
    assert await rest("PUT", f"{N}/a/x") == DONE


def test_an_anti_affinity_group(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await _namespace(rest)
        at = f"{N}/a/x/antiAffinity"
        assert await rest("GET", at) == (200, None)
        assert await rest("DELETE", at) == DONE
        # With quotes or without them, as the clients of Java and Go send it.
        assert await rest("POST", at, '"g"') == DONE
        assert await rest("GET", at) == (200, "g")
        members = f"{N}/standalone/antiAffinity"
        assert await rest("GET", f"{members}/g?tenant=a") == (200, [])
        assert await rest("GET", f"{members}/%22g%22?tenant=a") == (200, ["a/x"])
        assert await rest("POST", at, "7") == DONE
        assert await rest("GET", f"{members}/7?tenant=a") == (200, ["a/x"])
        for tenant in ("public", "none"):
            assert await rest("GET", f"{members}/7?tenant={tenant}") == (200, [])
        for tenant in ("..", "a%2F..%2Fa"):
            assert (await rest.reason("GET", f"{members}/7?tenant={tenant}"))[0] == 412
        assert await rest.reason("GET", f"{members}/7") == (400, "Tenant should not be null")
        empty = (412, "Anti-affinity group can't be empty")
        assert await rest.reason("GET", f"{members}/%20?tenant=a") == empty
        for body in ("", "  "):
            assert await rest.reason("POST", at, body) == empty
        assert (await rest.reason("POST", at, "x" * 2_000))[0] == 412
        missing = (412, "Cluster none does not exist.")
        assert await rest.reason("GET", f"{N}/none/antiAffinity/7?tenant=a") == missing
        bundles = (await rest("GET", f"{N}/a/x/bundles"))[1]
        stored = await rest.broker.node.store.get(paths.local_policies("a/x"))
        assert stored is not None and json.loads(stored.value) == {
            "bundles": bundles,
            "migrated": False,
            "namespaceAntiAffinityGroup": "7",
        }
        assert await rest("DELETE", at) == DONE
        assert await rest("GET", at) == (200, None)
        for method, body in (("GET", ""), ("POST", "g"), ("DELETE", "")):
            found = await rest.reason(method, f"{N}/a/none/antiAffinity", body)
            assert found == (404, "Namespace not found")

    run(tmp_path, scenario)


def test_the_groups_of_bookies_of_a_namespace(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await _namespace(rest)
        at = f"{N}/a/x/persistence/bookieAffinity"
        assert await rest("GET", at) == (200, None)
        whole = {"bookkeeperAffinityGroupPrimary": "p", "bookkeeperAffinityGroupSecondary": "s"}
        for wanted in (whole, {"bookkeeperAffinityGroupPrimary": "p"}, {}):
            assert await rest("POST", at, json.dumps(wanted | {"unknown": 1})) == DONE
            assert await rest("GET", at) == (200, wanted)
        for end in (("POST", at, "null"), ("DELETE", at)):
            assert await rest("POST", at, json.dumps(whole)) == DONE
            assert await rest(*end) == DONE
            assert await rest("GET", at) == (200, None)
        for body in ("[]", '{"bookkeeperAffinityGroupPrimary":[]}'):
            assert (await rest.reason("POST", at, body))[0] == 400
        for method, body in (("GET", ""), ("POST", "{}"), ("DELETE", "")):
            found = await rest.reason(method, f"{N}/a/none/persistence/bookieAffinity", body)
            assert found == (404, "Namespace not found")

    run(tmp_path, scenario)


def test_a_bundle_that_is_split_keeps_the_groups_of_its_namespace(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await _namespace(rest)
        assert await rest("POST", f"{N}/a/x/antiAffinity", "7") == DONE
        assert await rest("PUT", f"{N}/a/x/0x00000000_0x40000000/split") == DONE
        assert await rest("GET", f"{N}/a/x/antiAffinity") == (200, 7)
        assert await rest("POST", f"{N}/a/x/persistence/bookieAffinity", "{}") == DONE
        assert (await rest("GET", f"{N}/a/x/bundles"))[1]["numBundles"] == 5

    run(tmp_path, scenario)
