"""The copy of a stopped standalone to a cluster: its ledgers first, then the nodes that name them.

    phase      in the cluster                                            after an interruption
    ledgers    ledgers without a topic (copy_ledgers.py)                 unfinished ones anew
    nodes      policies, schemas, topics, subscriptions (copy_nodes.py)  written once more
    complete   everything                                                nothing

The phase is in a node of the cluster (paths.COPY). Brokers of the cluster must not run before the
copy is complete, and an ephemeral node keeps a second copy out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyxbroker._native import crc32c
from pyxbroker.base.compact_json import to_short_json
from pyxbroker.cluster.copy_ledgers import CopyState, LedgerCopier, SourceLedger
from pyxbroker.cluster.copy_nodes import (
    LEFT_OUT,
    NODE_BYTES_MAX,
    ROOTS,
    Names,
    Node,
    NodeComparison,
    NodeState,
)
from pyxbroker.cluster.initialize import new_id
from pyxbroker.ledger.client import LedgerClient
from pyxbroker.metadata import paths
from pyxbroker.metadata.coordination import (
    LedgerIdGenerator,
    LockBusy,
    ResourceLock,
    next_counter_value,
    pass_counter_value,
)
from pyxbroker.metadata.store import MUST_NOT_EXIST, MetadataError, MetadataStore

COLLISIONS_KEPT_MAX = 20
COLLISIONS_SHOWN_MAX = 3  # in a sentence
LOCK_POLL_S = 0.5
LEDGERS, NODES, COMPLETE = "ledgers", "nodes", "complete"


class CopyRefused(Exception):
    """Raised when the copy must not be made; the message is the reason."""


class Side(NamedTuple):
    """The standalone or the cluster: its metadata, its ledgers, and the name of its cluster."""

    store: MetadataStore
    ledgers: LedgerClient
    cluster: str


class CopyOptions(NamedTuple):
    """The options of a copy."""

    in_flight: int = 16
    """Ledgers that are copied at the same time; each has some MiB in memory."""
    lock_patience_s: float = 40.0
    """The time to wait for the end of the session of an earlier copy that was killed."""


@dataclass
class Plan:
    """The work of a copy, and the conflicts that prevent it."""

    phase: str = ""
    """The phase of an earlier attempt, or "" for a first one."""
    ledgers: Counter[CopyState] = field(default_factory=Counter)
    copied_bytes: int = 0
    bytes: int = 0
    entries: int = 0
    last_ledger_id: int = -1
    nodes: Counter[str] = field(default_factory=Counter)  # by root
    node_states: Counter[NodeState] = field(default_factory=Counter)
    checksum: int = 0  # of all nodes
    collisions: list[str] = field(default_factory=list)
    collision_count: int = 0
    left_out: list[str] = field(default_factory=list)

    def add_collision(self, sentence: str) -> None:
        self.collision_count += 1
        if len(self.collisions) < COLLISIONS_KEPT_MAX:
            self.collisions.append(sentence)


class Progress:
    """The progress of the ledgers."""

    def __init__(self, plan: Plan) -> None:
        self._began_s = time.monotonic()
        self._first_bytes = plan.copied_bytes
        self.ledgers_total = plan.ledgers.total()
        self.bytes_total = plan.bytes
        self.ledgers = plan.ledgers[CopyState.COMPLETE]
        self.bytes = plan.copied_bytes

    def add(self, ledger: SourceLedger) -> None:
        self.ledgers += 1
        self.bytes += ledger.metadata.length

    @property
    def bytes_per_s(self) -> float:
        """The rate of this attempt."""
        return (self.bytes - self._first_bytes) / max(time.monotonic() - self._began_s, 0.001)


class Copying:
    """One copy of a standalone to a cluster. `report` gets a sentence for each step."""

    def __init__(
        self,
        source: Side,
        target: Side,
        instance_id: str,
        options: CopyOptions,
        report: Callable[[str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._instance_id = instance_id
        self._options = options
        self._report = report
        self._copier = LedgerCopier(source.store, source.ledgers, target.ledgers, instance_id)
        self.progress: Progress | None = None

    # --- the plan -----------------------------------------------------------------------------

    async def plan(self) -> Plan:
        """Compare both sides. Changes nothing. Raises CopyRefused, MetadataError, LedgerError."""
        await self._check_clusters()
        journal = await self._journal()
        plan = Plan(phase=journal.get("phase", ""))
        async for ledger in self._ledgers():
            self._add_ledger(plan, ledger)
        is_continued = plan.phase in (NODES, COMPLETE)
        comparison = self._comparison(is_continued)
        for root in ROOTS:
            async for batch in comparison.nodes(root):
                for node in batch:
                    _add_node(plan, root, node)
        if plan.phase == NODES and journal.get("checksum") != plan.checksum:
            raise CopyRefused(
                "the standalone was used since an earlier copy had begun to write topics: delete"
                " what that copy has written, or copy to another cluster"
            )
        if plan.phase == COMPLETE:
            plan.collisions, plan.collision_count = [], 0
        plan.left_out = await self._left_out()
        return plan

    async def _check_clusters(self) -> None:
        for side, what in ((self._source, "the standalone"), (self._target, "the cluster")):
            names = await side.store.children(paths.CLUSTERS)
            if side.cluster not in names:
                known = ", ".join(names) or "none"
                raise CopyRefused(
                    f"{what} has no metadata of a cluster {side.cluster!r}, only of: {known}."
                    " --cluster names the target's, and clusterName in --from-config the"
                    " standalone's; pyxbroker initialize-cluster-metadata creates the target's"
                )
        brokers = await self._target.store.children(paths.BROKERS)
        if brokers:
            raise CopyRefused(
                f"broker {brokers[0]} serves the cluster, or its session has not ended yet: stop"
                " all brokers of the cluster first"
            )

    async def _journal(self) -> dict[str, Any]:
        node = await self._target.store.get(paths.COPY)
        if node is None:
            return {}
        try:
            journal: dict[str, Any] = json.loads(node.value)
            source, phase = journal["source"], journal["phase"]
        except (ValueError, TypeError, KeyError) as error:
            raise CopyRefused(f"{paths.COPY} in the cluster cannot be read: {error!r}") from error
        if source == self._instance_id:
            return journal
        if phase != COMPLETE:
            raise CopyRefused(
                f"the copy of another standalone ({source}) is not complete: finish that one first"
            )
        return {}

    async def _ledgers(self) -> AsyncIterator[SourceLedger]:
        async for batch in self._copier.ledgers(self._target.store):
            for ledger in batch:
                yield ledger

    def _add_ledger(self, plan: Plan, ledger: SourceLedger) -> None:
        metadata = ledger.metadata
        plan.ledgers[ledger.state] += 1
        plan.bytes += metadata.length
        plan.entries += metadata.last_entry_id + 1
        plan.last_ledger_id = max(plan.last_ledger_id, ledger.ledger_id)
        if ledger.state is CopyState.COMPLETE:
            plan.copied_bytes += metadata.length
        if ledger.state is CopyState.COLLIDES:
            plan.add_collision(f"ledger {ledger.ledger_id} is another ledger in the cluster")

    def _comparison(self, is_continued: bool) -> NodeComparison:
        names = Names(self._source.cluster, self._target.cluster)
        return NodeComparison(self._source.store, self._target.store, names, is_continued)

    async def _left_out(self) -> list[str]:
        left_out = []
        for path, what in LEFT_OUT.items():
            names = await self._source.store.children(path)
            own = path == paths.CLUSTERS and names == [self._source.cluster]
            if names and not own:
                left_out.append(f"{what} ({path})")
        return left_out

    # --- the copy -----------------------------------------------------------------------------

    async def apply(self) -> Plan:
        """Copy what is missing; return the plan that was carried out. Raises CopyRefused,
        MetadataError and LedgerError; a later call continues.
        """
        lock = ResourceLock(self._target.store, paths.COPY_LOCK, new_id().encode())
        await self._acquire(lock)
        try:
            plan = await self.plan()
            if plan.collision_count:
                raise CopyRefused(refusal(plan))
            if plan.phase != COMPLETE:
                await self._apply(plan)
            return plan
        finally:
            with contextlib.suppress(MetadataError):  # it ends with the session
                await lock.release()

    async def _acquire(self, lock: ResourceLock) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.lock_patience_s
        is_reported = False
        while True:
            try:
                return await lock.acquire()
            except LockBusy:
                if loop.time() > deadline:
                    raise CopyRefused("another copy to this cluster is running") from None
            if not is_reported:
                self._report("waiting for the end of the session of an earlier copy")
                is_reported = True
            await asyncio.sleep(LOCK_POLL_S)

    async def _apply(self, plan: Plan) -> None:
        if plan.phase != NODES:
            await self._pass_counters(plan)
            await self._write_phase(LEDGERS, plan)
        self.progress = Progress(plan)
        await self._each(self._unfinished(), self._copy)
        await self._check_clusters()
        if plan.phase != NODES:
            await self._write_phase(NODES, plan)
        await self._write_nodes()
        await self._write_phase(COMPLETE, plan)

    async def _write_phase(self, phase: str, plan: Plan) -> None:
        journal = {"source": self._instance_id, "phase": phase, "checksum": plan.checksum}
        await self._target.store.put(paths.COPY, to_short_json(journal))

    async def _pass_counters(self, plan: Plan) -> None:
        """Let the cluster continue the standalone's numbers."""
        self._report(f"advancing the cluster's ledger ids to {plan.last_ledger_id}")
        ids = LedgerIdGenerator(self._target.store)
        await ids.pass_id(plan.last_ledger_id)
        await ids.close()
        # A name of a producer must not be used again: deduplication remembers them.
        counter = paths.PRODUCER_NAME_COUNTER
        used = await next_counter_value(self._source.store, counter)
        await pass_counter_value(self._target.store, counter, used)

    async def _unfinished(self) -> AsyncIterator[SourceLedger]:
        async for ledger in self._ledgers():
            if ledger.state is not CopyState.COMPLETE:
                yield ledger

    async def _complete(self) -> AsyncIterator[SourceLedger]:
        async for ledger in self._ledgers():
            if ledger.state is CopyState.COMPLETE:
                yield ledger

    async def _copy(self, ledger: SourceLedger) -> None:
        await self._copier.copy(ledger)
        assert self.progress is not None
        self.progress.add(ledger)

    async def verify(self) -> int:
        """Compare all entries of complete ledgers on both sides; return the number of ledgers.
        Raises CopyDiffers, LedgerError, MetadataError.
        """
        count = 0

        async def verify(ledger: SourceLedger) -> None:
            nonlocal count
            await self._copier.verify(ledger)
            count += 1

        await self._each(self._complete(), verify)
        return count

    async def _each(
        self,
        ledgers: AsyncIterator[SourceLedger],
        work: Callable[[SourceLedger], Coroutine[Any, Any, None]],
    ) -> None:
        """Work on each ledger, on several at a time. The first error ends all."""
        running: set[asyncio.Task[None]] = set()
        try:
            async for ledger in ledgers:
                running.add(asyncio.create_task(work(ledger)))
                if len(running) >= self._options.in_flight:
                    running = await _first_done(running)
            while running:
                running = await _first_done(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _write_nodes(self) -> None:
        comparison = self._comparison(is_continued=True)
        for root, what in ROOTS.items():
            count = 0
            async for batch in comparison.nodes(root):
                wanted = [node for node in batch if node.state is not NodeState.EQUAL]
                count += len(wanted)
                await _all(self._write(node) for node in wanted)
            if count:
                self._report(f"{what}: {count} nodes written")

    async def _write(self, node: Node) -> None:
        version = MUST_NOT_EXIST if node.found is None else node.found.version
        await self._target.store.put(node.path, node.value, version)


def _add_node(plan: Plan, root: str, node: Node) -> None:
    plan.nodes[root] += 1
    plan.node_states[node.state] += 1
    plan.checksum = crc32c(b"%s\0%s\0" % (node.path.encode(), node.value), plan.checksum)
    if node.state is NodeState.COLLIDES:
        plan.add_collision(f"{node.path} has another value in the cluster")
    if len(node.value) > NODE_BYTES_MAX:
        plan.add_collision(f"{node.path} has {len(node.value)} bytes, too many for ZooKeeper")


def refusal(plan: Plan) -> str:
    """Return the reason why a plan must not be carried out."""
    shown = plan.collisions[:COLLISIONS_SHOWN_MAX]
    more = plan.collision_count - len(shown)
    known = "; ".join(shown) + (f"; and {more} more" if more else "")
    conflicts = "conflict" if plan.collision_count == 1 else "conflicts"
    return (
        f"{plan.collision_count} {conflicts}: {known}. Copy to a new cluster, or delete these"
        " topics, subscriptions and namespaces on one side"
    )


async def _first_done(running: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait for one of the tasks; return the others. Raises its error."""
    done, pending = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    return pending


async def _all(work: Any) -> None:
    """Wait for all of the work, then raise its first error."""
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
