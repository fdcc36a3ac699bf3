"""Kills while exclusive producers come and go and messages are sent again: no epoch comes twice,
and what was acknowledged is stored once.

Each round a client takes the topic again and again, publishes, and sends some of it again; the
broker is killed in between. The next one goes on where its receipts ended.

    python -m torture.exclusive --rounds 20
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
import threading
import time
from pathlib import Path

from harness import wire
from harness.brokers import Broker
from harness.raw import Answer, ConnectionClosed, RawConnection

TOPIC = "persistent://public/default/exclusive"
NAME = "p"
EXCLUSIVE, FENCING = 1, 3
EPOCH, LAST_SEQUENCE_ID = 5, 3
GONE = (ConnectionClosed, OSError, TimeoutError)


class Judge:
    """What clients were told, over all rounds."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.acknowledged = -1  # the highest sequence id
        self.sent = -1
        self.faults: list[str] = []

    def took(self, epoch: int) -> None:
        if self.epochs and epoch <= self.epochs[-1]:
            self.faults.append(f"epoch {epoch} after {self.epochs[-1]}")
        self.epochs.append(epoch)

    def found(self, last_sequence_id: int) -> None:
        """What the broker says was sent last."""
        if not self.acknowledged <= last_sequence_id <= self.sent:
            self.faults.append(
                f"the last id is {last_sequence_id}: acknowledged {self.acknowledged}, sent"
                f" {self.sent}"
            )
        self.acknowledged = max(self.acknowledged, last_sequence_id)

    def check_stored(self, bodies: list[bytes]) -> None:
        wanted = [b"%d" % number for number in range(self.acknowledged + 1)]
        if bodies != wanted:
            self.faults.append(f"{len(bodies)} messages are stored, not {len(wanted)} in order")


def open_producer(connection: RawConnection, mode: int) -> Answer:
    request = connection.request_id()
    connection.lookup(TOPIC)
    connection.command(wire.PRODUCER, {1: TOPIC, 2: 1, 3: request, 4: NAME, 10: mode})
    return connection.wait_for(wire.PRODUCER_SUCCESS)


def send(connection: RawConnection, sequence_id: int) -> None:
    """Sends a message and waits for its receipt."""
    body = wire.metadata(NAME, sequence_id, int(time.time() * 1000))
    connection.write(wire.send(1, sequence_id, body, b"%d" % sequence_id))
    while connection.wait_for(wire.SEND_RECEIPT).number(2) != sequence_id:
        pass


def work(port: int, judge: Judge, draw: random.Random) -> None:
    """Takes the topic and publishes until the broker is gone."""
    with contextlib.suppress(*GONE):
        while True:
            with RawConnection(port) as connection:
                answer = open_producer(connection, draw.choice((EXCLUSIVE, FENCING)))
                last = answer.number(LAST_SEQUENCE_ID)
                judge.took(answer.number(EPOCH))
                judge.found(last - (1 << 64) if last >> 63 else last)
                for _ in range(draw.randrange(1, 20)):
                    again = draw.randrange(4) == 0 and judge.acknowledged >= 0
                    number = judge.acknowledged + (not again)
                    judge.sent = max(judge.sent, number)
                    send(connection, number)
                    judge.acknowledged = max(judge.acknowledged, number)
                connection.command(wire.CLOSE_PRODUCER, {1: 1, 2: connection.request_id()})
                connection.wait_for(wire.SUCCESS)


def subscribe(connection: RawConnection) -> Answer:
    """So that all of it is kept."""
    return connection.subscribe(TOPIC, "check")


def read_all(port: int, count: int) -> list[bytes]:
    with RawConnection(port) as connection:
        assert subscribe(connection).type == wire.SUCCESS
        connection.flow(count + 100)
        bodies: list[bytes] = []
        with contextlib.suppress(TimeoutError):
            while True:
                answer = connection.receive(0.5 if len(bodies) >= count else 10.0)
                if answer.type == wire.MESSAGE:
                    bodies.append(wire.parse_payload(answer.rest).body)
        return bodies


def run(directory: Path, rounds: int, seed: int) -> Judge:
    """Rounds of work and kills on one data directory."""
    draw = random.Random(seed)
    settings = {"brokerDeduplicationEnabled": "true", "brokerDeduplicationEntriesInterval": "7"}
    broker = Broker("pyxbroker", directory, settings=settings)
    judge = Judge()
    try:
        for number in range(rounds):
            broker.start()
            if number == 0:
                with RawConnection(broker.port) as connection:
                    assert subscribe(connection).type == wire.SUCCESS
            worker = threading.Thread(target=work, args=(broker.port, judge, draw))
            worker.start()
            time.sleep(draw.uniform(0.2, 1.0))
            broker.kill()
            worker.join()
        broker.start()
        with RawConnection(broker.port) as connection:
            answer = open_producer(connection, EXCLUSIVE)
            judge.took(answer.number(EPOCH))
            judge.found(answer.number(LAST_SEQUENCE_ID))
        judge.check_stored(read_all(broker.port, judge.acknowledged + 1))
    finally:
        broker.close()
    return judge


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        judge = run(Path(directory), options.rounds, options.seed)
    print(f"{len(judge.epochs)} epochs, {judge.acknowledged + 1} messages")
    for fault in judge.faults:
        print(fault)
    return bool(judge.faults)


if __name__ == "__main__":
    raise SystemExit(main())
