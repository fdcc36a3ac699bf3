"""What becomes of the rows of a task while a broker is away for longer than a send may take: all
are there when Spark has run the task again. The task as such, without Spark.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness.brokers import Broker

from compat_tests.conftest import BrokerFactory
from compat_tests.spark_rows import rows_of, sent_once, sink_options
from pyxbroker.spark.broker_connection import CLIENT_VERSION
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.exactly_once import ExactlyOnce
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.sequence import Part

pytestmark = pytest.mark.spark

SEND_S, ASKING_S = 3.0, 6.0
LIMITS = {
    "pulsar.producer.sendTimeoutMs": f"{SEND_S * 1000:.0f}",
    "pulsar.producer.maxPendingMessages": "10",
    "pulsar.client.operationTimeoutMs": f"{ASKING_S * 1000:.0f}",
}
PART = Part("query", 0, 3)


class Mute:
    """Listens where a broker was, and answers nobody. When the connector asks on its own why that
    is, the official client is sent away, so that it tries again at once; the question is kept.
    """

    def __init__(self, port: int) -> None:
        self.is_asked = threading.Event()
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                made, _ = self._listener.accept()
                if CLIENT_VERSION.encode() in made.recv(4096):
                    self._close_kept()
                    self.is_asked.set()
                self._kept.append(made)

    def leave(self) -> None:
        """Its place is free for a broker; who asked goes on waiting."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def close(self) -> None:
        self._close_kept()

    def _close_kept(self) -> None:
        while self._kept:
            self._kept.pop().close()


@pytest.fixture
def remembering(own_broker: BrokerFactory) -> Broker:
    """A broker with deduplication, which keeps what nobody has subscribed to."""
    broker = own_broker(
        settings={
            "brokerDeduplicationEnabled": "true",
            "defaultRetentionTimeInMinutes": "-1",
            "defaultRetentionSizeInMB": "-1",
        }
    )
    broker.start()
    return broker


@pytest.fixture(params=[0, 3], ids=["one", "partitions"])
def target(request: pytest.FixtureRequest, remembering: Broker, topic: str) -> str:
    """A topic, or one with partitions."""
    if request.param:
        path = f"/admin/v2/{topic.replace('://', '/')}/partitions"
        assert remembering.rest("PUT", path, request.param)[0] == 204
    return topic


def messages_of(topic: str, count: int) -> list[Outgoing]:
    return [Outgoing(topic, f"key {number % 7}", b"%d" % number, {}) for number in range(count)]


@contextlib.contextmanager
def back_while_it_is_asked_why(broker: Broker) -> Iterator[None]:
    """A broker that is back when a task has given up, and just asks for the reason."""
    broker.kill()
    mute = Mute(broker.port)

    def start() -> None:
        assert mute.is_asked.wait(60)
        mute.leave()
        if broker.kind == "apache":
            mute.close()  # its port has to be free of connections, too
        broker.start()

    starter = threading.Thread(target=start)
    starter.start()
    try:
        yield
    finally:
        mute.is_asked.set()
        starter.join()
        mute.close()
    assert broker.answers()


def write(sender: Any, before: list[Outgoing], broker: Broker, after: list[Outgoing]) -> str:
    """What a task does whose broker goes away; how it ends."""
    try:
        for each in before:
            sender.send(each)
        sender._flush()
        with back_while_it_is_asked_why(broker), pytest.raises(PulsarSparkError) as caught:
            for each in after:
                sender.send(each)
            sender.finish()
    finally:
        sender.close()
    return str(caught.value)


def values_of(broker: Broker, topic: str) -> list[int]:
    return [int(row["value"]) for row in rows_of(broker, topic=topic)]


def test_a_part_that_an_outage_cut_is_stored_in_full_and_once(
    remembering: Broker, target: str
) -> None:
    messages = messages_of(target, 200)
    options = sink_options(remembering, target, **LIMITS)
    text = write(ExactlyOnce(options, None, PART), messages[:20], remembering, messages[20:])
    assert "messages were not acknowledged" in text and "\n" not in text
    assert sent_once(options, PART, messages) == []
    assert sorted(values_of(remembering, target)) == list(range(200))
    for number in range(7):
        of_key = [each for each in values_of(remembering, target) if each % 7 == number]
        assert of_key == sorted(of_key)


def test_what_is_sent_at_least_once_is_there_after_an_outage(
    remembering: Broker, target: str
) -> None:
    messages = messages_of(target, 200)
    options = sink_options(remembering, target, **LIMITS)
    text = write(AtLeastOnce(options, None), messages[:20], remembering, messages[20:])
    assert "messages were not acknowledged" in text and "\n" not in text
    sender = AtLeastOnce(options, None)
    for each in messages:
        sender.send(each)
    sender.finish()
    sender.close()
    assert set(values_of(remembering, target)) == set(range(200))


@pytest.mark.parametrize("is_once", [False, True], ids=["least", "once"])
@pytest.mark.parametrize("count", [5, 500], ids=["flush", "full"])
def test_a_broker_that_does_not_come_back_ends_a_task_in_time(
    remembering: Broker, target: str, is_once: bool, count: int
) -> None:
    messages = messages_of(target, 20 + count)
    options = sink_options(remembering, target, **LIMITS)
    sender: Any = ExactlyOnce(options, None, PART) if is_once else AtLeastOnce(options, None)
    try:
        for each in messages[:20]:
            sender.send(each)
        sender.finish()
        remembering.kill()
        begin = time.monotonic()
        with pytest.raises(
            PulsarSparkError,
            match=f"not acknowledged: {target}.* cannot be written: no broker answers at",
        ):
            for each in messages[20:]:
                sender.send(each)
            sender.finish()
        took_s = time.monotonic() - begin
    finally:
        begin = time.monotonic()
        sender.close()
        closing_s = time.monotonic() - begin
    assert SEND_S * 0.9 < took_s < SEND_S + 3
    assert closing_s < 2


@pytest.mark.parametrize("is_once", [False, True], ids=["least", "once"])
def test_a_broker_that_hangs_ends_a_task_in_time(
    remembering: Broker, target: str, is_once: bool
) -> None:
    messages = messages_of(target, 200)
    options = sink_options(remembering, target, **LIMITS)
    sender: Any = ExactlyOnce(options, None, PART) if is_once else AtLeastOnce(options, None)
    assert remembering.process is not None
    try:
        for each in messages[:20]:
            sender.send(each)
        sender._flush()
        os.killpg(remembering.process.pid, signal.SIGSTOP)
        begin = time.monotonic()
        with pytest.raises(PulsarSparkError, match="did not answer in time"):
            for each in messages[20:]:
                sender.send(each)
            sender.finish()
        sender.close()
        assert time.monotonic() - begin < SEND_S + ASKING_S + 3
    finally:
        os.killpg(remembering.process.pid, signal.SIGCONT)
        sender.close()
    if is_once:
        assert sent_once(options, PART, messages) == []
        assert sorted(values_of(remembering, target)) == list(range(200))
