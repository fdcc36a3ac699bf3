"""What REST tells of brokers, as Apache Pulsar does."""

from __future__ import annotations

import pulsar
import pytest
from harness.brokers import Broker
from harness.web import web

BROKERS = "/admin/v2/brokers"


@pytest.fixture
def broker_id(broker: Broker) -> str:
    found = web(broker, "GET", f"{BROKERS}/leaderBroker").json()
    assert found["serviceUrl"] == f"http://{found['brokerId']}"
    return str(found["brokerId"])


@pytest.mark.standalone
def test_the_only_broker_is_listed_and_leads(broker: Broker, broker_id: str) -> None:
    assert broker_id.endswith(f":{broker.web_port}")
    for path in ("", "/standalone", "/any-other-cluster"):
        assert web(broker, "GET", BROKERS + path).json() == [broker_id]


def test_the_bundles_of_a_broker_are_those_of_its_topics(
    broker: Broker, python_client: pulsar.Client
) -> None:
    python_client.create_producer("persistent://public/default/owned")
    lookup = "/lookup/v2/topic/persistent/public/default/owned"
    bundle = web(broker, "GET", f"{lookup}/bundle").body.decode()
    broker_id = web(broker, "GET", lookup).json()["httpUrl"].removeprefix("http://")
    owned = web(broker, "GET", f"{BROKERS}/standalone/{broker_id}/ownedNamespaces").json()
    assert owned[f"public/default/{bundle}"] == {
        **{"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    }


def test_another_broker_is_not_found(broker: Broker, broker_id: str) -> None:
    reason = "Broker id 'nowhere:1' not found in available brokers."
    for path in ("standalone/nowhere:1/ownedNamespaces", "health?brokerId=nowhere:1"):
        answer = web(broker, "GET", f"{BROKERS}/{path}")
        assert (answer.status, answer.reason) == (404, reason)
    assert web(broker, "GET", f"{BROKERS}/health?brokerId={broker_id}").body == b"ok"


@pytest.mark.standalone
def test_the_place_of_the_metadata_is_told(broker: Broker) -> None:
    found = web(broker, "GET", f"{BROKERS}/internal-configuration").json()
    assert set(found) == {
        *("zookeeperServers", "configurationStoreServers", "metadataStoreUrl"),
        *("configurationMetadataStoreUrl", "ledgersRootPath"),
    }
    assert found["ledgersRootPath"] == "/ledgers"


def test_quotas_are_looked_at_when_asked_for(broker: Broker) -> None:
    assert broker.request("GET", f"{BROKERS}/backlog-quota-check") == (204, "")


@pytest.mark.standalone
def test_racks_of_bookies_are_kept(broker: Broker) -> None:
    [bookie] = web(broker, "GET", "/admin/v2/bookies/all").json()["bookies"]
    assert bookie["bookieId"]
    racks = "/admin/v2/bookies/racks-info"
    one = f"{racks}/127.0.0.1:3181"
    missing = web(broker, "POST", one, {"rack": "/r"})
    assert (missing.status, missing.reason) == (412, "Bookie 'group' parameters is missing")
    # Racks have no region without the region-aware policy.
    invalid = web(broker, "POST", f"{one}?group=g", {"rack": "/region/rack/"})
    assert (invalid.status, invalid.reason.partition(",")[0]) == (
        *(412,),
        "Bookie 'rack' parameter is invalid",
    )
    info = {"rack": "/r1", "hostname": "h"}
    assert broker.request("POST", f"{one}?group=g", info) == (204, "")
    assert web(broker, "GET", racks).json() == {"g": {"127.0.0.1:3181": info}}
    assert web(broker, "GET", one).json() == info
    # A bookie is in one group.
    assert broker.request("POST", f"{one}?group=h", {"rack": "/r2"}) == (204, "")
    assert web(broker, "GET", racks).json() == {"h": {"127.0.0.1:3181": {"rack": "/r2"}}}
    assert broker.request("DELETE", one) == (204, "")
    assert web(broker, "GET", racks).json() == {}
    for method in ("GET", "DELETE"):
        answer = web(broker, method, one)
        assert (answer.status, answer.reason) == (
            *(404,),
            "Bookie rack placement configuration not found: 127.0.0.1:3181",
        )


@pytest.mark.standalone
def test_resource_quotas_are_kept(broker: Broker) -> None:
    path = "/admin/v2/resource-quotas"
    usual = web(broker, "GET", path).json()
    assert usual == {
        **{"msgRateIn": 40.0, "msgRateOut": 120.0, "bandwidthIn": 100_000.0},
        **{"bandwidthOut": 300_000.0, "memory": 80.0, "dynamic": True},
    }
    one = f"{path}/public/default/0x00000000_0x40000000"
    assert web(broker, "GET", one).json() == usual
    quota = {**usual, "msgRateIn": 1.5, "dynamic": False}
    assert broker.request("POST", one, quota) == (204, "")
    assert web(broker, "GET", one).json() == quota
    assert broker.request("DELETE", one) == (204, "")
    assert web(broker, "GET", one).json() == usual
    assert web(broker, "DELETE", one).status == 404
    wrong = web(broker, "GET", f"{path}/public/default/1")
    assert (wrong.status, wrong.reason) == (412, "Invalid bundle range: 1")
    assert broker.request("POST", path, {**usual, "memory": 8}) == (204, "")
    assert web(broker, "GET", path).json() == {**usual, "memory": 8.0}


@pytest.mark.pyxbroker
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("bookies/racks-info/b?group=g", []),
        ("bookies/racks-info/b?group=g", {"rack": ["r"]}),
        ("bookies/racks-info/b?group=g", {"rack": "r" * 257}),
        ("resource-quotas", {"memory": "much"}),
        ("resource-quotas", {"dynamic": "maybe"}),
        ("resource-quotas", []),
    ],
)
def test_records_that_cannot_be_are_refused(broker: Broker, path: str, body: object) -> None:
    answer = web(broker, "POST", f"/admin/v2/{path}", body)
    assert (answer.status, bool(answer.reason)) == (400, True)


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        (
            *("/admin/v3/transactions/coordinators", 503),
            "This Broker is not configured with transactionCoordinatorEnabled=true.",
        ),
        *(
            (
                *(f"/admin/{path}", 409),
                "Pulsar Function Worker is not enabled, probably functionsWorkerEnabled is set to"
                " false",
            )
            for path in (
                "v3/functions/public/default",
                "v3/sources/public/default",
                "v3/sinks/public/default",
                "v2/worker/cluster",
                "v2/worker-stats/metrics",
            )
        ),
    ],
)
def test_parts_that_are_off_answer_as_without_them(
    broker: Broker, path: str, status: int, reason: str
) -> None:
    answer = web(broker, "GET", path)
    assert (answer.status, answer.reason) == (status, reason)


@pytest.mark.pyxbroker
def test_what_is_not_built_is_501_with_a_sentence(broker: Broker) -> None:
    topic = "/admin/v2/persistent/public/default/not-built"
    assert web(broker, "PUT", topic).status == 204
    for method, path in (
        ("PUT", f"{topic}/shadowTopics"),
        ("GET", "/admin/v2/namespaces/public/default/scanOffloadedLedgers"),
        ("POST", "/admin/v2/clusters/standalone/migrate"),
    ):
        answer = web(broker, method, path)
        assert (answer.status, answer.reason.endswith(".")) == (501, True)
