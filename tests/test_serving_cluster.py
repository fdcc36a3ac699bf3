"""The peer cluster that serves a namespace which the local cluster does not serve."""

from __future__ import annotations

import json
import re

import pytest

from metadata_backends import coroutine_test
from pyxbroker.base.errors import NamespaceOfOtherClusters
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.serving_cluster import ServingCluster
from pyxbroker.metadata import paths
from pyxbroker.metadata.cache import MetadataCache
from pyxbroker.metadata.memory import MemoryStore


async def serving(tree: str, namespace: dict[str, object], **clusters: object) -> ServingCluster:
    store = MemoryStore(tree)
    await store.open()
    await store.put(paths.namespace_policies("t/n"), json.dumps(namespace).encode())
    for name, record in clusters.items():
        await store.put(paths.cluster(name), json.dumps(record).encode())
    return ServingCluster("west", MetadataCache(store))


@coroutine_test
async def test_a_cluster_serves_its_namespaces_and_those_of_no_cluster() -> None:
    for number, record in enumerate(
        (
            {"replication_clusters": ["east", "west"]},
            {"replication_clusters": ["east"], "allowed_clusters": ["east", "west"]},
            {"replication_clusters": []},
            {},
        )
    ):
        one = await serving(f"serves-{number}", record, west={"peerClusterNames": ["east"]})
        assert await one.peer_of("t/n") is None
        assert await one.peer_of("t/none") is None


@coroutine_test
async def test_the_first_peer_that_serves_the_namespace_is_named() -> None:
    north = {
        "serviceUrl": "http://n1:8080,n2:8080/",
        "serviceUrlTls": "https://n1:8443",
        "brokerServiceUrl": "pulsar://n1:6650,n2:6650",
    }
    one = await serving(
        *("first", {"replication_clusters": ["north", "south"]}),
        west={"peerClusterNames": ["east", "north", "south"]},
        north=north,
        south={"serviceUrl": "http://s:8080"},
    )
    assert await one.peer_of("t/n") == Addresses(
        "pulsar://n1:6650", "http://n1:8080", "", "https://n1:8443"
    )


@coroutine_test
async def test_without_a_peer_the_namespace_is_refused_in_the_words_of_pulsar() -> None:
    sentence = (
        "Namespace missing local cluster name in clusters list: local_cluster=west ns=t/n"
        " clusters=[east]"
    )
    for number, west in enumerate(({}, {"peerClusterNames": ["north"]}, {"peerClusterNames": 1})):
        one = await serving(f"none-{number}", {"replication_clusters": ["east"]}, west=west)
        with pytest.raises(NamespaceOfOtherClusters, match=re.escape(sentence)):
            await one.peer_of("t/n")
