"""Commands that come while a subscription is being moved, on the raw wire.

A client that seeks and closes at once sends the commands behind one another, so the later ones
come while the cursor of the first is being written.
"""

from __future__ import annotations

from harness import wire
from harness.brokers import Broker
from harness.raw import Answer, RawConnection

ROUNDS = 200
FIRST = wire.message_id(wire.MAX_UINT64, wire.MAX_UINT64)  # before every message


def subscribe(connection: RawConnection, topic: str, consumer_id: int) -> tuple[int, bytes]:
    request = connection.request_id()
    fields = {1: topic, 2: "s", 3: wire.EXCLUSIVE, 4: consumer_id, 5: request, 13: wire.EARLIEST}
    return request, wire.command(wire.SUBSCRIBE, fields)


def seek(connection: RawConnection, consumer_id: int) -> tuple[int, bytes]:
    request = connection.request_id()
    return request, wire.command(wire.SEEK, {1: consumer_id, 2: request, 3: FIRST})


def close(connection: RawConnection, consumer_id: int) -> tuple[int, bytes]:
    request = connection.request_id()
    return request, wire.command(wire.CLOSE_CONSUMER, {1: consumer_id, 2: request})


def answers(connection: RawConnection, count: int) -> dict[int, Answer]:
    """The next answers, by request id."""
    found: dict[int, Answer] = {}
    while len(found) < count:
        answer = connection.receive()
        if answer.type in (wire.SUCCESS, wire.ERROR):
            found[answer.number(1)] = answer
    return found


def send(connection: RawConnection, *commands: tuple[int, bytes]) -> list[int]:
    """Writes commands at once; their request ids."""
    connection.write(b"".join(data for _, data in commands))
    return [request for request, _ in commands]


def assert_served(connection: RawConnection, topic: str, count: int) -> None:
    """The subscription can be used, and has nothing acknowledged."""
    [request] = send(connection, subscribe(connection, topic, 999_999))
    assert answers(connection, 1)[request].type == wire.SUCCESS
    connection.flow(count, 999_999)
    for number in range(count):
        assert wire.parse_payload(connection.wait_for(wire.MESSAGE).rest).body == b"%d" % number


def fill(connection: RawConnection, topic: str, count: int) -> None:
    connection.producer(topic, 1)
    for number in range(count):
        connection.send(b"%d" % number, number)
        connection.wait_for(wire.SEND_RECEIPT)


def test_subscribe_seek_close_and_subscribe_again(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        fill(one, topic, 3)
        [opened] = send(one, subscribe(one, topic, 1))
        assert answers(one, 1)[opened].type == wire.SUCCESS
        for consumer_id in range(1, ROUNDS):
            # The next SUBSCRIBE is in the same segment as the seek that it has to wait for, and so
            # is one that brings the consumer back and is not wanted any more.
            *wanted, unwanted, closed = send(
                one,
                seek(one, consumer_id),
                close(one, consumer_id),
                subscribe(one, topic, consumer_id + 1),
                subscribe(one, topic, consumer_id),
                close(one, consumer_id),
            )
            found = answers(one, 5)
            assert {found[each].type for each in (*wanted, closed)} == {wire.SUCCESS}, found
            assert found[unwanted].type == wire.ERROR
        [closed] = send(one, close(one, ROUNDS))
        assert answers(one, 1)[closed].type == wire.SUCCESS
        assert_served(one, topic, 3)


def test_a_subscribe_from_elsewhere_waits_for_a_seek(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one, RawConnection(broker.port) as two:
        fill(one, topic, 3)
        two.lookup(topic)
        here, there = one, two
        for consumer_id in range(1, ROUNDS):
            [opened] = send(here, subscribe(here, topic, consumer_id))
            assert answers(here, 1)[opened].type == wire.SUCCESS, consumer_id
            moved, closed = send(here, seek(here, consumer_id), close(here, consumer_id))
            [other] = send(there, subscribe(there, topic, ROUNDS + consumer_id))
            found = answers(here, 2)
            assert (found[moved].type, found[closed].type) == (wire.SUCCESS, wire.SUCCESS)
            answer = answers(there, 1)[other]
            # It may have come before the seek; then the place was taken.
            assert answer.type == wire.SUCCESS or answer.number(2) == 5, answer
            [closed] = send(there, close(there, ROUNDS + consumer_id))
            assert answers(there, 1)[closed].type == wire.SUCCESS
            here, there = there, here
        assert_served(one, topic, 3)


def test_who_seeks_and_goes_leaves_the_subscription_to_others(broker: Broker, topic: str) -> None:
    with RawConnection(broker.port) as one:
        fill(one, topic, 3)
        for consumer_id in range(1, ROUNDS // 4):
            with RawConnection(broker.port) as gone:
                assert gone.subscribe(topic, "s", 1).type == wire.SUCCESS, consumer_id
                send(gone, seek(gone, 1), subscribe(gone, topic, 1), subscribe(gone, topic, 2))
            while True:
                # Until its end is noticed, the other one may have the place.
                [opened] = send(one, subscribe(one, topic, consumer_id))
                answer = answers(one, 1)[opened]
                if answer.type == wire.SUCCESS:
                    break
                assert answer.number(2) == 5, answer
            [closed] = send(one, close(one, consumer_id))
            assert answers(one, 1)[closed].type == wire.SUCCESS
        assert_served(one, topic, 3)
