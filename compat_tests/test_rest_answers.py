"""The answers of REST: status and body, as Apache Pulsar gives them (BROKER=apache asks it)."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

PERSISTENT = "/admin/v2/persistent/public/default"
NOT_THERE = "/admin/v2/persistent/public/no-such-namespace"
DONE = (204, "")


def ask_json(broker: Broker, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of an answer; of a refusal the status alone."""
    status, text = broker.request(method, path, body)
    return (status, None) if status >= 400 else (status, json.loads(text))


def local(topic: str) -> str:
    return topic.rpartition("/")[2]


def test_clusters_and_the_state_of_the_broker(broker: Broker) -> None:
    assert ask_json(broker, "GET", "/admin/v2/clusters") == (200, ["standalone"])
    assert broker.request("GET", "/admin/v2/brokers/health") == (200, "ok")
    assert broker.request("GET", "/admin/v2/brokers/ready") == (200, "ok")
    status, version = broker.request("GET", "/admin/v2/brokers/version")
    assert status == 200
    assert re.fullmatch(r"\d+\.\d+[\w.-]*", version)


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
def test_a_lookup_has_the_addresses_of_the_broker(broker: Broker, topic: str, domain: str) -> None:
    path = f"/lookup/v2/topic/{domain}/public/default/{local(topic)}"
    status, answer = ask_json(broker, "GET", path)
    assert status == 200
    assert set(answer) == {"brokerUrl", "httpUrl", "nativeUrl", "brokerUrlSsl"}
    assert answer["brokerUrl"] == answer["nativeUrl"]
    assert int(answer["brokerUrl"].rpartition(":")[2]) in broker.ports()
    ports = [url.rpartition(":")[2] for url in broker.web_urls()]
    assert answer["httpUrl"].rpartition(":")[2] in ports
    assert answer["brokerUrlSsl"] == ""


def test_partitions_are_made_told_added_and_deleted(broker: Broker, topic: str) -> None:
    path = f"{PERSISTENT}/{local(topic)}/partitions"
    none = {"partitions": 0, "deleted": False}
    assert broker.request("POST", path, 2)[0] == 409
    assert broker.request("DELETE", path)[0] == 404
    assert broker.request("PUT", path, 0)[0] == 406
    assert broker.request("PUT", path, 3) == DONE
    assert broker.request("PUT", path, 3)[0] == 409
    assert ask_json(broker, "GET", path) == (200, {"partitions": 3, "deleted": False})
    assert broker.request("POST", path, 2)[0] == 422
    assert broker.request("POST", path, 5) == DONE
    assert ask_json(broker, "GET", path) == (200, {"partitions": 5, "deleted": False})
    assert broker.request("DELETE", path) == DONE
    assert ask_json(broker, "GET", path + "?checkAllowAutoCreation=true") == (200, none)
    assert broker.request("PUT", f"{NOT_THERE}/t/partitions", 3)[0] == 404


def test_a_topic_is_made_and_deleted(broker: Broker, topic: str) -> None:
    path = f"{PERSISTENT}/{local(topic)}"
    assert broker.request("DELETE", path)[0] == 404
    assert broker.request("PUT", path) == DONE
    assert broker.request("PUT", path)[0] == 409
    with RawConnection(broker.port) as one:
        one.producer(topic)
        assert broker.request("DELETE", path)[0] == 412
    assert broker.request("DELETE", path + "?force=true") == DONE
    assert broker.request("DELETE", path)[0] == 404
    assert broker.request("PUT", f"{NOT_THERE}/t")[0] == 404


def test_topics_are_listed(broker: Broker, topic: str) -> None:
    plain, divided = local(topic) + "-plain", local(topic) + "-divided"
    assert broker.request("PUT", f"{PERSISTENT}/{plain}") == DONE
    assert broker.request("PUT", f"{PERSISTENT}/{divided}/partitions", 2) == DONE
    prefix = topic.rpartition("/")[0] + "/"
    status, topics = ask_json(broker, "GET", PERSISTENT)
    mine = {each for each in topics if each.startswith(prefix + local(topic))}
    parts = {f"{prefix}{divided}-partition-{number}" for number in range(2)}
    assert (status, mine) == (200, {prefix + plain, *parts})
    status, topics = ask_json(broker, "GET", PERSISTENT + "/partitioned")
    mine = {each for each in topics if each.startswith(prefix + local(topic))}
    assert (status, mine) == (200, {prefix + divided})
    for path in (NOT_THERE, NOT_THERE + "/partitioned"):
        assert broker.request("GET", path)[0] == 404


def test_a_subscription_is_deleted(broker: Broker, topic: str) -> None:
    path = f"{PERSISTENT}/{local(topic)}/subscription/s"
    with RawConnection(broker.port) as one:
        assert one.subscribe(topic, "s").type == wire.SUCCESS
        assert broker.request("DELETE", path)[0] == 412
        assert broker.request("DELETE", path + "?force=true") == DONE
    assert broker.request("DELETE", path)[0] == 404
    assert broker.request("DELETE", f"{PERSISTENT}/no-such-topic/subscription/s")[0] == 404


def test_a_termination_tells_the_last_message(broker: Broker, topic: str) -> None:
    path = f"{PERSISTENT}/{local(topic)}"
    assert broker.request("POST", path + "/terminate")[0] == 404
    with RawConnection(broker.port) as one:
        one.producer(topic)
        one.send(b"m", 0)
        ledger, entry = wire.position(one.expect(wire.SEND_RECEIPT).data(3))
    status, last = ask_json(broker, "POST", path + "/terminate")
    assert (status, last["ledgerId"], last["entryId"]) == (200, ledger, entry)
    assert last["partitionIndex"] == -1
    divided = f"{PERSISTENT}/{local(topic)}-divided"
    assert broker.request("PUT", divided + "/partitions", 2) == DONE
    assert broker.request("POST", divided + "/terminate")[0] == 405
    status, last = ask_json(broker, "POST", divided + "/terminate/partitions")
    assert (status, sorted(last)) == (200, ["0", "1"])
    assert {each["entryId"] for each in last.values()} == {-1}


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/admin/v2/clusters", "GET, HEAD, OPTIONS"),
        (f"{PERSISTENT}/t/unload", "OPTIONS, PUT"),
        ("/lookup/v2/topic/persistent/public/default/t", "GET, HEAD, OPTIONS"),
        ("/topics/persistent/public/default/t", "OPTIONS, POST"),
    ],
)
def test_options_has_the_methods_of_a_path(broker: Broker, path: str, methods: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.web_port, timeout=60)
    try:
        connection.request("OPTIONS", path)
        answer = connection.getresponse()
        allowed = re.split(", ?", answer.headers["Allow"])
        assert (answer.status, sorted(allowed)) == (200, methods.split(", "))
    finally:
        connection.close()


def test_options_of_what_is_not_there_is_404(broker: Broker) -> None:
    assert broker.request("OPTIONS", "/admin/v2/none")[0] == 404
