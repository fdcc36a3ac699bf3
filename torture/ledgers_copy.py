"""`pyxbroker ledgers copy` of a large standalone is killed again and again.

    python -m torture.ledgers_copy --topics 1000 --messages 1000 --kills 5 [--seed N]

A standalone gets topics with messages in batches and alone, a subscription with holes in each,
schemas and policies. The command copies it to ZooKeeper and two of Apache's bookies, is ended by
SIGKILL at random moments, and then copies the rest. A broker on the cluster has to show the same
messages with the same ids, the same state of each subscription, and the same schemas and policies.
The audit pipeline then compares all messages of both brokers. Exit status 1 when anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
from compat_tests.clusters import CLUSTER, Cluster
from compat_tests.conftest import official_client
from compat_tests.messages import payload
from harness.brokers import Broker, pyxbroker_command

NAMESPACE = "acme/a"
SETTINGS = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
STANDALONE_SETTINGS = SETTINGS | {
    "managedLedgerMaxEntriesPerLedger": "400",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
BATCH = 10
ONE_IN = 20
"""Each topic with this remainder has a policy of its own, and another topic with a schema."""


class Numbered(pulsar.schema.Record):
    number = pulsar.schema.Integer()


class TopicState(NamedTuple):
    """What clients and operators see of a topic."""

    messages: str
    """A hash of all ids and payloads."""
    cursor: tuple[str, str]
    """The mark-delete position and the individually acknowledged ranges."""
    backlog: int
    properties: dict[str, str]
    policy: Any
    schema: Any


class Copying:
    """One standalone, one cluster, and the command between them."""

    def __init__(self, options: argparse.Namespace, workspace: Path) -> None:
        self.random = random.Random(options.seed)
        self.topics = [f"persistent://{NAMESPACE}/t{number}" for number in range(options.topics)]
        self.messages = options.messages
        self.standalone = Broker(
            "pyxbroker", workspace / "standalone", settings=STANDALONE_SETTINGS
        )
        self.cluster = Cluster(workspace / "cluster", bookies=2)
        self.workspace = workspace

    def run(self, kills: int) -> list[str]:
        """Return what differs."""
        self.standalone.start()
        self.say(f"{len(self.topics) * self.messages:,} messages published", self.fill)
        before = self.say("the standalone read", lambda: self.state_of(self.standalone))
        self.standalone.stop()
        self.cluster.start()
        line = [*pyxbroker_command(), "ledgers", "copy", "--from", str(self.standalone.data)]
        line += ["--to", f"zk:{self.cluster.zookeeper.address}", "--cluster", CLUSTER]
        print(self.output(line), end="")
        longest = 0.8 * self.duration(line) / max(kills, 1)  # so that the copy never ends before
        for _ in range(kills):
            process = subprocess.Popen([*line, "--apply"], stdout=subprocess.DEVNULL)
            seconds = longest * self.random.uniform(0.3, 1)
            time.sleep(seconds)
            if process.poll() is not None:
                return [f"the copy ended before it was killed, with {process.returncode}"]
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"killed after {seconds:.1f} s", flush=True)
        print(self.say("copied", lambda: self.output([*line, "--apply", "--verify"])), end="")
        broker = self.cluster.broker(**SETTINGS)
        broker.start()
        after = self.say("the cluster read", lambda: self.state_of(broker))
        found = [
            f"{topic} is {after[topic]}, was {before[topic]}"
            for topic in self.topics
            if before[topic] != after[topic]
        ]
        self.standalone.start()
        audit = self.say("audited", lambda: self.audit(broker))
        differing = [each for each in audit if each["difference"]]
        print(f"audit: {len(audit)} topics, {len(differing)} differ")
        if len(audit) < len(self.topics):
            found.append(f"the audit compared {len(audit)} topics of {len(self.topics)}")
        return found + [str(each) for each in differing]

    def close(self) -> None:
        self.standalone.close()
        self.cluster.close()

    def say(self, what: str, do: Any) -> Any:
        began = time.monotonic()
        result = do()
        print(f"{what} in {time.monotonic() - began:.0f} s", flush=True)
        return result

    def fill(self) -> None:
        def admin(method: str, path: str, body: Any = None) -> None:
            code, answer = self.standalone.rest(method, f"/admin/v2/{path}", body)
            assert code in (200, 204), (path, answer)

        admin("PUT", "tenants/acme", {"adminRoles": ["root"], "allowedClusters": ["standalone"]})
        admin("PUT", f"namespaces/{NAMESPACE}")
        admin("POST", f"namespaces/{NAMESPACE}/permissions/role", ["produce"])
        admin("POST", f"namespaces/{NAMESPACE}/messageTTL", 1_000_000)
        client = official_client(self.standalone.url)
        for number, topic in enumerate(self.topics):
            consumer = client.subscribe(
                topic,
                "s",
                pulsar.ConsumerType.Shared,
                properties={"n": str(number)},
                batch_index_ack_enabled=True,
                receiver_queue_size=2_000,
            )
            is_batched = number % BATCH > 0
            producer = client.create_producer(
                topic,
                block_if_queue_full=True,
                max_pending_messages=2_000,
                batching_enabled=is_batched,
                batching_max_messages=BATCH,
                batching_max_publish_delay_ms=1_000,
            )
            for each in range(self.messages):
                size = 40 + each % 200
                producer.send_async(payload(number * self.messages + each, size), None)
            producer.flush()
            producer.close()
            for each in range(self.messages // 4):
                message = consumer.receive(20_000)
                if (7 * each + number) % 3:
                    consumer.acknowledge(message)
            consumer.close()
            if number % ONE_IN == 0:
                path = topic.replace("://", "/")
                admin("POST", f"{path}/maxConsumers", 3 + number % 7)
                schema = pulsar.schema.AvroSchema(Numbered)
                typed = client.create_producer(f"{topic}-typed", schema=schema)
                typed.send(Numbered(number=number))
                typed.close()
        client.close()

    def state_of(self, broker: Broker) -> dict[str, TopicState]:
        def admin(path: str) -> Any:
            code, answer = broker.rest("GET", f"/admin/v2/{path}")
            assert code == 200, (path, answer)
            return answer

        client = official_client(broker.url)
        found = {}
        for number, topic in enumerate(self.topics):
            path = topic.replace("://", "/")
            cursor = admin(f"{path}/internalStats")["cursors"]["s"]
            subscription = admin(f"{path}/stats")["subscriptions"]["s"]
            has_more = number % ONE_IN == 0
            schema = admin(f"schemas/{NAMESPACE}/t{number}-typed/schema") if has_more else None
            found[topic] = TopicState(
                self.hash_of(client, topic),
                (cursor["markDeletePosition"], cursor["individuallyDeletedMessages"]),
                subscription["msgBacklog"],
                subscription["subscriptionProperties"],
                admin(f"{path}/maxConsumers") if has_more else None,
                schema,
            )
        client.close()
        return found

    def hash_of(self, client: Any, topic: str) -> str:
        total = hashlib.blake2b()
        reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=2_000)
        for _ in range(self.messages):
            message = reader.read_next(20_000)
            total.update(f"{message.message_id()}:".encode() + message.data())
        assert not reader.has_message_available(), topic
        reader.close()
        return total.hexdigest()

    def output(self, line: list[str]) -> str:
        done = subprocess.run(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"the copy failed:\n{done.stdout}")
        return done.stdout

    def duration(self, line: list[str]) -> float:
        """Return the seconds that a copy takes, measured on another cluster."""
        other = Cluster(self.workspace / "other", bookies=2)
        try:
            other.start()
            at = line.index("--to") + 1
            line = [*line[:at], f"zk:{other.zookeeper.address}", *line[at + 1 :]]
            began = time.monotonic()
            self.say("copied without a kill", lambda: self.output([*line, "--apply"]))
            return time.monotonic() - began
        finally:
            other.close()

    def audit(self, broker: Broker) -> list[dict[str, Any]]:
        """Return the verdicts of the audit pipeline, one for each topic."""
        line = [*pyxbroker_command(), "pipeline", "run", "audit", "--json"]
        line += ["--service-url", self.standalone.url, "--other-service-url", broker.url]
        line += ["--topics-pattern", f"{NAMESPACE}/.*", "--master", "local[2]"]
        line += ["--conf", "spark.sql.shuffle.partitions=8"]
        line += ["--conf", f"spark.local.dir={self.workspace}"]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"the audit failed with {done.returncode}")
        verdicts: list[dict[str, Any]] = json.loads(done.stdout)
        return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=1_000, help="of each topic")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    workspace = Path(tempfile.mkdtemp(prefix="ledgers-copy-"))
    copying = Copying(options, workspace)
    try:
        problems = copying.run(options.kills)
    finally:
        copying.close()
    for each in problems[:20]:
        print(each)
    print(f"{len(copying.topics)} topics, {options.kills} kills: {len(problems)} problems")
    shutil.rmtree(workspace)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
