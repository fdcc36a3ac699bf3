"""The transaction coordinators that this broker runs.

Coordinator N belongs to the broker that owns the bundle of partition N of the topic
`transaction_coordinator_assign`, which is never opened. A coordinator is opened with the first
command for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from pyxbroker.auth.authorization import END_TRANSACTION, authorize
from pyxbroker.auth.principal import Principal
from pyxbroker.base.errors import (
    AuthorizationError,
    PulsarError,
    ServiceNotReady,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
    UnknownError,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import SYSTEM_NAMESPACE, TRANSACTION_COORDINATORS, TopicName
from pyxbroker.broker.lookup import Redirect, Serve
from pyxbroker.broker.topics import log_reader
from pyxbroker.broker.topics.loading import limits_of
from pyxbroker.broker.topics.log_reader import LOST_HELP
from pyxbroker.broker.topics.partition_nodes import WORKERS, for_each
from pyxbroker.broker.transactions.coordinator_log import CoordinatorLog, name_of
from pyxbroker.broker.transactions.ids import TxnId
from pyxbroker.broker.transactions.participants import Host, Participants
from pyxbroker.broker.transactions.running_coordinator import RunningCoordinator, not_here
from pyxbroker.ledger.errors import LedgerError, is_lost
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import MetadataError
from pyxbroker.mledger.errors import ManagedLedgerError
from pyxbroker.proto import PulsarApi as pb

if TYPE_CHECKING:
    from pyxbroker.auth.permissions import Permissions
    from pyxbroker.ledger.client import LedgerClient
    from pyxbroker.metadata.store import MetadataStore
    from pyxbroker.mledger.entry_cache import EntryCache

log = get_logger("pyxbroker.transactions")

ASSIGNMENT = TopicName.get(f"persistent://{SYSTEM_NAMESPACE}/{TRANSACTION_COORDINATORS}")
PLACE_TIMEOUT_S = 30.0
CLOSING_ERRORS = (LedgerError, MetadataError, ManagedLedgerError)


class CoordinatorHost(Host, Protocol):
    """The broker, as coordinators need it."""

    metadata: MetadataStore
    entry_cache: EntryCache | None

    @property
    def permissions(self) -> Permissions | None: ...

    async def check_served(self, topic: TopicName, acquires: bool = False) -> None: ...


class Transactions:
    """The transaction coordinators of one broker."""

    def __init__(self, broker: CoordinatorHost, ledgers: LedgerClient) -> None:
        self._broker = broker
        self._ledgers = ledgers
        self._participants = Participants(broker)
        self._running: dict[int, RunningCoordinator] = {}
        self._opening: dict[int, asyncio.Future[RunningCoordinator]] = {}
        self._closing: dict[asyncio.Future[None], int] = {}
        self._unreadable: dict[int, str] = {}  # coordinators with lost records, and the reason
        self._is_closed = False

    # --- commands -------------------------------------------------------------------------------

    async def connect(self, coordinator: int) -> None:
        """Open a coordinator. Raises ServiceNotReady if this broker cannot run it, and
        PulsarError.
        """
        try:
            await self._open(coordinator)
        except TransactionCoordinatorNotFound as error:
            raise ServiceNotReady(str(error)) from error
        except PulsarError:
            # The Java client begins no transaction at any coordinator before it has connected to
            # all of them. Commands for this one are refused with the reason.
            if coordinator not in self._unreadable:
                raise

    async def new(self, coordinator: int, timeout_ms: int, principal: Principal) -> TxnId:
        """Begin a transaction. Raises PulsarError."""
        owner = role_of(principal)
        if owner is not None and not owner.strip():
            raise UnknownError("Owner can't be blank")
        return await (await self.found(coordinator)).new(timeout_ms, owner)

    async def add_partitions(self, txn: TxnId, names: Iterable[str], principal: Principal) -> None:
        """Add partitions to a transaction. Raises PulsarError."""
        running = await self._owned(txn, principal)
        await running.add_partitions(txn.least, names)

    async def add_subscriptions(
        self, txn: TxnId, pairs: Iterable[tuple[str, str]], principal: Principal
    ) -> None:
        """Add subscriptions, each a topic and a name, to a transaction. Raises PulsarError."""
        running = await self._owned(txn, principal)
        await running.add_subscriptions(txn.least, pairs)

    async def begin_end(
        self, txn: TxnId, is_commit: bool, principal: Principal
    ) -> asyncio.Future[None]:
        """Begin to commit or abort a transaction. The future is done when its participants have
        ended it, however long that takes; its exception is a PulsarError. Raises PulsarError.
        """
        running = await self._owned(txn, principal)
        return await running.end(txn.least, is_commit)

    async def _owned(self, txn: TxnId, principal: Principal) -> RunningCoordinator:
        """Return the coordinator of a transaction that the client may use. Raises PulsarError."""
        running = await self.found(txn.most)
        found = running.find(txn.least)
        # An ended transaction is not in memory, and nothing can be done with it.
        if found is not None and found.owner is not None and found.owner != role_of(principal):
            try:
                await authorize(self._broker.permissions, principal, END_TRANSACTION, None)
            except AuthorizationError:
                raise TransactionNotFound(
                    f"Client ({principal.role}) is neither the owner of the transaction {txn} nor a"
                    " super user"
                ) from None
        return running

    # --- coordinators ---------------------------------------------------------------------------

    @property
    def running(self) -> Sequence[RunningCoordinator]:
        """The open coordinators."""
        return list(self._running.values())

    async def found(self, coordinator: int) -> RunningCoordinator:
        """Return a coordinator, which is opened if this broker owns its bundle.

        Raises TransactionCoordinatorNotFound, and PulsarError.
        """
        found = self._running.get(coordinator)
        if found is not None:
            return found
        try:
            return await self._open(coordinator)
        except ServiceNotReady as error:
            log.info("a coordinator is not here", coordinator=coordinator, reason=error)
            raise not_here(coordinator) from error

    async def _open(self, coordinator: int) -> RunningCoordinator:
        found = self._running.get(coordinator)
        if found is not None:
            return found
        if coordinator in self._unreadable:
            raise self._refused(coordinator)
        opening = self._opening.get(coordinator)
        if opening is None:
            opening = asyncio.ensure_future(self._recover(coordinator))
            self._opening[coordinator] = opening
            opening.add_done_callback(lambda _: self._opening.pop(coordinator, None))
        try:
            return await asyncio.shield(opening)
        finally:
            del opening  # leave no cycle of the error and this frame

    async def _recover(self, coordinator: int) -> RunningCoordinator:
        broker = self._broker
        if not 0 <= coordinator < await broker.topics.partitions.partitions(ASSIGNMENT):
            raise not_here(coordinator)
        name = ASSIGNMENT.partition(coordinator)
        await broker.check_served(name)
        former = [closing for closing, id in self._closing.items() if id == coordinator]
        if former:
            await asyncio.wait(former)
        if self._is_closed:
            raise not_here(coordinator)
        running = None
        try:
            opened = await CoordinatorLog.open(
                *(coordinator, broker.metadata, self._ledgers),
                limits_of(broker.config).keeping(0, 0),
                broker.entry_cache,
            )
            running = RunningCoordinator(
                *(opened, broker.config.maxActiveTransactionsPerCoordinator, self._participants),
                self._on_lost,
            )
            await running.replay(broker.config.autoSkipNonRecoverableData)
            # The bundle may have been given up meanwhile.
            await broker.check_served(name)
            if self._is_closed or running.is_lost:
                raise not_here(coordinator)
        except BaseException as error:
            if running is not None:
                await self._close(running)
            if not isinstance(error, CLOSING_ERRORS):
                raise
            is_unreadable = is_lost(error)
            log.error("a coordinator cannot be opened now", coordinator=coordinator, error=error,
                      **({"help": LOST_HELP} if is_unreadable else {}))  # fmt: skip
            if is_unreadable:
                self._refuse(coordinator, str(error))
                raise self._refused(coordinator) from error
            raise TransactionCoordinatorNotFound(
                f"Transaction coordinator {coordinator} cannot be opened now: its log cannot be"
                " read; try again."
            ) from error
        self._running[coordinator] = running
        log.info("a coordinator is open", coordinator=coordinator,
                 transactions=len(running.state.transactions))  # fmt: skip
        return running

    def _refuse(self, coordinator: int, reason: str) -> None:
        """Refuse commands for a while, so that clients do not open the log again and again."""
        self._unreadable[coordinator] = reason
        loop = asyncio.get_running_loop()
        loop.call_later(log_reader.LOST_RETRY_S, self._unreadable.pop, coordinator, None)

    def _refused(self, coordinator: int) -> UnknownError:
        return UnknownError(
            f"Transaction coordinator {coordinator} cannot be opened: a part of its log is lost:"
            f" {self._unreadable[coordinator]}. Begin transactions at another one."
        )

    def _on_lost(self, running: RunningCoordinator) -> None:
        """Forget a coordinator whose log failed. The next command opens it again."""
        if self._running.get(running.id) is running:
            del self._running[running.id]
        self._begin_close(running)

    def _begin_close(self, running: RunningCoordinator) -> asyncio.Future[None]:
        closing = asyncio.ensure_future(self._close(running))
        self._closing[closing] = running.id
        closing.add_done_callback(self._closing.pop)
        return closing

    @staticmethod
    async def _close(running: RunningCoordinator) -> None:
        try:
            await running.close()
        except CLOSING_ERRORS as error:
            log.warning("a coordinator was not closed cleanly", coordinator=running.id, error=error)

    async def scale(self, count: int) -> None:
        """Set the number of coordinators of the cluster; they have no other record than that.

        Raises ServiceNotReady, MetadataError.
        """
        partitions = self._broker.topics.partitions
        record = await partitions.read(ASSIGNMENT)
        await partitions.mark(ASSIGNMENT, record, {"partitions": count, "deleted": False})

    # --- called by the broker -------------------------------------------------------------------

    async def open_all(self) -> None:
        """Open the coordinators with a log that this broker owns, and let those without an owner
        get one. Their transactions end and time out although no client connects to them. Called at
        intervals.
        """
        broker = self._broker
        count = await broker.topics.partitions.partitions(ASSIGNMENT)
        others = [each for each in range(count) if each not in self._running]
        if not others:
            return
        logs = set(await broker.metadata.children(paths.managed_ledgers(SYSTEM_NAMESPACE)))
        with_log = [each for each in others if name_of(each).rpartition("/")[2] in logs]
        # In parallel: one that takes long delays no other.
        await for_each(with_log, self._open_or_place, min(len(with_log), WORKERS))

    async def _open_or_place(self, coordinator: int) -> None:
        name = ASSIGNMENT.partition(coordinator)
        try:
            decision = await self._broker.ownership.find(name, authoritative=False)
            if isinstance(decision, Serve):
                await self._open(coordinator)
            elif isinstance(decision, Redirect) and not decision.is_owner:
                peers = self._broker.peers
                assert peers is not None  # another broker serves the partition
                command = pb.BaseCommand(type=pb.BaseCommand.TC_CLIENT_CONNECT_REQUEST)
                command.tcClientConnectRequest.tc_id = coordinator
                await peers.command(decision, name, command, PLACE_TIMEOUT_S)
        except PulsarError as error:
            log.info("a coordinator is not opened yet", coordinator=coordinator, reason=error)

    async def unload(self, is_inside: Callable[[TopicName], bool]) -> None:
        """Close the coordinators of the partitions for which a function returns True."""
        names = {each: ASSIGNMENT.partition(each) for each in {*self._running, *self._opening}}
        inside = [each for each, name in names.items() if is_inside(name)]
        opening = [self._opening[each] for each in inside if each in self._opening]
        if opening:
            await asyncio.wait(opening)
        found = [self._running.pop(each) for each in inside if each in self._running]
        if found:
            await asyncio.wait([self._begin_close(each) for each in found])

    def check_timeouts(self) -> None:
        """Abort transactions whose time is over, after the clock was set."""
        for each in self.running:
            each.check_timeouts()

    def check_ages(self) -> None:
        """Begin new ledgers where they are due. Called at intervals."""
        for each in self.running:
            each.log.managed_ledger.check_age()

    async def close(self) -> None:
        """Close all coordinators."""
        self._is_closed = True
        await self.unload(lambda name: True)
        if self._closing:
            await asyncio.wait(list(self._closing))


def role_of(principal: Principal) -> str | None:
    """Return the role that owns the transactions of a client; None without authentication."""
    return principal.original_role or principal.role
