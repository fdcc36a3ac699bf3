"""The connections of a broker to the other ones of this kind, which show that one has failed.

The registration, the bundles and the leadership of a failed broker are given up for it. Each node
is deleted by its version, and a broker that lives after all creates it again, or finds that another
broker has taken it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyxbroker.base.errors import ServiceNotReady
from pyxbroker.base.log import get_logger
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import Redirect
from pyxbroker.broker.peers import Ask, PeerRefused
from pyxbroker.client.errors import (
    AnswerTimeout,
    ClientError,
    ConnectFailed,
    ConnectionFailed,
    NoPong,
)
from pyxbroker.cluster.addresses import OF_BROKER, OF_OWNER, addresses_of, read_fields
from pyxbroker.cluster.brokers import RegisteredBrokers, Report
from pyxbroker.cluster.election import Election, leader_of
from pyxbroker.cluster.failure_detector import FAILED, Answer, FailureDetector, Sight
from pyxbroker.cluster.ownership import owner_nodes
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import BadVersion, MetadataError, MetadataStore, NotFound

if TYPE_CHECKING:
    from pyxbroker.cluster.peers import ClusterPeers

log = get_logger("pyxbroker.cluster")

SIGHTS_PATH = "/admin/v2/broker-stats/peers"
PAUSE_S = 0.05
"""Time between two attempts to connect."""
PAUSE_MAX_S = 1.0
SILENT_PART = 0.95
"""The part of the time-out that counts as all of it: timers are not exact."""
WARN_AGAIN_S = 60.0
"""Time between two warnings about a peer that is not reached."""
REFUSED_PAUSE_S = 30.0
"""Time until the next attempt after the peer has refused the login of this broker."""


class PeerWatch:
    """The watch of one broker over its peers.

    A peer that does not answer for about `timeout_s` is silent.
    """

    def __init__(
        self,
        store: MetadataStore,
        broker_id: str,
        registered: RegisteredBrokers,
        election: Election,
        peers: ClusterPeers,
        timeout_s: float,
    ) -> None:
        self.removed = 0
        """The number of brokers that this one has removed."""
        self._store = store
        self._id = broker_id
        self._registered = registered
        self._election = election
        self._requests = peers
        self._timeout_s = timeout_s
        self._detector = FailureDetector(broker_id)
        self._loop = asyncio.get_running_loop()
        self._links: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._warn_at: dict[str, float] = {}  # of the peers that are not reached
        self._errors: dict[str, str] = {}  # of their last attempts
        self._changed = asyncio.Event()
        self._deciding: asyncio.Task[None] | None = None
        self._beat: asyncio.TimerHandle | None = None
        self._late_at = 0.0
        """The last time at which this process was too slow to judge others."""

    def start(self) -> None:
        """Begin to watch the registered brokers."""
        self._on_beat(self._loop.time())
        self._deciding = self._loop.create_task(self._decide())
        self._registered.listen(self._on_registered)
        self._on_registered()

    def close(self) -> None:
        """Close the connections, and decide nothing more."""
        for task in (*self._links.values(), self._deciding):
            if task is not None:
                task.cancel()
        self._links.clear()
        self._deciding = None
        if self._beat is not None:
            self._beat.cancel()

    def sights(self) -> dict[str, dict[str, Any]]:
        """Return what this broker knows about its peers, for REST."""
        return {
            name: {"state": sight.value, "startTimestamp": started}
            for name, (sight, started) in self._detector.answer().items()
        }

    def unreached(self) -> set[str]:
        """Return the peers that refuse connections or do not answer."""
        return {name for name, (sight, _) in self._detector.answer().items() if sight in FAILED}

    # --- connections ----------------------------------------------------------------------------

    def _on_registered(self) -> None:
        if self._deciding is None:
            return
        ours = {
            name: report
            for name, report in self._registered.reports.items()
            if report.load.pyxbroker_version and name != self._id
        }
        started = {name: report.load.start_timestamp for name, report in ours.items()}
        self._detector.follow(started)
        for key in self._links.keys() - started.items():
            self._links.pop(key).cancel()
        for key in started.items() - self._links.keys():
            self._links[key] = self._loop.create_task(self._follow(*key, ours[key[0]]))
        self._changed.set()

    async def _follow(self, name: str, started: int, report: Report) -> None:
        """Hold a connection to a peer."""
        addresses = addresses_of(report.fields, OF_BROKER)
        pause_s = PAUSE_S
        quiet_at = self._loop.time()
        while True:
            try:
                connection = await self._requests.connect(addresses, self._timeout_s / 2)
            except ClientError as error:
                sight = _sight_of(error)
                now = self._loop.time()
                quiet_at = max(quiet_at, self._late_at) if sight is Sight.SILENT else now
                is_known = (
                    sight is not Sight.SILENT or now - quiet_at > SILENT_PART * self._timeout_s
                )
                if is_known:
                    self._errors[name] = _text_of(error)
                    self._note(name, started, sight)
                if not isinstance(error, ConnectionFailed):
                    # Only its session with the metadata store shows when this process ends.
                    log.warning("another broker refuses a login", broker=name, error=error)
                    pause_s = REFUSED_PAUSE_S
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S if is_known else self._timeout_s / 4)
                continue
            pause_s = PAUSE_S
            self._note(name, started, Sight.REACHED)
            try:
                reason = await connection.wait_ended()
            finally:
                connection.close()
            log.debug("a connection to another broker has ended", broker=name, error=reason)
            self._note(name, started, Sight.UNKNOWN)
            # The connection waits for half of the time before it ends for a missing PONG.
            is_quiet = isinstance(reason, NoPong)
            quiet_at = self._loop.time() - (self._timeout_s / 2 if is_quiet else 0.0)

    def _note(self, name: str, started: int, sight: Sight) -> None:
        now = self._loop.time()
        self._detector.note(name, started, sight, now)
        if sight in FAILED:
            # By then it is removed, if it has failed.
            self._warn_at.setdefault(name, now + self._timeout_s)
        elif sight is Sight.REACHED and self._warn_at.pop(name, None) is not None:
            log.info("a broker is reached again", broker=name)
        self._changed.set()

    def _warn(self) -> None:
        """Log the peers that are not reached and stay registered."""
        now = self._loop.time()
        for name, (sight, _) in self._detector.answer().items():
            if sight in FAILED and self._warn_at.get(name, now + 1) <= now:
                self._warn_at[name] = now + WARN_AGAIN_S
                log.warning(
                    "a broker is not reached",
                    broker=name,
                    state=sight.value,
                    error=self._errors[name],
                    not_removed=self._detector.why_kept(name),
                )

    def _on_beat(self, due: float) -> None:
        """Note if this process was too slow to read answers in time."""
        now = self._loop.time()
        pause_s = self._timeout_s / 4
        if now - due > pause_s:
            self._late_at = now
        self._beat = self._loop.call_at(now + pause_s, self._on_beat, now + pause_s)

    # --- decisions ------------------------------------------------------------------------------

    async def _decide(self) -> None:
        while True:
            self._changed.clear()
            leader = self._election.leader
            self._detector.elect("" if leader is None else leader.broker_id)
            wait_s = self._detector.wait_s(self._loop.time())
            if wait_s is None or wait_s > 0:
                self._warn()
                # Not for long: another broker may become the leader.
                wait_s = min(wait_s or self._timeout_s, self._timeout_s)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), wait_s)
                continue
            try:
                answers = await self._ask_all()
                for name in self._detector.decide(answers, self._loop.time()):
                    await self._remove(name, len(answers))
            except Exception as error:
                log.failure("a failed broker was not removed", error)
                await asyncio.sleep(PAUSE_MAX_S)

    async def _ask_all(self) -> dict[str, Answer]:
        """Return what the peers that answer know about theirs."""
        names = self._detector.witnesses()
        found = await asyncio.gather(*map(self._ask, names))
        pairs = zip(names, found, strict=True)
        return {name: answer for name, answer in pairs if answer is not None}

    async def _ask(self, name: str) -> Answer | None:
        report = self._registered.reports.get(name)
        if report is None:
            return None
        to = Redirect(addresses_of(report.fields, OF_BROKER), authoritative=False)
        asking = self._requests.ask(to, Ask("GET", SIGHTS_PATH))
        try:
            return _read(await asyncio.wait_for(asking, self._timeout_s / 2))
        except (PeerRefused, ServiceNotReady, asyncio.TimeoutError) as error:
            log.warning("another broker was not asked about a failed one", broker=name, error=error)
            return None

    # --- removal --------------------------------------------------------------------------------

    async def _remove(self, name: str, agree: int) -> None:
        """Give up what a failed broker holds."""
        report = self._registered.reports.get(name)
        sight, started = self._detector.answer().get(name, (Sight.UNKNOWN, 0))
        if report is None or report.load.start_timestamp != started:
            return
        try:
            if not await self._delete(paths.broker(name), lambda value: _started(value) == started):
                return
            self._detector.on_removed(name)
            self._warn_at[name] = self._loop.time() + self._timeout_s
            self.removed += 1
            log.warning(
                "removing a failed broker",
                broker=name,
                state=sight.value,
                error=self._errors[name],
                agree=agree,
            )
            await self._delete(paths.LEADER, lambda value: _leads(value, name))
            bundles = await self._delete_owned(addresses_of(report.fields, OF_BROKER))
        except MetadataError as error:
            # Its session ends, or this broker tries again.
            log.warning("a failed broker was not removed", broker=name, error=error)
        else:
            log.info("a failed broker was removed", broker=name, bundles=bundles)

    async def _delete_owned(self, owner: Addresses) -> int:
        """Delete the nodes of the bundles of a broker; return their number."""
        deletions = [
            self._store.delete(paths.bundle_owner(*bundle), found.version)
            for bundle, found in await owner_nodes(self._store)
            if addresses_of(read_fields(found.value), OF_OWNER) == owner
        ]
        for error in await asyncio.gather(*deletions, return_exceptions=True):
            if error is not None and not isinstance(error, NotFound | BadVersion):
                raise error
        return len(deletions)

    async def _delete(self, path: str, is_meant: Callable[[bytes], bool]) -> bool:
        """Delete a node by its version; return False if it is another one."""
        found = await self._store.get(path)
        if found is None or not is_meant(found.value):
            return False
        try:
            await self._store.delete(path, found.version)
        except (BadVersion, NotFound):
            return False
        return True


def _sight_of(error: ClientError) -> Sight:
    """Return what an attempt to connect shows that has failed."""
    if isinstance(error, ConnectFailed):
        is_refused = isinstance(error.__cause__, ConnectionRefusedError)
        return Sight.REFUSED if is_refused else Sight.SILENT
    return Sight.SILENT if isinstance(error, AnswerTimeout) else Sight.REACHED


def _text_of(error: ClientError) -> str:
    """Return the address and the reason, without asyncio's words about its calls."""
    cause = error.__cause__
    if isinstance(error, ConnectFailed) and isinstance(cause, OSError) and (cause.errno or 0) > 0:
        return f"{error.url}: {os.strerror(cause.errno or 0).lower()}"
    return str(error)


def _started(value: bytes) -> object:
    return read_fields(value).get("startTimestamp")


def _leads(value: bytes, name: str) -> bool:
    leader = leader_of(value)
    return leader is not None and leader.broker_id == name


def _read(answer: Any) -> Answer:
    """Return the answer of a peer; empty if it cannot be read."""
    known = {each.value: each for each in Sight}
    found: dict[str, tuple[Sight, int]] = {}
    if isinstance(answer, Mapping):
        for name, each in answer.items():
            if isinstance(each, Mapping):
                started = each.get("startTimestamp")
                sight = known.get(str(each.get("state")), Sight.UNKNOWN)
                found[name] = (sight, started if isinstance(started, int) else 0)
    return found
