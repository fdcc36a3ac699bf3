"""The metadata of a ledger: BookKeeper's LedgerMetadata, its encodings, and its storage.

The stored value begins with ASCII `BookieMetadataFormatVersion\\t<n>\\n`. Then

  n = 3  a varint length and a binary LedgerMetadataFormat message (what we write)
  n = 2  the same message as protobuf text
  n = 1  lines: write quorum, ensemble size, length; per ensemble its first entry and its bookies,
         separated by tabs; last `<last entry>\\tCLOSED`, where -102 means that it is in recovery

All changes of a stored record are compare-and-set on the node's version. The source of these facts
is BookKeeper's LedgerMetadataSerDe.
"""

from __future__ import annotations

import asyncio
import enum
import os
from collections.abc import AsyncIterator, Awaitable, Mapping
from types import MappingProxyType
from typing import Any

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.varint import encode_varint
from pyxbroker.metadata import paths
from pyxbroker.metadata.store import (
    MUST_NOT_EXIST,
    GetResult,
    MetadataError,
    MetadataStore,
    NotFound,
    Put,
    PutResult,
)

INVALID_ENTRY_ID = -1
NAMED_IN_STORE = "pyxbroker/named-in-store"
"""The custom metadata of a ledger that only nodes of the metadata store with its own metadata can
name. Ledgers of clusters that only share the bookies lack it."""

_VERSION_KEY = b"BookieMetadataFormatVersion\t"
_IN_RECOVERY_ENTRY_ID = -102


class LedgerState(enum.IntEnum):
    """The state of a ledger: open for its writer, in recovery by another client, or closed."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(enum.IntEnum):
    """The kind of digest that each entry of a ledger has (digest.h)."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4
    MAC = HMAC  # as the client's setting has it


class MalformedLedgerMetadata(MetadataError):
    """A stored value is not the metadata of a ledger."""


class LedgerMetadata(NamedTuple):
    """A ledger as the metadata store knows it. Treat it as immutable; `with_...` make new ones.

    `ensembles` maps the first entry of each segment to its bookie ids, in ascending order.
    `last_entry_id` and `length` (bytes) are -1 and 0 until the ledger is closed.
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    ensembles: Mapping[int, tuple[str, ...]]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType | None = DigestType.CRC32C
    password: bytes = b""
    custom_metadata: Mapping[str, bytes] = MappingProxyType({})
    ctime_ms: int | None = None
    c_token: int = 0

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def last_ensemble(self) -> tuple[int, tuple[str, ...]]:
        """The first entry and the bookies of the last segment."""
        first_entry_id = max(self.ensembles)
        return first_entry_id, self.ensembles[first_entry_id]

    def ensemble_of(self, entry_id: int) -> tuple[str, ...]:
        """Return the bookies of the segment that an entry belongs to."""
        first_entry_id = max(first for first in self.ensembles if first <= entry_id)
        return self.ensembles[first_entry_id]

    def with_ensemble(self, first_entry_id: int, bookies: tuple[str, ...]) -> LedgerMetadata:
        """Return metadata with other bookies for the entries from `first_entry_id` on."""
        ensembles = {**self.ensembles, first_entry_id: bookies}
        return self._replace(ensembles=dict(sorted(ensembles.items())))

    def in_recovery(self) -> LedgerMetadata:
        return self._replace(state=LedgerState.IN_RECOVERY)

    def closed(self, last_entry_id: int, length: int) -> LedgerMetadata:
        return self._replace(state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length)


class VersionedLedgerMetadata(NamedTuple):
    """The stored metadata of a ledger, and the version that the next update has to expect."""

    metadata: LedgerMetadata
    version: int


def encode(metadata: LedgerMetadata) -> bytes:
    """Encode metadata in the current format, version 3."""
    message = _message_type()(
        quorumSize=metadata.write_quorum_size,
        ensembleSize=metadata.ensemble_size,
        ackQuorumSize=metadata.ack_quorum_size,
        length=metadata.length,
        lastEntryId=metadata.last_entry_id,
        state=int(metadata.state),
        cToken=metadata.c_token,
    )
    if metadata.digest_type is not None:
        message.digestType = int(metadata.digest_type)
        message.password = metadata.password
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    for first_entry_id, bookies in sorted(metadata.ensembles.items()):
        message.segment.add(ensembleMember=bookies, firstEntryId=first_entry_id)
    for key, value in metadata.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    body = message.SerializeToString()
    return b"%s3\n%s%s" % (_VERSION_KEY, encode_varint(len(body)), body)


def decode(value: bytes) -> LedgerMetadata:
    """Decode metadata in any of the three formats."""
    if not value.startswith(_VERSION_KEY):
        raise MalformedLedgerMetadata(f"ledger metadata begins with {value[:40]!r}")
    version, newline, body = value[len(_VERSION_KEY) :].partition(b"\n")
    decoder = _DECODERS.get(version)
    if decoder is None or not newline:
        raise MalformedLedgerMetadata(f"ledger metadata has the unknown version {version[:20]!r}")
    try:
        found = decoder(body)
        if min(found.ensembles, default=1) > 0:
            raise ValueError("it names no bookies for the first entry")
        return found
    except (ValueError, IndexError, RecursionError) as error:
        raise MalformedLedgerMetadata(f"ledger metadata cannot be read: {error}") from error


def _message_type() -> Any:
    # Imported with the first ledger: a start needs none, and protobuf would take a tenth of it.
    from pyxbroker.proto import DataFormats

    return DataFormats.LedgerMetadataFormat


def _decode_binary(body: bytes) -> LedgerMetadata:
    from google.protobuf.message import DecodeError

    length, offset = _decode_varint(body)
    if offset + length > len(body):
        raise ValueError(f"{length} bytes were promised, {len(body) - offset} are there")
    try:
        message = _message_type().FromString(body[offset : offset + length])
    except DecodeError as error:
        raise ValueError(str(error)) from error
    return _from_message(message)


def _decode_text(body: bytes) -> LedgerMetadata:
    from google.protobuf import text_format

    message = _message_type()()
    try:
        text_format.Parse(body.decode(), message, allow_unknown_field=True)
    except text_format.ParseError as error:
        raise ValueError(str(error)) from error
    return _from_message(message)


def _decode_lines(body: bytes) -> LedgerMetadata:
    write_quorum_size, ensemble_size, length, *lines = body.decode().rstrip("\n").split("\n")
    ensembles: dict[int, tuple[str, ...]] = {}
    state, last_entry_id = LedgerState.OPEN, INVALID_ENTRY_ID
    for line in lines:
        first, *bookies = line.split("\t")
        if bookies != ["CLOSED"]:
            ensembles[_number(first, 63)] = tuple(bookies)
        elif _number(first, 63) == _IN_RECOVERY_ENTRY_ID:
            state = LedgerState.IN_RECOVERY
        else:
            state, last_entry_id = LedgerState.CLOSED, _number(first, 63)
    return LedgerMetadata(
        ensemble_size=_number(ensemble_size, 31),
        write_quorum_size=_number(write_quorum_size, 31),
        ack_quorum_size=_number(write_quorum_size, 31),
        ensembles=ensembles,
        state=state,
        last_entry_id=last_entry_id,
        length=_number(length, 63),
        digest_type=None,
    )


def _number(text: str, bits: int) -> int:
    """Return a number, if it is within the range of the other formats. Raises ValueError."""
    value = int(text)
    if not -(1 << bits) <= value < 1 << bits:
        raise ValueError(f"{text[:40]} is out of range")
    return value


_DECODERS = {b"1": _decode_lines, b"2": _decode_text, b"3": _decode_binary}


def _from_message(message: Any) -> LedgerMetadata:
    if not message.IsInitialized():
        raise ValueError(f"it lacks {', '.join(message.FindInitializationErrors())}")
    return LedgerMetadata(
        ensemble_size=message.ensembleSize,
        write_quorum_size=message.quorumSize,
        ack_quorum_size=(
            message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize
        ),
        ensembles={
            each.firstEntryId: tuple(map(_text, each.ensembleMember)) for each in message.segment
        },
        state=LedgerState(message.state),
        last_entry_id=message.lastEntryId if message.HasField("lastEntryId") else INVALID_ENTRY_ID,
        length=message.length,
        digest_type=DigestType(message.digestType) if message.HasField("digestType") else None,
        password=message.password,
        custom_metadata={_text(each.key): each.value for each in message.customMetadata},
        ctime_ms=message.ctime if message.HasField("ctime") else None,
        c_token=message.cToken,
    )


def _text(value: str | bytes) -> str:
    """Return text; protobuf returns bytes if they are not UTF-8. Raises ValueError."""
    if isinstance(value, str):
        return value
    raise ValueError(f"{value[:40]!r} is not UTF-8")


def _decode_varint(data: bytes) -> tuple[int, int]:
    """Return the value of a varint and its length: at most five bytes, as for protobuf lengths."""
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, index + 1
    raise ValueError("the length of the message is not a varint")


class LedgerMetadataStore:
    """The ledgers of a metadata store. Each operation is issued by the call, as by the store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.ensemble_changes = 0
        """Changes of ensembles that writers and recoveries have made with this object."""

    def new_token(self) -> int:
        """Return the c_token of a new ledger.

        It makes the stored value unlike any other, which lets a store that had to repeat the write
        over a new connection see that its first attempt went through.
        """
        return int.from_bytes(os.urandom(8), "little") >> 1

    def creation(self, ledger_id: int, metadata: LedgerMetadata) -> Put:
        """Return the write that stores a new ledger; BadVersion means that the id is taken."""
        return Put(paths.ledger(ledger_id), encode(metadata), MUST_NOT_EXIST)

    def read(self, ledger_id: int) -> Awaitable[VersionedLedgerMetadata]:
        """Read the metadata of a ledger. Raises NotFound, MalformedLedgerMetadata."""
        return self._read(ledger_id, self._store.get(paths.ledger(ledger_id)))

    async def _read(
        self, ledger_id: int, answer: asyncio.Future[GetResult | None]
    ) -> VersionedLedgerMetadata:
        result = await answer
        if result is None:
            raise NotFound(f"ledger {ledger_id} does not exist")
        return VersionedLedgerMetadata(decode(result.value), result.version)

    def update(
        self, ledger_id: int, metadata: LedgerMetadata, expected_version: int
    ) -> asyncio.Future[PutResult]:
        """Replace the metadata if it still has the expected version. Raises BadVersion."""
        return self._store.put(*self.change(ledger_id, metadata, expected_version))

    def change(self, ledger_id: int, metadata: LedgerMetadata, expected_version: int) -> Put:
        """Return the write of `update`."""
        return Put(paths.ledger(ledger_id), encode(metadata), expected_version)

    def delete(self, ledger_id: int, expected_version: int | None = None) -> asyncio.Future[None]:
        """Delete the metadata of a ledger. Raises NotFound."""
        return self._store.delete(paths.ledger(ledger_id), expected_version)

    async def ledger_ids(self) -> AsyncIterator[int]:
        """Yield all ledger ids in ascending order. Memory holds one listing at a time."""
        for digits in (2, 3):
            names = await self._store.children(paths.LEDGERS)
            for name in names:
                if len(name) == digits and name.isdecimal():
                    below = f"{paths.LEDGERS}/{name}"
                    async for ledger_id in self._below(below, levels=1 if digits == 2 else 3):
                        yield ledger_id

    async def newest(self, count: int) -> AsyncIterator[int]:
        """Yield the highest ids of short ledger ids, at most `count`."""
        for name in reversed(await self._store.children(paths.LEDGERS)):
            if len(name) != 2 or not name.isdecimal():
                continue
            above = f"{paths.LEDGERS}/{name}"
            for below in reversed(await self._store.children(above)):
                for leaf in reversed(await self._store.children(f"{above}/{below}")):
                    ledger_id = paths.ledger_id(f"{above}/{below}/{leaf}")
                    if ledger_id is not None:
                        yield ledger_id
                        count -= 1
                    if count == 0:
                        return

    async def _below(self, path: str, levels: int) -> AsyncIterator[int]:
        for name in await self._store.children(path):
            child = f"{path}/{name}"
            if levels > 0:
                async for ledger_id in self._below(child, levels - 1):
                    yield ledger_id
            else:
                found = paths.ledger_id(child)
                if found is not None:
                    yield found
