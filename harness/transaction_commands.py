"""The commands of transactions over a plain socket: in any order, with any id."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection
from harness.transactions import wait_until

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign"
COMMIT, ABORT = 0, 1
_ERROR_AT = {  # fields of ServerError and text; 4 and 5 in other answers
    wire.ERROR: (2, 3),
    wire.SEND_ERROR: (3, 4),
    wire.TC_CLIENT_CONNECT_REQUEST + 1: (2, 3),
}
Id = tuple[int, int]


class Outcome(NamedTuple):
    """The answer to a request; the code of success is None."""

    type: int
    code: int | None
    text: str


class TransactionConnection(RawConnection):
    """A connection to the broker that owns the coordinators."""

    def connect_coordinator(self, coordinator: int = 0) -> Outcome:
        return self.ask(wire.TC_CLIENT_CONNECT_REQUEST, {2: coordinator})

    def begin(self, timeout_ms: int = 60_000, coordinator: int = 0) -> Id:
        """Start a transaction that must be granted."""
        answer = self.exchange(wire.NEW_TXN, {2: timeout_ms, 3: coordinator})
        assert answer.type == wire.NEW_TXN + 1 and 4 not in answer.fields, answer
        return answer.number(3), answer.number(2)

    def add_partitions(self, id: Id, *names: str) -> Outcome:
        return self.ask(wire.ADD_PARTITION_TO_TXN, {2: id[1], 3: id[0], 4: list(names)})

    def add_subscription(self, id: Id, topic: str, name: str = "s") -> Outcome:
        subscription = wire.encode({1: topic, 2: name})
        return self.ask(wire.ADD_SUBSCRIPTION_TO_TXN, {2: id[1], 3: id[0], 4: subscription})

    def end(self, id: Id, action: int) -> Outcome:
        return self.ask(wire.END_TXN, {2: id[1], 3: id[0], 4: action})

    def end_on_partition(self, id: Id, topic: str, action: int, low_water: int = 0) -> Outcome:
        fields = {2: id[1], 3: id[0], 4: topic, 5: action, 6: low_water}
        return self.ask(wire.END_TXN_ON_PARTITION, fields)

    def end_on_subscription(
        self, id: Id, topic: str, name: str, action: int, low_water: int = 0
    ) -> Outcome:
        subscription = wire.encode({1: topic, 2: name})
        fields = {2: id[1], 3: id[0], 4: subscription, 5: action, 6: low_water}
        return self.ask(wire.END_TXN_ON_SUBSCRIPTION, fields)

    def send_within(self, id: Id, body: bytes, sequence_id: int, producer_id: int = 1) -> Outcome:
        """Send a message as clients do, with the id in the command and in the metadata."""
        fields = {"fields": {22: id[1], 23: id[0]}}
        data = wire.metadata("raw", sequence_id, int(time.time() * 1000), **fields)
        named = {4: id[1], 5: id[0]}
        self.write(wire.send(producer_id, sequence_id, data, body, send_fields=named))
        return self.outcome(
            self._take(lambda each: each.type in (wire.SEND_RECEIPT, wire.SEND_ERROR))
        )

    def begin_with_message(self, topic: str, timeout_ms: int = 60_000) -> Id:
        """Start a transaction, and send a message within it by the first producer of a topic."""
        id = self.begin(timeout_ms)
        self.producer(topic)
        self.add_partitions(id, topic)
        self.send_within(id, b"x", 0)
        return id

    def acknowledge_within(
        self, id: Id, *positions: Id, cumulative: bool = False, consumer_id: int = 1
    ) -> Outcome:
        names = [wire.message_id(*each) for each in positions]
        fields = {1: consumer_id, 2: int(cumulative), 3: names, 6: id[1], 7: id[0]}
        self.command(wire.ACK, fields | {8: self.request_id()})
        return self.outcome(self._take(lambda each: each.type == wire.ACK_RESPONSE))

    def ask(self, kind: int, fields: dict[int, Any]) -> Outcome:
        """Send a request and return the outcome."""
        return self.outcome(self.exchange(kind, fields))

    def exchange(self, kind: int, fields: dict[int, Any]) -> wire.Frame:
        """Send a request whose field 1 is the request id, and return its answer."""
        request = self.request_id()
        self.command(kind, {1: request} | fields)
        others = (wire.MESSAGE, wire.SEND_RECEIPT, wire.SEND_ERROR)
        return self._take(lambda each: each.number(1) == request and each.type not in others)

    def _take(self, is_wanted: Callable[[wire.Frame], bool]) -> wire.Frame:
        """Return the next frame that is wanted; others stay for later."""
        others = []
        while not is_wanted(frame := self.receive()):
            others.append(frame)
        self._frames.extendleft(reversed(others))
        return frame

    @staticmethod
    def outcome(answer: wire.Frame) -> Outcome:
        code_at, text_at = _ERROR_AT.get(answer.type, (4, 5))
        is_error = code_at in answer.fields and answer.type != wire.SEND_RECEIPT
        code = answer.number(code_at) if is_error else None
        return Outcome(answer.type, code, answer.data(text_at).decode() if is_error else "")


def coordinator_of(broker: Broker) -> TransactionConnection:
    """Connect to coordinator 0, which a broker that has just started may not serve yet."""

    def connect() -> TransactionConnection | None:
        one = TransactionConnection(broker.port)
        try:
            one.lookup(f"{COORDINATOR_TOPIC}-partition-0")
        except AssertionError:
            one.socket.close()
            return None
        return one

    one = wait_until(connect)
    assert isinstance(one, TransactionConnection)
    assert one.connect_coordinator(0).code is None
    return one
