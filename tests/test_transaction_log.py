"""Transaction coordinators: their commands, their logs, and what a restart finds."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from one_bookie import append, settled, until
from one_broker import Broker, Client
from pyxbroker.auth.principal import Principal
from pyxbroker.base import clock
from pyxbroker.base.bundles import WHOLE
from pyxbroker.base.errors import NotAllowed, PersistenceError, ServiceNotReady
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE
from pyxbroker.broker.transactions import coordinator_log, log_records, running_coordinator
from pyxbroker.broker.transactions.coordinator import Status
from pyxbroker.broker.transactions.coordinator_log import CURSOR, name_of
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.log_records import records_in
from pyxbroker.broker.transactions.running_coordinator import (
    ABORTED_PER_CALL,
    RunningCoordinator,
)
from pyxbroker.metadata.protobuf_records import MalformedRecord
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.cursor import Cursor
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.mledger.managed_ledger import ManagedLedger
from pyxbroker.proto import PulsarApi as pb
from pyxbroker.proto import PulsarTransactionMetadata as records
from transactions import (
    add_partition,
    add_subscription,
    end,
    end_command,
    ids,
    new,
    run,
    transactions_of,
    with_buffer,
)

SUBSCRIPTION_PREFIX = "Handle end txn on subscription failed: "


async def coordinator(broker: Broker, number: int = 0) -> RunningCoordinator:
    """The coordinator, which is opened if necessary."""
    await transactions_of(broker).connect(number)
    [found] = [each for each in transactions_of(broker).running if each.id == number]
    return found


async def reopen(broker: Broker) -> None:
    """Close all coordinators; the next command opens its own again."""
    await transactions_of(broker).unload(lambda name: True)
    assert transactions_of(broker).running == []


async def begun(broker: Broker) -> tuple[Client, TxnId]:
    """A client with a transaction on topic t."""
    client = await broker.client()
    txn = await new(client)
    assert not (await add_partition(client, txn, "t")).HasField("error")
    return client, txn


async def with_fenced_log(broker: Broker) -> tuple[Client, TxnId, RunningCoordinator]:
    """A client with a transaction, of which no further record can be appended."""

    def fenced(run: Any) -> None:
        raise ManagedLedgerError("fenced")

    client = await broker.client()
    txn = await new(client)
    running = await coordinator(broker)
    running.log.managed_ledger.append = fenced  # type: ignore[method-assign]
    return client, txn, running


@pytest.fixture
def fast_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_coordinator, "RETRY_S", 0.01)


# --- commands -------------------------------------------------------------------------------------


def test_a_transaction_ends_at_its_participants_before_the_client_is_answered(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        name, buffer = await with_buffer(broker, "t")
        client = await broker.client()
        command = pb.CommandTcClientConnectRequest(tc_id=0)
        answer = await client.request(command, "tcClientConnectResponse")
        assert not answer.HasField("error")
        first, second = await new(client), await new(client)
        assert (first, second) == (TxnId(0, 0), TxnId(0, 1))
        for txn in (first, second):
            answer = await add_partition(client, txn, name, "t", "does-not-exist")
            assert not answer.HasField("error")
        answer = await add_subscription(client, first, (name, "does not exist"))
        assert not answer.HasField("error")
        answer = await end(client, second)
        assert not answer.HasField("error"), answer.message
        assert buffer.ended == [(second, True, -1)]
        answer = await end(client, first, is_commit=False)
        assert (answer.txnid_most_bits, answer.txnid_least_bits) == first.wire()
        assert buffer.ended[1:] == [(first, False, -1)]
        # The client has not received an answer, and repeats the command.
        assert not (await end(client, second)).HasField("error")
        assert (await end(client, first)).error == pb.TransactionNotFound
        assert len(buffer.ended) == 2

    run(tmp_path, scenario)


def test_every_command_is_refused_while_transactions_are_off(tmp_path: Path) -> None:
    commands = {
        "tcClientConnectResponse": pb.CommandTcClientConnectRequest(tc_id=0),
        "newTxnResponse": pb.CommandNewTxn(),
        "addPartitionToTxnResponse": pb.CommandAddPartitionToTxn(partitions=["t"]),
        "addSubscriptionToTxnResponse": pb.CommandAddSubscriptionToTxn(),
        "endTxnResponse": pb.CommandEndTxn(txn_action=pb.COMMIT),
    }

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for field, command in commands.items():
            answer = await client.request(command, field)
            assert isinstance(answer, pb.CommandError), field
            assert (answer.error, answer.message) == (
                pb.NotAllowedError,
                "Transactions are not enabled.",
            )

    run(tmp_path, scenario, transactionCoordinatorEnabled=False)


def test_a_coordinator_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for number in (2, 2**63):
            answer = await client.request(pb.CommandNewTxn(tc_id=number), "newTxnResponse")
            assert answer.error == pb.TransactionCoordinatorNotFound
            assert answer.txnid_most_bits == number
            connect = pb.CommandTcClientConnectRequest(tc_id=number)
            answer = await client.request(connect, "tcClientConnectResponse")
            assert answer.error == pb.ServiceNotReady
        for number in (2, -1):
            answer = await end(client, TxnId(number, 0))
            assert answer.message == f"Transaction coordinator with id {number} not found!"
        assert await new(client, 1) == TxnId(1, 0)

    run(tmp_path, scenario, coordinators=2)


def test_a_transaction_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for txn in (TxnId(0, 0), TxnId(0, -1), TxnId(0, 2**63 - 1)):
            for answer in (
                await end(client, txn),
                await add_partition(client, txn, "t"),
                await add_subscription(client, txn, ("t", "s")),
            ):
                assert answer.error == pb.TransactionNotFound
                assert answer.message == f"The transaction with this txdID `{txn}`not found "
                assert answer.txnid_least_bits == txn.least % 2**64

    run(tmp_path, scenario)


def test_names_are_checked(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        txn = await new(client)
        for answer in (
            await add_partition(client, txn, "t", "a/b"),
            await add_partition(client, txn, "x" * 3000),
            await add_subscription(client, txn, ("a/b", "s")),
        ):
            assert answer.error == pb.InvalidTopicName
        for answer in (
            await add_subscription(client, txn, ("t", "x" * 3000)),
            await add_partition(client, txn, *("t",) * 1001),
            await add_subscription(client, txn, *(("t", "s"),) * 1001),
        ):
            assert answer.error == pb.NotAllowedError
        found = (await coordinator(broker)).find(txn.least)
        assert found is not None and found.participants == 0

    run(tmp_path, scenario)


def test_new_transactions_are_refused_beyond_the_limit(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        txn = await new(client)
        answer = await client.request(pb.CommandNewTxn(tc_id=0), "newTxnResponse")
        assert answer.error == pb.TooManyRequests
        assert not (await end(client, txn)).HasField("error")
        await new(client)

    run(tmp_path, scenario, maxActiveTransactionsPerCoordinator=1)


def test_a_client_uses_its_own_transactions_only(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = {}
        for role in ("alice", "bob", "admin"):
            clients[role] = client = await broker.client()
            client.connection.session.principal = Principal(role)
        txn = await new(clients["alice"])
        await reopen(broker)  # the owner is in the log
        bob = clients["bob"]
        for answer in (
            await add_partition(bob, txn, "t"),
            await add_subscription(bob, txn, ("t", "s")),
            await end(bob, txn),
        ):
            assert answer.error == pb.TransactionNotFound
            assert answer.message == (
                f"Client (bob) is neither the owner of the transaction {txn} nor a super user"
            )
        for role in ("alice", "admin"):
            assert not (await add_partition(clients[role], txn, "t")).HasField("error")

    run(
        tmp_path,
        scenario,
        **{"authenticationEnabled": True, "authorizationEnabled": True, "superUserRoles": "admin"},
    )


def test_only_brokers_end_transactions_on_topics(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        client.connection.session.principal = Principal("bob")
        on_topic = pb.CommandEndTxnOnPartition(topic="t", txn_action=pb.COMMIT)
        answer = await client.request(on_topic, "endTxnOnPartitionResponse")
        text = "TC client (bob) is not a super user, and is not allowed to operate on transaction"
        assert (answer.error, answer.message) == (pb.TransactionNotFound, f"{text} (0,0)")
        on_subscription = pb.CommandEndTxnOnSubscription(txn_action=pb.COMMIT)
        on_subscription.subscription.topic = on_subscription.subscription.subscription = "t"
        answer = await client.request(on_subscription, "endTxnOnSubscriptionResponse")
        assert answer.error == pb.TransactionNotFound
        assert answer.message == f"{SUBSCRIPTION_PREFIX}{text} (0,0)"

    run(
        tmp_path,
        scenario,
        **{"authenticationEnabled": True, "authorizationEnabled": True, "superUserRoles": "admin"},
    )


def test_another_broker_ends_a_transaction_on_a_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name, buffer = await with_buffer(broker, "t")
        client = await broker.client()

        async def end_on_topic(topic: str, is_commit: bool) -> Any:
            command = pb.CommandEndTxnOnPartition(
                topic=topic,
                txn_action=pb.COMMIT if is_commit else pb.ABORT,
                txnid_least_bits_of_low_watermark=2**64 - 1,
                **ids(TxnId(7, 9)),
            )
            return await client.request(command, "endTxnOnPartitionResponse")

        answer = await end_on_topic(name, False)
        assert not answer.HasField("error")
        assert (answer.txnid_most_bits, answer.txnid_least_bits) == (7, 9)
        assert buffer.ended == [(TxnId(7, 9), False, -1)]
        assert not (await end_on_topic("persistent://public/default/none", True)).HasField("error")
        assert not (await end_on_topic("persistent://no/where/none", True)).HasField("error")
        command = pb.CommandEndTxnOnSubscription(txn_action=pb.COMMIT)
        command.subscription.topic, command.subscription.subscription = name, "none"
        answer = await client.request(command, "endTxnOnSubscriptionResponse")
        assert not answer.HasField("error")
        unstored = await broker.topic("non-persistent://public/default/n")
        answer = await end_on_topic(str(unstored.name), True)
        assert (answer.error, answer.message) == (
            pb.NotAllowedError,
            "Transaction buffer disable!",
        )

    run(tmp_path, scenario)


def test_clients_cannot_use_the_names_of_transactions(tmp_path: Path) -> None:
    names = (
        "persistent://pulsar/system/transaction_coordinator_assign-partition-0",
        "persistent://pulsar/system/__transaction_log_0",
        "persistent://public/default/t-s__transaction_pending_ack",
    )

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await coordinator(broker)
        for name in names:
            for command in (
                pb.CommandProducer(topic=name, producer_id=1),
                pb.CommandSubscribe(topic=name, subscription="s", subType=0, consumer_id=1),
            ):
                answer = await client.request(command, "error")
                assert answer.error == pb.NotAllowedError
                assert answer.message == f"Can not create transaction system topic {name}"
        lookup = pb.CommandLookupTopic(topic=names[0])
        answer = await client.request(lookup, "lookupTopicResponse")
        assert answer.response == pb.CommandLookupTopicResponse.Connect

    run(tmp_path, scenario)


# --- participants ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast_retries")
def test_a_participant_that_is_not_ready_is_attempted_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        client, txn = await begun(broker)
        buffer.errors = [ServiceNotReady(), PersistenceError(), ServiceNotReady()]
        assert not (await end(client, txn)).HasField("error")
        assert buffer.ended == [(txn, True, -1)] and not buffer.errors

    run(tmp_path, scenario)


def test_an_end_that_a_participant_refuses_can_be_repeated(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        client, txn = await begun(broker)
        buffer.errors = [NotAllowed("not now"), RuntimeError("a defect")]
        assert (await end(client, txn)).error == pb.NotAllowedError
        assert (await end(client, txn)).error == pb.UnknownError
        answer = await end(client, txn, is_commit=False)
        assert answer.error == pb.InvalidTxnStatus
        assert not (await end(client, txn)).HasField("error")
        assert buffer.ended == [(txn, True, -1)]

    run(tmp_path, scenario)


def test_an_end_that_a_participant_refuses_is_repeated_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_coordinator, "LATER_RETRY_S", 0.01)

    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        client, txn = await begun(broker)
        buffer.errors = [NotAllowed("not now")]
        assert (await end(client, txn)).error == pb.NotAllowedError
        await until(lambda: buffer.ended == [(txn, True, -1)])

    run(tmp_path, scenario)


def test_a_topic_without_transactions_has_nothing_to_end(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        name = "non-persistent://public/default/n"
        client = await broker.client()
        await client.request(pb.CommandProducer(topic=name, producer_id=1), "producer_success")
        txn = await new(client)
        await add_partition(client, txn, name)
        assert not (await end(client, txn)).HasField("error")

    run(tmp_path, scenario)


def test_a_repeated_end_waits_for_the_first_one(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        client, txn = await begun(broker)
        other = await broker.client()
        buffer.blocked = asyncio.Event()
        gone = await broker.client()
        gone.send(_numbered(end_command(txn)))
        await until(lambda: len(gone.connection.session.tasks) == 1)
        session = gone.connection.session
        gone.connection.close()
        await until(lambda: not session.tasks)  # nothing waits for a client that is gone
        waiting = asyncio.ensure_future(end(client, txn))
        again = asyncio.ensure_future(end(other, txn))
        await asyncio.sleep(0.01)
        assert not waiting.done() and not again.done()
        buffer.blocked.set()
        for answer in await asyncio.gather(waiting, again):
            assert not answer.HasField("error")
        assert buffer.ended == [(txn, True, -1)]

    run(tmp_path, scenario)


def test_a_refusal_waits_until_the_record_of_the_other_end_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await with_buffer(broker, "t")
        client, txn = await begun(broker)
        other, third = await broker.client(), await broker.client()
        durable = asyncio.Event()

        async def stored(appended: asyncio.Future[Any]) -> Any:
            await durable.wait()
            return await appended

        def held(*record: Any) -> asyncio.Future[Any]:
            return asyncio.ensure_future(stored(log_records.append(*record)))

        monkeypatch.setattr(coordinator_log, "append", held)
        ended = asyncio.ensure_future(end(client, txn))
        running = await coordinator(broker)
        await until(lambda: running.state.transactions[txn.least].status is Status.COMMITTING)
        aborted = asyncio.ensure_future(end(other, txn, is_commit=False))
        added = asyncio.ensure_future(add_partition(third, txn, "u"))
        await asyncio.sleep(0.01)
        assert not aborted.done() and not added.done()
        durable.set()
        for each in await asyncio.gather(aborted, added):
            assert each.error == pb.InvalidTxnStatus
        assert not (await ended).HasField("error")

    run(tmp_path, scenario)


def _numbered(command: Any) -> Any:
    command.request_id = 1
    return command


# --- timeouts -------------------------------------------------------------------------------------


@contextlib.contextmanager
def clock_ahead() -> Iterator[None]:
    try:
        yield
    finally:
        clock.set_ahead(0)


@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_transaction_is_aborted_when_its_time_is_over(tmp_path: Path, is_reopened: bool) -> None:
    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        client, txn = await begun(broker)
        longer = await new(client, timeout_ms=3600_000)
        if is_reopened:
            await reopen(broker)
            await coordinator(broker)
        with clock_ahead():
            clock.set_ahead(59)
            await broker.service.on_clock_set()
            assert not buffer.ended
            clock.set_ahead(61)
            await broker.service.on_clock_set()
            await until(lambda: buffer.ended == [(txn, False, -1)])
            state = (await coordinator(broker)).state
            await until(lambda: list(state.transactions) == [longer.least])
            assert state.timed_out == 1
        assert (await end(client, txn)).error == pb.TransactionNotFound
        short = await new(client, timeout_ms=0)
        await until(lambda: short.least not in state.transactions)

    run(tmp_path, scenario)


def test_a_timeout_of_a_coordinator_whose_log_has_failed_is_left_to_the_next_owner(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        _, txn, running = await with_fenced_log(broker)
        with clock_ahead():
            clock.set_ahead(61)
            running.check_timeouts()
            assert running.is_lost
            state = (await coordinator(broker)).state
            await until(lambda: txn.least not in state.transactions)

    run(tmp_path, scenario)


def test_transactions_that_time_out_together_do_not_hold_up_the_broker(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for _ in range(2 * ABORTED_PER_CALL):
            await new(client)
        running = await coordinator(broker)
        with clock_ahead():
            clock.set_ahead(61)
            running.check_timeouts()
            assert running.state.timed_out == ABORTED_PER_CALL
            await until(lambda: not running.state.transactions)

    run(tmp_path, scenario)


def test_the_loss_of_the_log_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No client waits for the end of a transaction that has timed out."""

    async def scenario(broker: Broker) -> None:
        await new(await broker.client())
        running = await coordinator(broker)
        stored = asyncio.get_running_loop().create_future()
        running.log.append = lambda record: stored  # type: ignore[method-assign]
        with clock_ahead():
            clock.set_ahead(61)
            running.check_timeouts()
            stored.set_exception(ManagedLedgerError("a test"))
            await until(lambda: running.is_lost and not running._ends)

    run(tmp_path, scenario)
    gc.collect()
    assert "never retrieved" not in caplog.text


# --- the log --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fast_retries")
def test_a_restart_continues_every_transaction(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        client, committing = await begun(broker)
        opened, done = await new(client), await new(client)
        await add_partition(client, opened, "t")
        await add_subscription(client, opened, ("t", "s"), ("u", "s"))
        assert not (await end(client, done)).HasField("error")
        buffer.blocked = asyncio.Event()
        client.send(_numbered(end_command(committing)))
        state = (await coordinator(broker)).state
        await until(lambda: state.transactions[committing.least].status is Status.COMMITTING)
        # The broker closes the coordinator: the client is to find the next one.
        closing = asyncio.ensure_future(reopen(broker))
        await asyncio.sleep(0.01)
        buffer.blocked.set()
        buffer.errors = [ServiceNotReady()]
        await closing
        answer = await client.receive("endTxnResponse")
        assert answer.error == pb.TransactionCoordinatorNotFound
        again = await coordinator(broker)
        await until(lambda: buffer.ended == [(committing, True, -1)])
        await until(lambda: list(again.state.transactions) == [opened.least])
        found = again.find(opened.least)
        assert found is not None and found.status is Status.OPEN
        topic = "persistent://public/default/{}"
        assert list(found.partitions) == [topic.format("t")]
        assert list(found.subscriptions) == [(topic.format(each), "s") for each in "tu"]
        # A client that was not answered learns the outcome.
        assert not (await end(client, done)).HasField("error")
        assert (await end(client, done, is_commit=False)).error == pb.TransactionNotFound
        assert await new(client) == TxnId(0, 3)

    run(tmp_path, scenario)


def test_records_of_ended_transactions_are_acknowledged_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_log, "ENDED_KEPT_MAX", 2)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        running = await coordinator(broker)
        cursor = running.log.managed_ledger.cursors[CURSOR]
        opened = await new(client)
        for count in range(1, 5):
            txn = await new(client)
            assert not (await end(client, txn)).HasField("error")
            # NEW, COMMITTING and COMMITTED of all but two of them
            assert cursor.acks.holes == max(0, count - 2) * 3
        await end(client, opened)
        assert cursor.backlog == 6
        await end(client, await new(client))
        await end(client, await new(client))
        assert cursor.backlog == 6
        await reopen(broker)
        again = await coordinator(broker)
        assert list(again.state.ended) == [5, 6]
        assert await new(client) == TxnId(0, 7)

    run(tmp_path, scenario)


def test_numbers_are_not_given_again_after_all_records_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_log, "ENDED_KEPT_MAX", 0)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await end(client, await new(client))
        managed_ledger = (await coordinator(broker)).log.managed_ledger
        managed_ledger.roll_over()
        await settled(managed_ledger)
        assert managed_ledger.entries == 0
        await reopen(broker)
        assert await new(client) == TxnId(0, 1)

    run(tmp_path, scenario)


def test_the_loss_of_the_log_closes_the_coordinator_until_the_next_command(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        txn = await new(client)
        running = await coordinator(broker)
        running.log.managed_ledger.fence("a test")
        assert transactions_of(broker).running == []
        assert not (await end(client, txn)).HasField("error")
        assert await coordinator(broker) is not running

    run(tmp_path, scenario)


def test_a_command_whose_record_is_not_stored_asks_the_client_to_look_up_again(
    tmp_path: Path,
) -> None:
    async def scenario(broker: Broker) -> None:
        client, txn, _ = await with_fenced_log(broker)
        assert (await end(client, txn)).error == pb.TransactionCoordinatorNotFound
        assert not (await end(client, txn)).HasField("error")

    run(tmp_path, scenario)


@pytest.mark.parametrize("error", [RuntimeError("a defect"), MetadataError("a test")])
def test_a_coordinator_that_cannot_be_opened_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    opened: list[RunningCoordinator] = []

    async def replay(self: RunningCoordinator, skips_lost: bool) -> None:
        opened.append(self)
        raise error

    async def scenario(broker: Broker) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(RunningCoordinator, "replay", replay)
            with pytest.raises((type(error), ServiceNotReady)):
                await coordinator(broker)
        assert opened[0].is_lost
        assert opened[0].log.managed_ledger.is_dead
        with monkeypatch.context() as patch:
            patch.setattr(Cursor, "create_node", fails)
            patch.setattr(ManagedLedger, "close", note_close)
            with pytest.raises(ServiceNotReady):
                await transactions_of(broker).connect(1)
        assert closed == [name_of(1)]
        assert not (await new(await broker.client())).least

    async def fails(self: Cursor) -> None:
        raise MetadataError("a test")

    close, closed = ManagedLedger.close, list[str]()

    async def note_close(self: ManagedLedger) -> None:
        closed.append(self.name)
        await close(self)

    run(tmp_path, scenario, coordinators=2)


def test_a_coordinator_is_closed_with_its_bundle(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        txn = await new(client)
        await broker.service.unload_bundle("public/default", WHOLE)
        running = await coordinator(broker)
        assert running.find(txn.least) is not None
        await broker.service.unload_bundle(SYSTEM_NAMESPACE, WHOLE)
        assert transactions_of(broker).running == []
        assert running.is_lost
        assert (await coordinator(broker)).find(txn.least) is not None
        assert not (await end(client, txn)).HasField("error")

    run(tmp_path, scenario)


def test_a_coordinator_is_opened_although_no_client_asks_for_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        _, buffer = await with_buffer(broker, "t")
        _, txn = await begun(broker)
        await transactions_of(broker).open_all()
        assert [each.id for each in transactions_of(broker).running] == [0]  # 1 has no log
        await reopen(broker)
        with clock_ahead():
            clock.set_ahead(61)
            await transactions_of(broker).open_all()
            await until(lambda: buffer.ended == [(txn, False, -1)])

    run(tmp_path, scenario, coordinators=2)


def test_coordinators_that_are_not_here_cost_one_request_of_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All brokers of a cluster look for them every few seconds."""

    async def scenario(broker: Broker) -> None:
        store = broker.node.store
        await transactions_of(broker).open_all()
        asked: list[str] = []
        for name in ("get", "exists", "children"):
            monkeypatch.setattr(store, name, noted(asked, getattr(store, name)))
        await transactions_of(broker).open_all()
        assert asked == ["children"]

    run(tmp_path, scenario, coordinators=16)


def noted(asked: list[str], call: Any) -> Any:
    def noting(*arguments: Any, **options: Any) -> Any:
        asked.append(call.__name__)
        return call(*arguments, **options)

    return noting


def test_a_coordinator_that_takes_long_to_open_delays_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await new(client, 0)
        await new(client, 1)
        await reopen(broker)
        replay, stuck = RunningCoordinator.replay, asyncio.Event()

        async def replay_later(self: RunningCoordinator, skips_lost: bool) -> None:
            if self.id == 0:
                await stuck.wait()
            await replay(self, skips_lost)

        monkeypatch.setattr(RunningCoordinator, "replay", replay_later)
        opening = asyncio.create_task(transactions_of(broker).open_all())
        await until(lambda: [each.id for each in transactions_of(broker).running] == [1])
        stuck.set()
        await opening
        assert sorted(each.id for each in transactions_of(broker).running) == [0, 1]

    run(tmp_path, scenario, coordinators=2)


# --- logs of Apache Pulsar ------------------------------------------------------------------------


def record(least: int, operation: int, **fields: Any) -> Any:
    return records.TransactionMetadataEntry(
        metadata_op=operation, txnid_most_bits=0, txnid_least_bits=least, **fields
    )


NEW = records.TransactionMetadataEntry.NEW
UPDATE = records.TransactionMetadataEntry.UPDATE
ADD_PARTITION = records.TransactionMetadataEntry.ADD_PARTITION


def begin(least: int) -> Any:
    # A time that is far away.
    times = {"start_time": 1 << 42, "timeout_ms": 10_000, "last_modification_time": 1}
    return record(least, NEW, max_local_txn_id=least, **times)


def update(least: int, before: int, after: int) -> Any:
    return record(least, UPDATE, expected_status=before, new_status=after, max_local_txn_id=9)


def batch(*of: Any) -> bytes:
    entry = records.BatchedTransactionMetadataEntry(transaction_logs=of)
    return b"\x0e\x01\x00\x01" + bytes(entry.SerializeToString())


async def write_log(broker: Broker, *entries: bytes) -> ManagedLedger:
    managed_ledger = await broker.node.open(name=name_of(0))
    await append(managed_ledger, *entries)
    await managed_ledger.close()
    return managed_ledger


def test_a_batched_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry has records of several transactions, and is acknowledged bit by bit."""
    monkeypatch.setattr(coordinator_log, "ENDED_KEPT_MAX", 0)

    async def scenario(broker: Broker) -> None:
        await write_log(
            broker,
            batch(begin(0), begin(1), record(1, ADD_PARTITION, partitions=["t"])),
            begin(2).SerializeToString(),
            batch(update(0, 0, 1), update(2, 0, 3)),
            batch(update(0, 1, 2)),
        )
        running = await coordinator(broker)
        state, cursor = running.state, running.log.managed_ledger.cursors[CURSOR]
        await until(lambda: list(state.transactions) == [1])
        assert state.ended == {0: Status.COMMITTED, 2: Status.ABORTED}
        found = state.transactions[1]
        assert (found.status, list(found.partitions)) == (Status.OPEN, ["t"])
        assert (found.start_ms, found.timeout_ms) == (1 << 42, 10_000)
        # The first entry has records of an open transaction.
        [first] = [*cursor.managed_ledger.ledger_ids][:1]
        assert cursor.acks.ack_set(first, 0) == [0b110]
        await until(lambda: cursor.acks.is_acknowledged(first, 1))
        assert cursor.acks.is_acknowledged(first, 2) and cursor.acks.is_acknowledged(first, 3)
        client = await broker.client()
        assert await new(client) == TxnId(0, 10)
        await reopen(broker)
        again = await coordinator(broker)
        assert list(again.state.transactions) == [1, 10]
        assert not (await end(client, TxnId(0, 1))).HasField("error")
        await reopen(broker)
        assert list((await coordinator(broker)).state.transactions) == [10]

    run(tmp_path, scenario)


def test_records_that_pulsar_refused_are_ignored(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await write_log(
            broker,
            *(
                each.SerializeToString()
                for each in (
                    begin(0),
                    update(0, 0, 1),
                    update(0, 0, 3),  # an abort of what is being committed
                    record(0, ADD_PARTITION, partitions=["late"]),
                    update(5, 1, 2),  # of a transaction whose other records are gone
                    update(0, 1, 2),
                )
            ),
        )
        running = await coordinator(broker)
        assert running.state.ended == {0: Status.COMMITTED}
        cursor = running.log.managed_ledger.cursors[CURSOR]
        assert cursor.backlog == 3

    run(tmp_path, scenario)


def test_an_entry_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    entry, plain = records.TransactionMetadataEntry, begin(0).SerializeToString()
    several = records.BatchedTransactionMetadataEntry
    assert records_in(plain, entry, several) == [begin(0)]
    for broken in (b"\x0e\x01\x00\x02", b"\x0e\x01\x00\x01\xff", b"\xff", b"\x0e\x01"):
        with pytest.raises(MalformedRecord):
            records_in(broken, entry, several)

    async def scenario(broker: Broker) -> None:
        await write_log(broker, b"\xff", plain, b"\x0e\x01\x00\x02")
        running = await coordinator(broker)
        assert list(running.state.transactions) == [0]

    run(tmp_path, scenario)
