"""Change logs and copies of the embedded metadata store: a second record of every commit.

Both kinds of file have a header of one block, followed by records; docs/metadata.md describes their
purpose. Integers are little-endian, checksums are zlib's CRC-32 (of `123456789`: 0xCBF43926).
are for. All integers are little-endian, all checksums zlib's CRC-32 (of `123456789`: 0xCBF43926).
  header (4096 bytes)
  head (4096 bytes)
     0   8  `PYXMCHG1` (change log) or `PYXMCPY1` (copy)
     8   4  checksum of bytes 12 to 63
    12   4  format version of these files, 1
    16   4  format version of the database
    20   4  flags: 1, no transaction is missing between the previous change log and this one;
            2, this change log begins with the store: no other precedes it
    24   8  number: a copy and the change log that was started with it have the same one
    32   8  last transaction before this file
    40   8  creation time, milliseconds since 1970
    48  16  id of the store
   512   4  checksum of bytes 516 to 535; written when the store is closed cleanly, else 0
   516   4  zero
   520   8  last transaction of the store
   528   8  end of the records
  record, at a multiple of 8
     0   4  checksum of the store's id, then of all other bytes of the record
     4   4  length in bytes, a multiple of 8
     8   8  number of the transaction
    16   1  type: 1 changes; 2 end of a copy, which holds the store as of this transaction
    17   3  zero
    20   4  number of changes; in an end of a copy, of nodes
    24   8  offset up to which the file was synced when this record was added
  change, one after another, the last one padded with zeros
     0   1  kind: 1 node, 2 deletion (of the node and its counter), 3 counter, 4 damaged node,
            5 absent: a restore went back to a state without this node; no client deleted it
     1   3  zero
     4   4  length of the path
     8   4  length of the value
    12   8  number of the transaction that made it
    20   8  version of the node, or the counter's next number
    28   8  created, 36 modified, milliseconds since 1970
    44      path in UTF-8, value (of a damaged node: an error message)

A change log is appended to after each commit of the database, and synced when the store is idle. So
it is complete after a kill. After a power cut its last records may be missing, but the database has
their transactions. Of several changes of a path, the one with the highest transaction counts; of
changes in one transaction, the last.

The space after the last record is zeros, since the file is preallocated. An invalid record is what
a power cut left, and the records end before it. It is damage if a later record says that it was
synced, or if the file is a copy. Then the records after it count, too.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyxbroker.base.directories import (
    NO_SPACE,
    finish_file,
    open_file,
    temporary_of,
    with_path,
    write_fully,
)
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.metadata.store import CorruptStore, MetadataError

log = get_logger(__name__)

CHANGES_MAGIC = b"PYXMCHG1"
COPY_MAGIC = b"PYXMCPY1"
FILE_FORMAT = 1
HEAD_BYTES = 4096
CONTINUES = 1
BEGINS = 2

NODE, DELETED, COUNTER, DAMAGED, ABSENT = 1, 2, 3, 4, 5
CHANGES, COPY_END = 1, 2

ALLOCATED_BYTES = 1 << 20
"""A change log is allocated in units of this size, the next one while half a unit is left. So there
is room for some thousand changes when the disk is full."""

_CHUNK_BYTES = 1 << 16
_HEAD = struct.Struct("<8sIIIIQQQ16s")
_CLOSED_AT = 512
_CLOSED = struct.Struct("<IIQQ")
_RECORD = struct.Struct("<IIQB3xIQ")
_CHANGE = struct.Struct("<B3xII4q")


class Change(NamedTuple):
    """The effect of a transaction on one path. `version` is a counter's next number."""

    kind: int
    path: str
    transaction: int
    version: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    value: bytes = b""


class Head(NamedTuple):
    """The header of a file."""

    magic: bytes
    database_format: int
    flags: int
    number: int
    transaction: int
    begun_ms: int
    store_id: bytes

    @property
    def seed(self) -> int:
        """The initial value of record checksums, so that no node's value can pass for a record."""
        return zlib.crc32(self.store_id)


class Record(NamedTuple):
    """A valid record: its offset in the file, and its fields."""

    offset: int
    transaction: int
    type: int
    changes: int
    synced: int
    end: int


Data = bytes | bytearray  # of a file


class Content(NamedTuple):
    """A parsed file. `damaged` lists offsets where a record should be and none is valid."""

    head: Head
    data: Data
    records: list[Record]
    end: int
    damaged: list[int]

    @property
    def is_torn(self) -> bool:
        """True if anything but zeros follows the records."""
        return not _is_zero_from(self.data, self.end)


def encode_record(seed: int, transaction: int, changes: Iterable[Change], synced: int = 0) -> bytes:
    """Encode a record with the changes of one transaction; `seed` is that of the file's header."""
    parts: list[bytes] = []
    count = 0
    for kind, path, number, version, created_ms, modified_ms, value in changes:
        name = path.encode()
        parts += (
            _CHANGE.pack(kind, len(name), len(value), number, version, created_ms, modified_ms),
            name,
            value,
        )
        count += 1
    return _finish(seed, transaction, (CHANGES, count, synced), parts)


def encode_copy_end(seed: int, transaction: int, nodes: int) -> bytes:
    """Encode the last record of a copy."""
    return _finish(seed, transaction, (COPY_END, nodes, 0), [])


def _finish(seed: int, transaction: int, rest: tuple[int, int, int], body: list[bytes]) -> bytes:
    size = sum(map(len, body))
    body.append(bytes(-size % 8))
    head = _RECORD.pack(0, _RECORD.size + size + len(body[-1]), transaction, *rest)[4:]
    # Copying megabytes holds the GIL, so the parts are joined only once.
    checksum = zlib.crc32(head, seed)
    for part in body:
        checksum = zlib.crc32(part, checksum)
    return b"".join((checksum.to_bytes(4, "little"), head, *body))


def decode_changes(data: Data, record: Record) -> Iterator[Change]:
    """Yield the changes of a record whose checksum was verified."""
    view = memoryview(data)
    at = record.offset + _RECORD.size
    for _ in range(record.changes if record.type == CHANGES else 0):
        kind, path_bytes, value_bytes, number, version, created_ms, modified_ms = (
            _CHANGE.unpack_from(data, at)
        )
        at += _CHANGE.size
        path = str(view[at : at + path_bytes], "utf-8")
        at += path_bytes
        value = bytes(view[at : at + value_bytes])
        at += value_bytes
        yield Change(kind, path, number, version, created_ms, modified_ms, value)


def encode_head(head: Head) -> bytes:
    fields = (head.database_format, head.flags, head.number, head.transaction, head.begun_ms)
    packed = bytearray(_HEAD.pack(head.magic, 0, FILE_FORMAT, *fields, head.store_id))
    packed[8:12] = zlib.crc32(memoryview(packed)[12:]).to_bytes(4, "little")
    return bytes(packed) + bytes(HEAD_BYTES - len(packed))


def decode_head(path: Path, data: Data) -> Head:
    """Decode a header. Raises CorruptStore, and MetadataError for a newer format."""
    if len(data) < _HEAD.size:
        raise CorruptStore(f"the metadata file {path} is truncated")
    magic, checksum, version, *fields = _HEAD.unpack_from(data)
    if checksum != zlib.crc32(data[12 : _HEAD.size]) or magic not in (CHANGES_MAGIC, COPY_MAGIC):
        raise CorruptStore(f"the header of the metadata file {path} is damaged")
    if version > FILE_FORMAT:
        raise MetadataError(
            f"{path} was written by a newer pyxbroker (format {version}; this one reads up to"
            f" {FILE_FORMAT})"
        )
    return Head(magic, *fields)


def read_file(path: Path) -> Content:
    """Read the intact records of a file. Raises CorruptStore for a damaged header, and OSError.

    Damaged bytes between records are skipped and reported in `damaged`.
    """
    content = _parse(path, _read_used(path))
    if content.is_torn:
        # Possibly a value that ends with many zeros: parse all of the file.
        content = _parse(path, path.read_bytes())
    return content


def _parse(path: Path, data: Data) -> Content:
    head = decode_head(path, data)
    runs: list[list[Record]] = []  # separated by invalid bytes
    at = HEAD_BYTES
    transaction = 0
    while at >= 0:
        run = []
        while (record := _record_at(data, at, head.seed)) is not None:
            run.append(record)
            at = record.end
            transaction = max(transaction, record.transaction)
        runs.append(run)
        at = _next_record(data, at, head.seed, transaction)
    is_copy = head.magic == COPY_MAGIC
    synced = len(data) if is_copy else max((r.synced for run in runs for r in run), default=0)
    records: list[Record] = []
    damaged = []
    end = HEAD_BYTES
    for number, run in enumerate(runs):
        if number and end >= synced:
            break  # The following records were written before any of the invalid bytes were synced.
        if number:
            damaged.append(end)
        records += run
        end = run[-1].end if run else end
    if end < synced and not is_copy:
        damaged.append(end)
    return Content(head, data, records, end, damaged)


def _read_used(path: Path) -> bytearray:
    """Read a file without the blocks of zeros at its end, which are most of a change log."""
    # A bytearray, because joining hundreds of megabytes would hold the GIL.
    data = bytearray()
    used = 0
    zeros = bytes(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            data += chunk
            if chunk != zeros:
                used = len(data)
    del data[used:]
    return data


def _record_at(data: Data, at: int, seed: int) -> Record | None:
    if at + _RECORD.size > len(data):
        return None
    checksum, length, transaction, kind, count, synced = _RECORD.unpack_from(data, at)
    if not _RECORD.size <= length <= len(data) - at or length % 8:
        return None
    if zlib.crc32(memoryview(data)[at + 4 : at + length], seed) != checksum:
        return None
    return Record(at, transaction, kind, count, synced, at + length)


def _is_zero_from(data: Data, at: int) -> bool:
    """Return True if only zeros follow; the comparison is 100 times faster than rstrip."""
    return data[at:] == bytes(max(len(data) - at, 0))


def _next_record(data: Data, at: int, seed: int, transaction: int) -> int:
    """Return the offset of the next valid record with no earlier transaction, or -1."""
    if _is_zero_from(data, at):
        return -1
    end = len(data.rstrip(b"\0"))
    for offset in range(at + 8, end, 8):
        record = _record_at(data, offset, seed)
        if record is not None and record.transaction >= transaction:
            return offset
    return -1


def closed_at(path: Path) -> tuple[Head, int, int] | None:
    """Return (header, last transaction, end of the records) if the store was closed cleanly.

    Reads two blocks of the change log, whatever its size. Returns None also for a damaged header,
    which reading the whole file reports. Raises OSError.
    """
    with path.open("rb") as file:
        block = file.read(HEAD_BYTES)
        try:
            head = decode_head(path, block)
        except CorruptStore:
            return None
        if len(block) < HEAD_BYTES:
            return None
        checksum, _, transaction, end = _CLOSED.unpack_from(block, _CLOSED_AT)
        closed = block[_CLOSED_AT + 4 : _CLOSED_AT + _CLOSED.size]
        if not end or checksum != zlib.crc32(closed):
            return None
        file.seek(end)
        if file.read(_RECORD.size).strip(b"\0"):
            return None  # Records were added after that close.
    return head, transaction, end


class ChangeLog:
    """The current change log. Every method blocks; all but `close` raise OSError."""

    def __init__(self, path: Path, head: Head, descriptor: int, end: int) -> None:
        self.path = path
        self.head = head
        self.end = end
        self.synced = end
        self._fd = descriptor
        first = os.pread(descriptor, _RECORD.size, HEAD_BYTES)
        self._first_end = HEAD_BYTES
        if len(first) == _RECORD.size:
            self._first_end += _RECORD.unpack(first)[1]
        self._allocated = os.fstat(descriptor).st_size

    @classmethod
    def create(cls, path: Path, head: Head, first: bytes) -> ChangeLog:
        """Create the file with one record, durably and atomically."""
        temporary = temporary_of(path)
        descriptor = open_file(temporary, truncate=True)
        try:
            allocate(descriptor, HEAD_BYTES + len(first) + ALLOCATED_BYTES)
            write_fully(descriptor, encode_head(head) + first, 0)
            finish_file(descriptor, temporary, path)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise with_path(error, temporary) from None
            raise
        return cls(path, head, descriptor, HEAD_BYTES + len(first))

    @classmethod
    def append_to(cls, path: Path, head: Head, end: int, is_torn: bool = False) -> ChangeLog:
        """Continue a file whose records end at `end`; a torn record after them is removed."""
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if is_torn:
                os.ftruncate(descriptor, end)
            return cls(path, head, descriptor, end)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def added_bytes(self) -> int:
        """The size of the records after the first one, which repeats an earlier transaction."""
        return self.end - self._first_end

    @property
    def is_synced(self) -> bool:
        return self.synced == self.end

    def append(self, record: bytes) -> None:
        """Append a record. After an error nothing more may be appended."""
        try:
            write_fully(self._fd, record, self.end)
        except OSError as error:
            raise with_path(error, self.path) from None
        self.end += len(record)

    def sync(self) -> None:
        """Make all records durable, and allocate room for more."""
        if self._allocated - self.end < ALLOCATED_BYTES // 2:
            self._allocated = self.end + ALLOCATED_BYTES
            try:
                allocate(self._fd, self._allocated)
            except OSError as error:
                # Appends may still fit into the allocated part; otherwise they fail themselves.
                if error.errno not in NO_SPACE:
                    raise with_path(error, self.path) from None
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise with_path(error, self.path) from None
        self.synced = self.end

    def close_cleanly(self, transaction: int) -> None:
        """Record a clean close after this transaction. It needs no additional disk space."""
        self.sync()
        mark = bytearray(_CLOSED.pack(0, 0, transaction, self.end))
        mark[:4] = zlib.crc32(memoryview(mark)[4:]).to_bytes(4, "little")
        write_fully(self._fd, mark, _CLOSED_AT)
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file without a sync. Raises nothing."""
        try:
            os.close(self._fd)
        except OSError as error:
            log.warning("closing a change log failed", file=self.path, error=error)


def allocate(descriptor: int, size: int) -> None:
    """Allocate at least this size of blocks for a file, if the file system supports it."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
