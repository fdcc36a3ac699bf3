"""Brokers for the tests of applications: `pyxbroker.testing`, with the official client."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest
from harness.transactions import GoTransactions, assert_nothing

import pyxbroker.testing
from compat_tests.conftest import official_client
from pyxbroker.testing import Broker, BrokerFailed

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_S = 30.0
pytestmark = pytest.mark.pyxbroker


@pytest.fixture
def own() -> Iterator[Broker]:
    with pyxbroker.testing.broker(
        subscriptionExpirationTimeMinutes=120,
        brokerDeleteInactiveTopicsMaxInactiveDurationSeconds=3600,
        managedLedgerMaxLedgerRolloverTimeMinutes=60,
    ) as one:
        yield one


@contextmanager
def client_of(broker: Broker) -> Iterator[pulsar.Client]:
    client = official_client(broker.service_url)
    yield client
    client.close()


def rest(broker: Broker, path: str, method: str = "GET", body: Any = None) -> Any:
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_broker_serves_clients_and_leaves_nothing() -> None:
    with pyxbroker.testing.broker() as broker:
        process = psutil.Process(broker.pid)
        with client_of(broker) as client:
            client.create_producer("orders").send(b"tea")
            reader = client.create_reader("orders", pulsar.MessageId.earliest)
            assert reader.read_next(10_000).data() == b"tea"
        assert rest(broker, "clusters") == ["standalone"]
        assert broker.data_directory.is_dir()
    assert not process.is_running()
    assert not broker.directory.exists()


def test_an_asyncio_block_has_a_broker_too() -> None:
    async def scene() -> Broker:
        async with pyxbroker.testing.broker() as broker:
            assert rest(broker, "clusters") == ["standalone"]
        return broker

    assert not asyncio.run(scene()).directory.exists()


def test_brokers_have_ports_and_data_of_their_own() -> None:
    with pyxbroker.testing.broker() as first, pyxbroker.testing.broker() as second:
        rest(first, "namespaces/public/mine", "PUT")
        assert "public/mine" in rest(first, "namespaces/public")
        assert "public/mine" not in rest(second, "namespaces/public")


def test_a_killed_broker_starts_again_with_its_messages_and_ports(own: Broker) -> None:
    with client_of(own) as client:
        consumer = client.subscribe("orders", "shop")
        client.create_producer("orders").send(b"tea")
        url = own.service_url
        own.kill()
        own.restart()
        assert own.service_url == url
        assert consumer.receive(int(TIMEOUT_S * 1000)).data() == b"tea"
        own.restart()  # SIGTERM
        assert own.service_url == url


def test_a_paused_broker_answers_nothing_until_it_is_resumed(own: Broker) -> None:
    with client_of(own) as client:
        producer = client.create_producer("orders")
        answers: list[pulsar.Result] = []
        own.pause()
        producer.send_async(b"tea", lambda result, _: answers.append(result))
        time.sleep(0.3)
        assert answers == []
        own.resume()
        wait_until(lambda: answers == [pulsar.Result.Ok])


def test_files_and_log_of_a_failed_block_stay(capsys: pytest.CaptureFixture[str]) -> None:
    broker = pyxbroker.testing.broker()
    with pytest.raises(ZeroDivisionError), broker:
        1 / 0  # noqa: B018
    printed = capsys.readouterr().err
    assert "is ready in" in printed
    assert f"The files of the broker are in {broker.directory}" in printed
    assert broker.data_directory.is_dir()
    broker.keeps_files = False
    broker.close()
    assert not broker.directory.exists()


def test_a_start_that_fails_gives_the_reason_and_leaves_nothing() -> None:
    broker = pyxbroker.testing.broker(maxMessageSize="much")
    with pytest.raises(BrokerFailed, match="maxMessageSize"):
        broker.open()
    assert not broker.directory.exists()


def test_settings_of_brokers_in_the_environment_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PULSAR_PREFIX_clusterName", "elsewhere")
    with pyxbroker.testing.broker() as broker:
        assert rest(broker, "clusters") == ["standalone"]


STARTS = """
import sys, time
import pyxbroker.testing
broker = pyxbroker.testing.broker()
broker.open()
if sys.argv[1] == "paused":
    pid = broker.pid
    broker.pause()
print(broker._process.pid, broker.directory, flush=True)
if sys.argv[1] != "ends":
    time.sleep(60)
"""


@pytest.mark.parametrize("state", ["serves", "paused", "ends"])
def test_nothing_outlives_a_killed_test_process(state: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, state], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        pid, directory = started.stdout.readline().split()
        process = psutil.Process(int(pid))
        if state != "ends":
            os.kill(started.pid, signal.SIGKILL)
        started.wait(TIMEOUT_S)
        wait_until(lambda: not process.is_running() and not Path(directory).exists())


# --- the clock ---------------------------------------------------------------------------------


def test_delayed_messages_are_due_when_the_clock_is_set_ahead(own: Broker) -> None:
    with client_of(own) as client:
        consumer = client.subscribe("orders", "shop", pulsar.ConsumerType.Shared)
        producer = client.create_producer("orders")
        producer.send(b"later", deliver_after=timedelta(hours=2))
        producer.send(b"soon", deliver_after=timedelta(hours=1))
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
        own.advance(hours=1)
        assert consumer.receive(5000).data() == b"soon"
        with pytest.raises(pulsar.Timeout):
            consumer.receive(300)
        own.advance(hours=1)
        assert consumer.receive(5000).data() == b"later"


def test_messages_expire_when_the_clock_is_set_ahead(own: Broker) -> None:
    rest(own, "namespaces/public/default/messageTTL", "POST", 600)
    with client_of(own) as client:
        client.subscribe("orders", "shop").close()
        client.create_producer("orders").send(b"tea")
        own.advance(seconds=590)
        assert backlog(own, "shop") == 1
        own.advance(seconds=11)
        wait_until(lambda: backlog(own, "shop") == 0)


def backlog(broker: Broker, subscription: str) -> int:
    stats = rest(broker, "persistent/public/default/orders/stats")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def test_subscriptions_and_topics_expire_when_the_clock_is_set_ahead(own: Broker) -> None:
    with client_of(own) as client:
        client.subscribe("orders", "shop").close()
        own.advance(minutes=119)
        topic = "persistent/public/default/orders"
        assert rest(own, f"{topic}/subscriptions") == ["shop"]
        own.advance(minutes=2)
        wait_until(lambda: "shop" not in subscriptions(own))
        own.advance(minutes=61)
        wait_until(lambda: rest(own, "persistent/public/default") == [])


def subscriptions(broker: Broker) -> list[str]:
    topics = rest(broker, "persistent/public/default")
    return rest(broker, "persistent/public/default/orders/subscriptions") if topics else []


def test_retained_messages_are_deleted_when_the_clock_is_set_ahead(own: Broker) -> None:
    policy = {"retentionTimeInMinutes": 120, "retentionSizeInMB": -1}
    rest(own, "namespaces/public/default/retention", "POST", policy)
    topic = "persistent/public/default/orders"

    def ledgers() -> list[int]:
        return [each["ledgerId"] for each in rest(own, f"{topic}/internalStats")["ledgers"]]

    with client_of(own) as client:
        producer = client.create_producer("orders")
        producer.send(b"tea")
        first = ledgers()[0]
        own.advance(minutes=61)  # closes the ledger
        wait_until(lambda: len(ledgers()) == 2)
        own.advance(minutes=119)
        assert ledgers()[0] == first
        own.advance(minutes=2)
        wait_until(lambda: first not in ledgers())
        producer.send(b"clients stay connected")


def test_the_clock_stays_ahead_after_a_restart(own: Broker) -> None:
    rest(own, "namespaces/public/default/messageTTL", "POST", 600)
    with client_of(own) as client:
        client.subscribe("orders", "shop").close()
        client.create_producer("orders").send(b"tea")
    own.advance(seconds=500)
    own.restart()
    with client_of(own) as client:
        client.create_producer("orders")  # opens the topic, whose messages are checked then
        own.advance(seconds=101)
        wait_until(lambda: backlog(own, "shop") == 0)


def test_the_clock_of_a_broker_that_was_paused_or_killed_is_not_set(own: Broker) -> None:
    own.pause()
    with pytest.raises(BrokerFailed, match="paused"):
        own.advance(hours=1)
    own.kill()
    with pytest.raises(BrokerFailed, match="does not run"):
        own.advance(hours=1)
    with pytest.raises(ValueError):
        own.advance(hours=-1)


def test_transactions_work_and_time_out_by_the_clock() -> None:
    with pyxbroker.testing.broker(transactionCoordinatorEnabled=True) as broker:
        client = GoTransactions(broker.service_url)
        producer, consumer = client.producer("t"), client.consumer("t")
        committed, forgotten = client.begin(), client.begin(timeout_ms=3_600_000)
        producer.send(b"committed", committed)
        producer.send(b"forgotten", forgotten)
        producer.send(b"plain")
        committed.commit()
        assert consumer.receive().data == b"committed"
        assert_nothing(consumer)
        broker.advance(hours=2)
        assert consumer.receive().data == b"plain"
        client.close()
