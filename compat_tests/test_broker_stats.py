"""What brokers tell of themselves, as Apache Pulsar does (BROKER=apache asks Pulsar)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pulsar
from harness.brokers import Broker

from compat_tests.conftest import BrokerFactory

RATES_OUT = {"msgRateOut", "msgThroughputOut", "msgRateRedeliver", "messageAckRate"}
OF_TOPIC = {
    *("publishers", "replication", "subscriptions", "producerCount", "averageMsgSize"),
    *("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "storageSize"),
    *("msgInCount", "bytesInCount", "msgOutCount", "bytesOutCount", "backlogSize"),
    *("pendingAddEntriesCount", "filteredEntriesCount"),
}
OF_SUBSCRIPTION = {
    *RATES_OUT,
    *("consumers", "msgBacklog", "msgRateExpired", "type"),
    *("numberOfEntriesSinceFirstNotAckedMessage", "totalNonContiguousDeletedMessagesRange"),
    *("filterProcessedMsgCount", "filterAcceptedMsgCount", "filterRejectedMsgCount"),
    "filterRescheduledMsgCount",
}
OF_CONSUMER = {
    *RATES_OUT,
    *("address", "consumerName", "availablePermits", "connectedSince", "avgMessagesPerEntry"),
    *("clientVersion", "metadata"),
}
OF_PUBLISHER = {
    *("msgRateIn", "msgThroughputIn", "averageMsgSize", "address", "producerId"),
    *("producerName", "connectedSince", "clientVersion", "metadata"),
}


# Apache Pulsar tells what it saw at intervals.
BROKER_SETTINGS = {"statsUpdateInitialDelayInSecs": "1", "statsUpdateFrequencyInSecs": "1"}
WAIT_S = 20.0


def statistics_of(broker: Broker, topic: str) -> tuple[str, dict[str, Any]]:
    """Its broker, and what broker-stats tell of a topic, once they know its three messages."""
    deadline = time.monotonic() + WAIT_S
    while True:
        for url in broker.web_urls():
            status, _, data = broker.exchange("GET", "/admin/v2/broker-stats/topics", at=url)
            assert status == 200
            for domains in json.loads(data).get("public/default", {}).values():
                told: dict[str, Any] = domains["persistent"].get(topic, {"msgInCount": 0})
                if told["msgInCount"] == 3:
                    return url, told
        assert time.monotonic() < deadline, data
        time.sleep(0.1)


def test_broker_stats(broker: Broker, client: pulsar.Client, topic: str) -> None:
    at = "/admin/v2/broker-stats"
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for _ in range(3):
        producer.send(b"hello")
    consumer.acknowledge(consumer.receive(10_000))
    owner, told = statistics_of(broker, topic)
    assert set(told) == OF_TOPIC
    subscription = told["subscriptions"]["s"]
    assert set(subscription) == OF_SUBSCRIPTION
    assert set(subscription["consumers"][0]) == OF_CONSUMER
    assert set(told["publishers"][0]) == OF_PUBLISHER
    assert (told["producerCount"], subscription["type"]) == (1, "Exclusive")
    status, _, data = broker.exchange("GET", f"{at}/bookieops", at=owner)
    assert status == 200
    operations = json.loads(data)
    assert set(operations["public/default"][topic]) == {
        f"{whose}Ledger{what}Op"
        for whose in ("data", "cursor")
        for what in ("Open", "Close", "Create", "Delete")
    }
    for path in ("metrics", "mbeans"):
        status, numbers = broker.rest("GET", f"{at}/{path}")
        assert (status, isinstance(numbers, list)) == (200, True)
    status, report = broker.rest("GET", f"{at}/load-report")
    assert status == 200
    assert report["loadReportType"] == "LocalBrokerData"
    ports = [url.rpartition(":")[2] for url in broker.web_urls()]
    assert report["webServiceUrl"].rpartition(":")[2] in ports
    for name in ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut"):
        assert set(report[name]) == {"usage", "limit"}
    status, allocator = broker.rest("GET", f"{at}/allocator-stats/default")
    assert (status, isinstance(allocator["directArenas"], list)) == (200, True)
    wrong = (406, {"reason": "Invalid allocator name : none"})
    assert broker.rest("GET", f"{at}/allocator-stats/none") == wrong
    availability = f"{at}/broker-resource-availability/public/default"
    assert broker.rest("GET", availability)[0] == 409


def test_the_status_for_a_load_balancer(own_broker: BrokerFactory, tmp_path: Path) -> None:
    path = tmp_path / "status"
    path.write_text("")
    one = own_broker(settings={"statusFilePath": str(path)})
    one.start()
    assert one.request("GET", "/status.html") == (200, "OK")


def test_there_is_no_status_without_a_file(broker: Broker) -> None:
    assert broker.http_status("/status.html") == 404
