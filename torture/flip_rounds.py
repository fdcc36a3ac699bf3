"""Rounds of flipped bits: one bit of one file of a stopped data directory, each kind as often.

The broker then starts, or says in one sentence what to restore.  Every acknowledged message is read
back, but for the entry that the bit belongs to, and that one is reported.  Subscriptions skip
nothing else, nothing wrong is served, and what nobody needs costs nothing when it is damaged.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import random
import re
import shutil
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from harness import wire
from harness.brokers import Broker, BrokerFailed
from harness.client import Connection, Position, Refused
from harness.errors import KINDS

from torture.error_rounds import SETTINGS, START_S
from torture.file_oracle import BLOCK, entries_at
from torture.load import Load, drain, read_back
from torture.log_judge import Output, refusal, refusal_problems
from torture.model import TopicModel
from torture.rounds import Torture
from torture.topics_load import TopicsLoad

FLIPS_PER_DIRECTORY = 12
USED_BLOCK_SHARE = 0.8  # of the flips go into blocks that are not all zeros
IDLE_S = 2.5
REFUSED = "refused with a sentence"

_LEDGER_ENTRY = re.compile(r"ledger\D{0,3}(\d+)\D{1,12}(?:entry|entries)\D{0,3}(\d+)")
_ENTRY_LEDGER = re.compile(r"entry\D{0,3}(\d+) of ledger (\d+)")
_POSITION = re.compile(r"entry\D{0,3}(\d+):(\d+)")
_FILE_OFFSET = re.compile(r"([0-9a-f]{16}\.(?:journal|log))\D+(\d+)")


@dataclass(frozen=True)
class Flip:
    """One bit of one file."""

    path: Path
    kind: str
    offset: int
    bit: int

    def apply(self) -> None:
        """Flip it; once more to take it back."""
        with self.path.open("r+b") as file:
            file.seek(self.offset)
            byte = file.read(1)[0]
            file.seek(self.offset)
            file.write(bytes([byte ^ (1 << self.bit)]))

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.offset} of {self.path.name} ({self.kind})"


def kind_of(root: Path, path: Path) -> str:
    """The kind of a file; of one that has no name among ``KINDS``, its name without numbers."""
    name = path.relative_to(root).as_posix()
    for kind, pattern in KINDS.items():
        if kind not in ("any", "metadata_other", "directory") and fnmatchcase(name, pattern):
            return kind
    return re.sub(r"[0-9a-f]{8,}|\d+", "N", name)


def random_flip(root: Path, generator: random.Random) -> Flip:
    """Each kind of file that is there is as likely as any other."""
    files: dict[str, list[Path]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.stat().st_size > 0:
            files.setdefault(kind_of(root, path), []).append(path)
    kind = generator.choice(sorted(files))
    path = generator.choice(files[kind])
    size = path.stat().st_size
    offset = generator.randrange(size)
    if generator.random() < USED_BLOCK_SHARE:
        data = path.read_bytes()
        used = [at for at in range(0, size, BLOCK) if any(data[at : at + BLOCK])]
        if used:
            block = generator.choice(used)
            offset = generator.randrange(block, min(block + BLOCK, size))
    return Flip(path, kind, offset, generator.randrange(8))


@dataclass
class Reported:
    """What the log names as damaged."""

    entries: set[Position]
    files: set[str]
    text: str

    @classmethod
    def of(cls, output: Output) -> Reported:
        text = output.text()
        lines = [line for line in output.log_lines() if " INFO " not in line or "damage" in line]
        joined = "\n".join(lines)
        found = [*_LEDGER_ENTRY.findall(joined), *_POSITION.findall(joined)]
        found += [(ledger, entry) for entry, ledger in _ENTRY_LEDGER.findall(joined)]
        files = {name for name, _ in _FILE_OFFSET.findall(joined)}
        return cls({(int(a), int(b)) for a, b in found}, files, text)


class FlipTorture(Torture):
    """Traffic, an end, and then a flip at a time in copies of what is left."""

    name = "flip"
    endings = ("flip",)
    rounds_per_directory = FLIPS_PER_DIRECTORY

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        super().__init__(options, workspace, cut=False)
        self._made = 0
        self._kept: list[TopicModel] = []
        self._kept_made = TopicsLoad()
        self._remark = ""

    def remark(self) -> str:
        """What a line about a good round says more."""
        return f", {self._remark}"

    def fresh_directory(self) -> None:
        """An empty one, and none of the copies of the last."""
        super().fresh_directory()
        assert self.broker is not None
        self.broker.settings = SETTINGS | self.broker.settings
        self._made = 0

    @property
    def _pristine(self) -> Path:
        assert self.broker is not None
        return self.broker.data.with_name("pristine")

    async def one_round(self, how: str) -> None:
        """Flip, start, judge."""
        broker = self.broker
        assert broker is not None
        broker.kill()
        if self._made == 0:
            await self._make_traffic(broker)
        self._made += 1
        shutil.rmtree(broker.data, ignore_errors=True)
        shutil.copytree(self._pristine, broker.data)
        flip = random_flip(broker.data, self.random)
        self.ending = str(flip)
        pristine = self._pristine / flip.path.relative_to(broker.data)
        in_byte = entries_at(pristine, flip.offset)
        flip.apply()
        output = Output(broker.directory / "output.log")
        topics, made = copy.deepcopy(self._kept), copy.deepcopy(self._kept_made)
        if await self._start(broker, output):
            outcome = await self._judge(broker, flip, in_byte, output, topics, made)
        else:
            outcome = REFUSED
            self._judge_refusal(flip, output)
            self._restore(broker, flip)
            again = Output(broker.directory / "output.log")
            if not await self._start(broker, again):
                raise BrokerFailed(f"it does not start without the flip either: {refusal(again)}")
            none = Reported(set(), set(), "")
            await self._judge_topics(broker, topics, made, none, set(), None)
        self.verdict.problems += output.problems()
        self._remark = outcome if outcome != REFUSED else f"{outcome}: {refusal(output)}"
        for column in ("rounds", outcome):
            self.verdict.counts[flip.kind, column] += 1
        broker.kill()

    # --- the data directory -------------------------------------------------------------------

    async def _make_traffic(self, broker: Broker) -> None:
        """Two sessions of traffic; the first ends cleanly, the second as it happens."""
        made = TopicsLoad()
        clean = self.random.random() < 0.5
        for last in (False, True):
            await asyncio.to_thread(broker.start)
            load = Load(self.topics, self.random)
            running = asyncio.ensure_future(load.run(broker.port))
            making = asyncio.ensure_future(made.run(broker))
            await asyncio.sleep(0.5 + self.random.random() * self.options.load_s)
            made.stop()
            if last and not clean:
                broker.kill()
            load.stop()
            await asyncio.wait_for(asyncio.gather(running, making), 30)
            self.verdict.problems += load.problems
            if not last or clean:
                await asyncio.to_thread(broker.stop)
        self._kept, self._kept_made = self.topics, made
        shutil.rmtree(self._pristine, ignore_errors=True)
        shutil.copytree(broker.data, self._pristine)

    # --- the start ----------------------------------------------------------------------------

    async def _start(self, broker: Broker, output: Output) -> bool:
        """True when it serves, False when it ended by itself."""
        broker.spawn()
        assert broker.process is not None
        began = time.monotonic()
        while not await asyncio.to_thread(broker.answers):
            status = broker.process.poll()
            if status is not None:
                self.verdict.problems += refusal_problems(status, output)
                broker.kill()
                return False
            if time.monotonic() - began > START_S:
                raise TimeoutError(f"it neither serves nor ends within {START_S:g} s")
            await asyncio.sleep(0.005)
        self.verdict.ready_s.append(time.monotonic() - began)
        return True

    def _restore(self, broker: Broker, flip: Flip) -> None:
        """What the person does who reads the sentence: put back what is named.

        The metadata is several files that belong together.
        """
        where = flip.path.relative_to(broker.data)
        if where.parts[0] == "metadata":
            shutil.rmtree(flip.path.parent)
            shutil.copytree(self._pristine / where.parent, flip.path.parent)
        else:
            shutil.copyfile(self._pristine / where, flip.path)

    def _judge_refusal(self, flip: Flip, output: Output) -> None:
        """The sentence names the file that was hit, or at least the directory that has it."""
        sentence = refusal(output)
        if flip.path.name not in sentence and str(flip.path.parent) not in sentence:
            self.verdict.problems.append(f"the sentence does not name {flip.path.name}: {sentence}")

    # --- the judge ------------------------------------------------------------------------------

    async def _judge(
        self,
        broker: Broker,
        flip: Flip,
        in_byte: set[Position],
        output: Output,
        topics: list[TopicModel],
        made: TopicsLoad,
    ) -> str:
        """Read everything; the outcome in a few words."""
        reported = Reported.of(output)
        lost, refused = await self._judge_topics(broker, topics, made, reported, in_byte, flip)
        reported = Reported.of(output)
        unnamed = {p for p in lost if p not in reported.entries}
        if unnamed and flip.path.name not in reported.files:
            self.verdict.problems.append(
                f"{len(unnamed)} damaged entries are not reported, first {min(unnamed)}"
            )
        if refused:
            return "topics refused"
        if lost:
            return "damaged entries reported"
        if output.damage() or flip.path.name in reported.text:
            return "repaired, or damage that costs nothing"
        return "costs nothing"

    async def _judge_topics(
        self,
        broker: Broker,
        topics: list[TopicModel],
        made: TopicsLoad,
        reported: Reported,
        in_byte: set[Position],
        flip: Flip | None,
    ) -> tuple[set[Position], list[str]]:
        """(what cannot be read of what the flip hit, the topics that were refused)."""
        lost: set[Position] = set()
        refused = []
        message_ledgers = {
            ledger for t in topics for p in t.producers for ledger, _ in p.received.values()
        }
        # A damaged entry of a cursor's ledger costs the acknowledgements that only it had.
        acks_are_durable = all(ledger in message_ledgers for ledger, _ in in_byte)
        connection = await Connection.open(broker.port)
        try:
            for topic in topics:
                try:
                    self.verdict.promised += sum(len(p.received) for p in topic.producers)
                    check = await read_back(connection, topic, IDLE_S)
                    self.verdict.read_back += len(check.positions)
                    lost |= check.excuse(in_byte)
                    if topic.subscribed:
                        await drain(connection, topic, check, self.verdict)
                    self.verdict.problems += check.finish(acks_are_durable)
                    await self._must_take(connection, topic)
                except Refused as error:
                    self._judge_refused_topic(topic, flip, error)
                    refused.append(topic.name)
        finally:
            connection.close()
        if not refused:
            self.verdict.problems += await made.check(broker)
        return lost, refused

    def _judge_refused_topic(self, topic: TopicModel, flip: Flip | None, error: Refused) -> None:
        assert self.broker is not None
        if flip is None or not flip.kind.startswith("metadata"):
            self.verdict.problems.append(f"{topic.name} is refused: {error}")
        elif not re.search(r"damage", str(error)):
            self.verdict.problems.append(f"{topic.name} is refused without a reason: {error}")

    async def _must_take(self, connection: Connection, topic: TopicModel) -> None:
        """A message can be sent to it as well."""
        came = asyncio.Event()
        connection.on_receipt = lambda *_: came.set()
        await connection.producer(topic.name, 1, "after the flip")
        connection.write(wire.send(1, 0, wire.metadata("after the flip", 0, 1), b"x"))
        try:
            await asyncio.wait_for(came.wait(), 5)
        except (TimeoutError, asyncio.TimeoutError):
            self.verdict.problems.append(f"{topic.name} takes no message: {connection.send_errors}")
        await connection.request(wire.CLOSE_PRODUCER, 2, {1: 1})
