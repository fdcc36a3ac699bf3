"""Subscriptions by the wire: what is answered when they are given up, moved, or not there."""

from __future__ import annotations

import time
from typing import Any

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

UNKNOWN_ERROR, METADATA_ERROR = 0, 1
MINUS_ONE = 2**64 - 1
ENTRY_BYTES = 8
"""Of each message of a batch: as many as its length and its metadata take at least."""


def ask(one: RawConnection, kind: int, fields: dict[int, Any]) -> wire.Frame:
    """Send a request whose request id is field 2; its answer."""
    request = one.request_id()
    one.command(kind, fields | {2: request})
    while True:
        answer = one.receive()
        id_field = 2 if answer.type == wire.GET_LAST_MESSAGE_ID_RESPONSE else 1
        ours = (wire.SUCCESS, wire.ERROR, wire.GET_LAST_MESSAGE_ID_RESPONSE)
        if answer.type in ours and answer.number(id_field) == request:
            return answer


def publish(broker: Broker, topic: str, count: int, batch_size: int = 0) -> list[tuple[int, int]]:
    batch = {11: batch_size} if batch_size else {}
    with RawConnection(broker.port) as one:
        one.producer(topic)
        for number in range(count):
            meta = wire.metadata("raw", number, int(time.time() * 1000), fields=batch)
            body = b"%d" % number + bytes(ENTRY_BYTES * batch_size)
            one.write(wire.send(1, number, meta, body))
        return [wire.position(one.wait_for(wire.SEND_RECEIPT).data(3)) for _ in range(count)]


def received(one: RawConnection, count: int) -> list[tuple[int, int]]:
    one.flow(1000)
    found = [wire.position(one.wait_for(wire.MESSAGE).data(2)) for _ in range(count)]
    one.assert_alive()
    return found


def test_a_consumer_that_is_not_there(broker: Broker) -> None:
    with RawConnection(broker.port) as one:
        for kind, fields in (
            (wire.SEEK, {3: wire.message_id(1, 1)}),
            (wire.GET_LAST_MESSAGE_ID, {}),
            (wire.UNSUBSCRIBE, {}),
        ):
            answer = ask(one, kind, {1: 99} | fields)
            assert (answer.type, answer.number(2)) == (wire.ERROR, METADATA_ERROR)
            assert answer.data(3) == b"Consumer not found"
        assert ask(one, wire.CLOSE_CONSUMER, {1: 99}).type == wire.SUCCESS


def test_a_shared_subscription_is_given_up_with_force(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one, RawConnection(broker.port) as other:
        assert one.subscribe(topic, "s", 1, wire.SHARED).type == wire.SUCCESS
        assert other.subscribe(topic, "s", 2, wire.SHARED).type == wire.SUCCESS
        assert ask(one, wire.UNSUBSCRIBE, {1: 1}).number(2) == METADATA_ERROR
        assert ask(one, wire.UNSUBSCRIBE, {1: 1, 3: 1}).type == wire.SUCCESS
        closed = other.wait_for(wire.CLOSE_CONSUMER)
        assert (closed.number(1), closed.number(2)) == (2, MINUS_ONE)
        assert one.subscribe(topic, "s", 1, wire.EXCLUSIVE).type == wire.SUCCESS


def test_a_seek_sends_consumers_away_and_moves_the_subscription(broker: Broker, topic: str) -> None:
    places = publish(broker, topic, 10)
    ledger_id = places[0][0]
    with RawConnection(broker.port) as one:
        for fields, first in (
            ({3: wire.message_id(ledger_id, 4)}, 4),
            ({3: wire.message_id(MINUS_ONE, MINUS_ONE)}, 0),
            ({3: wire.message_id(2**63 - 1, 2**63 - 1)}, 10),
            ({3: wire.message_id(ledger_id, 100)}, 10),
            ({3: wire.message_id(ledger_id + 1000, 0)}, 10),
            ({3: wire.message_id(0, 0)}, 0),
            ({4: 0}, 0),
            ({4: int(time.time() * 1000) + 100_000}, 10),
        ):
            assert one.subscribe(topic, "s").type == wire.SUCCESS
            request = one.request_id()
            one.command(wire.SEEK, {1: 1, 2: request} | fields)
            assert one.expect(wire.CLOSE_CONSUMER).number(1) == 1
            assert one.expect(wire.SUCCESS).number(1) == request
            assert one.subscribe(topic, "s").type == wire.SUCCESS
            assert received(one, 10 - first) == places[first:]
            assert ask(one, wire.CLOSE_CONSUMER, {1: 1}).type == wire.SUCCESS
        assert one.subscribe(topic, "s").type == wire.SUCCESS
        assert ask(one, wire.SEEK, {1: 1}).number(2) == METADATA_ERROR


def test_a_seek_into_a_batch_leaves_out_what_is_before(broker: Broker, topic: str) -> None:
    places = publish(broker, topic, 3, 10)
    left = 0b1111111000
    with RawConnection(broker.port) as one:
        assert one.subscribe(topic, "s").type == wire.SUCCESS
        message_id = wire.encode({1: places[1][0], 2: places[1][1], 5: [left]})
        assert ask(one, wire.SEEK, {1: 1, 3: message_id}).type == wire.SUCCESS
        assert one.subscribe(topic, "s").type == wire.SUCCESS
        one.flow(1000)
        found = [one.wait_for(wire.MESSAGE) for _ in range(2)]
        assert [each.fields.get(4) for each in found] == [[left], None]


def test_a_reader_begins_where_it_says(broker: Broker, topic: str) -> None:
    places = publish(broker, topic, 10)
    ledger_id = places[0][0]
    for fields, first in (
        ({9: wire.message_id(ledger_id, 4)}, 4),
        ({9: wire.message_id(MINUS_ONE, MINUS_ONE), 13: wire.LATEST}, 0),
        ({9: wire.message_id(2**63 - 1, 2**63 - 1)}, 10),
        ({9: wire.message_id(ledger_id + 500, 1)}, 10),
        ({13: wire.EARLIEST}, 0),
        ({13: wire.LATEST}, 10),
        ({16: 3600, 13: wire.LATEST}, 0),
    ):
        with RawConnection(broker.port) as one:
            answer = one.subscribe(topic, "reader", fields={8: 0} | fields)
            assert answer.type == wire.SUCCESS
            assert received(one, 10 - first) == places[first:]


def test_the_last_message_and_the_mark(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        assert one.subscribe(topic, "s").type == wire.SUCCESS
        empty = ask(one, wire.GET_LAST_MESSAGE_ID, {1: 1})
        assert wire.position(empty.data(1)) == (MINUS_ONE, MINUS_ONE)
        places = publish(broker, topic, 5)
        assert received(one, 5) == places
        one.command(wire.ACK, {1: 1, 2: wire.CUMULATIVE, 3: wire.message_id(*places[3]), 8: 9})
        one.wait_for(wire.ACK_RESPONSE)
        last = ask(one, wire.GET_LAST_MESSAGE_ID, {1: 1})
        assert wire.position(last.data(1)) == places[4]
        assert wire.position(last.data(3)) == places[3]
