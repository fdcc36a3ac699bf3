"""Tenants and namespaces by REST, and what clients see of them (BROKER=apache asks Pulsar)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.test_rest_answers import DONE, ask_json

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
_NUMBERS = itertools.count(1)


@pytest.fixture
def tenant(broker: Broker) -> Iterator[str]:
    """A fresh tenant without namespaces."""
    name = f"tenant-{next(_NUMBERS)}"
    body = {"allowedClusters": ["standalone"], "adminRoles": []}
    assert broker.request("PUT", f"{TENANTS}/{name}", body) == DONE
    yield name


@pytest.fixture
def namespace(broker: Broker, tenant: str) -> str:
    """A fresh namespace in a fresh tenant."""
    name = f"{tenant}/x"
    assert broker.request("PUT", f"{NAMESPACES}/{name}") == DONE
    return name


def reason(text: str) -> str:
    return '{"reason":"' + text + '"}'


@pytest.mark.standalone
def test_what_a_standalone_has_from_the_start(broker: Broker) -> None:
    status, tenants = ask_json(broker, "GET", TENANTS)
    assert status == 200
    assert {"public", "pulsar"} <= set(tenants)
    assert ask_json(broker, "GET", f"{NAMESPACES}/public") == (200, ["public/default"])
    status, bundles = ask_json(broker, "GET", f"{NAMESPACES}/public/default/bundles")
    assert (status, bundles["numBundles"]) == (200, 4)


def test_a_tenant_comes_and_goes(broker: Broker, tenant: str) -> None:
    path = f"{TENANTS}/{tenant}"
    body = {"allowedClusters": ["standalone"], "adminRoles": ["r"]}
    assert broker.request("PUT", path, body) == (409, reason("Tenant already exist"))
    assert broker.request("POST", path, body) == DONE
    assert ask_json(broker, "GET", path) == (200, body)
    assert broker.request("PUT", path, {"allowedClusters": ["none"]}) == (
        412,
        reason("Clusters do not exist"),
    )
    namespace = f"{NAMESPACES}/{tenant}/x"
    assert broker.request("PUT", namespace) == DONE
    active = reason("The tenant still has active namespaces")
    assert broker.request("DELETE", path) == (409, active)
    assert broker.request("DELETE", namespace) == DONE
    assert broker.request("DELETE", path) == DONE
    assert broker.request("GET", path) == (404, reason("Tenant does not exist"))
    assert broker.request("DELETE", path) == (404, reason("Tenant doesn't exist"))
    assert broker.request("GET", f"{NAMESPACES}/{tenant}") == (404, reason("Tenant not found"))
    assert broker.request("PUT", namespace) == (404, reason("Tenant does not exist"))


def test_a_namespace_comes_and_goes(broker: Broker, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}"
    assert broker.request("PUT", path) == (409, reason("Namespace already exists"))
    tenant = namespace.partition("/")[0]
    assert ask_json(broker, "GET", f"{NAMESPACES}/{tenant}") == (200, [namespace])
    status, policies = ask_json(broker, "GET", path)
    assert (status, policies["replication_clusters"]) == (200, ["standalone"])
    assert (policies["deleted"], policies["properties"]) == (False, {})
    assert ask_json(broker, "GET", f"{path}/bundles") == (200, policies["bundles"])
    topics = f"/admin/v2/persistent/{namespace}"
    assert broker.request("PUT", f"{topics}/t") == DONE
    not_empty = reason("Cannot delete non empty namespace")
    assert broker.request("DELETE", path) == (409, not_empty)
    assert broker.request("DELETE", f"{topics}/t") == DONE
    assert broker.request("DELETE", path) == DONE
    assert broker.request("GET", path) == (404, reason("Namespace does not exist"))
    gone = reason(f"Namespace {namespace} does not exist.")
    assert broker.request("DELETE", path) == (404, gone)
    forced = reason("Broker doesn't allow forced deletion of namespaces")
    assert broker.request("DELETE", f"{path}?force=true") == (405, forced)


def test_a_new_namespace_has_the_policies_of_the_body(broker: Broker, tenant: str) -> None:
    path = f"{NAMESPACES}/{tenant}/y"
    retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": 7}
    body: dict[str, Any] = {"retention_policies": retention, "bundles": {"numBundles": 3}}
    assert broker.request("PUT", path, body) == DONE
    policies = ask_json(broker, "GET", path)[1]
    assert policies["retention_policies"] == retention
    boundaries = ["0x00000000", "0x55555555", "0xaaaaaaaa", "0xffffffff"]
    assert policies["bundles"] == {"boundaries": boundaries, "numBundles": 3}
    status, text = broker.request("PUT", f"{NAMESPACES}/{tenant}/z", {"message_ttl_in_seconds": -1})
    assert (status, text) == (412, reason("Invalid value for message TTL"))


def test_clients_use_a_new_namespace(
    broker: Broker, python_client: pulsar.Client, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    consumer = python_client.subscribe(topic, "s")
    producer = python_client.create_producer(topic)
    producer.send(b"one")
    assert consumer.receive(10_000).data() == b"one"
    listed = ask_json(broker, "GET", f"{NAMESPACES}/{namespace}/topics")
    assert listed == (200, [topic])
    # Everybody is sent away, and comes back.
    assert broker.request("PUT", f"{NAMESPACES}/{namespace}/unload") == DONE
    producer.send(b"two")
    assert b"two" in (consumer.receive(10_000).data(), consumer.receive(10_000).data())
    consumer.close()
    producer.send(b"three")
    assert broker.request("POST", f"{NAMESPACES}/{namespace}/clearBacklog/s") == DONE
    consumer = python_client.subscribe(topic, "s")
    with pytest.raises(pulsar.Timeout):
        consumer.receive(500)
    producer.send(b"four")
    assert consumer.receive(10_000).data() == b"four"
    busy = reason("Subscription has active connected consumers")
    assert broker.request("POST", f"{NAMESPACES}/{namespace}/unsubscribe/s") == (412, busy)
    consumer.close()
    assert broker.request("POST", f"{NAMESPACES}/{namespace}/unsubscribe/s") == DONE


@pytest.mark.parametrize("name", ["public/none", "none/none"])
def test_clients_are_told_that_there_is_no_namespace(
    broker: Broker, python_client: pulsar.Client, name: str
) -> None:
    topic = f"persistent://{name}/t"
    with pytest.raises(pulsar.TopicNotFound):
        python_client.create_producer(topic)
    with pytest.raises(pulsar.TopicNotFound):
        python_client.subscribe(topic, "s")
    missing = reason("Namespace not found")
    for domain in ("persistent", "non-persistent"):
        assert broker.request("GET", f"/lookup/v2/topic/{domain}/{name}/t") == (404, missing)
        topics = f"/admin/v2/{domain}/{name}"
        assert broker.request("PUT", f"{topics}/t") == (404, missing)
        assert broker.request("PUT", f"{topics}/t/partitions", 2) == (404, missing)
        with RawConnection(broker.port) as one:
            for kind, answer in (
                (wire.LOOKUP, wire.LOOKUP_RESPONSE),
                (wire.PARTITIONED_METADATA, wire.PARTITIONED_METADATA_RESPONSE),
            ):
                one.command(kind, {1: f"{domain}://{name}/t", 2: 1})
                frame = one.expect(answer)
                code, message = (6, 7) if kind == wire.LOOKUP else (4, 5)
                assert frame.number(code) == 11
                assert b"Namespace not found" in frame.data(message)
    assert broker.request("GET", f"{NAMESPACES}/{name}/topics")[0] == 404


def test_a_name_that_is_empty_is_none(broker: Broker, tenant: str) -> None:
    """Pulsar's Go client makes namespaces so."""
    path = f"{NAMESPACES}/{tenant}/x"
    names = ("subscription_auth_mode", "schema_compatibility_strategy")
    body = dict.fromkeys((*names, "schema_auto_update_compatibility_strategy"), "")
    assert broker.request("PUT", path, body) == DONE
    policies = ask_json(broker, "GET", path)[1]
    assert [policies[name] for name in names] == ["None", "UNDEFINED"]


def test_words_are_taken_for_booleans(broker: Broker, namespace: str) -> None:
    """Pulsar's Go client sends them."""
    path = f"{NAMESPACES}/{namespace}/encryptionRequired"
    for word, value in (("true", True), ("FALSE", False), ("True", True), ("false", False)):
        assert broker.request("POST", path, word) == DONE
        assert ask_json(broker, "GET", path) == (200, value)
    for wrong in ("x", "tRUE", {}):
        assert broker.request("POST", path, wrong)[0] == 400


def test_properties_of_a_namespace(broker: Broker, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}"
    assert broker.request("PUT", f"{path}/properties", {"a": "b", "n": 1}) == DONE
    assert broker.request("PUT", f"{path}/property/k/v") == DONE
    assert ask_json(broker, "GET", f"{path}/properties") == (200, {"a": "b", "n": "1", "k": "v"})
    assert broker.request("GET", f"{path}/property/k") == (200, "v")
    assert broker.request("DELETE", f"{path}/property/k") == (200, "v")
    assert broker.request("GET", f"{path}/property/k") == (200, "")
    assert broker.request("DELETE", f"{path}/properties") == DONE
    assert ask_json(broker, "GET", f"{path}/properties") == (200, {})


def test_clusters_of_a_namespace(broker: Broker, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}"
    assert ask_json(broker, "GET", f"{path}/replication") == (200, ["standalone"])
    assert broker.request("POST", f"{path}/replication", ["standalone"]) == (200, "")
    invalid = reason("Invalid cluster id: none")
    assert broker.request("POST", f"{path}/replication", ["none"]) == (403, invalid)
    assert ask_json(broker, "GET", f"{path}/allowedClusters") == (200, [])
    assert broker.request("POST", f"{path}/allowedClusters", ["standalone"]) == (200, "")
    assert ask_json(broker, "GET", f"{path}/allowedClusters") == (200, ["standalone"])


def test_grants_of_a_namespace(broker: Broker, namespace: str) -> None:
    path = f"{NAMESPACES}/{namespace}/permissions"
    assert ask_json(broker, "GET", path) == (200, {})
    assert broker.request("POST", f"{path}/r", ["produce"]) == DONE
    assert ask_json(broker, "GET", path) == (200, {"r": ["produce"]})
    assert broker.request("POST", f"{path}/subscription/s", ["r", "q"]) == DONE
    assert broker.request("DELETE", f"{path}/s/r") == DONE
    assert ask_json(broker, "GET", f"{path}/subscription") == (200, {"s": ["q"]})
    assert broker.request("DELETE", f"{path}/r") == DONE
    assert ask_json(broker, "GET", path) == (200, {})


def test_a_namespace_has_no_more_topics_than_it_may_have(
    broker: Broker, python_client: pulsar.Client, tenant: str
) -> None:
    path = f"{NAMESPACES}/{tenant}/few"
    assert broker.request("PUT", path, {"max_topics_per_namespace": 3}) == DONE
    topics = f"/admin/v2/persistent/{tenant}/few"
    full = reason("Exceed maximum number of topics in namespace.")
    assert broker.request("PUT", f"{topics}/p/partitions", 2) == DONE
    assert broker.request("PUT", f"{topics}/q/partitions", 2) == (412, full)
    assert broker.request("PUT", f"{topics}/t") == DONE
    assert broker.request("PUT", f"{topics}/u") == (409, full)
    with pytest.raises(pulsar.NotAllowedError):
        python_client.create_producer(f"persistent://{tenant}/few/u")
    python_client.create_producer(f"persistent://{tenant}/few/p")
    python_client.create_producer(f"non-persistent://{tenant}/few/u")
