"""REST of clusters, their peers and failure domains; statuses and texts are Apache Pulsar 4.2.4's.

One that a tenant may be in is not deleted, which Apache Pulsar does.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.admin.resources import clusters as resource
from pyxbroker.broker import clusters
from pyxbroker.metadata import paths
from test_admin_topics import DONE, Rest, run
from test_tenants import HERE, T, begin

C = "/admin/v2/clusters"
SET = (200, None)
DATA = {"serviceUrl": "http://a:8080", "brokerServiceUrl": "pulsar://a:6650"}
SWITCHES = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
}
MISSING = (404, "Cluster does not exist")


def test_a_cluster_is_made_told_changed_and_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{C}/c1", json.dumps(DATA | {"unknown": 5})) == SET
        assert await rest("GET", f"{C}/c1") == (200, DATA | SWITCHES)
        assert await rest.reason("PUT", f"{C}/c1", "{}") == (409, "Cluster already exists")
        assert await rest("GET", C) == (200, ["c1", "standalone"])
        # What is not said again is not there any more.
        assert await rest("POST", f"{C}/c1", '{"serviceUrl":"http://b:8080"}') == SET
        assert await rest("GET", f"{C}/c1") == (200, {"serviceUrl": "http://b:8080"} | SWITCHES)
        assert await rest("DELETE", f"{C}/c1") == DONE
        for method, body in (("GET", ""), ("POST", "{}"), ("DELETE", "")):
            for name in ("c1", "..", "standalone%2F..%2Fstandalone"):
                assert await rest.reason(method, f"{C}/{name}", body) == MISSING
        # Each instance has one, which nobody is told of.
        assert await rest("PUT", f"{C}/global", "{}") == SET
        assert await rest("GET", C) == (200, ["standalone"])

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "body", "status", "reason"),
    [
        ("c", "null", 400, "cluster data is required"),
        ("c", "", 400, "cluster data is required"),
        ("c", "[]", 400, "JSON object"),
        ("c", {"serviceUrl": "ftp://x"}, 400,
         "Illegal service url, example: http://pulsar.example.com:8080"),
        ("c", {"serviceUrl": "https://x"}, 400,
         "Illegal service url, example: http://pulsar.example.com:8080"),
        ("c", {"serviceUrlTls": "http://x"}, 400,
         "Illegal service tls url, example: https://pulsar.example.com:8443"),
        ("c", {"brokerServiceUrl": "http://x"}, 400,
         "Illegal broker service url, example: pulsar://pulsar.example.com:6650"),
        ("c", {"brokerServiceUrlTls": "pulsar://x"}, 400,
         "Illegal broker service tls url, example: pulsar+ssl://pulsar.example.com:6651"),
        ("c", {"proxyServiceUrl": "http://x"}, 400,
         "Illegal proxy service url, example: pulsar+ssl://ats-proxy.example.com:4443 or"
         " pulsar://ats-proxy.example.com:4080"),
        ("c", {"serviceUrl": [5]}, 400, "serviceUrl must be text"),
        ("c", {"brokerClientTlsEnabled": "yes"}, 400, "must be true or false"),
        ("c", {"peerClusterNames": "x"}, 400, "peerClusterNames must be a list"),
        ("c", {"listenerName": "x" * 70_000}, 400, "too long"),
        ("a%20b", "{}", 412, "Cluster name is not valid"),
        ("a%2Fb", "{}", 412, "Cluster name is not valid"),
        ("x" * 300, "{}", 412, "too long"),
    ],
)  # fmt: skip
def test_no_cluster(tmp_path: Path, name: str, body: Any, status: int, reason: str) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        data = body if isinstance(body, str) else json.dumps(body)
        found = await rest.reason("PUT", f"{C}/{name}", data)
        assert found[0] == status and reason in found[1]
        assert await rest("GET", C) == (200, ["standalone"])

    run(tmp_path, scenario)


def test_a_cluster_that_a_tenant_may_be_in_stays(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{C}/c1", "{}") == SET
        both = '{"allowedClusters":["c1","standalone"]}'
        assert await rest("PUT", f"{T}/a", both) == DONE
        for name in ("c1", "standalone"):
            assert await rest.reason("DELETE", f"{C}/{name}") == (412, "Cluster not empty")
        assert await rest("POST", f"{T}/a", HERE) == DONE
        assert await rest("DELETE", f"{C}/c1") == DONE

    run(tmp_path, scenario)


def test_there_are_no_more_clusters_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "CLUSTERS_MAX", 3)

    async def scenario(rest: Rest) -> None:
        await begin(rest)
        answers = await asyncio.gather(*(rest("PUT", f"{C}/c{n}", "{}") for n in range(6)))
        assert sorted(status for status, _ in answers) == [200, 200, 412, 412, 412, 412]
        assert len((await rest("GET", C))[1]) == 3

    run(tmp_path, scenario)


def test_peers_of_a_cluster(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{C}/c1", json.dumps(DATA)) == SET
        peers = f"{C}/c1/peers"
        assert await rest("GET", peers) == (200, None)
        assert await rest("POST", peers, '["standalone","standalone"]') == DONE
        assert await rest("GET", peers) == (200, ["standalone"])
        for body, answer in (
            ('["c1"]', (412, "c1 itself can't be part of peer-list")),
            ('["none"]', (412, "Peer cluster none does not exist")),
            ('"x"', (400, "The peers must be a list of strings, not 'x'.")),
        ):
            assert await rest.reason("POST", peers, body) == answer
        assert (await rest("GET", f"{C}/c1"))[1] == DATA | SWITCHES | {
            "peerClusterNames": ["standalone"]
        }
        assert await rest("POST", peers, "[]") == DONE
        assert await rest("GET", peers) == (200, [])
        assert await rest("POST", peers, "null") == DONE
        assert await rest("GET", peers) == (200, None)
        for method, body in (("GET", ""), ("POST", '["c1"]')):
            assert await rest.reason(method, f"{C}/none/peers", body) == MISSING

    run(tmp_path, scenario)


def test_failure_domains(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("PUT", f"{C}/c1", json.dumps(DATA)) == SET
        at = f"{C}/c1/failureDomains"
        assert await rest("GET", at) == (200, {})
        assert await rest("GET", f"{C}/none/failureDomains") == (200, {})
        missing = (404, "Domain d for cluster c1 does not exist")
        assert await rest.reason("GET", f"{at}/d") == missing
        assert await rest("POST", f"{at}/d", '{"brokers":["b1","b2"]}') == DONE
        twice = (409, "[b1] already exists in d")
        assert await rest.reason("POST", f"{at}/e", '{"brokers":["b1","b3"]}') == twice
        assert await rest("POST", f"{at}/d", '{"brokers":["b1"]}') == DONE
        assert await rest("POST", f"{at}/f", "{}") == DONE
        assert await rest("GET", at) == (200, {"d": {"brokers": ["b1"]}, "f": {}})
        assert await rest("GET", f"{at}/d") == (200, {"brokers": ["b1"]})
        for method, body in (("GET", ""), ("POST", "{}"), ("DELETE", "")):
            found = await rest.reason(method, f"{C}/none/failureDomains/d", body)
            assert found == (412, "Cluster none does not exist.")
        for body in ("[]", "null", '{"brokers":"b"}', '{"brokers":[[]]}'):
            assert (await rest.reason("POST", f"{at}/d", body))[0] == 400
        for name in ("..", "a%2Fb", "%20"):
            assert (await rest.reason("POST", f"{at}/{name}", "{}"))[0] == 412
        missing = (404, "Domain-name none or cluster c1 does not exist")
        assert await rest.reason("DELETE", f"{at}/none") == missing
        assert await rest("DELETE", f"{at}/d") == SET
        assert await rest("GET", at) == (200, {"f": {}})
        # They go with their cluster.
        assert await rest("DELETE", f"{C}/c1") == DONE
        assert await rest.broker.node.store.children(paths.CLUSTERS) == ["standalone"]
        assert await rest("PUT", f"{C}/c1", "{}") == SET
        assert await rest("GET", at) == (200, {})

    run(tmp_path, scenario)


def test_a_broker_is_in_one_failure_domain_also_when_two_ask_at_once(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        at = f"{C}/standalone/failureDomains"
        asked = [rest("POST", f"{at}/d{n}", '{"brokers":["b"]}') for n in range(4)]
        answers = await asyncio.gather(*asked)
        assert sorted(status for status, _ in answers) == [204, 409, 409, 409]

    run(tmp_path, scenario)


def test_the_fields_are_pulsars() -> None:
    cluster = json.loads(
        Path(__file__).with_name("data").joinpath("pulsar_cluster.json").read_text()
    )
    assert json.loads(cluster["/admin/clusters/standalone"]).keys() <= resource.FIELDS.keys()
