"""The answers to commands of transactions that no official client would send.

The codes and texts are those of Apache Pulsar 4.2.4, against which ``BROKER=apache`` runs the same
tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed
from harness.tokens import token, with_rights
from harness.transaction_commands import (
    ABORT,
    COMMIT,
    COORDINATOR_TOPIC,
    Id,
    Outcome,
    TransactionConnection,
    coordinator_of,
)
from harness.transactions import SETTINGS, path_of, topic_stats, wait_until

from compat_tests.conftest import BrokerFactory, broker_kind

BROKER_SETTINGS = SETTINGS
NO_COORDINATOR, NOT_ALLOWED, CONFLICT, NOT_FOUND = 20, 22, 23, 24
UNSIGNED = wire.MAX_UINT64
ACK_RESPONSE, SEND_ERROR = wire.ACK_RESPONSE, wire.SEND_ERROR


@pytest.fixture
def connection(broker: Broker) -> Iterator[TransactionConnection]:
    """A connection whose coordinator 0 is open."""
    with coordinator_of(broker) as one:
        yield one


def every_command(connection: TransactionConnection, id: Id, topic: str) -> list[Outcome]:
    """Name a transaction in each command that takes one."""
    return [
        connection.add_partitions(id, topic),
        connection.add_subscription(id, topic),
        connection.end(id, COMMIT),
        connection.end(id, ABORT),
    ]


def test_coordinators_that_the_broker_does_not_have(
    connection: TransactionConnection, topic: str
) -> None:
    assert connection.connect_coordinator(7).code == 6  # ServiceNotReady
    outcome = connection.ask(wire.NEW_TXN, {2: 1000, 3: 7})
    assert outcome == (51, NO_COORDINATOR, "Transaction coordinator with id 7 not found!")
    for most, name in ((7, "7"), (UNSIGNED, "-1")):
        for outcome in every_command(connection, (most, 1), topic):
            assert outcome.code == NO_COORDINATOR
            assert f"Transaction coordinator with id {name} not found!" in outcome.text
    connection.assert_alive()


@pytest.mark.parametrize("least", [99_999, 1 << 63, UNSIGNED], ids=["far", "lowest", "-1"])
def test_transactions_that_do_not_exist(
    connection: TransactionConnection, topic: str, least: int
) -> None:
    shown = least - (1 << 64) if least >= 1 << 63 else least
    for outcome in every_command(connection, (0, least), topic):
        assert outcome.code == NOT_FOUND
        assert f"The transaction with this txdID `(0,{shown})`not found " in outcome.text


@pytest.mark.parametrize("action", [COMMIT, ABORT], ids=["commit", "abort"])
def test_transactions_that_have_ended(
    connection: TransactionConnection, topic: str, action: int
) -> None:
    id = connection.begin()
    assert connection.end(id, action).code is None
    assert connection.end(id, ABORT - action).code == NOT_FOUND
    assert connection.add_partitions(id, topic).code == NOT_FOUND
    assert connection.add_subscription(id, topic).code == NOT_FOUND


def test_transactions_that_have_timed_out(connection: TransactionConnection, topic: str) -> None:
    id = connection.begin(timeout_ms=300)

    def has_ended() -> bool:
        return connection.add_partitions(id, topic).code == NOT_FOUND

    wait_until(has_ended)
    assert connection.end(id, COMMIT).code == NOT_FOUND
    assert connection.add_subscription(id, topic).code == NOT_FOUND


@pytest.mark.parametrize("ttl", [1 << 62, UNSIGNED], ids=["2^62", "2^64-1"])
def test_a_timeout_of_any_length_is_taken(connection: TransactionConnection, ttl: int) -> None:
    id = connection.begin(timeout_ms=ttl)
    connection.end(id, COMMIT)
    connection.assert_alive()
    assert connection.end(connection.begin(), COMMIT).code is None


def test_lists_may_be_empty(connection: TransactionConnection) -> None:
    id = connection.begin()
    assert connection.add_partitions(id).code is None
    assert connection.ask(wire.ADD_SUBSCRIPTION_TO_TXN, {2: id[1], 3: id[0]}).code is None
    assert connection.end(id, COMMIT).code is None


def test_participants_that_do_not_exist_hinder_no_end(
    connection: TransactionConnection, topic: str
) -> None:
    id = connection.begin()
    connection.producer(topic)
    assert connection.add_partitions(id, f"{topic}-absent", topic).code is None
    assert connection.add_subscription(id, f"{topic}-absent").code is None
    assert connection.add_subscription(id, topic, "absent").code is None
    assert connection.end(id, COMMIT).code is None


def test_names_that_are_no_topics_fail_their_own_transaction_alone(
    connection: TransactionConnection, topic: str
) -> None:
    bad, good = connection.begin(), connection.begin()
    connection.producer(topic)
    connection.add_partitions(bad, "a b://c", "")
    connection.add_partitions(good, topic)
    connection.send_within(good, b"x", 0)
    assert connection.end(good, COMMIT).code is None
    connection.end(bad, COMMIT)
    connection.assert_alive()
    assert connection.end(connection.begin(), COMMIT).code is None


def test_ends_on_participants_that_do_not_exist(
    connection: TransactionConnection, topic: str
) -> None:
    for action in (COMMIT, ABORT):
        assert connection.end_on_partition((0, 77), topic, action).code is None
        assert connection.end_on_subscription((0, 77), topic, "s", action).code is None
    connection.producer(topic)
    for action in (COMMIT, ABORT):
        assert connection.end_on_partition((0, 77), topic, action).code is None
        assert connection.end_on_subscription((0, 77), topic, "absent", action).code is None


@pytest.mark.parametrize("kind", [wire.END_TXN_ON_PARTITION, wire.END_TXN_ON_SUBSCRIPTION])
def test_an_end_without_a_participant_closes_at_most_its_connection(
    broker: Broker, connection: TransactionConnection, kind: int
) -> None:
    with TransactionConnection(broker.port) as another, contextlib.suppress(ConnectionClosed):
        assert another.ask(kind, {2: 1, 3: 0, 5: COMMIT}).code is not None
    connection.assert_alive()


def test_an_end_without_an_action_commits(connection: TransactionConnection, topic: str) -> None:
    id = connection.begin_with_message(topic)
    assert connection.ask(wire.END_TXN, {2: id[1], 3: id[0]}).code is None
    assert connection.end(id, ABORT).code == NOT_FOUND
    connection.subscribe(topic)
    connection.flow(10)
    message = connection.wait_for(wire.MESSAGE)
    assert wire.parse_payload(message.rest).body == b"x"


def test_messages_of_unknown_transactions_wait_for_their_end(
    connection: TransactionConnection, topic: str
) -> None:
    """The owner of the topic asks no coordinator; the low-water mark refuses what is too late."""
    connection.producer(topic)
    for number, id in enumerate(((0, 500), (9, 1), (UNSIGNED, UNSIGNED))):
        assert connection.send_within(id, b"x", number).type == wire.SEND_RECEIPT
    assert connection.end_on_partition((0, 500), topic, COMMIT, 600).code is None
    for number, least in enumerate((500, 550, 600), 3):
        outcome = connection.send_within((0, least), b"late", number)
        text = (
            f"Transaction [(0,{least})] has been ended. Please use a new transaction to send"
            " message."
        )
        assert outcome == (SEND_ERROR, NOT_ALLOWED, text)
    assert connection.send_within((0, 601), b"x", 6).type == wire.SEND_RECEIPT


def test_a_message_with_half_an_id_is_a_plain_one(
    connection: TransactionConnection, broker: Broker, topic: str
) -> None:
    connection.producer(topic)
    connection.subscribe(topic)
    connection.flow(10)
    connection.send(b"x", 0, send_fields={4: 700})
    assert connection.receive().type in (wire.SEND_RECEIPT, wire.MESSAGE)
    assert connection.receive().type in (wire.SEND_RECEIPT, wire.MESSAGE)
    assert topic_stats(broker, topic)["ongoingTxnCount"] == 0


def message_of(connection: TransactionConnection, topic: str, kind: int = wire.SHARED) -> Id:
    """Publish a message that consumer 1 of subscription s receives."""
    connection.producer(topic)
    connection.subscribe(topic, "s", 1, kind)
    connection.send(b"x", 0)
    position = wire.position(connection.wait_for(wire.SEND_RECEIPT).data(3))
    connection.flow(10)
    connection.wait_for(wire.MESSAGE)
    return position


def test_acks_of_what_is_pending_or_acknowledged_conflict(
    connection: TransactionConnection, topic: str
) -> None:
    """The subscription asks no coordinator, so unknown transactions may acknowledge, too."""
    position = message_of(connection, topic)
    assert connection.acknowledge_within((0, 80), position) == (ACK_RESPONSE, None, "")
    text = "try to ack message:{}:{} ".format(*position)
    for least in (80, 81):
        outcome = connection.acknowledge_within((0, least), position)
        assert (outcome.type, outcome.code) == (ACK_RESPONSE, CONFLICT)
        assert f"[{topic}][s] Transaction:(0,{least}) {text}" in outcome.text
        assert outcome.text.endswith("in pending ack status.")
    assert connection.end_on_subscription((0, 80), topic, "s", COMMIT).code is None
    outcome = connection.acknowledge_within((0, 82), position)
    assert outcome.code == CONFLICT
    assert outcome.text.endswith("already acked before.")


def test_cumulative_acks_at_or_below_the_mark_conflict(
    connection: TransactionConnection, topic: str
) -> None:
    position = message_of(connection, topic, wire.FAILOVER)
    assert connection.acknowledge_within((0, 87), position, cumulative=True).code is None
    outcome = connection.acknowledge_within((0, 88), position, cumulative=True)
    assert outcome.code == CONFLICT
    assert "within range of current currentPosition" in outcome.text
    assert connection.end_on_subscription((0, 87), topic, "s", COMMIT).code is None
    outcome = connection.acknowledge_within((0, 88), position, cumulative=True)
    assert outcome.code == CONFLICT
    text = "within range of cursor's markDeletePosition: {}:{}".format(*position)
    assert outcome.text.endswith(text)


def test_acks_that_do_nothing_are_answered(
    connection: TransactionConnection, broker: Broker, topic: str
) -> None:
    """Cumulative on a shared subscription, without an id, and of messages that do not exist."""
    ledger, entry = message_of(connection, topic)
    acknowledge = connection.acknowledge_within
    assert acknowledge((0, 82), (ledger, entry), cumulative=True).code is None
    assert acknowledge((0, 82), (ledger, entry), (ledger, entry + 1), cumulative=True).code is None
    assert acknowledge((0, 82)).code is None
    assert acknowledge((0, 83), (ledger, entry + 1000)).code is None
    assert acknowledge((0, 84), (ledger + 99_999, 0)).code is None
    assert topic_stats(broker, topic)["subscriptions"]["s"]["msgBacklog"] == 1
    for least in (82, 83, 84):
        assert connection.end_on_subscription((0, least), topic, "s", ABORT).code is None
    connection.assert_alive()


def test_transactions_are_refused_where_they_are_switched_off(
    own_broker: BrokerFactory, topic: str
) -> None:
    one = own_broker()
    one.start()
    with TransactionConnection(one.port) as connection:
        for outcome in [
            connection.connect_coordinator(),
            connection.ask(wire.NEW_TXN, {2: 1000}),
            *every_command(connection, (0, 1), topic),
        ]:
            assert outcome == (wire.ERROR, NOT_ALLOWED, "Transactions are not enabled.")
        position = message_of(connection, topic)
        outcome = connection.send_within((0, 1), b"x", 1)
        assert outcome == (SEND_ERROR, NOT_ALLOWED, "Transaction buffer disable!")
        outcome = connection.acknowledge_within((0, 1), position)
        assert (outcome.type, outcome.code) == (ACK_RESPONSE, NOT_ALLOWED)
        assert outcome.text.endswith("Server don't support transaction ack!")


def test_a_flood_of_transactions_disturbs_no_other_one(
    broker: Broker, connection: TransactionConnection, topic: str
) -> None:
    """3,000 open transactions of one connection, and 10,000 partitions in one transaction."""
    with coordinator_of(broker) as another:
        requests = []
        for _ in range(3000):
            requests.append(another.request_id())
            another.command(wire.NEW_TXN, {1: requests[-1], 2: 60_000, 3: 0})
        id = connection.begin_with_message(topic)
        assert connection.end(id, COMMIT).code is None
        answers = [another.expect(wire.NEW_TXN + 1, 30) for _ in requests]
        assert sorted(answer.number(1) for answer in answers) == requests
        found = {answer.number(2) for answer in answers if 4 not in answer.fields}
        assert len(found) == 3000
        many = another.begin()
        outcome = another.add_partitions(many, *(f"{topic}-{n}" for n in range(10_000)))
        assert outcome.type == wire.ADD_PARTITION_TO_TXN + 1
        id = connection.begin()
        assert connection.end(id, COMMIT).code is None


def test_a_flood_of_acks_disturbs_no_other_subscription(
    broker: Broker, connection: TransactionConnection, topic: str
) -> None:
    """5,000 acknowledgements of as many unknown transactions, of messages that do not exist."""
    with TransactionConnection(broker.port) as another:
        ledger, _ = message_of(another, topic)
        for number in range(5000):
            place = wire.message_id(ledger, 1000 + number)
            fields = {1: 1, 2: wire.INDIVIDUAL, 3: place, 6: number, 7: 0}
            another.command(wire.ACK, fields | {8: another.request_id()})
        position = message_of(connection, f"{topic}-other")
        assert connection.acknowledge_within((0, 1), position).code is None
        assert connection.end_on_subscription((0, 1), f"{topic}-other", "s", COMMIT).code is None
        for _ in range(5000):
            another.wait_for(ACK_RESPONSE, 30)


@pytest.mark.parametrize("role", ["owner", "root", "stranger"])
def test_the_owner_and_the_superuser_end_a_transaction(
    secured: Broker, topic: str, role: str
) -> None:
    """Others are answered as if it did not exist, after a restart of the coordinator, too."""
    with login_of(secured, "owner") as connection:
        id = connection.begin()
        assert connection.add_partitions(id, topic).code is None
    place = f"{path_of(COORDINATOR_TOPIC)}-partition-0"
    login = {"Authorization": f"Bearer {token('root')}"}
    status, _, text = secured.exchange("PUT", f"/admin/v2/{place}/unload", headers=login)
    assert status == 204, text
    may = role != "stranger"
    with login_of(secured, role) as connection:
        for outcome in [
            connection.add_partitions(id, topic),
            connection.add_subscription(id, topic),
            connection.end(id, ABORT),
        ]:
            assert (outcome.code is None) is may, outcome


@pytest.fixture(scope="module")
def secured(module_directory: Path) -> Iterator[Broker]:
    """A broker that asks who its clients are, and lets `owner` and `stranger` use a namespace."""
    kind = broker_kind()
    one = Broker(kind, module_directory / "secured", settings=SETTINGS | with_rights(kind))
    one.headers = {"Authorization": f"Bearer {token('root')}"}
    try:
        one.start()
        for role in ("owner", "stranger"):
            place = f"/admin/v2/namespaces/public/default/permissions/{role}"
            assert one.rest("POST", place, ["produce", "consume"])[0] == 204
        yield one
    finally:
        one.close()


def login_of(broker: Broker, role: str) -> TransactionConnection:
    """Connect with the token of a role."""
    place = f"/lookup/v2/topic/{path_of(COORDINATOR_TOPIC)}-partition-0"
    wait_until(lambda: broker.rest("GET", place)[0] == 200)
    one = TransactionConnection(broker.port, handshake=False)
    one.connect(fields={5: "token", 3: token(role)})
    wait_until(lambda: one.connect_coordinator().code is None)
    return one
