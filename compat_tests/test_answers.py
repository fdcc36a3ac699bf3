"""Every request is answered under its own id, also those for what is not built yet."""

from __future__ import annotations

from typing import Any

import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

TOPIC = "persistent://public/default/answers"
# Where the answers to these carry their request id, by answer type (default: field 1).
_ID_FIELD = {wire.LOOKUP_RESPONSE: 4, wire.PARTITIONED_METADATA_RESPONSE: 2, 30: 2, 38: 6}

REQUESTS: dict[str, tuple[int, dict[int, Any], int]] = {
    "partitioned-metadata": (wire.PARTITIONED_METADATA, {1: TOPIC}, 2),
    "lookup": (wire.LOOKUP, {1: TOPIC}, 2),
    "topics-of-namespace": (wire.GET_TOPICS_OF_NAMESPACE, {2: "public/default"}, 1),
    "get-schema": (wire.GET_SCHEMA, {2: TOPIC}, 1),
    "get-or-create-schema": (
        wire.GET_OR_CREATE_SCHEMA,
        {2: TOPIC, 3: wire.encode({1: "s", 3: b"{}", 4: 1})},
        1,
    ),
    "consumer-stats": (wire.CONSUMER_STATS, {4: 1}, 1),
    "transaction-coordinator": (wire.TC_CLIENT_CONNECT_REQUEST, {2: 0}, 1),
    "new-transaction": (wire.NEW_TXN, {2: 1000, 3: 0}, 1),
    "watch-topics": (wire.WATCH_TOPIC_LIST, {2: 1, 3: "public/default", 4: ".*"}, 1),
    "failover": (wire.SUBSCRIBE, {1: TOPIC, 2: "f", 3: 2, 4: 11}, 5),
    "key-shared": (wire.SUBSCRIBE, {1: TOPIC, 2: "k", 3: 3, 4: 12}, 5),
    "lookup-non-persistent": (wire.LOOKUP, {1: "non-persistent://public/default/n"}, 2),
    "non-persistent": (wire.PRODUCER, {1: "non-persistent://public/default/n", 2: 9}, 3),
}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_is_answered(broker: Broker, request_name: str) -> None:
    kind, fields, id_field = REQUESTS[request_name]
    with RawConnection(broker.port) as one:
        one.producer(TOPIC)
        assert one.subscribe(TOPIC, f"for-{request_name}").type == wire.SUCCESS
        number = 4711
        one.command(kind, fields | {id_field: number})
        answer = one.receive()
        while answer.type == 31:  # ACTIVE_CONSUMER_CHANGE may come between
            answer = one.receive()
        assert answer.number(_ID_FIELD.get(answer.type, 1)) == number, answer
        failed_lookup = answer.type == wire.LOOKUP_RESPONSE and answer.number(3) == 2
        if answer.type == wire.ERROR or failed_lookup:
            sentence = answer.data(7 if failed_lookup else 3)
            assert len(sentence.split()) >= 3, f"no sentence: {answer}"
        one.assert_alive()


def test_acknowledgements_have_receipts(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic)
        for number in range(10):
            one.send(b"%d" % number, number)
        for _ in range(10):
            one.expect(wire.SEND_RECEIPT)
        assert one.subscribe(topic, sub_type=wire.SHARED).type == wire.SUCCESS
        one.flow(100)
        ids = [one.wait_for(wire.MESSAGE).data(2) for _ in range(10)]
        one.command(wire.ACK, {1: 1, 2: wire.INDIVIDUAL, 3: ids[2:5], 8: 500})
        answer = one.wait_for(wire.ACK_RESPONSE)
        assert (answer.number(6), answer.number(1), answer.data(5)) == (500, 1, b"")


def test_several_requests_in_one_write_are_all_answered(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.lookup(topic)
        frames = [
            wire.command(wire.PRODUCER, {1: f"{topic}", 2: n, 3: 1000 + n, 4: f"many-{n}"})
            for n in range(20)
        ]
        one.write(b"".join(frames))
        answers = {one.expect(wire.PRODUCER_SUCCESS).number(1) for _ in range(20)}
        assert answers == {1000 + n for n in range(20)}


def test_receipts_keep_the_order_of_the_sends(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic, 1, "a")
        one.producer(topic, 2, "b")
        frames = []
        for number in range(300):
            meta = wire.metadata("a", number, 1)
            frames.append(wire.send(1 + number % 2, number, meta, b"x" * (number % 50)))
        one.write(b"".join(frames))
        receipts = [one.expect(wire.SEND_RECEIPT) for _ in range(300)]
        for producer in (1, 2):
            mine = [frame.number(2) for frame in receipts if frame.number(1) == producer]
            assert mine == list(range(producer - 1, 300, 2))
        places = {wire.position(frame.data(3)) for frame in receipts}
        assert len(places) == 300


def test_closing_a_producer_and_a_consumer(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        one.producer(topic, 1, "closing")
        one.command(wire.CLOSE_PRODUCER, {1: 1, 2: 900})
        assert one.expect(wire.SUCCESS).number(1) == 900
        one.producer(topic, 2, "closing")
        assert one.subscribe(topic).type == wire.SUCCESS
        one.command(wire.CLOSE_CONSUMER, {1: 1, 2: 901})
        assert one.wait_for(wire.SUCCESS).number(1) == 901
        assert one.subscribe(topic, consumer_id=2).type == wire.SUCCESS
