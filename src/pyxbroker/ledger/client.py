"""The ledger client: creates, opens, recovers and deletes ledgers (BookKeeper's client library).

A ledger's metadata determines its state; every change of it is a compare-and-set. Recovery takes a
ledger away from its writer: it marks the ledger IN_RECOVERY, fences its bookies so that no further
add of the old writer can reach an ack quorum, finds the last entry that the writer may have
confirmed, and closes the ledger there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol
from weakref import WeakSet

from pyxbroker.add_stats import PublishLatency
from pyxbroker.base.clock import wall_s
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.pacing import Pace
from pyxbroker.base.slices import Slices
from pyxbroker.entry import CRC32C, Digest
from pyxbroker.ledger.bookie import ADD_HIGH_PRIORITY, Bookie
from pyxbroker.ledger.errors import (
    EntryDamaged,
    JournalFailed,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    WrongPassword,
    journal_failed,
)
from pyxbroker.ledger.handle import LedgerHandle, LedgerListener
from pyxbroker.ledger.metadata import (
    DigestType,
    LedgerMetadata,
    LedgerMetadataStore,
    LedgerState,
    MalformedLedgerMetadata,
    VersionedLedgerMetadata,
)
from pyxbroker.ledger.placement import (
    Affinity,
    FixedPlacement,
    LedgerQuorums,
    Placement,
    affinity_of,
    custom_metadata_of,
)
from pyxbroker.ledger.reader import ReadHandle, ReadSettings, segments_of
from pyxbroker.metadata.coordination import LedgerIdGenerator
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    BadVersion,
    CorruptStore,
    MetadataError,
    MetadataStore,
    NotFound,
    Put,
    Unavailable,
)
from pyxbroker.turn import Turn

if TYPE_CHECKING:
    from pyxbroker.ledger.read_policy import ReadPolicy
    from pyxbroker.ledger.writer import FindBookies

log = get_logger("pyxbroker.ledger")

ID_TAKEN = "the ledger id is in use already; trying the next one"


ADD_TIMEOUT_S = 5.0
"""bookkeeper_addEntryTimeoutSec, which is 30 s in Pulsar: sends continue sooner without a bookie
that has stopped to answer."""


class LedgerProtection(NamedTuple):
    """Protection against changed entries, and against access without the password
    (managedLedgerDigestType, managedLedgerPassword).
    """

    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""


class BookieWaiter(Protocol):
    """An object that needs more bookies than there are."""

    def on_bookies_changed(self) -> None:
        """Wake the ledgers that lack bookies: there may be enough now."""


PLAIN = LedgerProtection()
PULSARS_READS = ReadSettings()
COMPACTED = LedgerProtection()
"""The protection of compacted ledgers, which Pulsar always opens without a password."""


class LedgerClient:
    """All ledger operations of one broker."""

    def __init__(
        self,
        store: MetadataStore,
        bookies: Mapping[str, Bookie],
        turn: Turn,
        quorums: LedgerQuorums,
        protection: LedgerProtection = PLAIN,
        publish_latency: PublishLatency | None = None,
        placement: Placement | None = None,
        read_settings: ReadSettings = PULSARS_READS,
        add_timeout_s: float = ADD_TIMEOUT_S,
    ) -> None:
        self.turn = turn
        self.add_timeout_s = add_timeout_s
        self.cursor_pace = Pace()  # of cursor writes in the background
        self.publish_latency = publish_latency or PublishLatency()
        self.started_ms = int(wall_s() * 1000)
        # Errors of managed ledgers, by their namespace with the domain.
        self.add_errors: Counter[str] = Counter()
        self.read_errors: Counter[str] = Counter()
        self._store = store
        self._metadata = LedgerMetadataStore(store)
        self._ids = LedgerIdGenerator(store)
        self._bookies = bookies
        self._read_settings = read_settings
        self._read_policy: ReadPolicy | None = None
        self.placement: Placement = placement or FixedPlacement(bookies)
        self.placement.on_change(self._on_bookies_changed)
        self._lacking: WeakSet[BookieWaiter] = WeakSet()
        self._bookies_changed = False
        self._notification: asyncio.Task[None] | None = None
        self._quorums = quorums
        self._protection = protection
        self._digests = {(DigestType.CRC32C, b""): CRC32C}
        self.custom_metadata: dict[str, bytes] = {}  # of all ledgers created here
        self._first_created: int | None = None  # the first ledger created here; ids only grow
        self._pending_deletions: set[int] = set()  # unreferenced ledgers that are still in metadata
        if placement is None and quorums.ensemble > len(bookies):
            raise ValueError(
                f"an ensemble of {quorums.ensemble} needs as many bookies, but there are"
                f" {len(bookies)}: set managedLedgerDefaultEnsembleSize to {len(bookies)}"
            )

    @property
    def ensemble_changes(self) -> int:
        """The number of changes of ensembles that this client has written."""
        return self._metadata.ensemble_changes

    @property
    def journal_failure(self) -> JournalFailed | None:
        """The reason why no ledger can be written until a restart, or None."""
        for bookie in self._bookies.values():
            if bookie.failure:
                return journal_failed(bookie.bookie_id, bookie.failure)
        return None

    @property
    def is_holding(self) -> bool:
        """True while messages of clients cannot be stored (Bookie.holding)."""
        return any(bookie.holding for bookie in self._bookies.values())

    @property
    def may_gain_bookies(self) -> bool:
        """False if the bookies are those of the start for ever."""
        return not isinstance(self.placement, FixedPlacement)

    def wait_for_bookies(self, waiter: BookieWaiter) -> None:
        """Notify a waiter, as long as it exists, of the next change of the bookies."""
        self._lacking.add(waiter)

    def _on_bookies_changed(self) -> None:
        self._bookies_changed = True
        if self._lacking and self._notification is None:
            loop = asyncio.get_running_loop()
            self._notification = loop.create_task(self._notify_lacking())

    async def _notify_lacking(self) -> None:
        slices = Slices()
        try:
            while self._bookies_changed:
                self._bookies_changed = False
                # A waiter that still lacks bookies adds itself again.
                for waiter in list(self._lacking):
                    self._lacking.discard(waiter)
                    waiter.on_bookies_changed()
                    await slices.pause()
        finally:
            self._notification = None

    def prefetch(self) -> None:
        """Fetch a ledger id in advance, so that the first topic need not wait for it."""
        self._ids.prefetch()

    async def create(
        self,
        listener: LedgerListener,
        managed_ledger: str,
        cursor: str | None = None,
        affinity: Affinity | None = None,
    ) -> LedgerHandle:
        """Create a ledger with this broker as its writer. Raises NotEnoughBookies."""
        flags = 0 if cursor is None else ADD_HIGH_PRIORITY
        custom = _custom_metadata(managed_ledger, cursor)
        return await self._create(listener, custom, flags, affinity)

    async def create_for_schema(self, listener: LedgerListener, schema_id: str) -> LedgerHandle:
        """Create the ledger of one version of a topic's schema."""
        custom = {"component": b"schema", "pulsar/schemaId": schema_id.encode()}
        return await self._create(listener, custom, ADD_HIGH_PRIORITY)

    async def _create(
        self,
        listener: LedgerListener,
        custom: dict[str, bytes],
        flags: int,
        affinity: Affinity | None = None,
    ) -> LedgerHandle:
        metadata = self._new_metadata(custom, self._quorums, affinity=affinity)
        while True:
            ledger_id = await self._ids.next_id()
            put = self._metadata.creation(ledger_id, metadata)
            try:
                (created,) = await self._store.put_all([put])
            except BadVersion:
                log.warning(ID_TAKEN, ledger=ledger_id)
                continue
            return self._handle(ledger_id, metadata, created.version, listener, flags)

    async def create_named(
        self,
        listener: LedgerListener,
        managed_ledger: str,
        naming: Callable[[int], Put],
        above: int = -1,
        quorums: LedgerQuorums | None = None,
        affinity: Affinity | None = None,
    ) -> tuple[LedgerHandle, int]:
        """Create a ledger and write its reference to another node in one transaction.

        `naming` returns that write for a ledger id, which is greater than `above`. Returns (handle,
        new version of that node). Raises BadVersion when the write of the node is refused, and
        NotEnoughBookies when there are fewer bookies than the ensemble needs.
        """
        custom = _custom_metadata(managed_ledger)
        metadata = self._new_metadata(custom, quorums or self._quorums, affinity=affinity)
        return await self._create_named(listener, metadata, naming, above)

    async def create_compacted(
        self,
        listener: LedgerListener,
        topic: str,
        compacted_to: bytes,
        naming: Callable[[int], Put],
    ) -> tuple[LedgerHandle, int]:
        """Create the compacted ledger of a topic, like create_named. compacted_to is the id of its
        last message, a MessageIdData.
        """
        custom = {
            "component": b"compacted-ledger",
            "pulsar/compactedTopic": topic.encode(),
            "pulsar/compactedTo": compacted_to,
        }
        metadata = self._new_metadata(custom, self._quorums, COMPACTED)
        return await self._create_named(listener, metadata, naming)

    async def _create_named(
        self,
        listener: LedgerListener,
        metadata: LedgerMetadata,
        naming: Callable[[int], Put],
        above: int = -1,
    ) -> tuple[LedgerHandle, int]:
        while True:
            ledger_id = await self._ids.next_id()
            if ledger_id <= above:
                # Fetched in advance, before another broker created the ledgers that come first.
                continue
            naming_put = naming(ledger_id)
            put = self._metadata.creation(ledger_id, metadata)
            try:
                named, created = await self._store.put_all([naming_put, put])
            except BadVersion as error:
                if error.path != put.path:
                    self._ids.give_back(ledger_id)
                    raise
                log.warning(ID_TAKEN, ledger=ledger_id)
                continue
            handle = self._handle(ledger_id, metadata, created.version, listener)
            return handle, named.version

    async def create_copy(
        self,
        listener: LedgerListener,
        ledger_id: int,
        original: LedgerMetadata,
        custom: Mapping[str, bytes],
        replaced: int = MUST_NOT_EXIST,
    ) -> LedgerHandle:
        """Create a ledger with the id, digest, password and time of another one, to write the same
        entries to it. `replaced` is the version of an unfinished copy with the same entries; its
        node never disappears, because bookies delete the entries of ledgers without one.

        Raises BadVersion when the id is taken, and NotEnoughBookies.
        """
        protection = LedgerProtection(
            original.digest_type or self._protection.digest_type, original.password
        )
        metadata = self._new_metadata(dict(custom), self._quorums, protection)
        metadata = metadata._replace(ctime_ms=original.ctime_ms)
        put = self._metadata.creation(ledger_id, metadata)._replace(expected_version=replaced)
        written = await self._store.put(*put)
        return self._handle(ledger_id, metadata, written.version, listener)

    def _new_metadata(
        self,
        custom: dict[str, bytes],
        quorums: LedgerQuorums,
        protection: LedgerProtection | None = None,
        affinity: Affinity | None = None,
    ) -> LedgerMetadata:
        protection = protection or self._protection
        if affinity is not None:
            custom |= custom_metadata_of(affinity)
        return LedgerMetadata(
            ensemble_size=quorums.ensemble,
            write_quorum_size=quorums.write,
            ack_quorum_size=quorums.ack,
            ensembles={0: self.placement.new_ensemble(quorums, affinity)},
            digest_type=protection.digest_type,
            password=protection.password,
            custom_metadata={"application": b"pulsar", **custom, **self.custom_metadata},
            ctime_ms=int(wall_s() * 1000),
            c_token=self._metadata.new_token(),
        )

    def _handle(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        listener: LedgerListener,
        add_flags: int = 0,
    ) -> LedgerHandle:
        """Return the writer of a ledger that was just created."""
        if self._first_created is None:
            self._first_created = ledger_id
        handle = self._open_handle(ledger_id, metadata, version, listener, add_flags)
        handle.in_metadata = (metadata, version)
        return handle

    def _open_handle(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        listener: LedgerListener,
        add_flags: int,
    ) -> LedgerHandle:
        digest = self._digest(metadata)
        if self._is_embedded(metadata):
            first = self._bookies[metadata.ensembles[0][0]]
            return LedgerHandle(ledger_id, first, listener, add_flags, digest)
        from pyxbroker.ledger.ensemble import EnsembleHandle
        from pyxbroker.ledger.writer import LedgerWriter

        return EnsembleHandle(
            LedgerWriter(ledger_id, metadata, version),
            self._bookies,
            self._finder(metadata),
            self._metadata,
            listener,
            self.add_timeout_s,
            add_flags,
            digest,
            self.placement.on_error,
            self.read_policy(),
        )

    def read_policy(self) -> ReadPolicy:
        """Return the policy of reads from bookies in other processes."""
        if self._read_policy is None:
            from pyxbroker.ledger.read_policy import ReadPolicy

            self._read_policy = ReadPolicy(self.turn.loop, self._read_settings)
        return self._read_policy

    def _finder(self, metadata: LedgerMetadata) -> Callable[[FindBookies], Mapping[int, str]]:
        """Return the function that chooses replacements for members of a ledger's ensemble."""
        quorums = LedgerQuorums(
            metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size
        )
        affinity = affinity_of(metadata.custom_metadata)
        return partial(self.placement.replacements, quorums=quorums, affinity=affinity)

    async def close(self, handle: LedgerHandle) -> None:
        """Write the end of a drained ledger to its metadata. Raises LedgerError when the ledger has
        failed or has another owner; after Unavailable the caller may retry.
        """
        closed, version = await self._closing(handle)
        try:
            await self._metadata.update(handle.ledger_id, closed, version)
        except (BadVersion, NotFound) as error:
            if not await self._is_closed_at(handle):
                raise _taken_over(handle, error) from error
        handle.in_metadata = None

    async def close_named(self, handle: LedgerHandle, naming: Put) -> int:
        """Close a drained ledger, and write the node that names it, in one transaction; return the
        new version of that node. A ledger that was taken over meanwhile, and may be deleted, is
        therefore never named.

        Raises BadVersion when the write of the node is refused, and LedgerError when the ledger has
        failed or has another owner. After Unavailable the outcome is unknown.
        """
        closed, version = await self._closing(handle)
        closing = self._metadata.change(handle.ledger_id, closed, version)
        try:
            named, _ = await self._store.put_all([naming, closing])
        except (BadVersion, NotFound) as error:
            if error.path == closing.path:
                raise _taken_over(handle, error) from error
            raise
        handle.in_metadata = None
        return named.version

    async def _closing(self, handle: LedgerHandle) -> tuple[LedgerMetadata, int]:
        """Return the metadata of a drained ledger as closed, and the version that they replace."""
        await handle.seal()
        assert handle.in_metadata is not None, "a ledger is closed once, by its creator"
        metadata, version = handle.in_metadata
        return metadata.closed(handle.last_add_confirmed, handle.length), version

    async def _is_closed_at(self, handle: LedgerHandle) -> bool:
        """Return True if metadata has the writer's end: an earlier attempt succeeded."""
        try:
            found = (await self._read(handle.ledger_id)).metadata
        except NoSuchLedger:
            return False
        end = (handle.last_add_confirmed, handle.length)
        return found.is_closed and (found.last_entry_id, found.length) == end

    async def open_read(self, ledger_id: int) -> ReadHandle:
        """Open a closed ledger for reading.

        Raises NoSuchEntry when the metadata is missing or cannot be decoded, and EntryDamaged for a
        damaged node without a copy: both are permanent. Any other LedgerError means that the store
        is unavailable, and a retry may succeed.
        """
        return self._reader(ledger_id, await self._metadata_of(ledger_id))

    async def open_any(self, ledger_id: int) -> tuple[LedgerMetadata, ReadHandle]:
        """Return a ledger as if closed, and its reader, whatever its state and password are.
        Changes nothing. The ledger must have no writer. Raises LedgerError, also for an open ledger
        on bookies in other processes, and MetadataError.
        """
        metadata = (await self._metadata.read(ledger_id)).metadata
        reader = self._reader(ledger_id, metadata)
        if not metadata.is_closed:
            if not self._is_embedded(metadata):
                raise LedgerError(f"ledger {ledger_id} is open, so its end is unknown")
            from pyxbroker.ledger.recovery import find_end

            metadata = metadata.closed(*await find_end(reader))
        return metadata, reader

    async def open_unowned(self, ledger_id: int) -> tuple[ReadHandle, int]:
        """Open a ledger that may have a writer elsewhere; return its reader and the last entry id
        that its bookies store. Bookies that do not answer are left out. Raises as open_read does.
        """
        metadata = await self._metadata_of(ledger_id)
        reader = self._reader(ledger_id, metadata)
        if metadata.is_closed:
            return reader, metadata.last_entry_id
        from pyxbroker.ledger.recovery import last_stored

        return reader, await last_stored(reader.segments[-1].bookies, ledger_id)

    async def open_compacted(self, ledger_id: int) -> tuple[ReadHandle, int, int]:
        """Open a compacted ledger; return its reader, last entry id and length in bytes."""
        metadata = await self._metadata_of(ledger_id, COMPACTED.password)
        if not metadata.is_closed:
            raise NoSuchEntry(f"the compacted ledger {ledger_id} was never finished")
        return self._reader(ledger_id, metadata), metadata.last_entry_id, metadata.length

    async def compacted_topic(self, ledger_id: int) -> str | None:
        """Return the topic of a compacted ledger; None for another or a missing ledger. Raises
        MetadataError.
        """
        try:
            custom = (await self._metadata.read(ledger_id)).metadata.custom_metadata
        except (NotFound, MalformedLedgerMetadata):
            return None
        is_compacted = custom.get("component") == b"compacted-ledger"
        return custom.get("pulsar/compactedTopic", b"").decode() if is_compacted else None

    async def _metadata_of(self, ledger_id: int, password: bytes | None = None) -> LedgerMetadata:
        try:
            return (await self._read(ledger_id, password)).metadata
        except MalformedLedgerMetadata as error:
            raise NoSuchEntry(str(error)) from error
        except CorruptStore as error:
            raise EntryDamaged(str(error)) from error
        except MetadataError as error:
            raise LedgerError(str(error)) from error

    async def recover(self, ledger_id: int) -> tuple[int, int]:
        """Close a ledger that may still have another writer; return (last entry id, bytes).

        After a failure it may be called again.
        """
        # A start has no ledger to recover.
        from pyxbroker.ledger import recovery

        while True:
            found = await self._read(ledger_id)
            metadata = found.metadata
            if metadata.is_closed:
                return metadata.last_entry_id, metadata.length
            if self._is_embedded(metadata):
                return await self._recover_embedded(ledger_id, found)
            takeover = recovery.Takeover(
                *(self._bookies, self._finder(metadata), self.placement.on_error),
                *(self._metadata, self.read_policy(), self.add_timeout_s),
            )
            end = await recovery.recover(takeover, ledger_id, found, self._digest(metadata))
            if end is not None:
                return end

    def _is_embedded(self, metadata: LedgerMetadata) -> bool:
        """Return True if the embedded bookie is the only one of the ledger's ensemble."""
        first = self._bookies.get(metadata.ensembles[0][0])
        return metadata.ensemble_size == 1 and first is not None and first.is_embedded

    async def _recover_embedded(
        self, ledger_id: int, found: VersionedLedgerMetadata
    ) -> tuple[int, int]:
        from pyxbroker.ledger import recovery

        metadata, version = found
        if metadata.state is not LedgerState.IN_RECOVERY:
            metadata = metadata.in_recovery()
            version = (await self._metadata.update(ledger_id, metadata, version)).version
        reader = self._reader(ledger_id, metadata)
        await recovery.fence(reader)
        last_entry_id, length = await recovery.find_end(reader)
        await self._metadata.update(ledger_id, metadata.closed(last_entry_id, length), version)
        return last_entry_id, length

    async def check_password(self, ledger_id: int) -> None:
        """Raise WrongPassword for a closed ledger that this broker cannot read. Its readers get any
        other errors.
        """
        if self._first_created is not None and ledger_id >= self._first_created:
            return
        with contextlib.suppress(NoSuchLedger, MalformedLedgerMetadata, CorruptStore):
            await self._read(ledger_id)

    async def end_of(self, ledger_id: int) -> tuple[int, int]:
        """Return (last entry id, bytes) of a ledger that has no writer. It is not closed if the
        embedded bookie, whose journal may have failed, is the only one of its ensemble. Otherwise
        only a recovery finds an end on which all readers agree.
        """
        metadata = (await self._read(ledger_id)).metadata
        if metadata.is_closed:
            return metadata.last_entry_id, metadata.length
        if not self._is_embedded(metadata):
            return await self.recover(ledger_id)
        from pyxbroker.ledger.recovery import find_end

        return await find_end(self._reader(ledger_id, metadata))

    async def is_open(self, ledger_id: int) -> bool:
        """Return True if no recovery of the ledger has begun. Raises MetadataError."""
        try:
            return (await self._metadata.read(ledger_id)).metadata.state is LedgerState.OPEN
        except NotFound:
            return False

    async def stored_entries(self, ledger_id: int) -> int:
        """Count the stored entries of a ledger, whether or not it has metadata."""
        from pyxbroker.ledger.recovery import stored_entries

        return await stored_entries(self._bookies.values(), ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """Delete a ledger's metadata and its entries on the bookies.

        If the store is unavailable, `retry_deletions` tries again later.
        """
        try:
            await self._metadata.delete(ledger_id)
        except NotFound:
            log.info("the ledger is deleted already", ledger=ledger_id)
        except Unavailable as error:
            log.warning("cannot delete a ledger yet; retrying later", ledger=ledger_id, error=error)
            self._pending_deletions.add(ledger_id)
            return
        self._pending_deletions.discard(ledger_id)
        for bookie in self._bookies.values():
            bookie.delete_ledger(ledger_id)

    async def retry_deletions(self) -> None:
        """Retry the deletions that failed, up to the first that fails again."""
        for ledger_id in sorted(self._pending_deletions):
            await self.delete(ledger_id)
            if ledger_id in self._pending_deletions:
                return

    async def stop(self) -> None:
        """Stop fetching ids, and notifying those that lack bookies."""
        if self._notification is not None:
            self._notification.cancel()
        await self._ids.close()

    async def _read(self, ledger_id: int, password: bytes | None = None) -> VersionedLedgerMetadata:
        """Return a ledger's metadata. Raises WrongPassword for one with another password."""
        try:
            found = await self._metadata.read(ledger_id)
        except NotFound as error:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist") from error
        has_password = found.metadata.digest_type is not None
        if password is None:
            password = self._protection.password
        if has_password and found.metadata.password != password:
            raise WrongPassword(
                f"ledger {ledger_id} was made with another password: set managedLedgerPassword to"
                " that password"
            )
        return found

    def _reader(self, ledger_id: int, metadata: LedgerMetadata) -> ReadHandle:
        segments = segments_of(metadata.ensembles, self._bookies, ledger_id)
        policy = None if self._is_embedded(metadata) else self.read_policy()
        quorum = metadata.write_quorum_size
        return ReadHandle(ledger_id, segments, quorum, self._digest(metadata), policy)

    def _digest(self, metadata: LedgerMetadata) -> Digest:
        """Return the digest of a ledger, which does not change with the setting."""
        key = (metadata.digest_type or self._protection.digest_type, metadata.password)
        if metadata.digest_type is None:
            key = self._protection
        if key not in self._digests:
            self._digests[key] = Digest(*key)
        return self._digests[key]


def _taken_over(handle: LedgerHandle, error: MetadataError) -> LedgerError:
    return LedgerError(f"ledger {handle.ledger_id} was taken over while it was written: {error}")


def _custom_metadata(name: str, cursor: str | None = None) -> dict[str, bytes]:
    """Return the custom metadata that identifies a ledger's owner."""
    custom = {"component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
    if cursor is not None:
        custom["pulsar/cursor"] = cursor.encode()
    return custom
