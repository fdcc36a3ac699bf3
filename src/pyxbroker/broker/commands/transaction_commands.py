"""Handlers of the commands of transactions.

Clients send them to the coordinator, and coordinators to the owners of topics. A refusal is in the
answer's own fields. While transactions are switched off, ERROR answers a client, as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyxbroker.auth.authorization import END_TRANSACTION, authorize
from pyxbroker.base.errors import (
    AuthorizationError,
    NotAllowed,
    PulsarError,
    TransactionNotFound,
)
from pyxbroker.base.limits import TRANSACTION_NAMES_MAX
from pyxbroker.base.signed import signed
from pyxbroker.base.slices import in_slices
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import replies
from pyxbroker.broker.commands.command import Command, answer_error
from pyxbroker.broker.commands.session import wait_for
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.transactions.coordinators import Transactions
    from pyxbroker.broker.transactions.ids import TxnId
    from pyxbroker.broker.transactions.participants import End
    from pyxbroker.connection import Connection

ON_SUBSCRIPTION_FAILED = "Handle end txn on subscription failed: "


class TransactionsOff(NotAllowed):
    """Transactions are switched off."""

    sentence = "Transactions are not enabled."


class TransactionCommands:
    """The handlers of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def table(self) -> dict[int, Command]:
        """Return the rows of the command table."""
        kinds = pb.BaseCommand
        rows = (
            (kinds.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", self._handle_connect),
            (kinds.NEW_TXN, "newTxn", self._handle_new),
            (kinds.ADD_PARTITION_TO_TXN, "addPartitionToTxn", self._handle_add_partitions),
            (
                *(kinds.ADD_SUBSCRIPTION_TO_TXN, "addSubscriptionToTxn"),
                self._handle_add_subscriptions,
            ),
            (kinds.END_TXN, "endTxn", self._handle_end),
            (kinds.END_TXN_ON_PARTITION, "endTxnOnPartition", self._handle_end_on_partition),
            (
                *(kinds.END_TXN_ON_SUBSCRIPTION, "endTxnOnSubscription"),
                self._handle_end_on_subscription,
            ),
        )
        return {
            kind: Command(field, handler, refusal=partial(_refused, kind))
            for kind, field, handler in rows
        }

    def _transactions(self) -> Transactions:
        """Raise TransactionsOff."""
        found = self._broker.transactions
        if found is None:
            raise TransactionsOff()
        return found

    # --- from clients -----------------------------------------------------------------------------

    async def _handle_connect(self, connection: Connection, message: Any) -> None:
        await self._transactions().connect(signed(message.tc_id))
        connection.send_frame(replies.coordinator_connected(message.request_id))

    async def _handle_new(self, connection: Connection, message: Any) -> None:
        txn = await self._transactions().new(
            # In spite of its name the field has milliseconds.
            signed(message.tc_id),
            signed(message.txn_ttl_seconds),
            connection.session.principal,
        )
        connection.send_frame(replies.transaction(pb.BaseCommand.NEW_TXN, message, txn.wire()))

    async def _handle_add_partitions(self, connection: Connection, message: Any) -> None:
        transactions, txn = self._transactions(), _txn_of(message)
        _check_count(message.partitions)
        names = [str(TopicName.get(each)) async for each in in_slices(message.partitions)]
        await transactions.add_partitions(txn, names, connection.session.principal)
        _answer(connection, pb.BaseCommand.ADD_PARTITION_TO_TXN, message)

    async def _handle_add_subscriptions(self, connection: Connection, message: Any) -> None:
        transactions, txn = self._transactions(), _txn_of(message)
        _check_count(message.subscription)
        pairs = [
            (str(TopicName.get(each.topic)), each.subscription)
            async for each in in_slices(message.subscription)
        ]
        await transactions.add_subscriptions(txn, pairs, connection.session.principal)
        _answer(connection, pb.BaseCommand.ADD_SUBSCRIPTION_TO_TXN, message)

    async def _handle_end(self, connection: Connection, message: Any) -> None:
        transactions, txn = self._transactions(), _txn_of(message)
        ended = await transactions.begin_end(txn, _is_commit(message), connection.session.principal)
        # The transaction ends without the client, too, which may repeat the command.
        if await wait_for(connection, ended, None):
            ended.result()
            _answer(connection, pb.BaseCommand.END_TXN, message)

    # --- from coordinators of other brokers -------------------------------------------------------

    async def _handle_end_on_partition(self, connection: Connection, message: Any) -> None:
        from pyxbroker.broker.transactions.participants import end_on_topic

        await self._check_superuser(connection, _txn_of(message))
        name = TopicName.get(message.topic)
        await self._broker.check_served(name)
        await end_on_topic(self._broker, name, _end_of(message))
        _answer(connection, pb.BaseCommand.END_TXN_ON_PARTITION, message)

    async def _handle_end_on_subscription(self, connection: Connection, message: Any) -> None:
        from pyxbroker.broker.transactions.participants import end_on_subscription

        await self._check_superuser(connection, _txn_of(message))
        name = TopicName.get(message.subscription.topic)
        await self._broker.check_served(name)
        subscription = message.subscription.subscription
        await end_on_subscription(self._broker, name, subscription, _end_of(message))
        _answer(connection, pb.BaseCommand.END_TXN_ON_SUBSCRIPTION, message)

    async def _check_superuser(self, connection: Connection, txn: TxnId) -> None:
        """Raise TransactionNotFound for a client that is not a broker of the cluster."""
        principal = connection.session.principal
        try:
            await authorize(self._broker.permissions, principal, END_TRANSACTION, None)
        except AuthorizationError:
            raise TransactionNotFound(
                f"TC client ({principal.role}) is not a super user, and is not allowed to operate"
                f" on transaction {txn}"
            ) from None


def _answer(connection: Connection, kind: int, message: Any) -> None:
    most, least = message.txnid_most_bits, message.txnid_least_bits
    connection.send_frame(replies.transaction(kind, message, (most, least)))


def _refused(kind: int, message: Any, reported: PulsarError) -> bytes:
    """Return the answer to a refused command."""
    code, text = reported.code, str(reported)
    if isinstance(reported, TransactionsOff):
        return answer_error(message, reported)
    if kind == pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST:
        return replies.coordinator_refused(message.request_id, code, text)
    if kind == pb.BaseCommand.END_TXN_ON_SUBSCRIPTION:
        text = ON_SUBSCRIPTION_FAILED + text
    if kind == pb.BaseCommand.NEW_TXN:
        ids = message.tc_id, 0
    else:
        ids = message.txnid_most_bits, message.txnid_least_bits
    return replies.transaction(kind, message, ids, (code, text))


def _check_count(names: Sequence[Any]) -> None:
    """Raise NotAllowed for too many partitions or subscriptions of one command."""
    if len(names) > TRANSACTION_NAMES_MAX:
        raise NotAllowed(
            f"The command adds {len(names)} partitions or subscriptions to a transaction, and at"
            f" most {TRANSACTION_NAMES_MAX} are allowed; add them by several commands."
        )


def _txn_of(message: Any) -> TxnId:
    from pyxbroker.broker.transactions.ids import TxnId

    return TxnId.of_wire(message.txnid_most_bits, message.txnid_least_bits)


def _is_commit(message: Any) -> bool:
    """Return True for COMMIT, and as Pulsar does for a command without an action."""
    return bool(message.txn_action == pb.COMMIT)


def _end_of(message: Any) -> End:
    from pyxbroker.broker.transactions.participants import End

    mark = signed(message.txnid_least_bits_of_low_watermark)
    return End(_txn_of(message), _is_commit(message), mark)
