"""Faults of Apache bookies, ZooKeeper, the broker and the network, with every promise checked.

    python -m torture.bookkeeper --rounds 300 --seed 1 [--broker apache] [--first N] [--verbose]

Four Apache bookies, ZooKeeper, the broker and the clients run in network namespaces. In each round
one or two faults (torture/cluster_faults.py) happen under load (torture/cluster_clients.py). Then
the broker is killed or unloads its topics, everything is read back, and a judge
(torture/cluster_judge.py) compares it with all receipts. Topics live for a few rounds. The schedule
of a round depends on the seed and the number of the round only. The program needs root, a JDK,
Maven for the jars on first use, and Debian's ZooKeeper. Exit status 1 when any promise was broken.
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
from pathlib import Path
from typing import Any, NamedTuple

from harness.apache_broker import PULSAR
from harness.bookies import SERVER
from harness.brokers import BrokerFailed
from harness.cluster import Cluster
from harness.line_program import Program
from harness.network import isolate

from torture.cluster_faults import Round, begin, end, heal, plan, revive
from torture.cluster_judge import excess_s

BROKERS = {"ours": "pyxbroker", "apache": "apache"}
BOOKIES = 4
ROUNDS_PER_LIFE = 5
CONTINUES_S = 10.0
APACHE_CONTINUES_S = 60.0  # it takes as long to start
REQUEST_S = 240.0
NAMESPACES = (
    # Name, ensemble, write quorum, ack quorum, deduplication.
    ("public/three", 3, 3, 2, False),
    ("public/four", 4, 3, 2, True),
    ("public/once", 3, 3, 2, True),
    ("public/often", 3, 2, 2, False),
)


class RequestFailed(Exception):
    """The clients answered a request with an error."""


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
    """All rounds of a run on one cluster."""

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.options = options
        self.kind = BROKERS[options.broker]
        self.workspace = workspace
        self.cluster = Cluster(self.kind, workspace, options.seed, BOOKIES)
        self.clients: Program | None = None
        self.problems: list[str] = []
        self.faults: Counter[str] = Counter()
        self.promised = self.found = self.acks = 0
        self.longest_s = 0.0
        self._continued_s = 0.0
        self._life = 0
        self._counts = (0, 0, 0)

    def run(self) -> Outcome:
        """Run all rounds; a broken promise ends the life of the topics, not the run."""
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
        at = plan(self.options.seed, number, BOOKIES)
        began = time.monotonic()
        self._continued_s = 0.0
        try:
            found = self._round(at)
        except (RequestFailed, AssertionError, BrokerFailed, TimeoutError, OSError) as error:
            found = [f"{type(error).__name__}: {error}"]
        spent = time.monotonic() - began
        self.longest_s = max(self.longest_s, self._continued_s)
        self.faults.update(f"{each.kind} {each.target.split('-')[0]}" for each in at.faults)
        self.problems += found
        if found or self.options.verbose:
            verdict = "broken" if found else "ok"
            waited = f"sends waited {self._continued_s:.1f} s" if self._continued_s else "no wait"
            print(
                f"round {number} ({self._namespace[0]}), {at}: {verdict}, {spent:.1f} s, {waited}"
            )
            for problem in found:
                print(f"    {problem}")
            sys.stdout.flush()
        if found:
            self._keep(number)
            self._repair()

    def _round(self, at: Round) -> list[str]:
        cluster = self.cluster
        self._ask("resume")
        self._settle(time.monotonic(), 20.0)
        time.sleep(at.before_s)
        began = time.monotonic()
        for fault in at.faults:
            begin(cluster, fault)
        time.sleep(at.lasts_s)
        if at.reload == "crash":
            cluster.broker.kill()
            cluster.broker.spawn()
            time.sleep(1.0)  # the broker recovers while the faults last
        for fault in at.faults:
            end(cluster, fault)
        revive(cluster)
        cluster.broker.wait_ready()
        # A bookie takes a while to start, or to register again after its session has expired.
        heal(cluster)
        ended = time.monotonic()
        limit = self._limit_s
        late = self._settle(ended, limit + 5)
        found = [f"{name} has no receipt for {limit + 5:.0f} s after the fault" for name in late]
        paused = self._ask("pause", limit_s=limit)
        found += paused["problems"]
        has_quorum = at.has_quorum(BOOKIES - self._namespace[1])
        which = "although a quorum was left" if has_quorum else "after the end of the faults"
        for name, start, stop in paused["gaps"]:
            excess = excess_s((start, stop), began, ended, has_quorum)
            self._continued_s = max(self._continued_s, excess)
            if excess > limit:
                found.append(f"{name} had no receipts for {excess:.1f} s {which}")
        self._reload(at.reload)
        # Apache's broker answers before it stores an acknowledgement.
        is_killed = at.reload != "unload" or any(each.target == "broker" for each in at.faults)
        durable = self.kind == "pyxbroker" or not is_killed
        verdict = self._ask("verify", acks_are_durable=durable)
        self._counts = (verdict["promised"], verdict["found"], verdict["acks"])
        return found + verdict["problems"]

    @property
    def _limit_s(self) -> float:
        return APACHE_CONTINUES_S if self.kind == "apache" else CONTINUES_S

    def _settle(self, after_s: float, limit_s: float) -> list[str]:
        deadline = time.monotonic() + limit_s
        while True:
            revive(self.cluster)
            late: list[str] = self._ask("settle", after_s=after_s, limit_s=1.0)
            if not late or time.monotonic() > deadline:
                return late

    def _reload(self, how: str) -> None:
        broker = self.cluster.broker
        if how == "kill":
            broker.kill()
            broker.start()
        if how != "unload":
            return
        status, answer = broker.request("PUT", f"/admin/v2/namespaces/{self._namespace[0]}/unload")
        if status >= 300:
            raise BrokerFailed(f"the unload failed: {status} {answer}")

    def _begin_life(self, life: int) -> None:
        self._life += 1
        self._namespace = NAMESPACES[life % len(NAMESPACES)]
        network, broker = self.cluster.network, self.cluster.broker
        line = [*network.prefix("clients"), sys.executable, "-m", "torture.cluster_clients"]
        self.clients = Program("the clients", line, lambda _, text: RequestFailed(text))
        self._counts = (0, 0, 0)
        self._ask(
            "open",
            host=broker.host,
            port=broker.port,
            seed=self.options.seed + life,
            prefix=f"persistent://{self._namespace[0]}/life-{self._life}",
            deduplicated=self._namespace[4],
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
            self._ask("close")
        self.clients.kill()
        self.clients = None
        name, *_ = self._namespace
        for kind in ("exclusive", "shared", "keys"):
            path = f"/admin/v2/persistent/{name}/life-{self._life}-{kind}?force=true"
            self.cluster.broker.request("DELETE", path)

    def _repair(self) -> None:
        """Begin the next round with new topics and with servers that run."""
        if self.clients is not None:
            self.clients.kill()
            self.clients = None
        cluster = self.cluster
        cluster.network.restore_all()
        cluster.broker.kill()
        for bookie in cluster.bookies.values():
            bookie.kill()
            with contextlib.suppress(FileNotFoundError):
                bookie.disk.clear()
        heal(cluster)
        cluster.broker.start()

    def _keep(self, number: int) -> None:
        if self.options.keep is None:
            return
        kept = Path(self.options.keep) / f"round-{number}"
        kept.mkdir(parents=True, exist_ok=True)
        for path in (*self.workspace.glob("*/output.log"), self.workspace / "clients.log"):
            name = path.name if path.parent == self.workspace else f"{path.parent.name}.log"
            shutil.copy(path, kept / name)

    def _create_namespaces(self) -> None:
        rest = self.cluster.broker.request
        for name, ensemble, write_quorum, ack_quorum, deduplicated in NAMESPACES:
            path = f"/admin/v2/namespaces/{name}"
            persistence = {
                "bookkeeperEnsemble": ensemble,
                "bookkeeperWriteQuorum": write_quorum,
                "bookkeeperAckQuorum": ack_quorum,
                "managedLedgerMaxMarkDeleteRate": 0.0,
            }
            for method, where, body in (
                ("PUT", path, {"bundles": {"numBundles": 4}}),
                ("POST", f"{path}/persistence", persistence),
                ("POST", f"{path}/deduplication", deduplicated),
            ):
                status, text = rest(method, where, body)
                if status >= 300 and status != 409:
                    raise BrokerFailed(f"{method} {where} was refused: {status} {text}")

    def _ask(self, op: str, **args: Any) -> Any:
        assert self.clients is not None
        return self.clients.ask(op, 0, args, REQUEST_S)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--broker", choices=BROKERS, default="ours")
    parser.add_argument("--keep", help="folder for the logs of failed rounds")
    parser.add_argument("--verbose", action="store_true", help="one line per round")
    return parser.parse_args(arguments)


def summary(options: argparse.Namespace, outcome: Outcome, took_s: float) -> str:
    """Return the closing lines."""
    faults = ", ".join(f"{name} {count}" for name, count in sorted(outcome.faults.items()))
    return (
        f"bookkeeper, seed {options.seed}, broker {options.broker}: {outcome.rounds} rounds in"
        f" {took_s:.0f} s, {len(outcome.problems)} broken promises, {outcome.promised} acknowledged"
        f" messages checked, {outcome.found} read back, {outcome.acks} answered acknowledgements"
        f" checked; sends continued after at most {max(outcome.longest_s, 0):.1f} s\n"
        f"  {faults}; bad links forwarded {outcome.packets['forwarded']} packets and dropped"
        f" {outcome.packets['dropped']}"
    )


def main(arguments: list[str]) -> int:
    """Run all rounds; return the exit status."""
    options = parse(arguments)
    SERVER.jars()
    if options.broker == "apache":
        PULSAR.jars()
    isolate("torture.bookkeeper", arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    workspace = Path(tempfile.mkdtemp(prefix="bookkeeper-"))
    began = time.monotonic()
    storm = Storm(options, workspace)
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
    print(summary(options, outcome, time.monotonic() - began))
    if not outcome.promised or not outcome.found:
        print("nothing was acknowledged or read, so nothing was tried")
        return 1
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
