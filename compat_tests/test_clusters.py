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
