"""The rounds of a storm on one cluster: namespaces, lives of topics, and requests to the clients.

A subclass says what a round does. Topics live for a few rounds. A broken promise ends their life,
not the storm.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from harness.brokers import BrokerFailed
from harness.cluster import Cluster
from harness.line_program import Program

from torture.cluster_faults import Fault, heal

ROUNDS_PER_LIFE = 5
REQUEST_S = 240.0


class RequestFailed(Exception):
    """The clients answered a request with an error."""


def _failure(kind: str, text: str) -> RequestFailed:
    return RequestFailed(f"{kind}: {text}")


class Namespace(NamedTuple):
    """A namespace of a storm: quorums of its ledgers, and its deduplication."""

    name: str
    ensemble: int
    write_quorum: int
    ack_quorum: int
    is_deduplicated: bool


class Outcome(NamedTuple):
    """Counts of a run."""

    rounds: int
    promised: int
    found: int
    acks: int
    faults: Counter[str]
    problems: list[str]
    longest_s: float
    packets: Counter[str]


class Storm:
    """All rounds of a run on one cluster; `topics` are those of a life per kind."""

    topics = 1
    bundles = 4

    def __init__(
        self,
        options: argparse.Namespace,
        workspace: Path,
        cluster: Cluster,
        namespaces: tuple[Namespace, ...],
    ) -> None:
        self.options = options
        self.workspace = workspace
        self.cluster = cluster
        self.namespaces = namespaces
        self.namespace = namespaces[0]
        self.clients: Program | None = None
        self.names: list[str] = []
        """The topics of this life."""
        self.problems: list[str] = []
        self.faults: Counter[str] = Counter()
        self.promised = self.found = self.acks = 0
        self.longest_s = 0.0
        self.continued_s = 0.0
        """The longest wait of a send in this round that the faults do not explain."""
        self._life = 0
        self._counts = (0, 0, 0)

    # --- of a storm -----------------------------------------------------------------------------

    def plan(self, number: int) -> Any:
        """Return the schedule of a round, which has `faults`."""
        raise NotImplementedError

    def round(self, at: Any) -> list[str]:
        """Run a round; return the broken promises."""
        raise NotImplementedError

    def repair(self) -> None:
        """Make all servers run, after a round that has failed."""
        raise NotImplementedError

    # --- the rounds -----------------------------------------------------------------------------

    def figures(self) -> list[str]:
        """Return lines of measured values for the end of the summary."""
        return []

    def run(self) -> Outcome:
        """Run all rounds."""
        self.cluster.start()
        self._create_namespaces()
        first = self.options.first
        for number in range(first, first + self.options.rounds):
            self._one(number)
        self._end_life()
        return Outcome(
            self.options.rounds,
            self.promised,
            self.found,
            self.acks,
            self.faults,
            self.problems,
            self.longest_s,
            self.cluster.network.packets,
        )

    def close(self) -> None:
        """End all processes."""
        if self.clients is not None:
            self.clients.kill()
        self.cluster.close()

    def _one(self, number: int) -> None:
        if self.clients is None or (number - self.options.first) % ROUNDS_PER_LIFE == 0:
            self._end_life()
            self._begin_life(number // ROUNDS_PER_LIFE)
        at = self.plan(number)
        began = time.monotonic()
        self.continued_s = 0.0
        try:
            found = self.round(at)
        except (RequestFailed, AssertionError, BrokerFailed, TimeoutError, OSError) as error:
            found = [f"{type(error).__name__}: {error}"]
        spent = time.monotonic() - began
        self.longest_s = max(self.longest_s, self.continued_s)
        faults: tuple[Fault, ...] = at.faults
        self.faults.update(each.name for each in faults)
        self.problems += found
        if found or self.options.verbose:
            verdict = "broken" if found else "ok"
            waited = f"sends waited {self.continued_s:.1f} s" if self.continued_s else "no wait"
            print(
                f"round {number} ({self.namespace.name}), {at}: {verdict}, {spent:.1f} s, {waited}"
            )
            for problem in found:
                print(f"    {problem}")
            sys.stdout.flush()
        if found:
            self._keep(number)
            self._repair()

    def _repair(self) -> None:
        """Begin the next round with new topics and with servers that run."""
        if self.clients is not None:
            self.clients.kill()
            self.clients = None
        self.cluster.network.restore_all()
        self.repair()

    def _keep(self, number: int) -> None:
        if self.options.keep is None:
            return
        kept = Path(self.options.keep) / f"round-{number}"
        kept.mkdir(parents=True, exist_ok=True)
        for path in (*self.workspace.glob("*/output.log"), *self.workspace.glob("clients*.log")):
            name = path.name if path.parent == self.workspace else f"{path.parent.name}.log"
            shutil.copy(path, kept / name)

    def verify(self, acks_are_durable: bool) -> list[str]:
        """Read everything back; return the broken promises."""
        verdict = self.ask("verify", acks_are_durable=acks_are_durable)
        self._counts = (verdict["promised"], verdict["found"], verdict["acks"])
        problems: list[str] = verdict["problems"]
        return problems

    def settle(self, after_s: float, limit_s: float, revive: Callable[[], None]) -> list[str]:
        """Wait for a receipt of each producer after a time; return the producers without one."""
        deadline = time.monotonic() + limit_s
        while True:
            revive()
            late: list[str] = self.ask("settle", after_s=after_s, limit_s=1.0)
            if not late or time.monotonic() > deadline:
                return late

    def ask(self, op: str, **args: Any) -> Any:
        """Return the clients' answer to a request. Raises RequestFailed."""
        assert self.clients is not None
        return self.clients.ask(op, 0, args, REQUEST_S)

    # --- topics ---------------------------------------------------------------------------------

    def _begin_life(self, life: int) -> None:
        self._life += 1
        self.namespace = self.namespaces[life % len(self.namespaces)]
        network, brokers = self.cluster.network, self.cluster.brokers.values()
        line = [*network.prefix("clients"), sys.executable, "-m", "torture.cluster_clients"]
        self.clients = Program("the clients", line, _failure)
        self._counts = (0, 0, 0)
        self.names = self.ask(
            "open",
            hosts=[each.host for each in brokers],
            port=self.cluster.broker.port,
            seed=self.options.seed + life,
            prefix=f"persistent://{self.namespace.name}/life-{self._life}",
            topics=self.topics,
            deduplicated=self.namespace.is_deduplicated,
            log=str(self.workspace / "clients.log"),
        )

    def _end_life(self) -> None:
        if self.clients is None:
            return
        promised, found, acks = self._counts
        self.promised += promised
        self.found += found
        self.acks += acks
        with contextlib.suppress(RequestFailed, AssertionError):
            self.ask("close")
        self.clients.kill()
        self.clients = None
        for name in self.names:
            path = f"/admin/v2/{name.replace('://', '/')}?force=true"
            self.cluster.broker.request("DELETE", path)

    def _create_namespaces(self) -> None:
        rest = self.cluster.broker.request
        for each in self.namespaces:
            path = f"/admin/v2/namespaces/{each.name}"
            persistence = {
                "bookkeeperEnsemble": each.ensemble,
                "bookkeeperWriteQuorum": each.write_quorum,
                "bookkeeperAckQuorum": each.ack_quorum,
                "managedLedgerMaxMarkDeleteRate": 0.0,
            }
            for method, where, body in (
                ("PUT", path, {"bundles": {"numBundles": self.bundles}}),
                ("POST", f"{path}/persistence", persistence),
                ("POST", f"{path}/deduplication", each.is_deduplicated),
            ):
                status, text = rest(method, where, body)
                if status >= 300 and status != 409:
                    raise BrokerFailed(f"{method} {where} was refused: {status} {text}")


def parser_of(description: str, brokers: tuple[str, ...]) -> argparse.ArgumentParser:
    """Return the parser of a storm's command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--broker", choices=brokers, default="ours")
    parser.add_argument("--keep", help="folder for the logs of failed rounds")
    parser.add_argument("--verbose", action="store_true", help="one line per round")
    return parser


def summary(name: str, options: argparse.Namespace, outcome: Outcome, took_s: float) -> str:
    """Return the closing lines."""
    faults = ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items()))
    return (
        f"{name}, seed {options.seed}, broker {options.broker}: {outcome.rounds} rounds in"
        f" {took_s:.0f} s, {len(outcome.problems)} broken promises, {outcome.promised} acknowledged"
        f" messages checked, {outcome.found} read back, {outcome.acks} answered acknowledgements"
        f" checked; sends continued after at most {max(outcome.longest_s, 0):.1f} s\n"
        f"  {faults}; bad links forwarded {outcome.packets['forwarded']} packets and dropped"
        f" {outcome.packets['dropped']}"
    )


def run_storm(
    name: str, options: argparse.Namespace, create: Callable[[argparse.Namespace, Path], Storm]
) -> int:
    """Run a storm in a directory of its own; print its summary and return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` ignores it
    workspace = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    began = time.monotonic()
    storm = create(options, workspace)
    try:
        outcome = storm.run()
    except BrokerFailed as error:
        print(error)
        return 1
    finally:
        storm.close()
        for bookie in storm.cluster.bookies.values():
            bookie.unmount()
        shutil.rmtree(workspace, ignore_errors=True)
    print(summary(name, options, outcome, time.monotonic() - began))
    for line in storm.figures():
        print(line)
    if not outcome.promised or not outcome.found:
        print("nothing was acknowledged or read, so nothing was tried")
        return 1
    return 1 if outcome.problems else 0


def repair_bookies(cluster: Cluster) -> None:
    """Start all bookies again, with free disks."""
    for bookie in cluster.bookies.values():
        bookie.kill()
        with contextlib.suppress(FileNotFoundError):
            bookie.disk.clear()
    heal(cluster)
