"""A worker that consumes, transforms and produces in transactions, and survives its own crashes.

It runs Pulsar's Go client, which is a process of its own. An error, of which the outcome is
unknown, ends that process; the worker aborts what may be open and begins again.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pulsar
from harness.brokers import Broker
from harness.raw import ConnectionClosed
from harness.transaction_commands import ABORT, COORDINATOR_TOPIC, Id, TransactionConnection
from harness.transactions import GoConsumer, GoProducer, GoTransactions, Message

from torture.transaction_judge import Input, Ledger, Output

SUBSCRIPTION = "transform"
MESSAGES_MAX = 8  # of one transaction
ABORTS = 0.1  # share of the transactions that end in one on purpose
FIRST_WAIT_MS = 300
NEXT_WAIT_MS = 20
RETRY_S = 0.05
TIMEOUT_MS = {True: 120_000, False: 4000}  # an ordered worker aborts its own transactions
INVALID_STATUS, NOT_FOUND = 21, 24  # codes of a transaction that ends or has ended otherwise


def body_of(source: Input, transaction: Id) -> bytes:
    return f"{source} {transaction[0]},{transaction[1]}".encode()


def output_of(body: bytes) -> Output:
    source, transaction = body.decode().split()
    most, least = transaction.split(",")
    return Output(input_of(source.encode()), (int(most), int(least)))


def input_of(body: bytes) -> Input:
    key, number = body.split(b":")
    return Input(int(key), int(number))


def abort_for_sure(brokers: Sequence[Broker], id: Id) -> bool | None:
    """Abort a transaction whose client is gone.

    Return True when it was aborted, False when it had another end, None when that is not known.
    """
    name = f"{COORDINATOR_TOPIC}-partition-{id[0]}"
    for broker in brokers:
        try:
            connection = TransactionConnection(broker.port)
            try:
                connection.lookup(name)
                code = connection.end(id, ABORT).code
                if code in (None, INVALID_STATUS, NOT_FOUND):
                    return code is None
            finally:
                connection.socket.close()
        except (OSError, AssertionError, ConnectionClosed):
            continue
    return None


class Worker(threading.Thread):
    """One worker; ``crash`` may be called at any moment from another thread."""

    def __init__(
        self,
        name: str,
        brokers: Sequence[Broker],
        topics: str | list[str],
        output: str,
        ledger: Ledger,
        is_ordered: bool,
        seed: str,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.counts: Counter[str] = Counter()
        self.doing = "starting"
        self.done_at = time.monotonic()
        self.failure: BaseException | None = None
        self._brokers, self._topics, self._output = brokers, topics, output
        self._ledger, self._is_ordered = ledger, is_ordered
        self._random = random.Random(seed)
        self._client: GoTransactions | None = None
        self._consumer: GoConsumer
        self._producer: GoProducer
        self._open: Id | None = None
        self._is_stopping = False

    def crash(self) -> bool:
        """Kill the client's process with SIGKILL; return False where it has none."""
        client = self._client
        if client is None:
            return False
        client.own.kill()
        return True

    def stop(self) -> None:
        self._is_stopping = True

    def run(self) -> None:
        try:
            while not self._is_stopping:
                try:
                    self._begin()
                    while not self._is_stopping:
                        self._step()
                except (pulsar.PulsarException, AssertionError, ValueError, OSError) as error:
                    name = getattr(error, "server_error", type(error).__name__)
                    self.counts[f"{self.doing}: {name}"] += 1
                    self._end_client()
                    time.sleep(RETRY_S)
            self._end_client()
        except BaseException as error:
            self.failure = error
            raise

    def _end_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.own.kill()
        if self._open is not None and self._is_ordered:
            # Without it, a later message would overtake those of this transaction.
            self.doing = f"ending {self._open}"
            while (is_aborted := abort_for_sure(self._brokers, self._open)) is None:
                time.sleep(RETRY_S)
            if is_aborted:
                self._ledger.aborted.add(self._open)
        self._open = None

    def _begin(self) -> None:
        self.doing = "connecting"
        urls = ",".join(f"{each.host}:{each.port}" for each in self._brokers)
        client = GoTransactions(f"pulsar://{urls}", operation_timeout_seconds=5)
        self._client = client
        self._producer = client.producer(self._output, send_timeout_millis=0)
        kind = "Failover" if self._is_ordered else "Shared"
        options = {"receiver_queue_size": 50}
        self._consumer = client.consumer(self._topics, SUBSCRIPTION, kind, **options)

    def _receive(self) -> list[Message]:
        """Return a few messages, or none when none came in time."""
        self.doing = "receiving"
        messages: list[Message] = []
        for number in range(self._random.randint(1, MESSAGES_MAX)):
            try:
                messages.append(self._consumer.receive(NEXT_WAIT_MS if number else FIRST_WAIT_MS))
            except pulsar.Timeout:
                break
        return messages

    def _step(self) -> None:
        client = self._client
        assert client is not None
        messages = self._receive()
        self.done_at = time.monotonic()
        if not messages:
            return
        self.doing = "beginning"
        transaction = client.begin(TIMEOUT_MS[self._is_ordered])
        self._open = transaction.id
        sources = [input_of(each.data) for each in messages]
        for message, source in zip(messages, sources, strict=True):
            self.doing = f"sending {source} in {transaction.id}"
            body = body_of(source, transaction.id)
            position = self._producer.send(body, transaction, partition_key=str(source.key))
            self._ledger.stored[Output(source, transaction.id)] = position
            self.doing = f"acknowledging {source} in {transaction.id}"
            self._consumer.acknowledge_within(transaction, message)
        if self._random.random() < ABORTS:
            self.doing = f"aborting {transaction.id}"
            transaction.abort()
            self._ledger.aborted.add(transaction.id)
            self.counts["aborts"] += 1
            self._open = None
            if self._is_ordered:  # the client has later messages in its queue
                self.doing = "subscribing"
                self._consumer.redeliver()
        else:
            self.doing = f"committing {transaction.id}"
            transaction.commit()
            self._ledger.committed[transaction.id] = sources
            self.counts["commits"] += 1
            self._open = None
        self.done_at = time.monotonic()
