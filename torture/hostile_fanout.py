"""One topic with many subscriptions: what one SEND, or one write of FLOWs, makes a broker do."""

from __future__ import annotations

import time

from harness import wire
from harness.raw import RawConnection

TOPIC = "persistent://public/default/fan-out"
SUBSCRIPTIONS = 2_000
SENDS = 20
AT_ONCE = 100  # commands that wait for their answers
BACKLOG = 20_000
MESSAGE_BYTES_MIN = 40
READ_S_MAX = 30
FLOWS = 64  # as many as were handled before anybody looked at the clock


def _subscribe(raw: RawConnection, topic: str, count: int, sub_type: int) -> None:
    raw.lookup(topic)
    for first in range(0, count, AT_ONCE):
        some = range(first, min(first + AT_ONCE, count))
        fields = [{1: topic, 2: f"s{n}", 3: sub_type, 4: n, 5: n, 13: wire.EARLIEST} for n in some]
        raw.write(b"".join(wire.command(wire.SUBSCRIBE, each) for each in fields))
        for _ in some:
            raw.expect(wire.SUCCESS)


def sends_to_many_subscriptions(port: int, web_port: int, most: int) -> int:
    """Each SEND is for two thousand consumers, which have permits and take it."""
    count = min(most, SUBSCRIPTIONS)
    topic = TOPIC + "-of-sends"
    with RawConnection(port) as consumers, RawConnection(port) as publisher:
        _subscribe(consumers, topic, count, wire.SHARED)
        consumers.write(b"".join(wire.command(wire.FLOW, {1: n, 2: 1_000}) for n in range(count)))
        publisher.producer(topic)
        for n in range(SENDS):
            publisher.send(b"x", n)
            publisher.expect(wire.SEND_RECEIPT)
            for _ in range(count):
                consumers.wait_for(wire.MESSAGE)
    return SENDS * count


def flows_of_many_subscriptions(port: int, web_port: int, most: int) -> int:
    """One write has a FLOW for each of 64 subscriptions with a backlog of 20,000."""
    count, backlog = min(most, FLOWS), min(most * 100, BACKLOG)
    topic = TOPIC + "-of-flows"
    with RawConnection(port) as consumers, RawConnection(port) as publisher:
        _subscribe(consumers, topic, count, wire.SHARED)
        publisher.producer(topic)
        for first in range(0, backlog, AT_ONCE):
            for n in range(first, first + AT_ONCE):
                publisher.send(b"x", n)
            for _ in range(AT_ONCE):
                publisher.expect(wire.SEND_RECEIPT)
        consumers.write(b"".join(wire.command(wire.FLOW, {1: n, 2: backlog}) for n in range(count)))
        # To parse a million messages would take longer than to send them; each is larger than that.
        left = count * backlog * MESSAGE_BYTES_MIN
        until = time.monotonic() + READ_S_MAX
        while left > 0 and time.monotonic() < until:
            left -= len(consumers.socket.recv(1 << 20))
    return count * backlog
