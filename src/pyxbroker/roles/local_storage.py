"""The storage of a process with an embedded bookie: its garbage collection and its disks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker import _native
from pyxbroker.base.log import get_logger
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.bookie.garbage_collection import GarbageCollector
from pyxbroker.bookie.space import make_reserves
from pyxbroker.broker.broker import Broker
from pyxbroker.metadata.store import MetadataError
from pyxbroker.roles.data import StandaloneData
from pyxbroker.settings.config import Config
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from pyxbroker.roles.backup_source import StandaloneBackup

log = get_logger("pyxbroker.standalone")

BOOKIES = 1
QUORUMS = (
    "managedLedgerDefaultEnsembleSize",
    "managedLedgerDefaultWriteQuorum",
    "managedLedgerDefaultAckQuorum",
)
SHORT_GARBAGE_INTERVAL_S = 30.0  # while space is short


def fit_to_one_bookie(config: Config) -> None:
    """Limit the quorums of the settings to one bookie, with a warning.

    Pulsar's broker.conf requests two copies of each entry.
    """
    wanted = {name: getattr(config, name) for name in QUORUMS}
    if max(wanted.values()) > BOOKIES:
        log.warning("entries have fewer copies than the settings ask for: there is one bookie",
                    **wanted)  # fmt: skip
        for name, count in wanted.items():
            setattr(config, name, min(count, BOOKIES))


class LocalStorage:
    """The embedded bookie and its data. `broker` is the broker that uses it."""

    broker: Broker

    def __init__(
        self, data: StandaloneData, storage: _native.Storage, bookie_id: str, turn: Turn
    ) -> None:
        self.config = data.config
        self.state = state = data.storage_state
        self.layout = data.layout()
        self.bookie = EmbeddedBookie(
            storage, turn, bookie_id, self._on_full, state.check, self.layout
        )
        self.bookies = {bookie_id: self.bookie}
        self.garbage = GarbageCollector(storage, data.metadata, self.bookie.delete_ledger)
        self._metadata = data.metadata
        self._backup: StandaloneBackup | None = None
        self._loop = turn.loop
        self._next_garbage = 0.0  # by the loop's clock, while space is short
        state.trouble = lambda: self.bookie.trouble
        state.failure = self.journal_failure
        state.set_holding = self.bookie.set_holding
        state.take_back = self.bookie.take_back

    def _on_full(self, full: bool) -> None:
        self.broker.publish_gate.set_full(full)

    def journal_failure(self) -> str | None:
        """Return why nothing can be written until a restart, or None."""
        code = self.bookie.failure
        if code:
            return f"the journal failed (error {-code}); a restart recovers what was acknowledged"
        return None

    def disk_usage(self) -> dict[str, tuple[int, int]]:
        """Return the (free, total) bytes of each file system, by the first directory on it."""
        return {
            str(each.directory): (each.usage.free, each.usage.total)
            for each in self.state.file_systems
        }

    def backup(self) -> StandaloneBackup:
        """Return the source of backups."""
        if self._backup is None:
            # Deferred, to start faster.
            from pyxbroker.roles.backup_source import StandaloneBackup

            self._backup = StandaloneBackup(
                self.config.clusterName, self.layout, self.bookie, self._metadata
            )
        return self._backup

    # --- in the background --------------------------------------------------------------------

    def start(self) -> None:
        """Start the background tasks, which end with the broker."""
        repeat = self.broker.repeat
        repeat("garbage", max(self.config.gcWaitTime / 1000, 1.0), self._collect_garbage)
        repeat("space", self.config.diskCheckInterval / 1000, self._check_space)

    async def _collect_garbage(self) -> None:
        try:
            await self.garbage.collect()
        except MetadataError as error:
            log.warning("garbage collection failed and is tried again", error=error)

    async def _check_space(self) -> None:
        """Check the disks; while space is short, free what can be freed."""
        state = self.state
        state.check()
        self.bookie.save_space(state.is_short_on(self.layout.journal))
        if state.is_short:
            if self._backup is not None:
                self._backup.abandon("disk space is short, and deletions free some")
            await self.broker.topics.upkeep.free_space()
            if self._loop.time() >= self._next_garbage:
                self._next_garbage = self._loop.time() + SHORT_GARBAGE_INTERVAL_S
                await self._collect_garbage()
        if reserves := state.missing_reserves():
            await self._loop.run_in_executor(None, make_reserves, reserves)

    async def close(self) -> None:
        """Close the bookie after all ledgers are closed."""
        await self.bookie.close()
