"""What users of Pulsar's transactions have reported as faults, each with the outcome they want.

``BROKER=apache`` runs the same tests against Apache Pulsar, but for those with the marker
``pyxbroker``: there Apache Pulsar 4.2.4 shows the fault, or another outcome that is not wanted.
The numbers are those of Apache Pulsar's issues.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pulsar
import pytest
from harness import wire
from harness.brokers import Broker
from harness.transaction_commands import (
    ABORT,
    COMMIT,
    COORDINATOR_TOPIC,
    TransactionConnection,
    coordinator_of,
)
from harness.transactions import (
    SETTINGS,
    GoTransactions,
    JavaTransactions,
    TransactionClient,
    assert_nothing,
    bodies,
    buffer_stats,
    path_of,
    receive_bodies,
    topic_stats,
    transaction_rest,
    unload,
    wait_until,
)

from compat_tests.conftest import BrokerFactory, aborts_of_sends

BROKER_SETTINGS = SETTINGS | {
    "forceDeleteNamespaceAllowed": "true",
    # The ledger of pending acknowledgements is trimmed as soon as possible.
    "transactionPendingAckLogIndexMinLag": "1",
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
SHARED = wire.SHARED


@pytest.fixture
def connection(broker: Broker) -> Iterator[TransactionConnection]:
    """A connection whose coordinator 0 is open."""
    with coordinator_of(broker) as one:
        yield one


def restart(broker: Broker) -> None:
    broker.kill()
    broker.start()


def is_known(broker: Broker, id: tuple[int, int]) -> bool:
    """Return True while the coordinator knows the transaction."""
    return transaction_rest(broker, f"transactionMetadata/{id[0]}/{id[1]}")[0] == 200


@pytest.mark.pyxbroker
@pytest.mark.parametrize("action", [COMMIT, ABORT], ids=["commit", "abort"])
def test_an_end_that_is_sent_again_is_answered_as_before(
    connection: TransactionConnection, topic: str, action: int
) -> None:
    """#19629: Apache Pulsar answers TransactionNotFound, and users do all their work again."""
    id = connection.begin_with_message(topic)
    for _ in range(2):
        assert connection.end(id, action).code is None


@pytest.mark.pyxbroker
def test_an_end_that_is_sent_again_after_a_restart_is_answered_as_before(
    broker: Broker, topic: str
) -> None:
    """#19747: the broker ends between the log's record of the commit and the answer."""
    with coordinator_of(broker) as connection:
        id = connection.begin_with_message(topic)
        assert connection.end(id, COMMIT).code is None
    restart(broker)
    with coordinator_of(broker) as connection:
        assert connection.end(id, COMMIT).code is None


def test_a_committed_transaction_stays_committed_after_a_kill(broker: Broker, topic: str) -> None:
    """#20150: the position of the coordinator's cursor is not on disk yet; nothing times out."""
    until = time.monotonic() + 5
    with coordinator_of(broker) as connection:
        id = connection.begin_with_message(topic, timeout_ms=4000)
        assert connection.end(id, COMMIT).code is None
    restart(broker)
    with coordinator_of(broker) as connection:
        assert not is_known(broker, id)
        time.sleep(max(0.0, until - time.monotonic()))
        connection.subscribe(topic)
        connection.flow(10)
        message = connection.wait_for(wire.MESSAGE)
        assert wire.parse_payload(message.rest).body == b"x"


def test_a_timeout_that_passes_while_the_coordinator_loads(broker: Broker, topic: str) -> None:
    """#19200: the transaction is aborted later, and releases what is behind it."""
    with coordinator_of(broker) as connection:
        id = connection.begin(timeout_ms=1500)
        connection.producer(topic)
        connection.add_partitions(id, topic)
        connection.send_within(id, b"aborted", 0)
        connection.send(b"plain", 1)
        connection.receive()
    broker.kill()
    time.sleep(1.5)
    broker.start()
    with coordinator_of(broker) as connection:
        wait_until(lambda: not is_known(broker, id))
        connection.subscribe(topic)
        connection.flow(10)
        message = connection.wait_for(wire.MESSAGE)
        assert wire.parse_payload(message.rest).body == b"plain"


@pytest.mark.pyxbroker
def test_an_open_transaction_costs_waiting_consumers_no_cpu(
    broker: Broker, connection: TransactionConnection, topic: str
) -> None:
    """#22943, #22944, #19169: Apache Pulsar read the same place again and again."""
    id = connection.begin()
    connection.producer(topic)
    connection.add_partitions(id, topic)
    for number in range(5):
        connection.subscribe(topic, f"s{number}", number + 1, SHARED)
        connection.flow(1000, number + 1)
    connection.send_within(id, b"x", 0)
    for number in range(10):
        connection.send(b"plain", number + 1)
    time.sleep(0.5)
    before = broker.cpu_s()
    time.sleep(2)
    assert broker.cpu_s() - before < 0.5
    connection.end(id, COMMIT)


def test_first_messages_of_many_producers_at_once(
    java_transacting: JavaTransactions, topic: str
) -> None:
    """#24945: all receipts come, though all wait for the first snapshot."""
    consumer = java_transacting.consumer(topic)
    producers = [java_transacting.producer(topic) for _ in range(10)]
    transactions = [java_transacting.begin() for _ in producers]
    sent = [
        producer.own.send_later(b"x", transaction=transaction)
        for _ in range(10)
        for producer, transaction in zip(producers, transactions, strict=True)
    ]
    for each in sent:
        each.result(20)
    for transaction in transactions:
        transaction.commit()
    assert receive_bodies(consumer, 100) == [b"x"] * 100


def test_many_topics_of_a_namespace_recover_at_once(
    broker: Broker, connection: TransactionConnection, namespace: str
) -> None:
    """#24401: Apache Pulsar came to a dead-lock."""
    names = [f"persistent://{namespace}/t{number}" for number in range(100)]
    id = connection.begin(timeout_ms=300_000)
    for number, name in enumerate(names):
        connection.producer(name, number)
        connection.add_partitions(id, name)
        connection.send_within(id, b"x", 0, number)
    restart(broker)
    failures: list[str] = []

    def load(part: list[str]) -> None:
        try:
            with coordinator_of(broker) as one:
                for name in part:
                    one.lookup(name)
                for number, name in enumerate(part):
                    one.producer(name, number)
                    wait_until(lambda: buffer_stats(broker, name)["state"] == "Ready")  # noqa: B023
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=load, args=(names[first::5],)) for first in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with coordinator_of(broker) as one:
        assert one.end(id, COMMIT).code is None


def test_topics_are_deleted_though_their_snapshots_are_gone(
    broker: Broker, connection: TransactionConnection, namespace: str
) -> None:
    """#24648, #25073, #26431: the deletion ends, and other topics are not affected."""
    names = [f"persistent://{namespace}/t{number}" for number in range(2)]
    id = connection.begin()
    for number, name in enumerate(names):
        connection.producer(name, number)
        connection.add_partitions(id, name)
        connection.send_within(id, b"x", 0, number)
    assert connection.end(id, COMMIT).code is None
    snapshots = f"persistent/{namespace}/__transaction_buffer_snapshot"
    assert broker.request("DELETE", f"/admin/v2/{snapshots}?force=true")[0] == 204
    assert broker.request("DELETE", f"/admin/v2/{path_of(names[0])}?force=true")[0] == 204
    assert broker.request("DELETE", f"/admin/v2/{path_of(names[0])}?force=true")[0] == 404
    id = connection.begin()
    connection.add_partitions(id, names[1])
    connection.send(b"plain", 1, 1)
    assert connection.wait_for(wire.SEND_RECEIPT).number(2) == 1
    connection.send_within(id, b"x", 2, 1)
    assert connection.end(id, COMMIT).code is None
    assert broker.request("DELETE", f"/admin/v2/namespaces/{namespace}?force=true")[0] == 204


def test_topics_are_deleted_though_their_snapshots_cannot_be_written(
    broker: Broker, connection: TransactionConnection, namespace: str
) -> None:
    """#12754: the topic of the snapshots has another schema."""
    snapshots = f"{namespace}/__transaction_buffer_snapshot"
    schema = {"type": "STRING", "schema": "", "properties": {}}
    assert broker.request("POST", f"/admin/v2/schemas/{snapshots}/schema", schema)[0] == 200
    topic = f"persistent://{namespace}/t"
    id = connection.begin()
    connection.producer(topic)
    connection.add_partitions(id, topic)
    named = {4: id[1], 5: id[0]}
    connection.send(b"x", 0, send_fields=named)
    with contextlib.suppress(TimeoutError):
        connection.receive(3.0)
    for _ in range(2):
        status, text = broker.request("DELETE", f"/admin/v2/{path_of(topic)}?force=true")
        assert status == 204 or status >= 400, text
    with TransactionConnection(broker.port) as another:
        another.producer(f"persistent://{namespace}/plain")
        another.send(b"plain", 0)
        another.expect(wire.SEND_RECEIPT)


@pytest.mark.pyxbroker
def test_a_topic_with_an_open_transaction_is_deleted_with_force(
    broker: Broker, connection: TransactionConnection, topic: str
) -> None:
    """The transaction can end after that; Apache Pulsar retries the end for ever."""
    id = connection.begin_with_message(topic)
    status, text = broker.request("DELETE", f"/admin/v2/{path_of(topic)}?force=true")
    assert status == 204, text
    connection.command(wire.END_TXN, {1: connection.request_id(), 2: id[1], 3: id[0], 4: COMMIT})
    answer = connection.wait_for(wire.END_TXN + 1)
    assert connection.outcome(answer).code is None


def test_acks_of_a_batch_without_its_size_keep_the_counters_right(
    broker: Broker, topic: str
) -> None:
    """#24443: the Go client leaves the size out; the counters never fall below 0."""
    client = GoTransactions(broker.url)
    with contextlib.closing(client):
        consumer = client.consumer(topic, kind="Shared", batch_index_ack_enabled=True)
        producer = client.producer(topic, batched=True)
        producer.send_all(bodies(5))
        transaction = client.begin()
        for _ in range(5):
            message = consumer.receive()
            with contextlib.suppress(Exception):
                consumer.acknowledge_within(transaction, message)
            subscription = topic_stats(broker, topic)["subscriptions"]["s"]
            counts = [subscription["unackedMessages"]]
            counts += [each["unackedMessages"] for each in subscription["consumers"]]
            assert all(0 <= count <= 5 for count in counts), counts
        producer.send_all(bodies(5, "next"))
        assert receive_bodies(consumer, 5) == bodies(5, "next")


@aborts_of_sends
def test_aborted_messages_are_no_part_of_a_redelivery(
    transacting: TransactionClient, topic: str
) -> None:
    """#19815: not in the replay of a shared subscription either."""
    consumer = transacting.consumer(topic, kind="Shared")
    producer = transacting.producer(topic)
    kept, dropped = transacting.begin(), transacting.begin()
    due = int(time.time() * 1000) + 1000
    for number in range(20):
        within = kept if number % 2 else dropped
        producer.send(b"%d" % number, within, deliver_at=due if number >= 10 else 1)
    dropped.abort()
    kept.commit()
    wanted = sorted(b"%d" % number for number in range(20) if number % 2)
    for _ in range(3):
        assert sorted(receive_bodies(consumer, 10)) == wanted
        consumer.redeliver()
    assert sorted(receive_bodies(consumer, 10, acknowledge=True)) == wanted
    assert_nothing(consumer)


def test_an_ack_of_the_same_transaction_after_a_restart(broker: Broker, topic: str) -> None:
    """#19449: no answer says that the message was acknowledged before."""
    with coordinator_of(broker) as connection:
        id = connection.begin(timeout_ms=300_000)
        connection.producer(topic)
        connection.subscribe(topic, "s", 1, SHARED)
        connection.flow(10)
        connection.add_subscription(id, topic)
        positions = []
        for number in range(2):
            connection.send(b"x", number)
            positions.append(wire.position(connection.wait_for(wire.MESSAGE).data(2)))
        assert connection.acknowledge_within(id, positions[0]).code is None
    restart(broker)
    with coordinator_of(broker) as connection:
        connection.subscribe(topic, "s", 1, SHARED)
        again = connection.acknowledge_within(id, positions[0])
        assert "already acked before" not in again.text
        assert connection.acknowledge_within(id, positions[1]).code is None
        assert connection.end(id, COMMIT).code is None
        wait_until(lambda: topic_stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == 0)


def test_a_log_of_pending_acks_that_was_trimmed_is_read(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """#16240: the replay ends, and the consumer is let in."""
    consumer = transacting.consumer(topic, kind="Shared")
    producer = transacting.producer(topic)
    for body in bodies(60):
        producer.send(body)
        transaction = transacting.begin()
        consumer.acknowledge_within(transaction, consumer.receive())
        transaction.commit()
    for _ in range(3):
        unload(broker, topic)
        producer.send(b"new")
        transaction = transacting.begin()
        message = consumer.receive()
        assert message.data == b"new"
        consumer.acknowledge_within(transaction, message)
        transaction.commit()
    name = topic.removeprefix("persistent://")
    state = transaction_rest(broker, f"pendingAckStats/{name}/s")[1]["state"]
    assert state == "Ready"


@pytest.mark.pyxbroker
def test_too_many_open_transactions_are_refused(own_broker: BrokerFactory) -> None:
    """#15133: Apache Pulsar gives no answer, and the client waits for its timeout."""
    one = own_broker(settings=SETTINGS | {"maxActiveTransactionsPerCoordinator": "3"})
    one.start()
    with coordinator_of(one) as connection:
        open_ones = [connection.begin() for _ in range(3)]
        outcome = connection.ask(wire.NEW_TXN, {2: 60_000, 3: 0})
        assert outcome.code == 14 and outcome.text  # TooManyRequests
        assert connection.end(open_ones[0], COMMIT).code is None
        connection.begin()


@aborts_of_sends
def test_a_reader_of_nothing_but_aborted_messages(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """#22610, #21466: it has no message available, and does not wait for one."""
    producer = transacting.producer(topic)
    for _ in range(3):
        transaction = transacting.begin()
        producer.send(b"aborted", transaction)
        transaction.abort()
    for is_again in (False, True):
        if is_again:
            unload(broker, topic)
        if isinstance(transacting, JavaTransactions):
            reader = transacting.own.create_reader(topic)
            assert reader.call("hasMessageAvailable") is False
            reader.close()
        else:
            go_reader = transacting.own.create_reader(topic, pulsar.MessageId.earliest)
            assert go_reader.has_message_available() is False
            go_reader.close()


def test_an_aborted_cumulative_ack_gives_the_messages_back(
    java_transacting: JavaTransactions, topic: str
) -> None:
    """#14371: a consumer that has them asks for them, a new one receives them."""
    consumer = java_transacting.consumer(topic)
    java_transacting.producer(topic).send_all(bodies(5))
    for is_new in (False, True):
        transaction = java_transacting.begin()
        found = [consumer.receive() for _ in range(5)]
        consumer.acknowledge_within(transaction, found[3], cumulative=True)
        transaction.abort()
        if is_new:
            consumer.close()
            consumer = java_transacting.consumer(topic)
        else:
            consumer.redeliver()
    assert receive_bodies(consumer, 5) == bodies(5)
    assert_nothing(consumer)


@pytest.mark.parametrize("name", ["a/b", "a b%2F", "ä"])
def test_any_name_of_a_subscription_takes_acks(
    transacting: TransactionClient, broker: Broker, topic: str, name: str
) -> None:
    """#25728"""
    consumer = transacting.consumer(topic, name, kind="Shared")
    transacting.producer(topic).send_all(bodies(2))
    kept, dropped = transacting.begin(), transacting.begin()
    for transaction in (kept, dropped):
        consumer.acknowledge_within(transaction, consumer.receive())
    unload(broker, topic)
    assert_nothing(consumer)
    kept.commit()
    dropped.abort()
    assert receive_bodies(consumer, 1) == [b"m-0001"]
    assert_nothing(consumer)


@pytest.mark.pyxbroker
def test_an_ack_of_a_consumer_that_was_closed_is_answered(
    connection: TransactionConnection, topic: str
) -> None:
    """#23261: Apache Pulsar drops it, and the client waits for its timeout."""
    id = connection.begin()
    connection.producer(topic)
    connection.subscribe(topic, "s", 1, SHARED)
    connection.flow(10)
    connection.send(b"x", 0)
    position = wire.position(connection.wait_for(wire.MESSAGE).data(2))
    connection.command(wire.CLOSE_CONSUMER, {1: 1, 2: connection.request_id()})
    connection.wait_for(wire.SUCCESS)
    assert connection.acknowledge_within(id, position).code is not None
    assert connection.end(id, COMMIT).code is None


@pytest.mark.pyxbroker
def test_a_coordinator_opens_for_a_client_that_does_not_connect_to_it(
    broker: Broker, connection: TransactionConnection
) -> None:
    """#15272, #21533: Apache Pulsar answers that there is no coordinator, for ever."""
    id = connection.begin()
    place = f"{path_of(COORDINATOR_TOPIC)}-partition-0"
    assert broker.request("PUT", f"/admin/v2/{place}/unload")[0] == 204
    with TransactionConnection(broker.port) as another:
        another.begin()
        assert another.end(id, COMMIT).code is None


def test_a_replicated_subscription_of_a_topic_with_transactions(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    """#26234: nothing is taken from the topic before its transactions have recovered."""
    consumer = java_transacting.consumer(topic, replicateSubscriptionState=True)
    producer = java_transacting.producer(topic)
    producer.send(b"0")
    assert receive_bodies(consumer, 1, acknowledge=True) == [b"0"]
    transaction = java_transacting.begin()
    producer.send(b"1", transaction)
    unload(broker, topic)
    assert_nothing(consumer)
    transaction.commit()
    assert receive_bodies(consumer, 1, acknowledge=True) == [b"1"]
    wait_until(lambda: topic_stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == 0)


def test_a_duplicate_of_a_pending_message_ends_with_its_transaction(
    broker: Broker, connection: TransactionConnection, namespace: str
) -> None:
    """#21177: the receipt names no position, and consumers are not stuck."""
    topic = f"persistent://{namespace}/t"
    place = f"/admin/v2/namespaces/{namespace}/deduplication"
    assert broker.rest("POST", place, True)[0] == 204
    id = connection.begin()
    connection.producer(topic, 1, "p")
    connection.subscribe(topic, "s", 1, SHARED)
    connection.flow(10)
    connection.add_partitions(id, topic)
    assert connection.send_within(id, b"first", 5).type == wire.SEND_RECEIPT
    duplicate = connection.send_within(id, b"again", 5)
    assert duplicate.type in (wire.SEND_RECEIPT, wire.SEND_ERROR)
    assert connection.end(id, COMMIT).code is None
    connection.send(b"plain", 6)
    found = [connection.wait_for(wire.MESSAGE) for _ in range(2)]
    assert [wire.parse_payload(each.rest).body for each in found] == [b"first", b"plain"]
