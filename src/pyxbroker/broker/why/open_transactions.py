"""Lookup of the transactions that hold messages back, at their coordinators, for one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.errors import PulsarError
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.broker.lookup import redirect_of
from pyxbroker.broker.peers import Ask, PeerRefused

if TYPE_CHECKING:
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.transactions.ids import TxnId

ASKED_MAX = 20  # transactions of one answer
NOT_FOUND = 404
STATUSES = {
    "OPEN": "is open",
    "COMMITTING": "is being committed",
    "ABORTING": "is being aborted",
}


class OpenTransaction(NamedTuple):
    """One transaction that has not ended in a topic or a subscription."""

    about: str
    """A sentence on its state."""
    owner: str = ""
    """The role of its client; empty: unknown."""
    begun_ms: int = 0
    timeout_ms: int = 0


UNKNOWN = OpenTransaction("Its coordinator was not asked.")


class OpenTransactions:
    """Asks the coordinators, once for each transaction."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._found: dict[TxnId, OpenTransaction] = {}

    async def find(self, txn: TxnId) -> OpenTransaction:
        """Return what the coordinator of a transaction knows about it."""
        found = self._found.get(txn)
        if found is None:
            if len(self._found) >= ASKED_MAX:
                return UNKNOWN
            try:
                found = await self._ask(txn)
            except (PulsarError, PeerRefused) as error:
                found = OpenTransaction(f"Its coordinator does not answer now: {error}".rstrip("."))
            self._found[txn] = found
        return found

    async def _ask(self, txn: TxnId) -> OpenTransaction:
        """Raise PulsarError and PeerRefused if the coordinator does not answer."""
        from pyxbroker.broker.transactions.coordinators import ASSIGNMENT
        from pyxbroker.broker.transactions.statistics import of_transaction

        broker = self._broker
        assert broker.transactions is not None
        name = ASSIGNMENT.partition(txn.most)
        to = redirect_of(await broker.ownership.find(name, authoritative=False))
        if to is None:
            found = (await broker.transactions.found(txn.most)).find(txn.least)
            return _ended(txn) if found is None else _described(txn, of_transaction(txn, found))
        assert broker.peers is not None
        target = f"/admin/v3/transactions/transactionMetadata/{txn.most}/{txn.least}"
        try:
            return _described(txn, await broker.peers.ask(to, Ask("GET", target)))
        except PeerRefused as error:
            if error.status != NOT_FOUND:
                raise
            return _ended(txn)


def _described(txn: TxnId, metadata: dict[str, object]) -> OpenTransaction:
    owner = str(metadata.get("owner", ""))
    begun = f"the role {owner}" if owner else "a client"
    state = STATUSES.get(str(metadata["status"]), f"is {metadata['status']}")
    timeout_ms = metadata["timeoutAt"]
    assert isinstance(timeout_ms, int)
    about = f"It {state}, and was begun by {begun} with a timeout of {timeout_ms} ms."
    if metadata["status"] == "OPEN":
        about += (
            " To abort it: pyxbroker admin transactions abort-transaction"
            f" -m {txn.most} -l {txn.least}"
        )
    begun_ms = metadata["openTimestamp"]
    assert isinstance(begun_ms, int)
    return OpenTransaction(about, owner, begun_ms, timeout_ms)


def _ended(txn: TxnId) -> OpenTransaction:
    """Describe a transaction whose messages or acknowledgements came after its end."""
    return OpenTransaction(
        "Its coordinator has ended it, or has never begun it. It is aborted here when a later"
        f" transaction of coordinator {txn.most} ends in the topic."
    )
