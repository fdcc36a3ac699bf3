"""The same disk errors for two brokers: what the official client sees of each.

    python -m torture.beside [--broker pyxbroker|apache] [--row NAME ...] [--list]

Each row starts a broker with the library of errors.c, lets the official Python client work, makes
calls on one kind of file fail, and says in one line what became of what was acknowledged: while it
lasts, after it, and after a restart. It judges nobody; docs/reliability.md has the answers beside
each other.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pulsar
from harness.brokers import Broker, BrokerFailed
from harness.errors import Errors, build_errors

FILES = {
    "pyxbroker": {
        "journal": "bookie/journal/*.journal",
        "entry log": "bookie/ledgers/*.log",
        "new entry log": "bookie/ledgers/*.log.tmp",
        "metadata": "metadata/metadata.db-wal",
    },
    "apache": {
        "journal": "data/standalone/bookkeeper/current/*.txn",
        "entry log": "data/standalone/bookkeeper/current/*.log",
        "new entry log": "data/standalone/bookkeeper/current/*.log",
        "metadata": "data/metadata/*.log",
    },
}
TOPIC = "persistent://public/default/beside"
SUBSCRIPTION = "all"
BODY_BYTES = 4096


class Side:
    """One broker, its errors, and a client that counts."""

    def __init__(self, kind: str, workspace: Path, library: Path) -> None:
        self.kind = kind
        self.broker = Broker(kind, workspace / "broker")
        self.broker.data.mkdir(parents=True)
        self.errors = Errors(library, self.broker.data, workspace / "errors")
        self.broker.environment = self.errors.environment()
        self.acknowledged: set[int] = set()
        self.next_number = 0

    def rule(self, file: str, *calls: str, **more: object) -> None:
        """A rule for a kind of file, whatever this broker calls it."""
        self.errors.rule(FILES[self.kind][file], *calls, **more)  # type: ignore[arg-type]

    def client(self, timeout_s: int = 10) -> pulsar.Client:
        """A client that says nothing."""
        logger = logging.getLogger("beside.client")
        logger.setLevel(logging.CRITICAL)
        return pulsar.Client(self.broker.url, operation_timeout_seconds=timeout_s, logger=logger)

    def send(self, count: int = 0, seconds: float = 0.0) -> str:
        """Sends a number of messages, or for a time; says how many were acknowledged."""
        client = self.client()
        failed: dict[str, int] = {}
        waiting = 0

        def on_sent(number: int) -> Callable[[object, object], None]:
            def done(result: object, _: object) -> None:
                nonlocal waiting
                waiting -= 1
                if result == pulsar.Result.Ok:
                    self.acknowledged.add(number)
                else:
                    name = str(result).rpartition(".")[2]
                    failed[name] = failed.get(name, 0) + 1

            return done

        before = len(self.acknowledged)
        try:
            producer = client.create_producer(
                TOPIC, send_timeout_millis=15_000, batching_enabled=False, block_if_queue_full=True
            )
            deadline = time.monotonic() + seconds
            sent = 0
            while sent < count or time.monotonic() < deadline:
                number, self.next_number = self.next_number, self.next_number + 1
                waiting += 1
                producer.send_async(number.to_bytes(8, "big") * (BODY_BYTES // 8), on_sent(number))
                sent += 1
                if not count:
                    time.sleep(0.001)
            limit = time.monotonic() + 30
            while waiting and time.monotonic() < limit:
                time.sleep(0.05)
        except pulsar.PulsarException as error:
            failed[type(error).__name__] = failed.get(type(error).__name__, 0) + 1
        finally:
            client.close()
        text = f"{len(self.acknowledged) - before} acknowledged"
        return text + "".join(f", {many} {name}" for name, many in failed.items())

    def receive(
        self, acknowledge: bool = True, at: int = 0, call: Callable[[], None] | None = None
    ) -> tuple[set[int], str]:
        """Receives until nothing comes for 8 s; `call` is called at the message number `at`."""
        got: list[int] = []
        client = self.client(20)
        try:
            consumer = client.subscribe(
                TOPIC, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest
            )
            while True:
                try:
                    message = consumer.receive(8_000)
                except pulsar.Timeout:
                    break
                got.append(int.from_bytes(message.data()[:8], "big"))
                if acknowledge:
                    consumer.acknowledge_cumulative(message)
                if call is not None and len(got) == at:
                    call()
        except pulsar.PulsarException as error:
            return set(got), f"{len(set(got))} received, then {type(error).__name__}"
        finally:
            client.close()
        order = "" if got == sorted(got) else ", not in order"
        return set(got), f"{len(set(got))} received{order}"

    def missing(self, got: set[int]) -> str:
        return f"{len(self.acknowledged - got)} acknowledged messages missing"

    def restart(self) -> str:
        """Stops and starts; says when either did not go well."""
        said = ""
        try:
            self.broker.stop()
        except BrokerFailed:
            said = "it did not stop; "
        return said + self.start()

    def start(self) -> str:
        try:
            self.broker.start()
        except BrokerFailed as error:
            return f"does not start: {str(error).strip().splitlines()[-1][:120]}"
        return "started"

    def subscribe(self) -> None:
        client = self.client()
        client.subscribe(TOPIC, SUBSCRIPTION, initial_position=pulsar.InitialPosition.Earliest)
        client.close()

    def health(self) -> int:
        return self.broker.http_status("/admin/v2/brokers/health")

    def close(self) -> None:
        self.errors.clear()
        self.broker.close()


def read_errors(side: Side, seconds: float | None, hits_max: int = 0) -> str:
    """A backlog of 20,000 messages is read; at the 3,000th the entry logs cannot be read."""
    side.subscribe()
    side.send(20_000)
    side.restart()
    got, first = side.receive(
        at=3_000,
        call=lambda: side.rule(
            "entry log", "read", error="EIO", seconds=seconds, hits_max=hits_max
        ),
    )
    side.errors.clear()
    again, second = side.receive()
    restart = side.restart()
    last, third = side.receive()
    return (
        f"{first}; after a reconnect {second}; {restart}: {third};"
        f" {side.missing(got | again | last)}"
    )


def open_errors(side: Side) -> str:
    """2,500 of 5,000 messages are acknowledged one by one; the next opening cannot read."""
    side.subscribe()
    side.send(5_000)
    client = side.client()
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, consumer_type=pulsar.ConsumerType.Shared)
    done: set[int] = set()
    while len(done) < 2_500:
        message = consumer.receive(8_000)
        number = int.from_bytes(message.data()[:8], "big")
        if number % 2 == 0:
            consumer.acknowledge(message)
            done.add(number)
    time.sleep(2)
    client.close()
    side.broker.kill()
    side.start()
    side.rule("entry log", "read", error="EIO", seconds=2)
    side.rule("journal", "read", error="EIO", seconds=2)
    got, said = side.receive(acknowledge=False)
    side.errors.clear()
    restart = side.restart()
    again, later = side.receive()
    return (
        f"{said}, {len(got & done)} of them acknowledged before; {restart}: {later},"
        f" {len(again & done)} acknowledged before; {side.missing(done | got | again)}"
    )


def write_errors(side: Side, file: str, call: str, **more: object) -> str:
    """Messages are sent for 4 s; from the first second on a kind of call fails."""
    side.subscribe()
    side.send(1_000)
    side.rule(file, call, **more)
    during = side.send(seconds=4)
    health = side.health()
    readable, read = side.receive(acknowledge=False)
    unread = side.missing(readable)
    side.errors.clear()
    time.sleep(3)
    after = side.send(200)
    restart = side.restart()
    got, said = side.receive()
    return (
        f"{during}; health {health}; {read} meanwhile ({unread});"
        f" afterwards {after}; {restart}: {said}; {side.missing(got)}"
    )


def flipped(side: Side, file: str, last: bool = False) -> str:
    """One bit of a kind of file is flipped after a kill; `last`: near the end of what is used."""
    side.subscribe()
    side.send(3_000)
    if file == "entry log":
        side.broker.stop()
    side.broker.kill()
    paths = sorted(side.broker.data.glob(FILES[side.kind][file]))
    path = max(paths, key=lambda each: each.stat().st_size)
    data = bytearray(path.read_bytes())
    used = len(data.rstrip(b"\0"))
    at = used - 200 if last else used // 2
    data[at] ^= 1 << random.Random(7).randrange(8)
    path.write_bytes(data)
    started = side.start()
    got, said = side.receive() if started == "started" else (set(), "")
    return f"{started}; {said}; {side.missing(got)}"


def deleted(side: Side, file: str) -> str:
    """The largest file of a kind is deleted after a clean stop."""
    side.subscribe()
    side.send(3_000)
    side.broker.stop()
    paths = sorted(side.broker.data.glob(FILES[side.kind][file]))
    max(paths, key=lambda each: each.stat().st_size).unlink()
    started = side.start()
    got, said = side.receive() if started == "started" else (set(), "")
    return f"{started}; {said}; {side.missing(got)}"


ROWS: dict[str, Callable[[Side], str]] = {
    "entry log, read, EIO once": lambda side: read_errors(side, None, hits_max=1),
    "entry log, read, EIO for 1 s": lambda side: read_errors(side, 1.0),
    "opening a topic, read, EIO for 2 s": open_errors,
    "journal, write, EIO once": lambda s: write_errors(
        s, "journal", "write", error="EIO", hits_max=1
    ),
    "journal, sync, EIO once": lambda s: write_errors(
        s, "journal", "sync", error="EIO", hits_max=1
    ),
    "journal, write, ENOSPC for 3 s": lambda s: write_errors(
        s, "journal", "write", error="ENOSPC", seconds=3
    ),
    "journal, sync, slow (2 s)": lambda s: write_errors(
        s, "journal", "sync", delay_ms=2000, hits_max=1
    ),
    "entry log, write, ENOSPC for 3 s": lambda s: write_errors(
        s, "new entry log", "write", error="ENOSPC", seconds=3
    ),
    "entry log, sync, EIO once": lambda s: write_errors(
        s, "new entry log", "sync", error="EIO", hits_max=1
    ),
    "metadata, write, EIO once": lambda s: write_errors(
        s, "metadata", "write", error="EIO", hits_max=1
    ),
    "metadata, sync, EIO once": lambda s: write_errors(
        s, "metadata", "sync", error="EIO", hits_max=1
    ),
    "entry log, one bit flipped": lambda s: flipped(s, "entry log"),
    "journal, one bit flipped": lambda s: flipped(s, "journal"),
    "metadata log, a bit of the last change flipped": lambda s: flipped(s, "metadata", last=True),
    "entry log deleted": lambda s: deleted(s, "entry log"),
    "journal deleted": lambda s: deleted(s, "journal"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--broker", choices=("pyxbroker", "apache"), default="pyxbroker")
    parser.add_argument("--row", action="append", choices=ROWS, help="only these rows")
    parser.add_argument("--list", action="store_true", help="name the rows")
    options = parser.parse_args()
    if options.list:
        print("\n".join(ROWS))
        return 0
    for name in options.row or ROWS:
        workspace = Path(tempfile.mkdtemp(prefix="beside-"))
        side = Side(options.broker, workspace, build_errors(workspace))
        try:
            side.broker.start()
            print(f"{name}: {ROWS[name](side)}", flush=True)
        except (BrokerFailed, pulsar.PulsarException) as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        finally:
            side.close()
            shutil.rmtree(workspace, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
