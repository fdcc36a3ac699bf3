"""Exactly-once processing with transactions, while workers and brokers are killed.

    python -m torture.transactions --rounds 60 --seed 1 [--cut | --brokers 3] [--verbose]

An input topic of 4 partitions is filled with keyed, numbered messages. Three workers
(torture/transaction_worker.py) receive them, send each to an output topic of 4 partitions and
acknowledge it, in transactions with Pulsar's Go client. In half of the rounds each worker has
partitions of its own (Failover), and the order of each key counts; in the others all workers share
the input (Shared). At random moments workers and brokers are killed, and topics, bundles or
coordinators are unloaded. With ``--cut`` the disk loses what no sync covers in each kill of the
broker. Then everything must drain, and a judge (torture/transaction_judge.py) compares the output
with the input and with the answers to the workers. Exit status 1 when any promise was broken.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pulsar
from harness import transactions
from harness.brokers import Broker, BrokerFailed
from harness.transaction_commands import COORDINATOR_TOPIC
from harness.transactions import path_of

from torture.cut import Mode
from torture.simulator import Simulator, build_library
from torture.transaction_judge import Ledger, Output, judge
from torture.transaction_worker import SUBSCRIPTION, Worker, output_of

PARTITIONS = 4
WORKERS = 3
KEYS = 12
COORDINATORS = 16
MESSAGES = (60, 160)  # of one round
FAULTS = (5, 11)  # of one round
PAUSE_S = (0.02, 0.6)  # before a fault
DRAIN_S = 120.0
STOP_S = 60.0
READ_S = 15.0
READY_S = 90.0  # a machine may be busy with other work
ROUNDS_PER_DIRECTORY = 6
SETTINGS = transactions.SETTINGS | {
    "brokerDeduplicationEnabled": "true",  # the client repeats a message without a receipt
    "managedLedgerMaxEntriesPerLedger": "300",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "transactionBufferSnapshotMaxTransactionCount": "20",
    "transactionBufferSnapshotMinTimeInMillis": "500",
    "transactionPendingAckLogIndexMinLag": "20",
}
WORKER, BROKER, TOPIC, BUNDLE, COORDINATOR = "worker", "broker", "topic", "bundle", "coordinator"
WEIGHTS = {WORKER: 5, BROKER: 5, TOPIC: 1, BUNDLE: 1, COORDINATOR: 2}
KILLS = (WORKER, BROKER)


class Storm:
    """All rounds of one run."""

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.options = options
        self.workspace = workspace
        self.counts: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.problems: list[str] = []
        self.read = 0
        self.longest_drain_s = 0.0
        self._library = build_library(workspace) if options.cut else None
        self._simulator: Simulator | None = None
        self._random = random.Random(options.seed)
        self._broker: Broker | None = None
        self._life = 0

    @property
    def broker(self) -> Broker:
        assert self._broker is not None
        return self._broker

    @property
    def brokers(self) -> list[Broker]:
        return [self.broker, *getattr(self.broker, "others", [])]

    def run(self) -> None:
        """Run the rounds; a broken promise ends a data directory, not the run."""
        for number in range(self.options.first, self.options.first + self.options.rounds):
            self._random = random.Random(f"{self.options.seed}-{number}")
            if self._broker is None or number % ROUNDS_PER_DIRECTORY == 0:
                self._begin_directory()
            try:
                found = self._round(number)
            except (BrokerFailed, pulsar.PulsarException, AssertionError, OSError) as error:
                output = self.broker.output(1500)
                found = [f"{type(error).__name__}: {error}\n{output}"]
            self.counts["rounds"] += 1
            self.problems += found
            if found:
                print(f"round {number}, seed {self.options.seed}:", flush=True)
                for problem in found[:20]:
                    print(f"  {problem}", flush=True)
                self._keep(number)
                self.close()
        self.close()

    def _begin_directory(self) -> None:
        self.close()
        self._life += 1
        kind = "cluster" if self.options.brokers else "pyxbroker"
        directory = self.workspace / f"broker-{self._life}"
        broker = Broker(kind, directory, settings=SETTINGS)
        if self._library is not None:
            self._simulator = Simulator(self._library, self.workspace / f"life-{self._life}")
            broker.environment = self._simulator.environment()
            broker.data = self._simulator.root / "data"
        self._broker = broker
        broker.start(READY_S)

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
        if self._simulator is not None:
            self._simulator.remove()
        self._broker = self._simulator = None

    def _keep(self, number: int) -> None:
        if self.options.keep and self._broker is not None:
            self._broker.kill()
            kept = Path(self.options.keep) / f"{self.options.seed}-{number}"
            shutil.copytree(self._broker.directory, kept, dirs_exist_ok=True)
            if self._simulator is not None:
                shutil.copytree(self._simulator.root, kept, dirs_exist_ok=True)

    def _round(self, number: int) -> list[str]:
        is_ordered = self._random.random() < 0.5
        source, output = (f"persistent://public/default/{each}-{number}" for each in ("in", "out"))
        for topic in (source, output):
            status, text = self.broker.rest("PUT", f"/admin/v2/{path_of(topic)}/partitions", 4)
            assert status == 204, (status, text)
        inputs = _partitions(source)
        for each in inputs:
            self._subscribe(each, SUBSCRIPTION)
        for each in _partitions(output):
            self._subscribe(each, "audit")  # without it, the broker may delete what it stored
        ledger = Ledger()
        self._fill(source, ledger)
        workers = [
            Worker(
                f"worker-{each}",
                self.brokers,
                inputs[each::WORKERS] if is_ordered else source,
                output,
                ledger,
                is_ordered,
                f"{self.options.seed}-{number}-{each}",
            )
            for each in range(WORKERS)
        ]
        for worker in workers:
            worker.start()
        faults: list[str] = []
        waits: Counter[str] = Counter()  # what the workers did in the samples of the drain
        try:
            for _ in range(self._random.randint(*FAULTS)):
                time.sleep(self._random.uniform(*PAUSE_S))
                faults.append(self._fault(workers, [*inputs, *_partitions(output)]))
            for broker in self.brokers:
                broker.wait_ready(READY_S)
            began = time.monotonic()
            found = self._drain(inputs, workers, waits)
            drained_s = time.monotonic() - began
            self.longest_drain_s = max(self.longest_drain_s, drained_s)
            if found:
                found += [f"{each.name}: {each.doing}, {dict(each.counts)}" for each in workers]
        finally:
            for worker in workers:
                worker.stop()
            until = time.monotonic() + STOP_S
            for worker in workers:
                worker.join(max(0.0, until - time.monotonic()))
                if worker.is_alive():
                    worker.crash()
        found += [f"{each.name} does not end: {each.doing}" for each in workers if each.is_alive()]
        found += [f"{each.name} failed: {each.failure!r}" for each in workers if each.failure]
        read, left = self._read_until(output, ledger.sent.total())
        found += left
        self.read += len(read)
        found += judge(ledger, read, is_ordered)
        for worker in workers:
            self.answers += worker.counts
        if self.options.verbose or found:
            order = "ordered" if is_ordered else "shared"
            commits = sum(each.counts["commits"] for each in workers)
            print(
                f"round {number}: {order}, {ledger.sent.total()} messages, {commits} commits,"
                f" {len(ledger.aborted)} aborted, drained in {drained_s:.1f} s"
                f" ({waits.most_common(3)}):"
                f" {', '.join(faults)}",
                flush=True,
            )
        return found

    def _subscribe(self, topic: str, name: str) -> None:
        path = f"/admin/v2/{path_of(topic)}/subscription/{name}"
        status, text = self.broker.rest("PUT", path, {"ledgerId": -1, "entryId": -1})
        assert status == 204, (status, text)

    def _fill(self, topic: str, ledger: Ledger) -> None:
        client = pulsar.Client(
            self.broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        producer = client.create_producer(topic, block_if_queue_full=True)
        for _ in range(self._random.randint(*MESSAGES)):
            one = ledger.send(self._random.randrange(KEYS))
            producer.send_async(str(one).encode(), None, partition_key=str(one.key))
        producer.flush()
        client.close()

    def _read_until(self, topic: str, count: int) -> tuple[list[Output], list[str]]:
        """Read the output until it is complete; return it, and what its topics say if it is not.

        A transaction that waits for its time-out holds back the messages after it.
        """
        until = time.monotonic() + READ_S
        while len(read := self._read(topic)) < count:
            if time.monotonic() > until:
                stats = [
                    transactions.buffer_stats(self.broker, each) for each in _partitions(topic)
                ]
                logs = [self._log_of(each) for each in _partitions(topic)]
                return read, [*(str(each) for each in stats), *logs, self._open()]
            time.sleep(0.3)
        return read, []

    def _log_of(self, topic: str) -> str:
        """Return the stored ledgers of a topic, and its cursors."""
        status, stats = self.broker.rest("GET", f"/admin/v2/{path_of(topic)}/internalStats")
        if status != 200:
            return f"{status} {stats}"
        ledgers = [f"{each['ledgerId']} ({each['entries']})" for each in stats["ledgers"]]
        cursors = {name: each["markDeletePosition"] for name, each in stats["cursors"].items()}
        return f"ledgers {', '.join(ledgers)}; cursors {cursors}"

    def _open(self) -> str:
        return f"open: {transactions.transaction_rest(self.broker, 'slowTransactions/0')}"

    def _read(self, topic: str) -> list[Output]:
        """Return all committed messages of a topic, in the order of each partition."""
        client = pulsar.Client(
            self.broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        read = []
        try:
            for partition in _partitions(topic):
                reader = client.create_reader(partition, pulsar.MessageId.earliest)
                while reader.has_message_available():
                    read.append(output_of(reader.read_next(10_000).data()))
        finally:
            client.close()
        return read

    def _drain(self, inputs: list[str], workers: list[Worker], waits: Counter[str]) -> list[str]:
        """Wait until all inputs are acknowledged; return what is left after the limit."""
        until = time.monotonic() + DRAIN_S
        left = dict.fromkeys(inputs, -1)
        while time.monotonic() < until:
            for topic in list(left):
                if self._backlog(topic) == 0:
                    del left[topic]
            if not left:
                return []
            waits.update(each.doing.partition(" ")[0] for each in workers)
            time.sleep(0.2)
        backlogs = {topic.rpartition("/")[2]: self._backlog(topic) for topic in left}
        return [f"not drained after {DRAIN_S:.0f} s: {backlogs}; {self._open()}"]

    def _backlog(self, topic: str) -> Any:
        status, stats = self.broker.rest("GET", f"/admin/v2/{path_of(topic)}/stats")
        if status != 200:
            return f"{status} {stats}"
        return stats["subscriptions"][SUBSCRIPTION]["msgBacklog"]

    # --- faults -------------------------------------------------------------------------------

    def _fault(self, workers: list[Worker], topics: list[str]) -> str:
        [kind] = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))
        choice = self._random.randrange(1 << 30)
        text = kind
        if kind == WORKER:
            if not any(workers[(choice + each) % WORKERS].crash() for each in range(WORKERS)):
                return "no worker"  # all are waiting for the end of a transaction
        elif kind == BROKER:
            text += self._kill(self.brokers[choice % len(self.brokers)])
        elif kind == TOPIC:
            self._unload(path_of(topics[choice % len(topics)]))
        elif kind == COORDINATOR:
            name = f"{COORDINATOR_TOPIC}-partition-{choice % COORDINATORS}"
            self._unload(path_of(name))
        else:
            self._unload("namespaces/public/default")
        self.counts[kind] += 1
        return text

    def _kill(self, broker: Broker) -> str:
        Broker.kill(broker)
        cut = ""
        if self._simulator is not None and self._simulator.used():
            mode = self._random.choice(list(Mode))
            report = self._simulator.cut(self._random, mode)
            cut = f" (cut {mode.value}, {report.uncovered - report.kept} changes lost)"
            self.counts["cuts"] += 1
        Broker.spawn(broker)
        return cut

    def _unload(self, path: str) -> None:
        """Unload; a broker that starts refuses, which is right."""
        try:
            status, _ = self.broker.request("PUT", f"/admin/v2/{path}/unload")
            self.counts["unloads"] += status == 204
        except OSError:
            pass


def _partitions(topic: str) -> list[str]:
    return [f"{topic}-partition-{each}" for each in range(PARTITIONS)]


def main(arguments: list[str] | None = None) -> int:
    """Run the rounds; return the exit status."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cut", action="store_true", help="cut the power with each kill")
    parser.add_argument("--brokers", type=int, default=0, help="of a cluster (0: a standalone)")
    parser.add_argument("--keep", help="folder that keeps the data directories of failed rounds")
    parser.add_argument("--workspace", help="folder for the data (default: a temporary one)")
    parser.add_argument("--verbose", action="store_true", help="one line per round")
    options = parser.parse_args(arguments)
    if options.brokers:
        os.environ["BROKERS"] = str(options.brokers)
    workspace = Path(tempfile.mkdtemp(prefix="torture-", dir=options.workspace))
    storm = Storm(options, workspace)
    began = time.monotonic()
    try:
        storm.run()
    finally:
        storm.close()
        if options.brokers:
            from harness.shared_cluster import close_servers

            close_servers()
        shutil.rmtree(workspace, ignore_errors=True)
    counts = storm.counts
    kills = sum(counts[each] for each in KILLS)
    print("; ".join(f"{name} {count}" for name, count in sorted(storm.answers.items())))
    print(
        f"seed {options.seed}: {counts['rounds']} rounds in {time.monotonic() - began:.0f} s,"
        f" {kills} kills ({counts[WORKER]} of workers, {counts[BROKER]} of brokers,"
        f" {counts['cuts']} with a power cut), {counts['unloads']} unloads,"
        f" {storm.answers['commits']} commits, {storm.answers['aborts']} aborts,"
        f" {storm.read} messages read, {len(storm.problems)} broken promises;"
        f" drained in {storm.longest_drain_s:.1f} s at most"
    )
    return 1 if storm.problems or not storm.answers["commits"] else 0


if __name__ == "__main__":
    sys.exit(main())
