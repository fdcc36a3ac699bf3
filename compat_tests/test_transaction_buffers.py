"""What a topic stores of its transactions, and what readers, compaction and policies see of them.

``BROKER=apache`` runs the same tests against Apache Pulsar.
"""

from __future__ import annotations

import io
import threading
import time
from typing import Any

import fastavro
import pulsar
import pytest
from harness.brokers import Broker
from harness.java_client import Java, JavaError
from harness.transactions import (
    SETTINGS,
    JavaTransactions,
    TransactionClient,
    assert_nothing,
    bodies,
    buffer_stats,
    internal_stats,
    path_of,
    reason,
    receive_bodies,
    refused,
    topic_stats,
    transaction_rest,
    unload,
    wait_until,
)

from compat_tests.conftest import aborts_of_sends

BROKER_SETTINGS = SETTINGS | {
    "transactionPendingAckLogIndexMinLag": "1",
    "transactionBufferSnapshotMinTimeInMillis": "1000",
    "forceDeleteNamespaceAllowed": "true",
}
INTERNAL_NAMES = [
    "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
    "persistent://pulsar/system/__transaction_log_0",
    "persistent://public/default/t-s__transaction_pending_ack",
]


def last_id(client: TransactionClient, topic: str) -> tuple[int, int]:
    if isinstance(client, JavaTransactions):
        reader = client.own.create_reader(topic)
        (found,) = reader.last_ids()
        reader.close()
        return found.position
    reader = client.own.create_reader(topic, pulsar.MessageId.earliest)
    id = reader.get_last_message_id()
    reader.close()
    return id.ledger_id(), id.entry_id()


def read_all(client: TransactionClient, topic: str) -> list[bytes]:
    """Read from the beginning while there is something to read."""
    if isinstance(client, JavaTransactions):
        reader = client.own.create_reader(topic)
        found = [each.data for each in reader.read_all()]
        reader.close()
        return found
    reader = client.own.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(20_000).data())
    reader.close()
    return found


@pytest.mark.parametrize("name", INTERNAL_NAMES)
def test_names_that_transactions_use_are_no_topics(
    python_client: pulsar.Client, java_transacting: JavaTransactions, broker: Broker, name: str
) -> None:
    for attempt in (java_transacting.producer, java_transacting.consumer):
        with pytest.raises(JavaError, match="Can not create transaction system topic"):
            attempt(name)
    status, text = broker.request("PUT", f"/admin/v2/{path_of(name)}")
    assert status == 400 and "Cannot create topic in system topic format!" in text


def test_the_read_position_stays_before_an_open_transaction(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """Without a transaction it moves with each message; the end of the transaction frees it."""
    producer = transacting.producer(topic)

    def read_position() -> tuple[int, int]:
        ledger, entry = buffer_stats(broker, topic)["maxReadPosition"].split(":")
        return int(ledger), int(entry)

    plain = producer.send(b"plain")
    wait_until(lambda: buffer_stats(broker, topic)["state"] == "NoSnapshot")
    assert read_position() == plain
    transaction = transacting.begin()
    first = producer.send(b"first", transaction)
    assert buffer_stats(broker, topic)["state"] == "Ready"
    assert buffer_stats(broker, topic)["ongoingTxnSize"] == 1
    producer.send(b"plain")
    producer.send(b"second", transaction)
    assert read_position() == (first[0], first[1] - 1) == plain
    transaction.commit()
    marker = read_position()
    assert marker == (plain[0], plain[1] + 4)
    assert producer.send(b"plain") == (marker[0], marker[1] + 1) == read_position()
    aborted = transacting.begin()
    before = read_position()
    producer.send(b"third", aborted)
    assert read_position() == before
    aborted.abort()
    assert read_position() == (before[0], before[1] + 2)
    assert buffer_stats(broker, topic)["totalAbortedTransactions"] == 1


def _record(name: str, *numbers: str, **others: Any) -> dict[str, Any]:
    rows = dict.fromkeys(numbers, "long") | others
    fields = [{"name": field, "type": kind} for field, kind in sorted(rows.items())]
    return {"type": "record", "name": name, "fields": fields}


_ABORT = _record("AbortTxnMetadata", "entryId", "ledgerId", "txnIdLeastBits", "txnIdMostBits")
SNAPSHOT = fastavro.parse_schema(
    _record(
        "TransactionBufferSnapshot",
        *("maxReadPositionEntryId", "maxReadPositionLedgerId"),
        aborts=["null", {"type": "array", "items": _ABORT}],
        topicName=["null", "string"],
    )
)


def snapshots(client: JavaTransactions, topic: str) -> list[Any]:
    """Return the snapshots of a topic, in order."""
    namespace = topic.rpartition("/")[0]
    reader = client.own.create_reader(f"{namespace}/__transaction_buffer_snapshot")
    found = [
        fastavro.schemaless_reader(io.BytesIO(each.data), SNAPSHOT, None)
        for each in reader.read_all()
        if each.key == topic
    ]
    reader.close()
    return found


def test_the_first_transactional_message_writes_a_snapshot(
    java_transacting: JavaTransactions, broker: Broker, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    producer = java_transacting.producer(topic)
    wait_until(lambda: buffer_stats(broker, topic)["state"] == "NoSnapshot")
    transaction = java_transacting.begin()
    producer.send(b"x", transaction)
    (first,) = snapshots(java_transacting, topic)
    assert first["topicName"] == topic
    assert first["maxReadPositionEntryId"] == -1
    assert first["aborts"] == []
    transaction.abort()
    producer.send(b"y")
    ledger, last = producer.send(b"z")
    assert last == 3

    def second() -> dict[str, Any] | None:
        found = snapshots(java_transacting, topic)[-1]
        return found if found["maxReadPositionEntryId"] == 3 else None

    found = wait_until(second)
    assert found["maxReadPositionLedgerId"] == ledger
    (abort,) = found["aborts"]
    most, least = transaction.id
    assert abort == {
        "txnIdMostBits": most,
        "txnIdLeastBits": least,
        "ledgerId": ledger,
        "entryId": 1,
    }


@aborts_of_sends
def test_the_last_id_is_that_of_a_committed_message(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    producer = transacting.producer(topic)
    plain = producer.send(b"plain")
    assert last_id(transacting, topic) == plain
    transaction = transacting.begin()
    producer.send(b"aborted", transaction)
    assert last_id(transacting, topic) == plain
    transaction.abort()
    assert last_id(transacting, topic) == plain
    transaction = transacting.begin()
    committed = producer.send(b"committed", transaction)
    assert last_id(transacting, topic) == plain
    transaction.commit()
    assert last_id(transacting, topic) == committed
    unload(broker, topic)  # the next message is the first one of a ledger
    transaction = transacting.begin()
    producer.send(b"open", transaction)
    assert last_id(transacting, topic) == committed


@aborts_of_sends
def test_a_reader_ends_behind_the_last_committed_message(
    transacting: TransactionClient, topic: str
) -> None:
    """Aborted messages and markers at the end of the topic are nothing to read."""
    producer = transacting.producer(topic)
    kept, dropped, open_one = (transacting.begin() for _ in range(3))
    producer.send(b"0")
    producer.send(b"1", kept)
    producer.send(b"no", dropped)
    kept.commit()
    dropped.abort()
    assert read_all(transacting, topic) == [b"0", b"1"]
    producer.send(b"no", open_one)
    producer.send(b"2")
    assert read_all(transacting, topic) == [b"0", b"1"]
    open_one.abort()
    assert read_all(transacting, topic) == [b"0", b"1", b"2"]


def test_a_compacted_topic_has_committed_values_alone(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    producer = java_transacting.producer(topic)
    for key in "abc":
        producer.send(b"old", key=key)
    kept, dropped = java_transacting.begin(), java_transacting.begin()
    for key in "ab":
        producer.send(b"kept", kept, key=key)
    for key in "bc":
        producer.send(b"dropped", dropped, key=key)
    kept.commit()
    dropped.abort()

    def compacted() -> dict[str, bytes]:
        reader = java_transacting.own.create_reader(topic, readCompacted=True)
        found = {str(each.key): each.data for each in reader.read_all()}
        reader.close()
        return found

    wanted = {"a": b"kept", "b": b"kept", "c": b"old"}
    assert compacted() == wanted
    assert broker.request("PUT", f"/admin/v2/{path_of(topic)}/compaction")[0] == 204

    def is_done() -> bool:
        status, found = broker.rest("GET", f"/admin/v2/{path_of(topic)}/compaction")
        return bool(status == 200 and found["status"] == "SUCCESS")

    wait_until(is_done)
    assert compacted() == wanted


def test_transactional_messages_obey_policies(java: Java, broker: Broker, namespace: str) -> None:
    """Encryption that is required, and the longest delay."""
    client = JavaTransactions(java, broker.url, operationTimeoutMs=2000)
    delays = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
    at = f"/admin/v2/namespaces/{namespace}"
    assert broker.rest("POST", f"{at}/delayedDelivery", delays)[0] == 204
    producer = client.producer(f"persistent://{namespace}/delayed")
    transaction = client.begin()
    with refused("NotAllowedError"):
        producer.send(b"x", transaction, deliver_at=int(time.time() * 1000) + 60_000)
    transaction.abort()
    assert broker.rest("POST", f"{at}/encryptionRequired", True)[0] == 204
    with pytest.raises(JavaError, match="Encryption is required"):
        client.producer(f"persistent://{namespace}/plain")
    client.close()


def test_a_namespace_with_open_transactions_is_deleted_with_force(
    java_transacting: JavaTransactions, broker: Broker, namespace: str
) -> None:
    topic = f"persistent://{namespace}/t"
    producer, consumer = java_transacting.producer(topic), java_transacting.consumer(topic)
    producer.send(b"x")
    transaction = java_transacting.begin()
    producer.send(b"y", transaction)
    consumer.acknowledge_within(transaction, consumer.receive())
    status, text = broker.request("DELETE", f"/admin/v2/namespaces/{namespace}?force=true")
    assert status == 204, text
    assert broker.rest("GET", f"/admin/v2/namespaces/{namespace}")[0] == 404


@aborts_of_sends
def test_aborted_messages_stay_hidden_after_an_unload(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """The state of committed, aborted and open transactions comes back with the topic."""
    producer = transacting.producer(topic)
    kept, dropped, open_one, open_two = (transacting.begin() for _ in range(4))
    producer.send(b"0")
    producer.send(b"1", kept)
    producer.send(b"no", dropped)
    dropped.abort()
    kept.commit()
    unload(broker, topic)
    producer.send(b"2", open_one)
    producer.send(b"no", open_two)
    producer.send(b"3")
    unload(broker, topic)
    consumer = transacting.consumer(topic)
    assert receive_bodies(consumer, 2) == [b"0", b"1"]
    assert_nothing(consumer)
    open_one.commit()
    assert receive_bodies(consumer, 1) == [b"2"]
    assert_nothing(consumer)
    open_two.abort()
    assert receive_bodies(consumer, 1) == [b"3"]
    assert_nothing(consumer)


@aborts_of_sends
def test_markers_are_passed_without_an_ack_of_the_consumer(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    consumer = transacting.consumer(topic, kind="Shared")
    producer = transacting.producer(topic)
    for end in ("commit", "abort", "commit"):
        transaction = transacting.begin()
        producer.send(b"x", transaction)
        getattr(transaction, end)()
    found = [consumer.receive() for _ in range(2)]
    consumer.acknowledge(found[1])
    consumer.acknowledge(found[0])

    def is_at_the_end() -> bool:
        stats = internal_stats(broker, topic)
        return bool(
            stats["cursors"]["s"]["markDeletePosition"] == stats["lastConfirmedEntry"]
            and topic_stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == 0
        )

    wait_until(is_at_the_end)


def test_the_log_of_pending_acks_is_trimmed(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    """Each write deletes the records of what the stored cursor of the subscription has passed."""
    consumer, producer = java_transacting.consumer(topic), java_transacting.producer(topic)
    name = topic.removeprefix("persistent://")

    def is_trimmed() -> bool:
        producer.send(b"x")
        transaction = java_transacting.begin()
        consumer.acknowledge_within(transaction, consumer.receive())
        transaction.commit()
        status, stats = transaction_rest(broker, f"pendingAckInternalStats/{name}/s")
        assert status == 200, (status, stats)
        log = stats["pendingAckLogStats"]
        assert log["managedLedgerName"].endswith("-s__transaction_pending_ack")
        ledger = log["managedLedgerInternalStats"]
        marked = int(ledger["cursors"]["__pending_ack_state"]["markDeletePosition"].split(":")[1])
        return marked >= 10

    wait_until(is_trimmed)


def test_producing_while_the_topic_reloads_loses_nothing(
    java_transacting: JavaTransactions, broker: Broker, topic: str
) -> None:
    """The first snapshot of the topic is written meanwhile."""
    producers = [java_transacting.producer(topic) for _ in range(3)]
    transactions = [java_transacting.begin(timeout_ms=120_000) for _ in producers]
    failures: list[str] = []

    def send(number: int) -> None:
        try:
            for body in bodies(30, f"p{number}"):
                producers[number].send(body, transactions[number])
        except Exception as error:
            failures.append(f"{reason(error)}: {error}")

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        unload(broker, topic)
    for thread in threads:
        thread.join(120)
    assert not failures
    for transaction in transactions:
        transaction.commit()
    wanted = sorted(body for number in range(3) for body in bodies(30, f"p{number}"))
    assert sorted(receive_bodies(java_transacting.consumer(topic), 90)) == wanted


@aborts_of_sends
def test_transactions_survive_a_restart(
    transacting: TransactionClient, broker: Broker, topic: str
) -> None:
    """Open ones can be continued and ended afterwards."""
    source = topic + "-source"
    consumer = transacting.consumer(source, kind="Shared")
    transacting.producer(source).send_all(bodies(4))
    producer = transacting.producer(topic)
    kept, dropped, open_one = (transacting.begin(timeout_ms=300_000) for _ in range(3))
    for transaction, body in ((kept, b"kept"), (dropped, b"no"), (open_one, b"open")):
        producer.send(body, transaction)
        consumer.acknowledge_within(transaction, consumer.receive())
    kept.commit()
    dropped.abort()
    consumer.close()
    broker.kill()
    broker.start()
    results = transacting.consumer(topic)
    assert receive_bodies(results, 1) == [b"kept"]
    assert_nothing(results)
    producer.send(b"more", open_one)
    # What no transaction has acknowledged, and what the aborted one has.
    consumer = transacting.consumer(source, kind="Shared")
    assert sorted(receive_bodies(consumer, 2)) == [b"m-0001", b"m-0003"]
    assert_nothing(consumer)
    open_one.commit()
    assert receive_bodies(results, 2) == [b"open", b"more"]
    consumer.redeliver()
    assert sorted(receive_bodies(consumer, 2)) == [b"m-0001", b"m-0003"]
    assert_nothing(consumer)
