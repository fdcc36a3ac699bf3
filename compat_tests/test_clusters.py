"""Clusters, bundles and resource groups by REST (BROKER=apache asks Pulsar)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.brokers import Broker

from compat_tests.test_namespaces import namespace, reason, tenant
from compat_tests.test_rest_answers import DONE, ask_json

__all__ = ["namespace", "tenant"]

CLUSTERS = "/admin/v2/clusters"
GROUPS = "/admin/v2/resourcegroups"
NAMESPACES = "/admin/v2/namespaces"
TOPICS = "/admin/v2/persistent"
DATA = {"serviceUrl": "http://a:8080", "brokerServiceUrl": "pulsar://a:6650"}
SWITCHES = {
    "brokerClientTlsEnabled": False,
    "tlsAllowInsecureConnection": False,
    "brokerClientTlsEnabledWithKeyStore": False,
}
ISOLATION = {
    "namespaces": ["a/.*"],
    # Apache Pulsar's REST matches the id of a broker, this broker's the host, as placement does.
    "primary": [".{4,}"],
    "secondary": ["b.*"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}
FIRST = "0x00000000_0x40000000"
SET = (200, "")


@pytest.fixture
def cluster(broker: Broker) -> Iterator[str]:
    """A cluster that nobody is in."""
    path = f"{CLUSTERS}/elsewhere"
    assert broker.request("PUT", path, DATA) == SET
    yield path
    assert broker.request("DELETE", path) == DONE


def test_a_cluster_is_made_and_changed(broker: Broker, cluster: str) -> None:
    assert ask_json(broker, "GET", cluster) == (200, DATA | SWITCHES)
    assert broker.request("PUT", cluster, {}) == (409, reason("Cluster already exists"))
    assert broker.request("PUT", f"{CLUSTERS}/a%20b", {}) == (
        412,
        reason("Cluster name is not valid"),
    )
    illegal = reason("Illegal service url, example: http://pulsar.example.com:8080")
    assert broker.request("POST", cluster, {"serviceUrl": "x"}) == (400, illegal)
    assert broker.request("POST", cluster, {"serviceUrl": "http://b:8080"}) == SET
    assert ask_json(broker, "GET", cluster) == (200, {"serviceUrl": "http://b:8080"} | SWITCHES)
    for method in ("GET", "DELETE"):
        missing = (404, reason("Cluster does not exist"))
        assert broker.request(method, f"{CLUSTERS}/none") == missing


def test_peers_and_failure_domains(broker: Broker, cluster: str) -> None:
    peers, domains = f"{cluster}/peers", f"{cluster}/failureDomains"
    assert broker.request("POST", peers, ["standalone"]) == DONE
    assert ask_json(broker, "GET", peers) == (200, ["standalone"])
    missing = (412, reason("Peer cluster none does not exist"))
    assert broker.request("POST", peers, ["none"]) == missing
    assert broker.request("POST", f"{domains}/d", {"brokers": ["b1"]}) == DONE
    twice = (409, reason("[b1] already exists in d"))
    assert broker.request("POST", f"{domains}/e", {"brokers": ["b1"]}) == twice
    assert ask_json(broker, "GET", domains) == (200, {"d": {"brokers": ["b1"]}})
    assert ask_json(broker, "GET", f"{domains}/d") == (200, {"brokers": ["b1"]})
    assert broker.request("DELETE", f"{domains}/d") == SET
    missing = (404, reason("Domain d for cluster elsewhere does not exist"))
    assert broker.request("GET", f"{domains}/d") == missing


def test_isolation_policies(broker: Broker, cluster: str) -> None:
    at = f"{cluster}/namespaceIsolationPolicies"
    missing = (404, reason("NamespaceIsolationPolicies for cluster elsewhere does not exist"))
    for path in (at, f"{at}/brokers", f"{at}/brokers/b:1", f"{at}/p"):
        assert broker.request("GET", path) == missing
    assert broker.request("POST", f"{at}/p", ISOLATION) == DONE
    assert ask_json(broker, "GET", at) == (200, {"p": ISOLATION})
    assert ask_json(broker, "GET", f"{at}/p") == (200, ISOLATION)
    _, brokers = ask_json(broker, "GET", "/admin/v2/brokers")
    told = {"policyName": "p", "namespaceRegex": ["a/.*"], "primary": True}
    every = [told | {"brokerName": each} for each in sorted(brokers)]
    status, found = ask_json(broker, "GET", f"{at}/brokers")
    assert (status, sorted(found, key=lambda each: each["brokerName"])) == (200, every)
    for each in every:
        assert ask_json(broker, "GET", f"{at}/brokers/{each['brokerName']}") == (200, each)
    second = told | {"brokerName": "b:1", "primary": False}
    assert ask_json(broker, "GET", f"{at}/brokers/b:1") == (200, second)
    none = {"brokerName": "c:1", "namespaceRegex": [], "primary": False}
    assert ask_json(broker, "GET", f"{at}/brokers/c:1") == (200, none)
    for wrong in (
        {},
        ISOLATION | {"namespaces": []},
        ISOLATION | {"primary": []},
        ISOLATION | {"secondary": None},
        ISOLATION | {"primary": ["("]},
        ISOLATION | {"auto_failover_policy": {"policy_type": "x", "parameters": {}}},
    ):
        status, text = broker.request("POST", f"{at}/q", wrong)
        assert (status, "Invalid format of input policy data. policy: q" in text) == (400, True)
    missing = (404, reason("Cannot find NamespaceIsolationPolicy q for cluster elsewhere"))
    assert broker.request("GET", f"{at}/q") == missing
    assert broker.request("DELETE", cluster) == (412, reason("Cluster not empty"))
    for _ in range(2):
        assert broker.request("DELETE", f"{at}/p") == DONE
    assert ask_json(broker, "GET", at) == (200, {})
    for path, status in ((at, 404), (f"{at}/brokers", 412), (f"{at}/p", 412)):
        none = (status, reason("Cluster none does not exist."))
        assert broker.request("GET", path.replace("elsewhere", "none")) == none


def test_anti_affinity_and_the_bookies_of_a_namespace(broker: Broker, namespace: str) -> None:
    at = f"{NAMESPACES}/{namespace}"
    group, name = f"{at}/antiAffinity", namespace.split("/")[0]
    assert broker.request("GET", group) == SET
    # Apache Pulsar notes what its cluster says of a namespace when its bundles are asked for.
    assert broker.request("GET", f"{at}/bundles")[0] == 200
    assert broker.request("POST", group, "g") == DONE
    # The body is taken as it stands.
    assert broker.request("GET", group) == (200, '"g"')
    members = f"{NAMESPACES}/standalone/antiAffinity/%22g%22"
    assert ask_json(broker, "GET", f"{members}?tenant={name}") == (200, [namespace])
    assert ask_json(broker, "GET", f"{members}x?tenant={name}") == (200, [])
    assert broker.request("GET", members) == (400, reason("Tenant should not be null"))
    elsewhere = f"{NAMESPACES}/none/antiAffinity/g?tenant={name}"
    missing = (412, reason("Cluster none does not exist."))
    assert broker.request("GET", elsewhere) == missing
    bookies = f"{at}/persistence/bookieAffinity"
    assert broker.request("GET", bookies) == SET
    wanted = {"bookkeeperAffinityGroupPrimary": "default", "bookkeeperAffinityGroupSecondary": "s"}
    assert broker.request("POST", bookies, wanted) == DONE
    assert ask_json(broker, "GET", bookies) == (200, wanted)
    assert broker.request("DELETE", bookies) == DONE
    assert broker.request("GET", bookies) == SET
    assert broker.request("DELETE", group) == DONE
    assert broker.request("GET", group) == SET


def test_a_resource_group(broker: Broker, namespace: str) -> None:
    group, at = f"{GROUPS}/g", f"{NAMESPACES}/{namespace}/resourcegroup"
    assert broker.request("PUT", group, {"publishRateInMsgs": 10}) == DONE
    assert broker.request("PUT", group, {"dispatchRateInMsgs": 7}) == DONE
    assert ask_json(broker, "GET", group) == (
        200,
        {
            "publishRateInMsgs": 10,
            "publishRateInBytes": -1,
            "dispatchRateInMsgs": 7,
            "dispatchRateInBytes": -1,
        },
    )
    missing = (412, reason("ResourceGroup does not exist"))
    assert broker.request("POST", f"{at}/none") == missing
    assert broker.request("GET", at) == SET
    # Nobody looks whether there is one that a namespace is made with.
    made = f"{NAMESPACES}/{namespace}-of-group"
    assert broker.request("PUT", made, {"resource_group_name": "none"}) == DONE
    assert broker.request("GET", f"{made}/resourcegroup") == (200, "none")
    assert broker.request("POST", f"{at}/g") == DONE
    assert broker.request("GET", at) == (200, "g")
    assert broker.request("DELETE", group) == (412, reason("ResourceGroup is in use"))
    assert broker.request("DELETE", at) == DONE
    assert broker.request("DELETE", group) == DONE


def test_a_bundle(broker: Broker, namespace: str) -> None:
    at = f"{NAMESPACES}/{namespace}"
    assert broker.request("PUT", f"{TOPICS}/{namespace}/t") == DONE
    for method, path in (
        ("PUT", "unload"),
        ("POST", "clearBacklog"),
        ("POST", "unsubscribe/s"),
        ("PUT", "split"),
    ):
        assert broker.request(method, f"{at}/{FIRST}/{path}") == DONE, path
    status, bundles = ask_json(broker, "GET", f"{at}/bundles")
    assert (status, bundles["boundaries"][:3]) == (200, ["0x00000000", "0x20000000", "0x40000000"])
    wrong = (
        412,
        reason(
            f"Invalid upper boundary for bundle {namespace}/{FIRST}. Expected upper boundary of"
            f" {namespace}/0x00000000_0x20000000"
        ),
    )
    assert broker.request("POST", f"{at}/{FIRST}/clearBacklog") == wrong
    invalid = (412, reason("Invalid bundle range: bad"))
    assert broker.request("POST", f"{at}/bad/clearBacklog") == invalid
    name = f"persistent://{namespace}/t"
    told = {}
    for low, high in zip(bundles["boundaries"], bundles["boundaries"][1:], strict=False):
        status, answer = ask_json(broker, "GET", f"{at}/{low}_{high}/topicHashPositions")
        # Where there is no topic, nobody has the bundle in Apache Pulsar.
        found = answer["topicHashPositions"] if status == 200 else {}
        told |= {each: (low, position, high) for each, position in found.items()}
    low, position, high = told[name]
    assert int(low, 16) <= position < int(high, 16)
    assert broker.request("DELETE", f"{at}/{low}_{high}") == (
        409,
        reason("Cannot delete non empty bundle"),
    )
