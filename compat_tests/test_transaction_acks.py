"""Acknowledgements within transactions, of Pulsar's Java and Go clients.

They are pending until the end of the transaction: the commit makes them final, an abort brings the
messages back. ``BROKER=apache`` runs the same tests against Apache Pulsar.
"""

from __future__ import annotations

import pulsar
import pytest
from harness.brokers import Broker
from harness.java_client import JavaError
from harness.transactions import (
    SETTINGS,
    Consumer,
    JavaTransactions,
    Message,
    Transaction,
    TransactionClient,
    assert_nothing,
    bodies,
    internal_stats,
    metric,
    path_of,
    reason,
    receive_bodies,
    refused,
    state_of,
    topic_stats,
    transaction_rest,
    unload,
    wait_until,
)

from compat_tests.conftest import TransactionClientFactory, aborts_of_sends

BROKER_SETTINGS = SETTINGS
COUNT = 30
batched_or_not = pytest.mark.parametrize("batched", [False, True], ids=["unbatched", "batched"])


def acknowledge_all(consumer: Consumer, transaction: Transaction, count: int) -> list[bytes]:
    """Receive so many messages and acknowledge each within the transaction."""
    found = []
    for _ in range(count):
        message = consumer.receive()
        consumer.acknowledge_within(transaction, message)
        found.append(message.data)
    return found


def unacked(broker: Broker, topic: str) -> tuple[int, int]:
    """Return the counters of the subscription and of its consumer."""
    subscription = topic_stats(broker, topic)["subscriptions"]["s"]
    return subscription["unackedMessages"], subscription["consumers"][0]["unackedMessages"]


@batched_or_not
@pytest.mark.parametrize("kind", ["Shared", "Failover"])
def test_individual_acks_are_final_with_the_commit(
    transacting: TransactionClient, topic: str, kind: str, batched: bool
) -> None:
    consumer = transacting.consumer(topic, kind=kind)
    transacting.producer(topic, batched).send_all(bodies(COUNT))
    dropped = transacting.begin()
    assert acknowledge_all(consumer, dropped, COUNT) == bodies(COUNT)
    consumer.redeliver()
    assert_nothing(consumer)
    dropped.abort()
    kept = transacting.begin()
    # Pulsar's Go client forgets which messages of a batch it has acknowledged only with a new one.
    assert sorted(acknowledge_all(consumer, kept, COUNT)) == bodies(COUNT)
    consumer.redeliver()
    assert_nothing(consumer)
    kept.commit()
    consumer.redeliver()
    assert_nothing(consumer)
    with refused("InvalidTxnStatus"):
        kept.commit()


@batched_or_not
def test_cumulative_acks_are_final_with_the_commit(
    java_transacting: JavaTransactions, topic: str, batched: bool
) -> None:
    consumer = java_transacting.consumer(topic, kind="Failover")
    java_transacting.producer(topic, batched).send_all(bodies(COUNT))

    def acknowledge(transaction: Transaction) -> list[Message]:
        found = []
        for number in range(COUNT):
            found.append(consumer.receive())
            if number % 5 == 4:
                consumer.acknowledge_within(transaction, found[-1], cumulative=True)
        assert [each.data for each in found] == bodies(COUNT)
        assert_nothing(consumer)
        return found

    dropped = java_transacting.begin()
    found = acknowledge(dropped)
    for earlier in (found[-1], found[4]):
        with refused("TransactionConflict"):
            consumer.acknowledge_within(dropped, earlier, cumulative=True)
    dropped.abort()
    consumer.redeliver()
    kept = java_transacting.begin()
    acknowledge(kept)
    kept.commit()
    consumer.redeliver()
    assert_nothing(consumer)


def test_plain_acks_of_committed_messages(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """The mark-delete position passes the marker behind the last message, too."""
    consumer = transacting.consumer(topic, kind="Shared")
    transaction = transacting.begin()
    transacting.producer(topic).send_all(bodies(10), transaction)
    transaction.commit()
    found = [consumer.receive() for _ in range(10)]
    for message in found[::2]:
        consumer.acknowledge(message)
    consumer.redeliver()
    again = [consumer.receive() for _ in range(5)]
    assert sorted(each.data for each in again) == bodies(10)[1::2]
    for message in again:
        consumer.acknowledge(message)
    assert_nothing(consumer)
    last = internal_stats(broker, topic)["lastConfirmedEntry"]
    before = "{}:{}".format(*found[-1].position)

    def is_passed() -> bool:
        cursor = internal_stats(broker, topic)["cursors"]["s"]
        return cursor["markDeletePosition"] in (last, before)

    wait_until(is_passed)


def test_an_abort_brings_back_what_it_acknowledged_of_a_batch(
    java_transacting: JavaTransactions, topic: str
) -> None:
    consumer = java_transacting.consumer(topic, kind="Shared")
    java_transacting.producer(topic, batched=True).send_all(bodies(9))
    found = [consumer.receive() for _ in range(9)]
    assert len({each.position for each in found}) == 1, "one batch is meant"
    kept, dropped = java_transacting.begin(), java_transacting.begin()
    for message in found[:3]:
        consumer.acknowledge_within(kept, message)
    for message in found[3:6]:
        consumer.acknowledge_within(dropped, message)
    for message in found[6:]:
        consumer.acknowledge(message)
    dropped.abort()
    assert receive_bodies(consumer, 3) == bodies(9)[3:6]
    assert_nothing(consumer)
    kept.commit()
    assert_nothing(consumer)


def test_a_consumer_that_returns_gets_nothing_pending(
    transacting: TransactionClient, topic: str
) -> None:
    """After the abort the messages come in order."""
    consumer = transacting.consumer(topic, kind="Failover")
    transacting.producer(topic).send_all(bodies(10))
    transaction = transacting.begin()
    acknowledge_all(consumer, transaction, 10)
    consumer.close()
    consumer = transacting.consumer(topic, kind="Failover")
    assert_nothing(consumer)
    transaction.abort()
    assert receive_bodies(consumer, 10) == bodies(10)
    assert_nothing(consumer)


def test_pending_messages_do_not_stop_those_behind_them(
    transacting: TransactionClient, topic: str
) -> None:
    """Nothing but pending messages is at the head of what is redelivered."""
    consumer = transacting.consumer(topic, kind="Shared")
    producer = transacting.producer(topic)
    producer.send_all(bodies(COUNT))
    transaction = transacting.begin()
    found = [consumer.receive() for _ in range(COUNT)]
    for message in found[:20]:
        consumer.acknowledge_within(transaction, message)
    consumer.redeliver()
    assert sorted(receive_bodies(consumer, 10)) == bodies(COUNT)[20:]
    producer.send(b"new")
    assert receive_bodies(consumer, 1) == [b"new"]
    transaction.commit()


@batched_or_not
def test_pending_messages_are_not_counted_as_unacknowledged(
    transacting: TransactionClient, broker: Broker, topic: str, batched: bool
) -> None:
    consumer = transacting.consumer(topic, kind="Shared")
    transacting.producer(topic, batched).send_all(bodies(COUNT))
    found = [consumer.receive() for _ in range(COUNT)]
    assert unacked(broker, topic) == (COUNT, COUNT)
    transaction = transacting.begin()
    for message in found:
        consumer.acknowledge_within(transaction, message)
    assert unacked(broker, topic) == (0, 0)
    transaction.commit()
    assert unacked(broker, topic) == (0, 0)


def test_one_pending_message_of_a_batch_is_not_counted(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    consumer = java_transacting.consumer(topic, kind="Shared")
    java_transacting.producer(topic, batched=True).send_all(bodies(5))
    found = [consumer.receive() for _ in range(5)]
    transaction = java_transacting.begin()
    consumer.acknowledge_within(transaction, found[0])
    assert unacked(broker, topic)[1] == 4
    transaction.commit()
    assert unacked(broker, topic)[1] == 4


def test_a_timeout_brings_the_message_back(transacting: TransactionClient, topic: str) -> None:
    consumer = transacting.consumer(topic, kind="Shared")
    transacting.producer(topic).send(b"x")
    transaction = transacting.begin(timeout_ms=1500)
    assert acknowledge_all(consumer, transaction, 1) == [b"x"]
    consumer.redeliver()
    assert_nothing(consumer, 300)
    assert receive_bodies(consumer, 1, acknowledge=True) == [b"x"]
    assert_nothing(consumer)


def test_an_abort_without_a_consumer_succeeds(transacting: TransactionClient, topic: str) -> None:
    consumer = transacting.consumer(topic, kind="Shared")
    transacting.producer(topic).send_all(bodies(10))
    transaction = transacting.begin()
    acknowledge_all(consumer, transaction, 10)
    consumer.close()
    transaction.abort()
    assert state_of(transaction) == "ABORTED"
    consumer = transacting.consumer(topic, kind="Shared")
    assert sorted(receive_bodies(consumer, 10)) == bodies(10)


def test_one_transaction_acknowledges_on_two_subscriptions(
    transacting: TransactionClient, topic: str
) -> None:
    consumers = [transacting.consumer(topic, name) for name in ("s", "t")]
    transacting.producer(topic).send(b"x")
    transaction = transacting.begin()
    for consumer in consumers:
        assert acknowledge_all(consumer, transaction, 1) == [b"x"]
    transaction.commit()
    for consumer in consumers:
        consumer.redeliver()
        assert_nothing(consumer)


def test_a_second_transaction_conflicts_with_a_cumulative_ack(
    java_transacting: JavaTransactions, topic: str
) -> None:
    consumer = java_transacting.consumer(topic)
    java_transacting.producer(topic).send_all(bodies(5))

    def receive() -> list[Message]:
        found = [consumer.receive() for _ in range(5)]
        assert [each.data for each in found] == bodies(5)
        return found

    found = receive()
    first, second = java_transacting.begin(), java_transacting.begin()
    consumer.acknowledge_within(first, found[2], cumulative=True)
    for message in found[2:4]:
        with refused("TransactionConflict"):
            consumer.acknowledge_within(second, message, cumulative=True)
    first.abort()
    consumer.redeliver()
    found = receive()
    third = java_transacting.begin()
    consumer.acknowledge_within(third, found[4], cumulative=True)
    third.commit()
    consumer.redeliver()
    assert_nothing(consumer)


def test_a_second_transaction_conflicts_with_an_individual_ack(
    transacting: TransactionClient, topic: str
) -> None:
    """A plain acknowledgement wins over a pending one."""
    consumer = transacting.consumer(topic, kind="Shared")
    transacting.producer(topic).send_all(bodies(2))
    found = [consumer.receive() for _ in range(2)]
    first, second = transacting.begin(), transacting.begin()
    for message in found:
        consumer.acknowledge_within(first, message)
    with refused("TransactionConflict"):
        consumer.acknowledge_within(second, found[0])
    consumer.acknowledge(found[1])
    first.abort()
    assert receive_bodies(consumer, 1) == [found[0].data]
    assert_nothing(consumer)


@batched_or_not
def test_an_aborted_ack_counts_towards_the_dead_letters(
    java_transacting: JavaTransactions, topic: str, batched: bool
) -> None:
    letters = {"max_redeliver_count": 2, "topic": topic + "-dead", "initial_subscription": "d"}
    consumer = java_transacting.consumer(topic, kind="Shared", dead_letters=letters)
    dead = java_transacting.consumer(topic + "-dead", "d")
    java_transacting.producer(topic, batched).send_all(bodies(5))
    for count in range(3):
        transaction = java_transacting.begin()
        found = [consumer.receive() for _ in range(5)]
        assert sorted(each.data for each in found) == bodies(5)
        assert {each.redelivery_count for each in found} == {count}
        for message in found:
            consumer.acknowledge_within(transaction, message)
        transaction.abort()
    assert_nothing(consumer)
    assert sorted(receive_bodies(dead, 5)) == bodies(5)


def test_a_chunked_message_is_acknowledged_as_a_whole(
    transacting: TransactionClient, topic: str
) -> None:
    options = {
        "java": {"chunkingEnabled": True, "chunkMaxMessageSize": 1000},
        "go": {"chunking_enabled": True, "chunk_max_message_size": 1000},
    }
    body = bytes(range(256)) * 20
    consumer = transacting.consumer(topic)
    transacting.producer(topic, **options[transacting.kind]).send(body)
    dropped = transacting.begin()
    assert acknowledge_all(consumer, dropped, 1) == [body]
    dropped.abort()
    consumer.close()
    consumer = transacting.consumer(topic)
    kept = transacting.begin()
    assert acknowledge_all(consumer, kept, 1) == [body]
    kept.commit()
    consumer.close()
    assert_nothing(transacting.consumer(topic))


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_pending_acks_survive_an_unload(
    transacting: TransactionClient, broker: Broker, topic: str, end: str
) -> None:
    consumer = transacting.consumer(topic, kind="Shared")
    producer = transacting.producer(topic)
    producer.send_all(bodies(10))
    found = [consumer.receive() for _ in range(10)]
    first, second = transacting.begin(), transacting.begin()
    for message in found[:5]:
        consumer.acknowledge_within(first, message)
    unload(broker, topic)
    again = [consumer.receive() for _ in range(5)]
    assert sorted(each.data for each in again) == bodies(10)[5:]
    assert_nothing(consumer)
    with refused("TransactionConflict"):
        consumer.acknowledge_within(second, found[0])
    getattr(first, end)()
    if end == "commit":
        assert_nothing(consumer)
    else:
        assert sorted(receive_bodies(consumer, 5)) == bodies(10)[:5]


def test_a_cumulative_ack_survives_an_unload(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    consumer = java_transacting.consumer(topic, kind="Failover")
    java_transacting.producer(topic).send_all(bodies(10))
    found = [consumer.receive() for _ in range(10)]
    first, second = java_transacting.begin(), java_transacting.begin()
    consumer.acknowledge_within(first, found[4], cumulative=True)
    unload(broker, topic)
    wait_until(lambda: topic_stats(broker, topic)["subscriptions"]["s"]["consumers"])
    with refused("TransactionConflict"):
        consumer.acknowledge_within(second, found[6], cumulative=True)
    first.commit()
    consumer.redeliver()
    assert receive_bodies(consumer, 5) == bodies(10)[5:]


def test_a_deleted_subscription_leaves_no_pending_acks(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """Lists of topics never have the ledger of them; a new subscription starts from nothing."""
    consumer = transacting.consumer(topic, kind="Shared")
    transacting.producer(topic).send_all(bodies(3))
    transaction = transacting.begin()
    acknowledge_all(consumer, transaction, 3)
    status, names = broker.rest("GET", "/admin/v2/persistent/public/default")
    assert status == 200 and not [name for name in names if "pending_ack" in name]
    state = f"pendingAckStats/{topic.removeprefix('persistent://')}/s"
    assert transaction_rest(broker, state)[1]["state"] == "Ready"
    consumer.close()
    assert broker.rest("DELETE", f"/admin/v2/{path_of(topic)}/subscription/s")[0] == 204
    consumer = transacting.consumer(topic, kind="Shared")
    assert transaction_rest(broker, state)[1]["state"] == "None"
    assert sorted(receive_bodies(consumer, 3)) == bodies(3)
    transaction.commit()
    consumer.redeliver()
    assert sorted(receive_bodies(consumer, 3)) == bodies(3)


def test_acks_are_counted(transacting: TransactionClient, broker: Broker, topic: str) -> None:
    before = metric(broker, "pulsar_txn_committed_total")
    consumer = transacting.consumer(topic)
    transacting.producer(topic).send(b"x")
    transaction = transacting.begin()
    acknowledge_all(consumer, transaction, 1)
    transaction.commit()
    wait_until(lambda: metric(broker, "pulsar_txn_committed_total") == before + 1)


@aborts_of_sends
def test_two_workers_share_the_messages_exactly_once(
    connect: TransactionClientFactory, topic: str
) -> None:
    """Each message of the source is in the sink once, though every third transaction aborts."""
    source, sink = topic + "-source", topic + "-sink"
    workers = [connect() for _ in range(2)]
    consumers = [worker.consumer(source, kind="Shared") for worker in workers]
    producers = [worker.producer(sink) for worker in workers]
    results = workers[0].consumer(sink)
    workers[0].producer(source).send_all(bodies(30))
    found: set[bytes] = set()
    rounds = 0
    while len(found) < 30:
        for worker, consumer, producer in zip(workers, consumers, producers, strict=True):
            rounds += 1
            assert rounds < 200, found
            try:
                message = consumer.receive(300)
            except (JavaError, pulsar.Timeout) as error:
                assert reason(error) == "Timeout", error
                continue
            transaction = worker.begin()
            producer.send(message.data, transaction)
            consumer.acknowledge_within(transaction, message)
            if rounds % 3 == 0:
                transaction.abort()
                continue
            transaction.commit()
            assert message.data not in found
            found.add(message.data)
    assert sorted(receive_bodies(results, 30)) == bodies(30)
    assert_nothing(results)
