"""Transactions of Pulsar's Java and Go clients: messages become visible with the commit alone.

Acknowledgements are in ``test_transaction_acks.py``, what a topic stores of its transactions is
in ``test_transaction_buffers.py``. ``BROKER=apache`` runs the same tests against Apache Pulsar.
"""

from __future__ import annotations

import os
import signal
import time

import pulsar
import pytest
from harness.brokers import Broker
from harness.java_client import Java, JavaError
from harness.transactions import (
    SEGMENTS,
    SETTINGS,
    JavaTransactions,
    TransactionClient,
    assert_nothing,
    bodies,
    buffer_stats,
    internal_stats,
    metric,
    path_of,
    receive_bodies,
    refused,
    state_of,
    topic_stats,
    transaction_rest,
    unload,
    wait_until,
)

from compat_tests.conftest import BrokerFactory, TransactionClientFactory, aborts_of_sends

BROKER_SETTINGS = SETTINGS | SEGMENTS


def test_messages_arrive_after_the_commit(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    assert broker.rest("PUT", f"/admin/v2/{path_of(topic)}/partitions", 3)[0] == 204
    consumer = transacting.consumer(topic)
    producer = transacting.producer(topic)
    first, second = transacting.begin(), transacting.begin()
    wanted = bodies(60)
    for number, body in enumerate(wanted):
        producer.send(body, (first, second)[number % 2])
    assert_nothing(consumer)
    first.commit()
    second.commit()
    assert sorted(receive_bodies(consumer, 60)) == wanted
    assert_nothing(consumer)


@aborts_of_sends
@pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])
def test_messages_of_an_aborted_transaction_never_arrive(
    transacting: TransactionClient, broker: Broker, topic: str, batched: bool
) -> None:
    consumer = transacting.consumer(topic)
    transaction = transacting.begin()
    transacting.producer(topic, batched).send_all(bodies(20), transaction)
    transaction.abort()
    assert state_of(transaction) == "ABORTED"
    assert_nothing(consumer)

    def are_passed() -> bool:
        stats = internal_stats(broker, topic)
        marked = stats["cursors"]["s"]["markDeletePosition"]
        return bool(marked == stats["lastConfirmedEntry"])

    wait_until(are_passed)
    assert_nothing(transacting.consumer(topic, "another"))
    stats = topic_stats(broker, topic)
    assert stats["abortedTxnCount"] == 1
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0


def test_messages_arrive_in_the_order_of_publishing(
    transacting: TransactionClient, topic: str
) -> None:
    """The order of commits does not matter, and plain messages wait for an open transaction."""
    consumer = transacting.consumer(topic)
    producer = transacting.producer(topic)
    first, second = transacting.begin(), transacting.begin()
    producer.send(b"0")
    producer.send(b"1", first)
    producer.send(b"2")
    producer.send(b"3", second)
    producer.send(b"4", first)
    producer.send(b"5")
    assert receive_bodies(consumer, 1) == [b"0"]
    assert_nothing(consumer)
    second.commit()
    assert_nothing(consumer)
    first.commit()
    assert receive_bodies(consumer, 5) == [b"1", b"2", b"3", b"4", b"5"]


@aborts_of_sends
def test_aborted_messages_are_left_out_between_others(
    transacting: TransactionClient, topic: str
) -> None:
    consumer = transacting.consumer(topic, kind="Shared")
    producer = transacting.producer(topic)
    kept, dropped = transacting.begin(), transacting.begin()
    for number in range(30):
        within = (None, kept, dropped)[number % 3]
        producer.send(b"%d" % number, within)
    dropped.abort()
    kept.commit()
    wanted = [b"%d" % number for number in range(30) if number % 3 != 2]
    assert receive_bodies(consumer, 20, acknowledge=True) == wanted
    assert_nothing(consumer)


@aborts_of_sends
def test_one_transaction_consumes_and_produces(transacting: TransactionClient, topic: str) -> None:
    source, sink = topic + "-source", topic + "-sink"
    consumer, results = transacting.consumer(source), transacting.consumer(sink)
    transacting.producer(source).send_all(bodies(10))
    producer = transacting.producer(sink)
    for end in ("abort", "commit"):
        transaction = transacting.begin()
        for _ in range(10):
            message = consumer.receive()
            producer.send(message.data, transaction)
            consumer.acknowledge_within(transaction, message)
        assert_nothing(results)
        getattr(transaction, end)()
    assert receive_bodies(results, 10) == bodies(10)
    assert_nothing(results)
    consumer.redeliver()
    assert_nothing(consumer)


def test_another_client_ends_a_transaction_by_its_id(
    java: Java, java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    consumer = java_transacting.consumer(topic)
    producer = java_transacting.producer(topic)
    kept, dropped = java_transacting.begin(), java_transacting.begin()
    producer.send(b"kept", kept)
    producer.send(b"dropped", dropped)
    another = JavaTransactions(java, broker.url)
    another.own.end_transaction(kept.id, commit=True)
    another.own.end_transaction(dropped.id, commit=False)
    another.close()
    assert receive_bodies(consumer, 1) == [b"kept"]
    assert_nothing(consumer)


def test_an_ended_transaction_takes_nothing_more(
    transacting: TransactionClient, topic: str
) -> None:
    consumer = transacting.consumer(topic)
    producer = transacting.producer(topic)
    producer.send(b"x")
    message = consumer.receive()
    for end in ("commit", "abort"):
        transaction = transacting.begin()
        getattr(transaction, end)()
        assert state_of(transaction) == {"commit": "COMMITTED", "abort": "ABORTED"}[end]
        with refused("InvalidTxnStatus"):
            producer.send(b"y", transaction)
        with refused("InvalidTxnStatus"):
            consumer.acknowledge_within(transaction, message)
    assert_nothing(consumer)


def test_the_opposite_end_of_an_ended_transaction_is_refused(
    java: Java, java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    """The stale object of the transaction is in the state ERROR after that."""
    consumer = java_transacting.consumer(topic)
    for commit in (True, False):
        stale = java_transacting.begin()
        java_transacting.producer(topic).send(b"%d" % commit, stale)
        java_transacting.own.end_transaction(stale.id, commit)
        with refused("TransactionNotFound"):
            stale.abort() if commit else stale.commit()
        assert state_of(stale) == "ERROR"
    assert receive_bodies(consumer, 1) == [b"1"]
    assert_nothing(consumer)


@aborts_of_sends
def test_the_coordinator_aborts_after_the_timeout(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    consumer = transacting.consumer(topic)
    producer = transacting.producer(topic)
    timeouts = metric(broker, "pulsar_txn_timeout_total")
    transaction = transacting.begin(timeout_ms=1000)
    most, least = transaction.id
    producer.send(b"late", transaction)
    producer.send(b"plain")
    assert transaction_rest(broker, f"transactionMetadata/{most}/{least}")[0] == 200
    assert receive_bodies(consumer, 1) == [b"plain"]
    wait_until(lambda: metric(broker, "pulsar_txn_timeout_total") > timeouts)
    wait_until(lambda: transaction_rest(broker, f"transactionMetadata/{most}/{least}")[0] == 404)
    assert_nothing(consumer)
    assert state_of(transaction) == "TIME_OUT"
    with refused("InvalidTxnStatus"):
        producer.send(b"later", transaction)
    with refused("InvalidTxnStatus"):
        transaction.commit()


def test_a_transaction_whose_send_timed_out_can_be_aborted(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    producer = java_transacting.producer(topic, sendTimeoutMs=1000)
    transaction = java_transacting.begin()
    producer.send(b"first", transaction)
    for process in broker.processes():
        os.kill(process.pid, signal.SIGSTOP)
    try:
        with refused("Timeout"):
            producer.send(b"late", transaction)
    finally:
        for process in broker.processes():
            os.kill(process.pid, signal.SIGCONT)
    transaction.abort()
    assert_nothing(java_transacting.consumer(topic))


@pytest.mark.parametrize("kind", ["Failover", "Shared"])
def test_a_delay_counts_from_the_time_that_the_message_names(
    transacting: TransactionClient, topic: str, kind: str
) -> None:
    """A shared subscription delivers after the delay, any other with the commit."""
    consumer = transacting.consumer(topic, kind=kind)
    producer = transacting.producer(topic)
    transaction = transacting.begin()
    begun = time.monotonic()
    due = int(time.time() * 1000) + 4000
    for body in bodies(5):
        producer.send(body, transaction, deliver_at=due)
    transaction.commit()
    assert sorted(receive_bodies(consumer, 5)) == bodies(5)
    took = time.monotonic() - begun
    # Apache Pulsar delivers up to a tick of a second early.
    assert took > 2.9 if kind == "Shared" else took < 2.9, took


def test_a_deleted_topic_hinders_no_other_one_of_its_namespace(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    transaction = transacting.begin()
    producers = [transacting.producer(name) for name in names]
    for producer in producers:
        producer.send(b"first", transaction)
    transaction.commit()
    for producer in producers:
        producer.close()
    assert broker.rest("DELETE", f"/admin/v2/{path_of(names[0])}")[0] == 204
    for name in names[1:]:
        unload(broker, name)
        consumer = transacting.consumer(name)
        assert receive_bodies(consumer, 1, acknowledge=True) == [b"first"]
        again = transacting.begin()
        transacting.producer(name).send(b"again", again)
        assert_nothing(consumer, 200)
        again.commit()
        assert receive_bodies(consumer, 1) == [b"again"]


@aborts_of_sends
def test_a_chunked_message_belongs_to_a_transaction(
    transacting: TransactionClient, topic: str
) -> None:
    options = {
        "java": {"chunkingEnabled": True, "chunkMaxMessageSize": 1000},
        "go": {"chunking_enabled": True, "chunk_max_message_size": 1000},
    }
    producer = transacting.producer(topic, **options[transacting.kind])
    body = bytes(range(256)) * 20
    dropped = transacting.begin()
    producer.send(b"no" + body, dropped)
    dropped.abort()
    transaction = transacting.begin()
    producer.send(body, transaction)
    consumer = transacting.consumer(topic)
    assert_nothing(consumer)
    transaction.commit()
    assert receive_bodies(consumer, 1) == [body]


@aborts_of_sends
def test_a_coordinator_that_moves_loses_no_transaction(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """Each command waits while the coordinator is gone, and succeeds when it is back."""
    consumer = transacting.consumer(topic)
    producer = transacting.producer(topic)
    producer.send(b"source")
    message = consumer.receive()
    assign = "persistent/pulsar/system/transaction_coordinator_assign-partition-0"

    def unload_coordinator() -> None:
        assert broker.request("PUT", f"/admin/v2/{assign}/unload")[0] == 204

    unload_coordinator()
    kept, dropped = transacting.begin(), transacting.begin()
    unload_coordinator()
    producer.send(b"kept", kept)
    producer.send(b"dropped", dropped)
    unload_coordinator()
    consumer.acknowledge_within(kept, message)
    unload_coordinator()
    kept.commit()
    unload_coordinator()
    dropped.abort()
    assert receive_bodies(consumer, 1) == [b"kept"]
    assert_nothing(consumer)


def test_lost_connections_delay_a_transaction_and_break_nothing(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """The topic is unloaded after each message, which disconnects the producer."""
    producer = transacting.producer(topic)
    transaction = transacting.begin(timeout_ms=300_000)
    for body in bodies(6):
        producer.send(body, transaction)
        unload(broker, topic)
    transaction.commit()
    assert receive_bodies(transacting.consumer(topic), 6) == bodies(6)


def test_the_coordinator_knows_the_participants(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    consumer = transacting.consumer(topic)
    producer = transacting.producer(topic)
    producer.send(b"x")
    transaction = transacting.begin()
    producer.send(b"y", transaction)
    consumer.acknowledge_within(transaction, consumer.receive())
    most, least = transaction.id
    status, metadata = transaction_rest(broker, f"transactionMetadata/{most}/{least}")
    assert status == 200
    assert metadata["txnId"] == f"({most},{least})"
    assert metadata["status"] == "OPEN"
    assert list(metadata["producedPartitions"]) == [topic]
    assert list(metadata["ackedPartitions"]) == [topic]
    assert list(metadata["ackedPartitions"][topic]) == ["s"]
    transaction.commit()
    assert transaction_rest(broker, f"transactionMetadata/{most}/{least}")[0] == 404


def test_counters_of_a_topic_match_after_the_end(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    producer = transacting.producer(topic)
    open_one = transacting.begin()
    for number in range(5):
        transaction = transacting.begin()
        producer.send(b"x", transaction)
        transaction.commit() if number < 3 else transaction.abort()
    producer.send(b"x", open_one)
    stats = topic_stats(broker, topic)
    counts = [stats[name] for name in ("committedTxnCount", "abortedTxnCount", "ongoingTxnCount")]
    assert counts == [3, 2, 1]
    open_one.commit()
    stats = topic_stats(broker, topic)
    counts = [stats[name] for name in ("committedTxnCount", "abortedTxnCount", "ongoingTxnCount")]
    assert counts == [4, 2, 0]
    assert buffer_stats(broker, topic)["state"] == "Ready"


def test_more_aborted_transactions_than_a_segment_of_a_snapshot_takes(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    producer = java_transacting.producer(topic)
    for _ in range(8):
        transactions = [java_transacting.begin() for _ in range(50)]
        for transaction in transactions:
            producer.own.send_later(b"aborted", transaction=transaction)
        for transaction in transactions:
            transaction.abort()
    producer.send(b"plain")
    unload(broker, topic)
    consumer = java_transacting.consumer(topic)
    assert receive_bodies(consumer, 1) == [b"plain"]
    assert_nothing(consumer)
    assert buffer_stats(broker, topic)["totalAbortedTransactions"] == 400


def test_a_broker_without_transactions_refuses_the_client(
    own_broker: BrokerFactory, connect: TransactionClientFactory
) -> None:
    one = own_broker()
    one.start()
    with pytest.raises((JavaError, pulsar.PulsarException)):
        connect(one.url)
