"""Clients of a broker that puts its own metadata in front of entries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from compat_tests.conftest import ClientFactory, broker_kind
from compat_tests.messages import receive

PACKAGE = "org.apache.pulsar.common.intercept."
SETTINGS = {
    "brokerEntryMetadataInterceptors": (
        f"{PACKAGE}AppendBrokerTimestampMetadataInterceptor,{PACKAGE}AppendIndexMetadataInterceptor"
    ),
    "exposingBrokerEntryMetadataToClientEnabled": "true",
}
MAGIC = b"\x0e\x02"
FEATURE_FLAGS = 10  # of CONNECT
SUPPORTS = 2  # of them: broker entry metadata


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    directory: Path = tmp_path_factory.mktemp("broker")
    one = Broker(broker_kind(), directory, settings=SETTINGS)
    try:
        one.start()
        yield one
    finally:
        one.close()


@pytest.mark.parametrize("batched", [True, False], ids=["batched", "unbatched"])
def test_clients_get_what_was_sent(new_client: ClientFactory, topic: str, batched: bool) -> None:
    client = new_client()
    consumer = client.subscribe(topic, "check")
    producer = client.create_producer(topic, batching_enabled=batched)
    bodies = [b"message %d" % number for number in range(50)]
    for body in bodies:
        producer.send_async(body, lambda *_: None)
    producer.flush()
    assert receive(consumer, 50) == bodies


def test_who_knows_it_gets_the_index_and_others_do_not(
    broker: Broker, python_client: pulsar.Client, topic: str
) -> None:
    producer = python_client.create_producer(topic, batching_enabled=False)
    for number in range(3):
        producer.send(b"%d" % number)
    flags = wire.encode({SUPPORTS: 1})
    for knows in (True, False):
        with RawConnection(broker.port, handshake=False) as one:
            one.connect(fields={FEATURE_FLAGS: flags} if knows else {})
            assert one.subscribe(topic, f"knows-{knows}").type == wire.SUCCESS
            one.flow(10)
            for number in range(3):
                rest = one.wait_for(wire.MESSAGE).rest
                assert (rest[:2] == MAGIC) == knows
                if knows:
                    block = wire.decode(rest[6 : 6 + int.from_bytes(rest[2:6], "big")])
                    assert block[2] == [number] and block[1][0] > 0
