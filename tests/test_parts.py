"""The parts of roles/ make a broker without a storage of its own, too."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

from model_bookies import ModelBookie
from pyxbroker.add_stats import PublishLatency
from pyxbroker.cluster.initialize import ClusterSettings, initialize
from pyxbroker.roles import parts
from pyxbroker.roles.early_parts import listeners_of, make_metadata_store, open_ports
from pyxbroker.roles.process_metrics import ProcessMetrics
from pyxbroker.settings.config import Config


class FarStorage:
    """The view of a storage that always accepts writes."""

    refusal = None
    shortage = None
    has_failed = False

    def on_change(self, callback: Callable[[], None]) -> None: ...

    def set_holding(self, on: bool) -> None: ...

    def take_back(self) -> None: ...


def fetch(url: str, body: bytes | None = None, method: str = "GET") -> bytes:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return bytes(answer.read())


async def serve_and_stop(config: Config, directory: Path) -> None:
    ports = open_ports(config)
    listeners = listeners_of(config, ports)
    metadata = make_metadata_store(config, directory)
    await metadata.open()
    own = listeners.own
    await initialize(metadata, ClusterSettings("standalone", own.web_url, own.broker_url))
    connections = parts.make_connections(config)
    bookies = {
        name: ModelBookie(directory / name, connections.turn, name, seed)
        for seed, name in enumerate(("a:1", "b:1"))
    }
    latency = PublishLatency()
    ledgers = parts.make_ledgers(config, metadata, bookies, connections.turn, latency)
    broker = parts.make_broker(
        config, metadata, ledgers, connections, FarStorage(), listeners, None
    )
    await parts.serve_ports(broker, ports)
    web = parts.serve_web(
        broker, ports, lambda: ProcessMetrics(broker, ports, None, latency, web, None)
    )
    assert web is not None
    loop = asyncio.get_running_loop()
    topic = f"{own.web_url}/topics/persistent/public/default/t"
    admin = f"{own.web_url}/admin/v2/persistent/public/default/t"
    await loop.run_in_executor(None, fetch, admin, b"", "PUT")
    message = json.dumps({"messages": [{"payload": "x"}]}).encode()
    answer = json.loads(await loop.run_in_executor(None, fetch, topic, message, "POST"))
    assert answer["messagePublishResults"][0]["errorCode"] == 0, answer
    series = (await loop.run_in_executor(None, fetch, own.web_url + "/metrics")).decode()
    assert "pulsar_topics_count" in series
    await broker.stop_background()
    for port in ports.brokers:
        port.close()
    await web.stop()
    broker.publish_gate.close()
    await broker.stop()
    for bookie in bookies.values():
        await bookie.inner.close()
    await metadata.close()


def test_a_broker_is_composed_without_a_storage_of_its_own(tmp_path: Path) -> None:
    config = Config(
        bindAddress="127.0.0.1",
        advertisedAddress="127.0.0.1",
        brokerServicePort=0,
        webServicePort=0,
        managedLedgerDefaultEnsembleSize=2,
        managedLedgerDefaultWriteQuorum=2,
        managedLedgerDefaultAckQuorum=2,
    )
    asyncio.run(asyncio.wait_for(serve_and_stop(config, tmp_path), 60))
