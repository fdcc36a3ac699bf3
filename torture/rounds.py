"""Rounds of kills and power cuts: load, a sudden end, a start, and every promise checked."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import time
from pathlib import Path
from typing import ClassVar

from harness.brokers import Broker, BrokerFailed
from harness.client import Refused

from torture.cut import Mode
from torture.load import Load, make_topics, time_to_ready, verify
from torture.model import TopicModel, Verdict
from torture.simulator import Simulator, build_library

ENDINGS = ("load", "load", "load", "load", "stop", "recovery")
ROUNDS_PER_DIRECTORY = 6


class Torture:
    """All rounds of one kind, with or without the power-cut simulator."""

    name = "kill"
    endings: tuple[str, ...] = ENDINGS
    rounds_per_directory = ROUNDS_PER_DIRECTORY
    settings: ClassVar[dict[str, str]] = {}

    def __init__(self, options: argparse.Namespace, workspace: Path, cut: bool) -> None:
        self.options = options
        self.cut = cut
        self.workspace = workspace
        self.library = build_library(workspace) if cut else None
        self.random = random.Random(f"{options.seed}-{cut}")
        self.verdict = Verdict()
        self.life = 0
        self.round = 0
        self.ending = ""
        self.topics: list[TopicModel] = []
        self.broker: Broker | None = None
        self.simulator: Simulator | None = None

    def fresh_directory(self) -> None:
        """Begin with an empty data directory."""
        self.close()
        self.life += 1
        root = self.workspace / f"life-{self.life}"
        environment = {}
        if self.library is not None:
            self.simulator = Simulator(self.library, root)
            environment = self.simulator.environment()
        settings = self.settings | dict(item.split("=", 1) for item in self.options.set)
        self.broker = Broker(
            self.options.broker,
            self.workspace / f"broker-{self.life}",
            environment=environment,
            settings=settings,
        )
        root.mkdir(exist_ok=True)
        self.broker.data = root / "data"
        self.topics = self.make_topics()

    def make_topics(self) -> list[TopicModel]:
        """Those of a data directory."""
        return make_topics(self.random, self.life)

    def make_load(self) -> Load:
        """What works until the broker ends."""
        return Load(self.topics, self.random)

    async def check(self, port: int, acks_are_durable: bool) -> None:
        """Asks for everything, and puts what is wrong into the verdict."""
        await verify(port, self.topics, self.verdict, acks_are_durable)

    def close(self) -> None:
        """End the broker and remove its files."""
        if self.broker is not None:
            self.broker.close()
            shutil.rmtree(self.broker.data.parent, ignore_errors=True)
        if self.simulator is not None:
            self.simulator.remove()
        self.broker = self.simulator = None

    async def rounds(self, count: int) -> Verdict:
        """Run them; a broken promise ends that data directory, not the torture."""
        for number in range(count):
            self.round = number + 1
            first = number % self.rounds_per_directory == 0 or self.broker is None
            if first:
                self.fresh_directory()
            problems = len(self.verdict.problems)
            try:
                await self.one_round("first" if first else self.random.choice(self.endings))
            except (BrokerFailed, Refused, TimeoutError, asyncio.TimeoutError, OSError) as error:
                output = self.broker.output(1500) if self.broker else ""
                self.verdict.problems.append(f"{type(error).__name__}: {error}\n{output}")
            self.verdict.rounds += 1
            found = self.verdict.problems[problems:]
            if found:
                self._report(found)
                self.close()
            elif self.options.verbose:
                print(f"round {self.round} {self.ending}: ok{self.remark()}", flush=True)
        self.close()
        return self.verdict

    def remark(self) -> str:
        """What a line about a good round says more."""
        return f", ready in {self.verdict.ready_s[-1] * 1000:.0f} ms"

    def _report(self, found: list[str]) -> None:
        print(f"round {self.round}, ended by {self.ending}, seed {self.options.seed}:", flush=True)
        for problem in found:
            print("  " + problem.replace("\n", "\n    "), flush=True)
        if self.options.keep and self.broker is not None:
            self.broker.kill()
            kept = Path(self.options.keep) / f"{'cut' if self.cut else self.name}-{self.round}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(self.broker.data.parent, kept)
            shutil.copy(self.broker.directory / "output.log", kept / "output.log")
            print(f"  the data directory is kept in {kept}", flush=True)

    async def one_round(self, how: str) -> None:
        """Start when needed, load, end, start again, verify."""
        broker = self.broker
        assert broker is not None
        self.ending = how
        started = broker.process is None
        if started:
            broker.spawn()
        if how == "first":
            # Half of these end before or just when the very first start is ready.
            end_at = self.random.choice([0.4, 1.5]) * self.random.random()
        else:
            end_at = 0.05 + self.random.random() * self.options.load_s
        await self._load_until(broker, end_at, wait_ready=started)
        if how == "stop":
            await asyncio.to_thread(broker.stop)
        broker.kill()
        self._cut_power()
        if how == "recovery":
            for _ in range(self.random.randint(1, 3)):
                broker.spawn()
                await asyncio.sleep(self.random.random() * 0.3)
                broker.kill()
                self._cut_power()
        broker.spawn()
        ready = await time_to_ready(broker.port, self.topics[0].name, broker.started_at)
        self.verdict.ready_s.append(ready)
        if ready > self.options.ready_limit_s:
            self.verdict.problems.append(f"ready only after {ready:.2f} s")
        acks_are_durable = how == "stop" or self.options.broker == "pyxbroker"
        await self.check(broker.port, acks_are_durable)

    async def _load_until(self, broker: Broker, end_at: float, wait_ready: bool) -> None:
        deadline = time.monotonic() + end_at
        load = self.make_load()
        if wait_ready:
            # The load begins as soon as it can; the end comes at its moment either way.
            await asyncio.to_thread(_wait_until_it_answers, broker, deadline)
        running = asyncio.ensure_future(load.run(broker.port))
        await asyncio.sleep(max(0.0, deadline - time.monotonic()))
        assert broker.process is not None
        if broker.process.poll() is not None:
            raise BrokerFailed(f"the broker ended by itself with {broker.process.returncode}")
        if self.ending == "stop":
            load.stop()
            await running
        else:
            broker.kill()
            await asyncio.wait_for(running, 30)
        self.verdict.problems += load.problems

    def _cut_power(self) -> None:
        if self.simulator is None or not self.simulator.used():
            return
        mode = self.random.choice(list(Mode))
        report = self.simulator.cut(self.random, mode)
        self.ending += f", cut {mode.value} ({report.uncovered - report.kept} changes lost)"


def _wait_until_it_answers(broker: Broker, deadline: float) -> None:
    while time.monotonic() < deadline and not broker.answers():
        time.sleep(0.003)
