"""A disk whose reads fail for a while: everything comes, in order, and what is done stays done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from harness.brokers import Broker
from harness.errors import Errors, build_errors

from compat_tests.conftest import official_client

pytestmark = pytest.mark.pyxbroker

COUNT = 20_000
BYTES = 4096
FAILS_AT = 3_000


class Failing:
    """A broker under the library that lets its disk calls fail."""

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.broker = Broker("pyxbroker", directory / "broker", settings=settings)
        library = build_errors(directory)
        self.broker.data.mkdir(parents=True)
        self.errors = Errors(library, self.broker.data, directory / "errors")
        self.broker.environment = self.errors.environment()

    @contextlib.contextmanager
    def client(self) -> Iterator[pulsar.Client]:
        client = official_client(self.broker.url)
        try:
            yield client
        finally:
            client.close()


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Failing]:
    # Not kept in memory for long: what is read comes from entry logs.
    one = Failing(tmp_path, {"dbStorage_writeCacheMaxSizeMb": "16"})
    one.broker.start()
    yield one
    one.broker.close()
    one.errors.close()


def payload(number: int) -> bytes:
    return b"%08d" % number + b"x" * (BYTES - 8)


def fill(failing: Failing, topic: str, count: int = COUNT) -> None:
    with failing.client() as client:
        client.subscribe(topic, "s").close()
        producer = client.create_producer(
            topic, block_if_queue_full=True, batching_enabled=False, max_pending_messages=5000
        )
        for number in range(count):
            producer.send_async(payload(number), lambda *_: None)
        producer.flush()


def lines(failing: Failing, event: str) -> int:
    output = (failing.broker.directory / "output.log").read_text(errors="replace")
    return output.count(event)


@pytest.mark.parametrize("kind", ["Exclusive", "Failover", "Shared", "KeyShared", "reader"])
def test_a_second_of_read_errors_loses_and_reorders_nothing(failing: Failing, kind: str) -> None:
    topic = "persistent://public/default/errors"
    fill(failing, topic)
    failing.broker.stop()
    failing.broker.start()
    found = []
    with failing.client() as client:
        if kind == "reader":
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            following = lambda: reader.read_next(timeout_millis=10_000)  # noqa: E731
        else:
            consumer = client.subscribe(
                topic, "s", consumer_type=getattr(pulsar.ConsumerType, kind)
            )
            following = lambda: consumer.receive(timeout_millis=10_000)  # noqa: E731
        while len(found) < COUNT:
            if len(found) == FAILS_AT:
                rule = failing.errors.rule("entry_log", "read", error="EIO", seconds=1.0)
            message = following()
            found.append(int(message.data()[:8]))
            if kind in ("Exclusive", "Failover"):
                consumer.acknowledge_cumulative(message)
            elif kind != "reader":
                consumer.acknowledge(message)
    assert failing.errors.hits(rule) > 0
    assert found == list(range(COUNT))
    assert lines(failing, "a read failed; the broker retries") >= 1
    assert lines(failing, "a read failed; the broker retries") <= 4
    assert lines(failing, "entries cannot be delivered") == 0
    assert lines(failing, "damaged") == 0
    if kind != "reader":
        # Nothing was covered by an acknowledgement that its consumer never got.
        failing.broker.stop()
        failing.broker.start()
        with failing.client() as client:
            again = client.subscribe(topic, "s")
            with pytest.raises(pulsar.Timeout):
                again.receive(timeout_millis=1500)


def test_a_topic_that_opens_while_reads_fail_keeps_what_was_acknowledged(failing: Failing) -> None:
    topic = "persistent://public/default/errors"
    fill(failing, topic, 3_000)
    with failing.client() as client:
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        # A hole first, so that the state is more than a mark.
        messages = [consumer.receive(timeout_millis=10_000) for _ in range(1000)]
        messages += [consumer.receive(timeout_millis=10_000) for _ in range(1500)]
        for message in messages[1:]:
            consumer.acknowledge(message)
        # The client sends them within a tenth of a second, the broker stores them within one.
        time.sleep(2)
    # What comes now moves them from memory to entry logs.
    fill(failing, "persistent://public/default/other", 12_000)
    failing.broker.kill()
    failing.broker.start()
    fill(failing, "persistent://public/default/other", 12_000)
    failing.broker.kill()
    failing.broker.start()
    rule = failing.errors.rule("entry_log", "read", error="EIO", seconds=2.0)
    with failing.client() as client:
        consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
        found = [int(consumer.receive(timeout_millis=10_000).data()[:8]) for _ in range(501)]
        with pytest.raises(pulsar.Timeout):
            consumer.receive(timeout_millis=1000)
    assert failing.errors.hits(rule) > 0
    assert found == [0, *range(2500, 3000)]
