"""Rounds of disk errors: under load, at starts and recoveries, with kills and with power cuts.

Whatever fails, nothing acknowledged is lost, damaged, out of order or passed over, and nothing
comes again whose acknowledgement was answered.  When the errors are over the broker serves as
before by itself, unless its journal failed: then everything can be read, and a restart brings the
rest back.  A start that cannot go on says so in one sentence and ends with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from harness.brokers import Broker, BrokerFailed
from harness.client import Connection, Refused
from harness.errors import Errors, build_errors

from torture.episodes import Episode, random_episodes
from torture.load import verify
from torture.log_judge import Output, refusal, refusal_problems
from torture.model import TopicCheck
from torture.rounds import Torture
from torture.stubborn import GONE, StubbornLoad
from torture.topics_load import TopicsLoad

# Small caches and files, so that reads reach the disk and flushes come often.
SETTINGS = {
    "journalMaxSizeMB": "16",
    "dbStorage_writeCacheMaxSizeMb": "2",
    "dbStorage_readAheadCacheMaxSizeMb": "1",
    "managedLedgerMaxEntriesPerLedger": "1500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
RESUME_S = 6.0  # an error that is over is noticed by a retry, at most a second later
SETTLE_S = 8.0
TRIES = 4  # of errors, until one of them is met
START_S = 12.0  # a start waits at most two seconds for each of a few things


class ErrorTorture(Torture):
    """Rounds with errors; every second data directory has power cuts in place of kills."""

    name = "errors"
    endings = ("live", "live", "live", "live", "end", "end", "start", "start")

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        super().__init__(options, workspace, cut=True)
        self._cut_library = self.library
        self._errors_library = build_errors(workspace)
        self.loads: list[StubbornLoad] = []
        self.errors: Errors | None = None
        self.topics_load = TopicsLoad()
        self._remark = ""

    def fresh_directory(self) -> None:
        """An empty one, with the errors' library and in every second case the power cuts'."""
        self.library = None if self.life % 2 == 0 else self._cut_library
        super().fresh_directory()
        broker = self.broker
        assert broker is not None
        control = self.workspace / f"errors-{self.life}"
        self.errors = Errors(self._errors_library, broker.data, control)
        broker.settings = SETTINGS | broker.settings
        broker.environment = self.errors.environment(broker.environment)
        self.topics_load = TopicsLoad()

    def close(self) -> None:
        """End the broker, and remove the rules too."""
        super().close()
        errors = getattr(self, "errors", None)
        if errors is not None:
            errors.close()
        self.errors = None

    def remark(self) -> str:
        """What a line about a good round says more."""
        return self._remark

    async def one_round(self, how: str) -> None:
        """Start when needed, load with errors, perhaps an end, no errors, verify."""
        broker, errors = self.broker, self.errors
        assert broker is not None and errors is not None
        how = self.random.choice(sorted({*self.endings})) if how == "first" else how
        self.ending, self._remark = how, ""
        errors.forget()
        output = Output(broker.directory / "output.log")
        if how == "start":
            await self._start_round(broker, errors)
        else:
            if broker.process is None:
                broker.spawn()
                await self._ready(broker)
            await self._load_round(broker, errors, kill=how == "end")
        await self._check_everything(broker)
        self.verdict.problems += output.problems()
        if errors.hits() and output.damage() and self.library is None:
            self.verdict.problems.append(f"damage is reported without any: {output.damage()[0]}")
        self._count(how, "rounds")
        if errors.places():
            self._count(how, "an error was met")

    def _count(self, how: str, what: str) -> None:
        self.verdict.counts[how, what] += 1

    # --- errors under load ----------------------------------------------------------------------

    async def _load_round(self, broker: Broker, errors: Errors, kill: bool) -> None:
        load = StubbornLoad(self.topics, self.random)
        running = asyncio.ensure_future(load.run(broker.port))
        others = asyncio.ensure_future(self.topics_load.run(broker))
        output = Output(broker.directory / "output.log")
        try:
            await asyncio.sleep(0.1 + self.random.random() * self.options.load_s / 2)
            episodes = []
            for _ in range(TRIES):
                episodes += await self._meet(errors, kill)
                if errors.places():
                    break
            self._must_live(broker)
            if kill:
                broker.kill()
            else:
                errors.clear()
                await self._must_recover(broker, load, episodes, output)
        finally:
            self.topics_load.stop()
            load.stop()
            await asyncio.wait_for(running, 30)
            await asyncio.wait_for(others, 30)
        self.loads.append(load)
        if kill:
            await self._end_and_restart(broker, errors)

    async def _meet(self, errors: Errors, kill: bool) -> list[Episode]:
        """Let errors begin, and wait until their time is over; which they were."""
        errors.clear()
        episodes = self._begin(errors)
        longest = max(episode.seconds for episode in episodes)
        lasting = max(longest, 0.2 + self.random.random() * self.options.load_s)
        if kill:
            lasting *= self.random.random()
        await asyncio.sleep(lasting)
        return episodes

    def _begin(self, errors: Errors, start: str = "") -> list[Episode]:
        episodes = random_episodes(self.random, start)
        self.ending += ": " + ", ".join(map(str, episodes))
        for episode in episodes:
            episode.begin(errors)
        return episodes

    def _must_live(self, broker: Broker) -> None:
        assert broker.process is not None
        status = broker.process.poll()
        if status is not None:
            raise BrokerFailed(f"the broker ended by itself with {status}")

    async def _must_recover(
        self, broker: Broker, load: StubbornLoad, episodes: list[Episode], output: Output
    ) -> None:
        """The errors are over: everybody is served again, or the journal failed and it says so."""
        late = await load.resumed(RESUME_S)
        self._must_live(broker)
        journal_failed = bool(late) and any(each.may_fail_journal() for each in episodes)
        if late and not journal_failed:
            refused = load.refusals[-3:]
            self.verdict.problems.append(
                f"{len(late)} producers have no receipt {RESUME_S:g} s after the errors, first "
                f"{late[0]}; last refusals: {refused}"
            )
        if journal_failed:
            self._check_refusals(broker, load, output)
        self.verdict.problems += await load.settled(SETTLE_S)
        self._must_live(broker)
        if journal_failed:
            self._remark = ", the journal failed"
            self._count("live", "the journal failed")
            await self._restart_after_journal_failure(broker)

    def _check_refusals(self, broker: Broker, load: StubbornLoad, output: Output) -> None:
        if not output.says_the_journal_failed():
            self.verdict.problems.append("the log does not say that the journal failed")
        if not load.refusals:
            self.verdict.problems.append("the journal failed and nobody was refused")
        status = broker.http_status("/admin/v2/brokers/health")
        if status != 503:
            self.verdict.problems.append(f"the journal failed and health says {status}")

    async def _restart_after_journal_failure(self, broker: Broker) -> None:
        if self.random.random() < 0.5:
            await asyncio.to_thread(broker.stop)
        else:
            broker.kill()
            self._cut_power()
        broker.spawn()
        await self._ready(broker)

    # --- ends and starts ------------------------------------------------------------------------

    async def _end_and_restart(self, broker: Broker, errors: Errors) -> None:
        """The process is dead.  Sometimes the errors go on while it starts."""
        self._cut_power()
        if self.random.random() < 0.3:
            self.ending += ", and on"
            await self._start_with_errors(broker, errors)
        else:
            errors.clear()
            broker.spawn()
            await self._ready(broker)

    async def _start_round(self, broker: Broker, errors: Errors) -> None:
        """A stop or a kill, then a start that meets errors."""
        start = "start" if broker.data.exists() and any(broker.data.iterdir()) else "first_start"
        if broker.process is not None:
            if self.random.random() < 0.3:
                self.ending += " after a stop"
                start = self.random.choice(("start", "clean_start"))
                await asyncio.to_thread(broker.stop)
            broker.kill()
            self._cut_power()
        self._begin(errors, start)
        await self._start_with_errors(broker, errors)

    async def _start_with_errors(self, broker: Broker, errors: Errors) -> None:
        output = Output(broker.directory / "output.log")
        broker.spawn()
        assert broker.process is not None
        deadline = time.monotonic() + START_S
        while True:
            status = broker.process.poll()
            if status is not None:
                self.verdict.problems += refusal_problems(status, output)
                self._count(self.ending.split()[0].strip(":,"), "the start was refused")
                self._remark = f", refused: {refusal(output)}"
                broker.kill()
                self._cut_power()
                break
            if await asyncio.to_thread(broker.answers):
                break
            if time.monotonic() > deadline:
                self.verdict.problems.append(
                    f"after {START_S:g} s the start neither serves nor has ended\n{output.text()}"
                )
                broker.kill()
                break
            await asyncio.sleep(0.01)
        errors.clear()
        if broker.process is None:
            broker.spawn()
        await self._ready(broker)

    async def _ready(self, broker: Broker) -> None:
        """Wait until a topic can be read; the errors are over."""
        assert broker.process is not None
        began = time.monotonic()
        while True:
            try:
                connection = await Connection.open(broker.port)
                try:
                    await connection.reader(self.topics[0].name, 1)
                    await connection.last_position(1)
                    break
                finally:
                    connection.close()
            except (Refused, *GONE) as error:
                self._must_live(broker)
                if time.monotonic() - began > 20:
                    raise TimeoutError(f"not ready within 20 s: {error}") from None
                await asyncio.sleep(0.01)
        self.verdict.ready_s.append(time.monotonic() - began)

    # --- the end of a round ---------------------------------------------------------------------

    async def _check_everything(self, broker: Broker) -> None:
        checks: dict[str, TopicCheck] = {}
        await verify(broker.port, self.topics, self.verdict, True, checks)
        positions = {name: check.positions for name, check in checks.items()}
        for load in self.loads:
            self.verdict.problems += load.judge(positions)
        self.loads.clear()
        self.verdict.problems += await self.topics_load.check(broker)
