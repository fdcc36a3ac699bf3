"""Kills and power cuts while topics are compacted: of every key its newest value, exactly.

Each round a client publishes messages and batches with keys, and deletes some; another one has the
topic compacted, closed and trimmed again and again, so that the compacted ledger is all there is of
most keys. Then the broker is killed, or the power is cut. The next round begins with reading the
compacted view: of every key it says what was acknowledged last, or what was on its way. The log is
read beside it: of the keys that it still has it says the same.

    python -m torture.compaction --kill-rounds 20 --cut-rounds 20

Where there is a fault, the data, the broker's output and what happened to each key stay in a
directory that is named.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path

from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection

from torture.cut import Mode
from torture.simulator import Simulator, build_library

TOPIC = "persistent://public/default/compacted"
PATH = "/admin/v2/persistent/public/default/compacted"
KEYS = 60
READ_S = 20.0
READ_COMPACTED, DURABLE, START = 11, 8, 9  # fields of SUBSCRIBE
PARTITION_KEY, NUM_MESSAGES, UNCOMPRESSED_SIZE, COMPACTED_INDEXES = 6, 11, 9, 31
GONE = (ConnectionClosed, OSError, TimeoutError)
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "40",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "maxMessageSize": "1048576",
}

Change = dict[str, bytes]  # what an entry says of keys; empty: deleted


class Judge:
    """What was acknowledged, over all rounds."""

    def __init__(self) -> None:
        self.acknowledged: Change = {}
        self.on_its_way: Change = {}
        self.uncertain: dict[str, set[bytes]] = {}  # nobody knows whether they were stored
        self.entries = 0
        self.history: dict[str, list[str]] = {}  # of each key, for who looks for a fault
        self.compactions = 0
        self.compared = 0  # keys of the view with those of the log
        self.faults: list[str] = []

    def sends(self, change: Change) -> None:
        self.on_its_way = change
        self._note("sent", change)

    def stored(self) -> None:
        self._note("stored", self.on_its_way)
        self.acknowledged |= self.on_its_way
        for key in self.on_its_way:
            self.uncertain.pop(key, None)
        self.on_its_way = {}
        self.entries += 1

    def lost_sight(self) -> None:
        """What is on its way may have been stored before the topic was closed."""
        self._note("lost sight of", self.on_its_way)
        for key, value in self.on_its_way.items():
            self.uncertain.setdefault(key, set()).add(value)
        self.on_its_way = {}

    def found(self, view: Change, log: Change) -> None:
        """What the compacted view says of each key, and the log of those that it has."""
        self._note("in the log", log)
        self.compared += len(log)
        for key, value in sorted(log.items()):
            in_view = view.get(key, b"")
            if in_view != value:
                self.faults.append(
                    f"{key} is {brief(in_view)} in the view, and {brief(value)} in the log"
                )
        for key in sorted({*self.acknowledged, *view}):
            value = view.get(key, b"")
            allowed = {self.acknowledged.get(key, b""), *self.uncertain.get(key, ())}
            if key in self.on_its_way:
                allowed.add(self.on_its_way[key])
            if value not in allowed:
                wanted = sorted(map(brief, allowed))
                history = "; ".join(self.history.get(key, [])[-12:])
                self.faults.append(f"{key} is {brief(value)}, and not one of {wanted}: {history}")
        is_all = all(view.get(key, b"") == value for key, value in self.on_its_way.items())
        is_none = all(
            view.get(key, b"") in (self.acknowledged.get(key, b""), *self.uncertain.get(key, ()))
            for key in self.on_its_way
        )
        if not (is_all or is_none):
            self.faults.append("a batch is there in part")
        self._note("found", view)
        self.acknowledged = dict(view)
        self.on_its_way = {}
        self.uncertain = {}

    def keep(self, directory: Path) -> None:
        """Writes down what was found, and what happened to each key."""
        found = {"faults": self.faults, "keys": self.history}
        (directory / "history.json").write_text(json.dumps(found, indent=1))

    def _note(self, what: str, change: Change) -> None:
        for key, value in change.items():
            self.history.setdefault(key, []).append(f"{what} {brief(value)}")


def brief(value: bytes) -> str:
    return value[:20].decode() if value else "deleted"


def batched(change: Change) -> bytes:
    plain = b""
    for key, value in change.items():
        head = wire.encode({2: key, 3: len(value)})
        plain += len(head).to_bytes(4, "big") + head + value
    return plain


def publish(port: int, judge: Judge, draw: random.Random, over: threading.Event) -> None:
    """Publishes one entry after the other was stored, until the broker is gone."""
    while not over.is_set():
        # The topic may be closed in between; the client comes back then.
        judge.lost_sight()
        with contextlib.suppress(*GONE, AssertionError), RawConnection(port) as connection:
            connection.producer(TOPIC)
            while publish_one(connection, judge, draw):
                pass


def publish_one(connection: RawConnection, judge: Judge, draw: random.Random) -> bool:
    """Whether it was stored; if not, the topic was closed."""
    change = {}
    for _ in range(draw.choice((1, 1, 2, 5))):
        value = b"" if draw.random() < 0.1 else b"%d-" % draw.getrandbits(40)
        change[f"k{draw.randrange(KEYS)}"] = value * draw.choice((1, 1, 1, 500))
    if len(change) == 1:
        [(key, body)] = change.items()
        fields: dict = {PARTITION_KEY: key}
    else:
        body = batched(change)
        fields = {NUM_MESSAGES: len(change), UNCOMPRESSED_SIZE: len(body)}
    meta = wire.metadata("p", judge.entries, int(time.time() * 1000), fields=fields)
    more = {4: len(change)} if len(change) > 1 else {}
    judge.sends(change)
    connection.write(wire.send(1, judge.entries, meta, body, send_fields=more))
    while (answer := connection.receive()).type != wire.SEND_RECEIPT:
        if answer.type in (wire.CLOSE_PRODUCER, wire.SEND_ERROR):
            return False
    judge.stored()
    return True


def disturb(broker: Broker, judge: Judge, draw: random.Random, over: threading.Event) -> None:
    """Has the topic compacted, and now and then closed and trimmed."""
    while not over.wait(draw.uniform(0.0, 0.1)):
        with contextlib.suppress(OSError, ValueError):
            dice = draw.random()
            if dice < 0.75:
                judge.compactions += broker.request("PUT", PATH + "/compaction")[0] == 204
            elif dice < 0.9:
                broker.request("POST", PATH + "/trim")
            else:
                broker.request("PUT", PATH + "/unload")


def said_by(entries: list[bytes]) -> Change:
    """What entries say of keys, in their order."""
    found: Change = {}
    for rest in entries:
        payload = wire.parse_payload(rest)
        assert payload.checksum_ok
        if NUM_MESSAGES not in payload.metadata:
            found[text(payload.metadata, PARTITION_KEY)] = payload.body
            continue
        at = 0
        for _ in range(number(payload.metadata, NUM_MESSAGES)):
            size = int.from_bytes(payload.body[at : at + 4], "big")
            head = wire.decode(payload.body[at + 4 : at + 4 + size])
            at += 4 + size
            value = payload.body[at : at + number(head, 3)]
            at += number(head, 3)
            if 4 not in head:
                found[text(head, 2)] = value
    return found


def number(fields: wire.Fields, field: int) -> int:
    found = fields[field][0]
    assert isinstance(found, int)
    return found


def text(fields: wire.Fields, field: int) -> str:
    found = fields[field][0]
    assert isinstance(found, bytes)
    return found.decode()


def read_view(port: int) -> Change:
    """The keys that the compacted view has."""
    return {key: value for key, value in read(port, compacted=True).items() if value}


def read(port: int, *, compacted: bool) -> Change:
    """What the compacted view says, or the log, from the beginning to its last message."""
    with RawConnection(port, timeout_s=READ_S) as connection:
        start = wire.message_id(2**64 - 1, 2**64 - 1)
        fields = {DURABLE: 0, START: start, READ_COMPACTED: int(compacted)}
        answer = connection.subscribe(TOPIC, "check", fields=fields)
        assert answer.type == wire.SUCCESS, answer
        connection.command(wire.GET_LAST_MESSAGE_ID, {1: 1, 2: connection.request_id()})
        answer = connection.wait_for(wire.GET_LAST_MESSAGE_ID_RESPONSE)
        last = position(answer.data(1))
        entries: list[bytes] = []
        at = (-1, -1)
        connection.flow(1_000_000)
        while at < last:
            answer = connection.wait_for(wire.MESSAGE)
            at = position(answer.data(2))
            entries.append(answer.rest)
        return said_by(entries)


def position(message_id: bytes) -> tuple[int, int]:
    """-1, -1: nothing."""
    fields = wire.decode(message_id)
    ledger_id, entry_id = number(fields, 1), number(fields, 2)
    return (-1, -1) if ledger_id >> 63 else (ledger_id, entry_id)


def hold(broker: Broker) -> None:
    """From now on what is not compacted is kept: before, nobody needs anything of the topic."""
    assert broker.request("PUT", PATH, {})[0] == 204
    assert broker.request("PUT", PATH + "/compaction")[0] == 204
    deadline = time.monotonic() + READ_S
    while "SUCCESS" not in broker.request("GET", PATH + "/compaction")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run(directory: Path, rounds: int, seed: int, cut: bool) -> Judge:
    """Rounds on one data directory."""
    draw = random.Random(f"{seed}-{cut}")
    judge = Judge()
    simulator = Simulator(build_library(directory), directory / "root") if cut else None
    environment = {} if simulator is None else simulator.environment()
    broker = Broker("pyxbroker", directory / "broker", settings=SETTINGS, environment=environment)
    (directory / "root").mkdir(exist_ok=True)
    broker.data = directory / "root" / "data"
    try:
        broker.start()
        hold(broker)
        for _ in range(rounds):
            over = threading.Event()
            workers = [
                threading.Thread(target=publish, args=(broker.port, judge, draw, over)),
                threading.Thread(target=disturb, args=(broker, judge, draw, over)),
            ]
            for each in workers:
                each.start()
            time.sleep(draw.uniform(0.1, 1.0))
            over.set()
            broker.kill()
            for each in workers:
                each.join()
            if simulator is not None and simulator.used():
                simulator.cut(draw, draw.choice(list(Mode)))
            broker.start()
            judge.found(read_view(broker.port), read(broker.port, compacted=False))
            if judge.faults:
                judge.keep(directory)
                break
    finally:
        broker.close()
    return judge


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill-rounds", type=int, default=20)
    parser.add_argument("--cut-rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults = 0
    for name, rounds in (("kill -9", options.kill_rounds), ("power cut", options.cut_rounds)):
        if not rounds:
            continue
        directory = Path(tempfile.mkdtemp(prefix="compaction-"))
        try:
            judge = run(directory, rounds, options.seed, cut=name != "kill -9")
        except BaseException:
            print(f"{name}: what there is stays in {directory}")
            raise
        print(
            f"{name}: {rounds} rounds, {judge.compactions} compactions, {judge.entries} entries,"
            f" {judge.compared} keys compared with the log, {len(judge.faults)} faults"
        )
        for fault in judge.faults:
            print(fault)
        if judge.faults:
            print(f"it stays in {directory}")
        else:
            shutil.rmtree(directory)
        faults += len(judge.faults)
    return bool(faults)


if __name__ == "__main__":
    raise SystemExit(main())
