"""The ledger client: creates, opens, recovers and deletes ledgers (BookKeeper's client library).

A ledger's metadata decides what it is; every change of it is a compare-and-set. Recovery takes a
ledger away from its writer: mark it IN_RECOVERY, fence its bookies so that no further add of the
old writer can reach an ack quorum, find the last entry that it may have confirmed, and close it
there.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyxbroker.add_stats import PublishLatency
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.pacing import Pace
from pyxbroker.entry import CRC32C, Digest
from pyxbroker.ledger.bookie import ADD_HIGH_PRIORITY, Bookie
from pyxbroker.ledger.errors import (
    EntryDamaged,
    JournalFailed,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
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
from pyxbroker.ledger.reader import ReadHandle, segments_of
from pyxbroker.metadata.coordination import LedgerIdGenerator
from pyxbroker.metadata.store import (
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
    from pyxbroker.ledger.writer import FindBookies

log = get_logger("pyxbroker.ledger")

ID_TAKEN = "the ledger id was taken already; trying the next"


class LedgerQuorums(NamedTuple):
    """Copies of each entry: ensemble, write quorum, ack quorum (managedLedgerDefault...)."""

    ensemble: int = 1
    write: int = 1
    ack: int = 1


class LedgerProtection(NamedTuple):
    """What keeps entries from being changed, and ledgers from those who do not know the password
    (managedLedgerDigestType, managedLedgerPassword).
    """

    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""


PLAIN = LedgerProtection()
COMPACTED = LedgerProtection()
"""Of compacted ledgers, which Pulsar opens without password, whatever the settings say."""


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
    ) -> None:
        self.turn = turn
        self.cursor_pace = Pace()  # of cursors that write what nobody waits for
        self.publish_latency = publish_latency or PublishLatency()
        self.started_ms = int(time.time() * 1000)
        # Of managed ledgers, by their namespaces with the domain.
        self.add_errors: Counter[str] = Counter()
        self.read_errors: Counter[str] = Counter()
        self._store = store
        self._metadata = LedgerMetadataStore(store)
        self._ids = LedgerIdGenerator(store)
        self._bookies = bookies
        self._quorums = quorums
        self._protection = protection
        self._digests = {DigestType.CRC32C: CRC32C}
        self._first_made: int | None = None  # the ledger that was made first here; ids only grow
        self._undeleted: set[int] = set()  # ledgers that nobody names, and metadata still has
        if quorums.ensemble > len(bookies):
            raise ValueError(
                f"an ensemble of {quorums.ensemble} needs as many bookies, there are"
                f" {len(bookies)}: set managedLedgerDefaultEnsembleSize to {len(bookies)}"
            )

    @property
    def journal_failure(self) -> JournalFailed | None:
        """Why no ledger can be written any more, or None."""
        for bookie in self._bookies.values():
            if bookie.failure:
                return journal_failed(bookie.bookie_id, bookie.failure)
        return None

    @property
    def is_holding(self) -> bool:
        """Return True while nothing that clients publish can be stored (Bookie.holding)."""
        return any(bookie.holding for bookie in self._bookies.values())

    def prefetch(self) -> None:
        """Fetches a ledger id ahead, so that the first topic need not wait for it."""
        self._ids.prefetch()

    async def create(
        self, listener: LedgerListener, managed_ledger: str, cursor: str | None = None
    ) -> LedgerHandle:
        """Creates a ledger with this broker as its writer."""
        flags = 0 if cursor is None else ADD_HIGH_PRIORITY
        return await self._create(listener, _of_managed_ledger(managed_ledger, cursor), flags)

    async def create_for_schema(self, listener: LedgerListener, schema_id: str) -> LedgerHandle:
        """Creates the ledger of one version of a topic's schema."""
        custom = {"component": b"schema", "pulsar/schemaId": schema_id.encode()}
        return await self._create(listener, custom, ADD_HIGH_PRIORITY)

    async def _create(
        self, listener: LedgerListener, custom: dict[str, bytes], flags: int
    ) -> LedgerHandle:
        metadata = self._new_metadata(custom, self._quorums)
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
    ) -> tuple[LedgerHandle, int]:
        """Creates a ledger together with the write that names it elsewhere: both or neither.

        `naming` gives that write for a ledger id; the id is greater than `above`. The result is
        (handle, version of the node that was written). Raises BadVersion when the write of that
        node is refused, LedgerError when there are fewer bookies than the ensemble needs.
        """
        quorums = quorums or self._quorums
        if quorums.ensemble > len(self._bookies):
            raise NotEnoughBookies(
                f"an ensemble of {quorums.ensemble} needs as many bookies, there are"
                f" {len(self._bookies)}"
            )
        metadata = self._new_metadata(_of_managed_ledger(managed_ledger), quorums)
        return await self._create_named(listener, metadata, naming, above)

    async def create_compacted(
        self,
        listener: LedgerListener,
        topic: str,
        compacted_to: bytes,
        naming: Callable[[int], Put],
    ) -> tuple[LedgerHandle, int]:
        """The same for the compacted ledger of a topic; compacted_to: the id of its last message, a
        MessageIdData.
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
                # It was fetched ahead before another broker made the ledgers that come first.
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

    def _new_metadata(
        self,
        custom: dict[str, bytes],
        quorums: LedgerQuorums,
        protection: LedgerProtection | None = None,
    ) -> LedgerMetadata:
        protection = protection or self._protection
        return LedgerMetadata(
            ensemble_size=quorums.ensemble,
            write_quorum_size=quorums.write,
            ack_quorum_size=quorums.ack,
            ensembles={0: tuple(sorted(self._bookies))[: quorums.ensemble]},
            digest_type=protection.digest_type,
            password=protection.password,
            custom_metadata={"application": b"pulsar", **custom},
            ctime_ms=int(time.time() * 1000),
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
        """The writer of a ledger that has just been created."""
        if self._first_made is None:
            self._first_made = ledger_id
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
        first = self._bookies[metadata.ensembles[0][0]]
        if first.is_embedded:
            return LedgerHandle(ledger_id, first, listener, add_flags, digest)
        from pyxbroker.ledger.ensemble import EnsembleHandle
        from pyxbroker.ledger.writer import LedgerWriter

        return EnsembleHandle(
            LedgerWriter(ledger_id, metadata, version),
            self._bookies,
            self._find_bookies,
            self._metadata,
            listener,
            add_flags,
            digest,
        )

    def _find_bookies(self, wanted: FindBookies) -> dict[int, str]:
        """Return replacements for members of an ensemble, as far as there are other bookies."""
        spare = (
            name
            for name, bookie in sorted(self._bookies.items())
            if name not in wanted.ensemble and name not in wanted.failed and not bookie.failure
        )
        # There may be fewer bookies than indexes.
        return dict(zip(sorted(wanted.indexes), spare))  # noqa: B905

    async def close(self, handle: LedgerHandle) -> None:
        """Write a drained ledger's end into its metadata. LedgerError when it has another
        owner; after Unavailable it may be tried again.
        """
        assert handle.in_metadata is not None, "a ledger is closed once, by its creator"
        metadata, version = handle.in_metadata
        closed = metadata.closed(handle.last_add_confirmed, handle.length)
        try:
            await self._metadata.update(handle.ledger_id, closed, version)
        except (BadVersion, NotFound) as error:
            if not await self._is_closed_at(handle):
                raise LedgerError(
                    f"ledger {handle.ledger_id} was taken over while it was written: {error}"
                ) from error
        handle.in_metadata = None

    async def _is_closed_at(self, handle: LedgerHandle) -> bool:
        """Whether a ledger has the end that its writer knows: an attempt before went through."""
        try:
            found = (await self._read(handle.ledger_id)).metadata
        except NoSuchLedger:
            return False
        end = (handle.last_add_confirmed, handle.length)
        return found.is_closed and (found.last_entry_id, found.length) == end

    async def open_read(self, ledger_id: int) -> ReadHandle:
        """Opens a closed ledger for reading.

        Metadata that is gone or cannot be decoded loses the ledger for good: NoSuchEntry; so does a
        damaged node of which there is no copy: EntryDamaged. Any other LedgerError is a store that
        is away, and it helps to try again.
        """
        return self._reader(ledger_id, await self._metadata_of(ledger_id))

    async def open_compacted(self, ledger_id: int) -> tuple[ReadHandle, int, int]:
        """The same for a compacted ledger, with the id of its last entry and its bytes."""
        metadata = await self._metadata_of(ledger_id, COMPACTED.password)
        if not metadata.is_closed:
            raise NoSuchEntry(f"the compacted ledger {ledger_id} was never finished")
        return self._reader(ledger_id, metadata), metadata.last_entry_id, metadata.length

    async def compacted_topic(self, ledger_id: int) -> str | None:
        """The topic whose compacted ledger this is; None: it is none, or it is gone. Raises
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
        """Closes a ledger that another writer may still have; (last entry id, length in bytes).

        It may be called again when it has failed.
        """
        found = await self._read(ledger_id)
        metadata = found.metadata
        if metadata.is_closed:
            return metadata.last_entry_id, metadata.length
        version = found.version
        if metadata.state is not LedgerState.IN_RECOVERY:
            metadata = metadata.in_recovery()
            version = (await self._metadata.update(ledger_id, metadata, version)).version
        # A start has no ledger to recover.
        from pyxbroker.ledger import recovery

        reader = self._reader(ledger_id, metadata)
        await recovery.fence(reader)
        last_entry_id, length = await recovery.find_end(reader)
        await self._metadata.update(ledger_id, metadata.closed(last_entry_id, length), version)
        return last_entry_id, length

    async def check_password(self, ledger_id: int) -> None:
        """Raises WrongPassword for a closed ledger that this broker cannot read. What else may be
        wrong with it, its readers are told.
        """
        if self._first_made is not None and ledger_id >= self._first_made:
            return
        with contextlib.suppress(NoSuchLedger, MalformedLedgerMetadata, CorruptStore):
            await self._read(ledger_id)

    async def end_of(self, ledger_id: int) -> tuple[int, int]:
        """The same without closing it, where nobody can write: its end as it is stored."""
        metadata = (await self._read(ledger_id)).metadata
        if metadata.is_closed:
            return metadata.last_entry_id, metadata.length
        from pyxbroker.ledger.recovery import find_end

        return await find_end(self._reader(ledger_id, metadata))

    async def stored_entries(self, ledger_id: int) -> int:
        """Count the entries that bookies have of a ledger, whether or not metadata knows it."""
        from pyxbroker.ledger.recovery import stored_entries

        return await stored_entries(self._bookies.values(), ledger_id)

    async def delete(self, ledger_id: int) -> None:
        """Deletes a ledger's metadata; its bookies free the space when they notice.

        Where the store refuses it for now, `delete_again` does it: nobody names the ledger then.
        """
        try:
            await self._metadata.delete(ledger_id)
        except NotFound:
            log.info("the ledger was deleted already", ledger=ledger_id)
        except Unavailable as error:
            log.warning("a ledger is not deleted yet", ledger=ledger_id, error=error)
            self._undeleted.add(ledger_id)
            return
        self._undeleted.discard(ledger_id)
        for bookie in self._bookies.values():
            bookie.delete_ledger(ledger_id)

    async def delete_again(self) -> None:
        """Deletes the ledgers whose deletion was refused, as far as that goes well by now."""
        for ledger_id in sorted(self._undeleted):
            await self.delete(ledger_id)
            if ledger_id in self._undeleted:
                return

    async def stop(self) -> None:
        """Stops fetching ids."""
        await self._ids.close()

    async def _read(self, ledger_id: int, password: bytes | None = None) -> VersionedLedgerMetadata:
        """Its metadata. WrongPassword when it is not for this broker."""
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
                " that"
            )
        return found

    def _reader(self, ledger_id: int, metadata: LedgerMetadata) -> ReadHandle:
        segments = segments_of(metadata.ensembles, self._bookies, ledger_id)
        return ReadHandle(ledger_id, segments, metadata.write_quorum_size, self._digest(metadata))

    def _digest(self, metadata: LedgerMetadata) -> Digest:
        """A ledger keeps the digest that it was made with, whatever the setting says by now."""
        digest_type = metadata.digest_type or self._protection.digest_type
        if digest_type not in self._digests:
            self._digests[digest_type] = Digest(digest_type, self._protection.password)
        return self._digests[digest_type]


def _of_managed_ledger(name: str, cursor: str | None = None) -> dict[str, bytes]:
    """What a ledger's metadata says of whose it is."""
    custom = {"component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
    if cursor is not None:
        custom["pulsar/cursor"] = cursor.encode()
    return custom
