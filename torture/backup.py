"""Backups under load, round after round: what is restored is one moment of each backup.

    python -m torture.backup --rounds 50 [--seed N] [--verbose]

A round lets producers and consumers work, and topics, subscriptions and policies come and go, while
`pyxbroker backup create` runs; every second backup is incremental.  The backup is verified, and so
is one with a flipped bit, which must be named.  Then a broker starts on the restored data, and

* each topic has every message that was acknowledged before the backup began, none that was sent
  after its end, and of what was sent meanwhile a prefix;
* each subscription has every acknowledgement with a receipt from before, and only ones sent until
  the end;
* topics, subscriptions and a policy are as they were at some moment between the two, which is that
  of the messages: after each operation on them a message with its number is sent;
* what is sent to that broker survives kill -9.

Exit status 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import itertools
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from harness import wire
from harness.brokers import Broker, pyxbroker_command
from harness.client import Connection, Position, Refused

from torture.load import Load, make_topics, read_back, verify
from torture.model import ProducerModel, TopicCheck, TopicModel, Verdict

TOPICS = "/admin/v2/persistent/public/default"
OPERATIONS = "persistent://public/default/operations"  # with the number of each that was answered
RETENTION = "/admin/v2/namespaces/public/default/retention"
ROUNDS_PER_DIRECTORY = 5
LIVES = 3  # steps until what was made is deleted
FILLED_BYTES = 20_000  # enough that a deletion frees blocks of an entry log
SETTINGS = {
    # Entry logs, ledgers, cursors' ledgers and copies of the metadata change often, and garbage is
    # collected, while a backup reads them.
    "dbStorage_writeCacheMaxSizeMb": "4",
    "managedLedgerMaxEntriesPerLedger": "1000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCursorMaxEntriesPerLedger": "200",
    "metadataCopyIntervalSeconds": "2",
    "gcWaitTime": "1000",
    # Half of the messages are never acknowledged, and all of them must be delivered.
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
}


class Operation(NamedTuple):
    """A request that changes what there is."""

    kind: str  # topic, subscription or retention
    number: int
    is_there: bool = True


class State(NamedTuple):
    """What there is after some operations."""

    topics: set[int]
    subscriptions: set[int]
    retention: int | None  # minutes

    @classmethod
    def after(cls, operations: list[Operation]) -> State:
        """Return the state after all of the operations."""
        there: dict[str, set[int]] = {"topic": set(), "subscription": set(), "retention": set()}
        for each in operations:
            if each.is_there:
                there[each.kind].add(each.number)
            else:
                there[each.kind].remove(each.number)
        return cls(there["topic"], there["subscription"], max(there["retention"], default=None))


class StateLoad:
    """Requests, one after another, so that each answer says which came before it.

    The number of each that was answered is sent as a message, and the next one waits for its
    receipt.
    """

    def __init__(self, broker: Broker, subscribed: str) -> None:
        self.issued: list[Operation] = []
        self.recorded = 0
        self.problems: list[str] = []
        self._broker = broker
        self._subscribed = subscribed.rpartition("/")[2]
        self._stopping = False

    def stop(self) -> None:
        """Let `run` end soon."""
        self._stopping = True

    async def run(self) -> None:
        """Make, change and delete until `stop`."""
        connection = await Connection.open(self._broker.port)
        try:
            await connection.producer(OPERATIONS, 1, "clerk")
            await self._run(connection)
        finally:
            connection.close()

    async def _run(self, clerk: Connection) -> None:
        do = partial(self._do, clerk)
        for number in itertools.count(1):
            subscription = f"{TOPICS}/{self._subscribed}/subscription/sub-"
            retention = {"retentionTimeInMinutes": number, "retentionSizeInMB": -1}
            await do(Operation("topic", number), "PUT", f"{TOPICS}/made-{number}")
            await self._fill(number)
            await do(Operation("subscription", number), "PUT", f"{subscription}{number}")
            await do(Operation("retention", number), "POST", RETENTION, retention)
            old = number - LIVES
            if old > 0:
                gone = Operation("topic", old, is_there=False)
                await do(gone, "DELETE", f"{TOPICS}/made-{old}?force=true")
                gone = Operation("subscription", old, is_there=False)
                await do(gone, "DELETE", f"{subscription}{old}")
            if self._stopping:
                return

    async def _do(
        self,
        clerk: Connection,
        operation: Operation,
        method: str,
        path: str,
        body: object = None,
    ) -> None:
        self.issued.append(operation)
        status, answer = await asyncio.to_thread(self._broker.rest, method, path, body)
        if not 200 <= status < 300:
            self.problems.append(f"{method} {path} was refused: {status} {answer}")
        number = len(self.issued)
        receipt = asyncio.Event()
        clerk.on_receipt = lambda *_: receipt.set()
        metadata = wire.metadata("clerk", number, int(time.time() * 1000))
        clerk.write(wire.send(1, number, metadata, str(number).encode()))
        await asyncio.wait_for(receipt.wait(), 30)
        self.recorded = number

    async def _fill(self, number: int) -> None:
        connection = await Connection.open(self._broker.port)
        try:
            await send(connection, f"persistent://public/default/made-{number}", "filler", 10)
        finally:
            connection.close()


async def send(connection: Connection, topic: str, name: str, count: int) -> list[Position]:
    """Send so many messages; returns where they are stored."""
    stored: list[Position] = []
    done = asyncio.Event()

    def on_receipt(_number: int, _sequence: int, position: Position) -> None:
        stored.append(position)
        if len(stored) == count:
            done.set()

    connection.on_receipt = on_receipt
    await connection.producer(topic, 1, name)
    for sequence in range(count):
        metadata = wire.metadata(name, sequence, int(time.time() * 1000))
        connection.write(wire.send(1, sequence, metadata, b"x" * FILLED_BYTES))
    await asyncio.wait_for(done.wait(), 30)
    return stored


class Moment(NamedTuple):
    """What was promised and what was tried when a backup began or ended."""

    topics: list[TopicModel]
    issued: int
    recorded: int


class BackupTorture:
    """All rounds."""

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.options = options
        self.workspace = workspace
        self.random = random.Random(options.seed)
        self.verdict = Verdict()
        self.flips = 0
        self.linked_bytes = 0
        self.durations_s: list[float] = []

    async def rounds(self, count: int) -> Verdict:
        """Run them, with a new data directory after each `ROUNDS_PER_DIRECTORY`."""
        for first in range(0, count, ROUNDS_PER_DIRECTORY):
            life = first // ROUNDS_PER_DIRECTORY + 1
            rounds = range(first + 1, min(first + ROUNDS_PER_DIRECTORY, count) + 1)
            await self._life(life, rounds)
        return self.verdict

    async def _life(self, life: int, rounds: range) -> None:
        home = self.workspace / f"life-{life}"
        broker = Broker("pyxbroker", home / "broker", settings=SETTINGS)
        topics = make_topics(self.random, life)
        load = Load(topics, self.random)
        state = StateLoad(broker, topics[0].name)
        tasks: list[asyncio.Future[None]] = []
        try:
            await asyncio.to_thread(broker.start)
            tasks.append(asyncio.ensure_future(load.run(broker.port)))
            await self._wait_subscribed(topics)
            tasks.append(asyncio.ensure_future(state.run()))
            while not state.recorded and not tasks[-1].done():  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            base: Path | None = None
            for number in rounds:
                base = await self._round(number, home, broker, topics, state, base)
        finally:
            load.stop()
            state.stop()
            await asyncio.gather(*tasks)
            self.verdict.problems += load.problems + state.problems
            broker.close()
            shutil.rmtree(home, ignore_errors=True)

    @staticmethod
    async def _wait_subscribed(topics: list[TopicModel]) -> None:
        for topic in topics:
            while not topic.subscribed:  # noqa: ASYNC110 - the load has no event for it
                await asyncio.sleep(0.01)

    async def _round(
        self,
        number: int,
        home: Path,
        broker: Broker,
        topics: list[TopicModel],
        state: StateLoad,
        base: Path | None,
    ) -> Path | None:
        await asyncio.sleep(self.random.random() * self.options.load_s)
        backup = home / f"backup-{number}"
        arguments = ["--admin-url", broker.web_url, "--json"]
        if number % 2 == 0 and base is not None:
            arguments += ["--base", str(base)]

        def moment() -> Moment:
            return Moment(copy.deepcopy(topics), len(state.issued), state.recorded)

        before = moment()
        started = time.monotonic()
        status, out = await self._command("create", str(backup), *arguments)
        self.durations_s.append(time.monotonic() - started)
        after = moment()
        self.verdict.rounds += 1
        problems = len(self.verdict.problems)
        if status == 0:
            self.linked_bytes += json.loads(out)["linkedBytes"]
            await self._check_verify(backup)
            await self._check_restored(number, home, backup, before, after, state)
        else:
            self.verdict.problems.append(f"backup create ended with {status}: {out}")
        found = self.verdict.problems[problems:]
        for each in found:
            print(f"round {number}, seed {self.options.seed}: {each}", flush=True)
        if self.options.verbose and not found:
            print(f"round {number}: ok, {self.durations_s[-1]:.2f} s", flush=True)
        if status:
            return base
        if base is not None:
            shutil.rmtree(base)
        return backup

    async def _command(self, *arguments: str) -> tuple[int, str]:
        """Run a command of backups; returns its status and what it printed."""
        line = [*pyxbroker_command(), "backup", *arguments]
        done = await asyncio.to_thread(
            subprocess.run, line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.returncode, done.stdout

    async def _check_verify(self, backup: Path) -> None:
        """Verify it as it is, and with a flipped bit."""
        problems = self.verdict.problems
        status, out = await self._command("verify", str(backup))
        if status:
            problems.append(f"backup verify ended with {status}: {out}")
        files = files_of(backup)
        damaged = self.random.choice(files)
        at = self.random.randrange(damaged.stat().st_size)
        bit = 1 << self.random.randrange(8)
        flip(damaged, at, bit)
        status, out = await self._command("verify", str(backup))
        flip(damaged, at, bit)
        self.flips += 1
        if status != 1 or str(damaged) not in out:
            problems.append(f"bit {bit} at {at} of {damaged} was not found: {status} {out}")

    async def _check_restored(
        self,
        number: int,
        home: Path,
        backup: Path,
        before: Moment,
        after: Moment,
        state: StateLoad,
    ) -> None:
        restored = Broker("pyxbroker", home / f"restored-{number}", settings=SETTINGS)
        try:
            status, out = await self._command("restore", str(backup), str(restored.data))
            if status:
                self.verdict.problems.append(f"backup restore ended with {status}: {out}")
                return
            await asyncio.to_thread(restored.start)
            found = await found_state(restored, after.topics[0].name)
            number = await last_operation(restored)
            if not before.recorded <= number <= after.issued:
                self.verdict.problems.append(
                    f"the last of the operations' messages is {number}, not one of"
                    f" {before.recorded} to {after.issued}"
                )
            self.verdict.problems += state_problems(found, state.issued, number)
            checks: dict[str, TopicCheck] = {}
            wanted = [judged(*each) for each in zip(before.topics, after.topics, strict=True)]
            await verify(restored.port, wanted, self.verdict, True, checks)
            for topic in after.topics:
                self.verdict.problems += prefix_problems(checks[topic.name], topic)
            await self._check_kill(restored, after.topics[0])
            self.verdict.problems += unexpected_lines(restored)
        except Refused as error:
            self.verdict.problems.append(f"the restored broker refused a request: {error}")
        finally:
            restored.close()
            shutil.rmtree(restored.directory, ignore_errors=True)

    async def _check_kill(self, broker: Broker, topic: TopicModel) -> None:
        """What is sent after a restore is in a new journal: does it survive?"""
        connection = await Connection.open(broker.port)
        try:
            sent = await send(connection, topic.name, "afterwards", 20)
        finally:
            connection.close()
        broker.kill()
        await asyncio.to_thread(broker.start)
        connection = await Connection.open(broker.port)
        try:
            check = await read_back(connection, topic)
        finally:
            connection.close()
        if lost := set(sent) - check.positions:
            self.verdict.problems.append(f"{len(lost)} messages sent after the restore are lost")


def files_of(directory: Path) -> list[Path]:
    """All files below a directory."""
    return sorted(each for each in directory.rglob("*") if each.is_file())


def flip(file: Path, at: int, bit: int) -> None:
    """Flip one bit; again, and it is as before."""
    with file.open("r+b") as opened:
        opened.seek(at)
        [value] = opened.read(1)
        opened.seek(at)
        opened.write(bytes([value ^ bit]))


def judged(before: TopicModel, after: TopicModel) -> TopicModel:
    """The bounds of a moment between two: the promises of the first, what the last one tried."""
    producers = [
        ProducerModel(one.name, one.topic, other.next_sequence, one.received)
        for one, other in zip(before.producers, after.producers, strict=True)
    ]
    return TopicModel(
        after.name,
        after.cumulative,
        producers,
        before.subscribed,
        set(after.acked),
        before.acked_with_receipt,
        after.acked_up_to,
        before.acked_up_to_with_receipt,
    )


def prefix_problems(check: TopicCheck, after: TopicModel) -> list[str]:
    """What was read must be all up to some place, and nothing that was sent afterwards."""
    problems = []
    for producer in after.producers:
        sequences = [sequence for sequence, _ in check.read.get(producer.name, [])]
        if sequences != list(range(len(sequences))):
            problems.append(f"{producer.name}: the {len(sequences)} messages are no prefix")
        if len(sequences) > producer.next_sequence:
            problems.append(f"{producer.name}: has messages from after the backup")
    last = max(check.positions, default=(-1, -1))
    stored = {place for each in after.producers for place in each.received.values()}
    if missing := {place for place in stored if place <= last} - check.positions:
        problems.append(f"{after.name}: {len(missing)} messages before {last} are missing")
    return problems


async def found_state(broker: Broker, subscribed: str) -> State:
    """Ask the broker."""

    async def get(path: str) -> object:
        status, answer = await asyncio.to_thread(broker.rest, "GET", path)
        return answer if status == 200 else f"{status} {answer}"

    topics = re.findall(r"made-(\d+)", json.dumps(await get(TOPICS)))
    name = subscribed.rpartition("/")[2]
    listed = await get(f"{TOPICS}/{name}/subscriptions")
    subscriptions = re.findall(r"sub-(\d+)", json.dumps(listed))
    retention = await get(RETENTION)
    minutes = retention.get("retentionTimeInMinutes") if isinstance(retention, dict) else None
    return State(set(map(int, topics)), set(map(int, subscriptions)), minutes)


async def last_operation(broker: Broker) -> int:
    """The number in the last message about operations."""
    path = f"{TOPICS}/operations/examinemessage?initialPosition=latest&messagePosition=1"
    status, answer = await asyncio.to_thread(broker.request, "GET", path)
    return int(answer) if status == 200 else 0


def state_problems(found: State, issued: list[Operation], number: int) -> list[str]:
    """What differs from the state after so many operations; of the next one any part may be there.

    The message about an operation was sent after its answer, and before the next operation.
    """
    wanted, following = State.after(issued[:number]), State.after(issued[: number + 1])
    return [
        f"after operation {number} the {kind} are {there}, not {before} or {after}"
        for kind, there, before, after in zip(State._fields, found, wanted, following, strict=True)
        if there not in (before, after)
    ]


def unexpected_lines(broker: Broker) -> list[str]:
    """Lines of the log that speak of damage or loss."""
    lines = broker.output(100_000).splitlines()
    return [each for each in lines if " ERROR " in each or "metadata event=" in each]


def main(arguments: list[str] | None = None) -> int:
    """Run the rounds; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--load-s", type=float, default=1.5, help="longest load before a backup")
    parser.add_argument("--workspace", help="folder for the data (default: a temporary one)")
    parser.add_argument("--verbose", action="store_true", help="one line per round")
    options = parser.parse_args(arguments)
    workspace = Path(tempfile.mkdtemp(prefix="torture-", dir=options.workspace))
    torture = BackupTorture(options, workspace)
    try:
        verdict = asyncio.run(torture.rounds(options.rounds))
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    print(
        f"seed {options.seed}: {verdict.rounds} backups, {len(verdict.problems)} broken promises,"
        f" {verdict.promised} acknowledged messages checked, {verdict.read_back} read back,"
        f" {torture.flips} flipped bits; {torture.linked_bytes >> 20} MiB linked; at most"
        f" {max(torture.durations_s):.1f} s for a backup"
    )
    if not verdict.promised or not verdict.read_back:
        print("nothing was acknowledged or read, so nothing was tried")
        return 1
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
