"""A storm of consumers over one Key_Shared subscription, with every promise checked.

    python -m torture.key_shared --events 10000 --seed 1 [--broker apache]

Sixteen consumers come, go, crash, refuse, fall behind and catch up in random order while a
producer sends messages of 10,000 keys. The judge (torture/key_order.py) sees everything that
clients say and get. Now and then, and at the end, all have permits and acknowledge at once; then
nothing may be left over, and no second may pass without a message. Exit status 1 when any promise
was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import wire
from harness.brokers import KINDS, Broker
from harness.client import Connection, Position

from torture.key_order import Judge, Message

TOPIC = "persistent://public/default/storm"
KEY_SHARED = 3
CONSUMERS = 16
KEYS = 10_000
SENT_PER_EVENT_MAX = 25
OPEN_MAX = 6000  # messages that are not acknowledged, before the producer waits
PERMITS = 200
STUCK_S = 1.0
EVENTS_PER_CALM = 500


class Member:
    """One consumer of the subscription on a connection of its own."""

    def __init__(self, number: int, connection: Connection, judge: Judge) -> None:
        self.number = number
        self.connection = connection
        self.slow = False
        self.gone = False
        self._judge = judge
        self._positions: dict[Message, Position] = {}
        self._due: list[Message] = []
        self._permits = 0
        connection.on_message = self._on_message
        connection.on_pong = self._on_pong

    def _on_message(self, _: int, position: Position, payload: wire.Payload) -> None:
        if self.gone:
            return  # what was on its way when it left is not seen by anybody
        key, number = (int(each) for each in payload.body.split(b":"))
        self._judge.delivered(self.number, key, number)
        self._positions[key, number] = position
        self._due.append((key, number))
        self._permits -= 1

    def _on_pong(self) -> None:
        if not self.gone:
            self._judge.answered(self.number)

    def work(self, count: int) -> None:
        """Acknowledges up to so many messages, and asks for more."""
        held = self._judge.held_by(self.number)
        due = [each for each in self._due[:count] if each in held]
        self._due = self._due[count:]
        if due:
            self._judge.acknowledged(self.number, due)
            self.connection.ack(1, [self._positions.pop(each) for each in due])
        self.give_permits()
        self._ask()

    def give_permits(self) -> None:
        if self._permits <= PERMITS // 2:
            self.connection.flow(1, PERMITS - self._permits)
            self._permits = PERMITS

    def refuse(self, chance: random.Random) -> None:
        """Some of what it holds shall come again."""
        held = [each for each in self._due if each in self._judge.held_by(self.number)]
        messages = chance.sample(held, min(len(held), 3))
        if messages:
            self._judge.refused(self.number, messages)
            self._due = [each for each in self._due if each not in messages]
            ids = [wire.message_id(*self._positions[each]) for each in messages]
            self.connection.write(wire.command(wire.REDELIVER, {1: 1, 2: ids}))
            self._ask()

    def _ask(self) -> None:
        self._judge.asks(self.number)
        self.connection.write(wire.command(wire.PING, {}))

    async def close(self) -> None:
        self.gone = True
        self._judge.left(self.number, sure=True)
        await self.connection.request(wire.CLOSE_CONSUMER, 2, {1: 1})
        self.connection.close()

    def crash(self) -> None:
        self.gone = True
        self._judge.left(self.number, sure=False)
        self.connection.close()


class Storm:
    """All events of one run."""

    def __init__(self, port: int, seed: int, out_of_order: bool = False) -> None:
        self.judge = Judge()
        self._policy = wire.encode({1: 0, 4: int(out_of_order)})
        self.longest_gap_s = 0.0
        self.counts: dict[str, int] = {}
        self._port = port
        self._chance = random.Random(seed)
        self._members: list[Member] = []
        self._numbers = 0
        self._sequence_id = 0
        self._producer: Connection
        self._actions: list[tuple[str, int, Callable[[], object]]] = [
            ("comes", 20, self._comes),
            ("leaves", 9, self._leaves),
            ("crashes", 9, self._crashes),
            ("slows down", 10, self._slows_down),
            ("catches up", 10, self._catches_up),
            ("refuses", 20, self._refuses),
            ("works", 40, self._nothing),
        ]

    async def run(self, events: int) -> None:
        self._producer = await Connection.open(self._port)
        await self._producer.producer(TOPIC, 1, "storm")
        for number in range(events):
            weights = [weight for _, weight, _ in self._actions]
            [(name, _, action)] = self._chance.choices(self._actions, weights)
            self.counts[name] = self.counts.get(name, 0) + 1
            done = action()
            if asyncio.iscoroutine(done):
                await done
            self._send()
            await self._let_work()
            if (number + 1) % EVENTS_PER_CALM == 0:
                await self._calm()
            if len(self.judge.problems) > 20:
                return
        await self._calm()
        for member in list(self._members):
            await member.close()
        self._producer.close()

    def _send(self) -> None:
        if self.judge.open > OPEN_MAX:
            return
        for _ in range(self._chance.randrange(SENT_PER_EVENT_MAX)):
            # Few keys are often used, many seldom.
            key = int(KEYS * self._chance.random() ** self._chance.choice([1, 4]))
            body = b"%d:%d" % (key, self.judge.sent(key))
            named = {"fields": {6: f"key-{key}"}}
            metadata = wire.metadata("storm", self._sequence_id, 1, **named)
            self._producer.write(wire.send(1, self._sequence_id, metadata, body))
            self._sequence_id += 1

    async def _let_work(self) -> None:
        await asyncio.sleep(0)
        for member in self._members:
            if not member.slow and self._chance.random() < 0.5:
                member.work(self._chance.choice([1, 10, 100]))
        if self._chance.random() < 0.2:
            await asyncio.sleep(0.002)

    # --- events -------------------------------------------------------------------------------

    async def _comes(self) -> None:
        if len(self._members) == CONSUMERS:
            return
        self._numbers += 1
        member = Member(self._numbers, await Connection.open(self._port), self.judge)
        name = f"consumer-{self._chance.randrange(2 * CONSUMERS)}"
        fields = {3: KEY_SHARED, 6: name, 13: wire.EARLIEST, 17: self._policy}
        await member.connection.subscribe(TOPIC, 1, "storm", fields=fields)
        self._members.append(member)
        member.give_permits()

    def _any(self) -> Member | None:
        return self._chance.choice(self._members) if self._members else None

    async def _leaves(self) -> None:
        member = self._any()
        if member is not None:
            self._members.remove(member)
            await member.close()

    def _crashes(self) -> None:
        member = self._any()
        if member is not None:
            self._members.remove(member)
            member.crash()

    def _slows_down(self) -> None:
        member = self._any()
        if member is not None:
            member.slow = True

    def _catches_up(self) -> None:
        for member in self._members:
            member.slow = member.slow and self._chance.random() < 0.5

    def _refuses(self) -> None:
        member = self._any()
        if member is not None:
            member.refuse(self._chance)

    def _nothing(self) -> None:
        """Only what happens after each event."""

    # --- promises -----------------------------------------------------------------------------

    async def _calm(self) -> None:
        """All have permits and acknowledge at once: everything must come, without a long wait."""
        while len(self._members) < 2:
            await self._comes()
        last = time.monotonic()
        before = self.judge.deliveries
        while self.judge.open:
            for member in self._members:
                member.slow = False
                member.work(1_000_000)
            await asyncio.sleep(0.001)
            now = time.monotonic()
            if self.judge.deliveries != before:
                self.longest_gap_s = max(self.longest_gap_s, now - last)
                before, last = self.judge.deliveries, now
            elif now - last > STUCK_S and self.judge.open:
                self.longest_gap_s = max(self.longest_gap_s, now - last)
                self.judge.problems.append(
                    f"{self.judge.open} messages are left over, and nobody gets any for {STUCK_S} s"
                )
                return
        if not self.judge.open and before == 0:
            self.judge.problems.append("nothing was ever delivered")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--broker", choices=KINDS, default="pyxbroker")
    parser.add_argument(
        "--out-of-order", action="store_true", help="ask for no order, to see that it is found out"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Runs one storm; the exit status."""
    options = parse(arguments)
    workspace = Path(tempfile.mkdtemp(prefix="storm-"))
    settings = dict(item.split("=", 1) for item in options.set)
    broker = Broker(options.broker, workspace / "broker", settings=settings)
    began = time.monotonic()
    try:
        broker.start()
        storm = Storm(broker.port, options.seed, options.out_of_order)
        asyncio.run(storm.run(options.events))
        cpu_s = broker.cpu_s()
    finally:
        broker.close()
        shutil.rmtree(workspace, ignore_errors=True)
    judge = storm.judge
    for problem in judge.problems[:20]:
        print("  " + problem)
    events = ", ".join(f"{name} {count}" for name, count in sorted(storm.counts.items()))
    print(
        f"Key_Shared storm, seed {options.seed}, broker {options.broker}: {options.events} events"
        f" ({events}) in {time.monotonic() - began:.0f} s, {judge.deliveries} deliveries,"
        f" {len(judge.problems)} broken promises, longest wait {storm.longest_gap_s * 1000:.0f} ms,"
        f" broker CPU {cpu_s:.1f} s"
    )
    return 1 if judge.problems else 0


if __name__ == "__main__":
    sys.exit(main())
