"""Runs of entries and of acknowledged positions; entry.pxd describes their fields."""
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from pyxbroker.integers cimport put_varint, store_be32
from pyxbroker.native cimport (
    DIGEST_CRC32,
    DIGEST_CRC32C,
    DIGEST_HEADER_BYTES_MAX,
    DIGEST_MAC,
    native_api,
)

from array import array
from typing import NamedTuple

from cpython.pycapsule cimport PyCapsule_GetPointer

from pyxbroker.native cimport NATIVE_API_CAPSULE
from pyxbroker.turn_watch cimport turn_now_ns

from pyxbroker import _native

cdef extern from *:
    int __builtin_popcountll(unsigned long long) nogil

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

ENTRY_HEADER_SIZE_MAX = DIGEST_HEADER_BYTES_MAX


cdef class Digest:
    def __cinit__(self, int type, bytes password not None=b""):
        if _api.digest_prepare(&self.spec, type, password, len(password)) != 0:
            raise ValueError("%d is not the number of a digest type" % type)
        self.password = password

    @property
    def master_key(self):
        if self._master_key is None:
            from hashlib import sha1  # loads OpenSSL, which a standalone may never need

            self._master_key = sha1(b"ledger" + self.password).digest()
        return self._master_key

    @property
    def type(self):
        return self.spec.type

    @property
    def header_size(self):
        return self.spec.header_bytes


CRC32C = Digest(DIGEST_CRC32C)


class Position(NamedTuple):
    """Position of an entry: ledger id and entry id, ordered as such."""

    ledger_id: int
    entry_id: int

    def __str__(self):
        return f"{self.ledger_id}:{self.entry_id}"


cdef uint32_t _build_broker_metadata(uint8_t *out, uint64_t timestamp_ms, int64_t index) noexcept:
    """Write 0x0e02, the size of a BrokerEntryMetadata, and the message; return the total size."""
    cdef uint8_t *at = out + 6
    if timestamp_ms:
        at = put_varint(put_varint(at, 1 << 3), timestamp_ms)
    if index >= 0:
        at = put_varint(put_varint(at, 2 << 3), <uint64_t>index)
    out[0] = 0x0e
    out[1] = 0x02
    store_be32(out + 2, <uint32_t>(at - out - 6))
    return <uint32_t>(at - out)


cdef class AddFrames:
    def __cinit__(self, uint64_t size):
        self.data = <uint8_t *>malloc(size)
        if self.data == NULL:
            raise MemoryError("no memory to send a run of %d bytes" % size)
        self.size = size

    def __dealloc__(self):
        free(self.data)


cdef class EntryRun:
    def __cinit__(self, object owner=None):
        self.owner = owner
        self.ledger_id = -1
        self.first_entry_id = -1
        self.started_ns = turn_now_ns()

    @property
    def age_ms(self):
        return (turn_now_ns() - self.started_ns) // 1_000_000

    def __dealloc__(self):
        free(self.items)
        free(self.copied)

    cdef int append(self, uint64_t sequence_id, uint64_t highest_sequence_id, const uint8_t *data,
                    uint32_t length, uint32_t crc, int32_t num_messages) except -1:
        cdef uint32_t grown
        cdef void *moved
        cdef RunItem *item
        if self.count == self.capacity:
            grown = self.capacity * 4 if self.capacity else 2
            moved = realloc(self.items, grown * sizeof(RunItem))
            if moved == NULL:
                raise MemoryError("no memory for a run of entries")
            self.items = <RunItem *>moved
            self.capacity = grown
        item = &self.items[self.count]
        item.sequence_id = sequence_id
        item.highest_sequence_id = highest_sequence_id
        item.data = data
        item.length = length
        item.crc = crc
        item.num_messages = num_messages
        item.kind = 0
        self.count += 1
        self.bytes += length
        self.messages += num_messages if num_messages > 0 else 1
        return 0

    cdef int keep(self, bytes owner) except -1:
        if self.rebuilt is None:
            self.rebuilt = []
        self.rebuilt.append(owner)
        return 0

    cdef int note_transaction(self, uint64_t most, uint64_t least) except -1:
        if self.transactions is None:
            self.transactions = []
        self.transactions.append((self.count - 1, <int64_t>most, <int64_t>least))
        return 0

    @staticmethod
    def of(bytes data not None, object owner=None):
        """Create a run of one entry, for data that the broker itself writes."""
        return EntryRun.of_all([data], owner)

    @staticmethod
    def of_all(list data not None, object owner=None):
        """Create a run of an entry for each bytes object."""
        cdef EntryRun run = EntryRun(owner)
        cdef const uint8_t *start
        cdef bytes each
        run.data_owner = tuple(data)
        for each in data:
            start = each
            run.append(0, 0, start, <uint32_t>len(each), _api.crc32c(0, start, len(each)), 1)
        return run

    def without(self, indexes not None):
        """Return a run of the entries whose index is not in indexes, or None if none remains.

        It shares this run's data, so it must be copied or appended before that is freed.
        """
        cdef EntryRun rest = EntryRun(self.owner)
        cdef RunItem *item
        cdef uint32_t i
        rest.started_ns = self.started_ns
        rest.rebuilt = self.rebuilt
        for i in range(self.count):
            if i not in indexes:
                item = &self.items[i]
                rest.append(item.sequence_id, item.highest_sequence_id, item.data, item.length,
                            item.crc, item.num_messages)
                rest.items[rest.count - 1].kind = item.kind
        if self.transactions is not None:
            kept = [i for i in range(self.count) if i not in indexes]
            at = {index: i for i, index in enumerate(kept)}
            rest.transactions = [(at[index], most, least)
                                 for index, most, least in self.transactions if index in at] or None
        return rest if rest.count else None

    def add_broker_metadata(self, uint64_t timestamp_ms, int64_t index):
        """Prepend broker entry metadata to each entry, in a copy of the data. A time of 0 and an
        index below 0 are omitted.

        index is that of the message before the run. Return the index of the run's last message.
        """
        cdef uint8_t block[BROKER_METADATA_BYTES_MAX]
        cdef RunItem *item
        cdef uint8_t *copy
        cdef uint64_t at = 0
        cdef uint32_t i, size
        cdef bint counts = index >= -1
        copy = <uint8_t *>malloc(self.bytes + <uint64_t>self.count * BROKER_METADATA_BYTES_MAX)
        if copy == NULL:
            raise MemoryError("no memory for the metadata of a run of %d bytes" % self.bytes)
        for i in range(self.count):
            item = &self.items[i]
            if counts:
                index += item.num_messages if item.num_messages > 0 else 1
            size = _build_broker_metadata(block, timestamp_ms, index if counts else -1)
            memcpy(copy + at, block, size)
            memcpy(copy + at + size, item.data, item.length)
            item.crc = _api.crc32c_combine(_api.crc32c(0, block, size), item.crc, item.length)
            item.data = copy + at
            item.length += size
            at += item.length
            self.bytes += size
            self.broker_metadata_bytes += size
        free(self.copied)
        self.copied = copy
        self.data_owner = None
        self.frames = None
        return index

    def copy_data(self):
        """Copy the data, so that the run can outlive the read that brought it."""
        cdef uint32_t i
        cdef uint64_t at = 0
        if self.copied != NULL or self.data_owner is not None or self.frames is not None:
            return
        self.copied = <uint8_t *>malloc(self.bytes if self.bytes else 1)
        if self.copied == NULL:
            raise MemoryError("no memory to keep a run of %d bytes" % self.bytes)
        for i in range(self.count):
            memcpy(self.copied + at, self.items[i].data, self.items[i].length)
            self.items[i].data = self.copied + at
            at += self.items[i].length

    def release(self):
        """Free the copy, if any. The bookies have stored the data."""
        cdef uint32_t i
        free(self.copied)
        self.copied = NULL
        self.data_owner = None
        self.rebuilt = None
        self.frames = None
        for i in range(self.count):
            self.items[i].data = NULL

    @property
    def last_entry_id(self):
        return self.first_entry_id + self.count - 1

    def data(self, uint32_t i):
        """Return the bytes of entry i, valid until the current Turn ends or release(). Raise
        IndexError.
        """
        if i >= self.count or self.items[i].data == NULL:
            raise IndexError(i)
        return self.items[i].data[:self.items[i].length]

    def crc(self, uint32_t i):
        """Return the CRC32C of the bytes of entry i. Raise IndexError."""
        if i >= self.count:
            raise IndexError(i)
        return self.items[i].crc

    def sequence_ids(self):
        """Return [(sequence_id, highest_sequence_id)] of the run, for errors."""
        return [(self.items[i].sequence_id, self.items[i].highest_sequence_id)
                for i in range(self.count)]


cdef class EntryBatch:
    def __cinit__(self, int64_t ledger_id, int capacity, object reader):
        self.refs = <entry_ref *>malloc(<size_t>capacity * sizeof(entry_ref))
        if self.refs == NULL:
            raise MemoryError("no memory for a batch of %d entries" % capacity)
        self.capacity = capacity
        self.ledger_id = ledger_id
        self.data_offset = (<Digest>CRC32C).spec.header_bytes
        self.reader = reader

    def __dealloc__(self):
        if self.count > 0 and self.refs[0].pin != NULL:
            _api.unpin(self.refs, self.count)
        free(self.refs)

    @staticmethod
    def of_run(EntryRun run not None, bint has_ids=False):
        """Create a batch of the entries of a copied run. With has_ids they have the ids of the
        ledger that the run was appended to, else all have the id 0:0.

        The run must not be released.
        """
        cdef EntryBatch batch = EntryBatch(run.ledger_id if has_ids else 0,
                                           <int>max(run.count, 1), run)
        cdef uint32_t i
        batch.data_offset = 0
        for i in range(run.count):
            batch.refs[i].entry_id = run.first_entry_id + i if has_ids else 0
            batch.refs[i].data = run.items[i].data
            batch.refs[i].length = run.items[i].length
            batch.refs[i].from_disk = 0
            batch.refs[i].pin = NULL
        batch.count = <int>run.count
        return batch

    @staticmethod
    def join(list parts not None):
        """Join parts of batches of one ledger, each (batch, first index, count).

        The result keeps the batches alive. Raise ValueError for batches of different ledgers or
        packaging, and IndexError for entries outside of a batch.
        """
        cdef EntryBatch joined, source
        cdef int first, count
        cdef int total = 0
        for part in parts:
            total += part[2]
        source = parts[0][0]
        joined = EntryBatch(source.ledger_id, max(total, 1), [part[0] for part in parts])
        joined.data_offset = source.data_offset
        joined.aborted = source.aborted
        for part in parts:
            source, first, count = part
            if (source.ledger_id != joined.ledger_id
                    or source.data_offset != joined.data_offset):
                raise ValueError("joined batches must have the same ledger and packaging")
            if first < 0 or count < 0 or first + count > source.count:
                raise IndexError("entries %d to %d of %d" % (first, first + count, source.count))
            memcpy(joined.refs + joined.count, source.refs + first,
                   <size_t>count * sizeof(entry_ref))
            joined.count += count
        # The joined batches hold the pins.
        for first in range(joined.count):
            joined.refs[first].pin = NULL
        return joined

    @property
    def has_packaging(self):
        """True if the bytes of the entries start with the packaging of a bookie."""
        return self.data_offset > 0

    @property
    def byte_count(self):
        """Bytes of all entries, including packaging."""
        cdef int i
        cdef uint64_t total = 0
        for i in range(self.count):
            total += self.refs[i].length
        return total

    def size(self, int i):
        """Return the size of entry i in bytes, including packaging. Raise IndexError."""
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return self.refs[i].length

    def unpack(self, Digest digest not None):
        """Set where the data starts, and truncate the batch at the first entry that fails its
        digest. Return the number of remaining entries.

        CRC32C is not checked again for entries of the storage, which has done so.
        """
        cdef int intact = 0
        self.data_offset = digest.spec.header_bytes
        if not self.is_foreign and digest.spec.type not in (DIGEST_CRC32, DIGEST_MAC):
            return self.count
        self.is_foreign = False
        while intact < self.count and _api.digest_check(
                &digest.spec, <const uint8_t *>self.refs[intact].data, self.refs[intact].length):
            intact += 1
        if intact < self.count:
            if self.refs[intact].pin != NULL:
                _api.unpin(self.refs + intact, self.count - intact)
            self.count = intact
        return intact

    def __len__(self):
        return self.count

    def entry_id(self, int i):
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return self.refs[i].entry_id

    def data(self, int i):
        """Return the data of entry i, without packaging. Raise IndexError or ValueError."""
        cdef entry_ref *ref
        if i < 0 or i >= self.count:
            raise IndexError(i)
        ref = &self.refs[i]
        if ref.length < self.data_offset:
            raise ValueError("entry %d:%d is shorter than its packaging"
                             % (self.ledger_id, ref.entry_id))
        return (<const uint8_t *>ref.data + self.data_offset)[:ref.length - self.data_offset]

    def packaged(self, int i):
        """Return the stored bytes of entry i, including packaging. Raise IndexError."""
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return (<const uint8_t *>self.refs[i].data)[:self.refs[i].length]


cdef class AckRun:
    def __dealloc__(self):
        free(self.items)
        free(self.words)

    cdef int append(self, AckItem *item, const int64_t *words, uint32_t count) except -1:
        cdef int grown
        cdef void *moved
        cdef uint32_t i
        while count and words[count - 1] == 0:
            count -= 1
        item.left = 0
        item.first_word = self.words_count
        item.word_count = count
        if count:
            for i in range(count):
                item.left += __builtin_popcountll(<uint64_t>words[i])
            self._append_words(words, count)
            self.partial += 1
        if self.count == self.capacity:
            grown = self.capacity * 4 if self.capacity else 4
            moved = realloc(self.items, grown * sizeof(AckItem))
            if moved == NULL:
                raise MemoryError("no memory for the positions of an ack")
            self.items = <AckItem *>moved
            self.capacity = grown
        self.items[self.count] = item[0]
        self.count += 1
        return 0

    cdef int _append_words(self, const int64_t *words, uint32_t count) except -1:
        cdef uint32_t grown = self.words_capacity if self.words_capacity else 4
        cdef void *moved
        while grown < self.words_count + count:
            grown *= 2
        if grown != self.words_capacity:
            moved = realloc(self.words, <size_t>grown * 8)
            if moved == NULL:
                raise MemoryError("no memory for the ack sets of an ack")
            self.words = <uint64_t *>moved
            self.words_capacity = grown
        memcpy(self.words + self.words_count, words, <size_t>count * 8)
        self.words_count += count
        return 0

    def __len__(self):
        return self.count

    def position(self, int i):
        """Return (ledger_id, entry_id, number of unacknowledged messages of the batch). Raise
        IndexError.
        """
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return self.items[i].ledger_id, self.items[i].entry_id, self.items[i].left

    def batch_size(self, int i):
        """Return the number of messages that a position names for its batch, 0 if it names none.
        Raise IndexError.
        """
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return self.items[i].batch_size

    def ack_set(self, int i):
        """Return the ack set of a position as signed 64-bit words. Raise IndexError."""
        if i < 0 or i >= self.count:
            raise IndexError(i)
        return [<int64_t>self.words[self.items[i].first_word + n]
                for n in range(self.items[i].word_count)]

    @staticmethod
    def of(positions):
        """Create a run of whole entries from (ledger_id, entry_id) pairs."""
        cdef AckRun run = AckRun()
        for ledger_id, entry_id in positions:
            run.add(ledger_id, entry_id)
        return run

    def add(self, int64_t ledger_id, int64_t entry_id, ack_set=(), int32_t batch_size=0):
        """Add a position; ack_set has a set bit for each unacknowledged message of a batch."""
        cdef AckItem item
        cdef const int64_t[::1] view
        item.ledger_id = ledger_id
        item.entry_id = entry_id
        item.batch_index = -1
        item.batch_size = batch_size
        if not ack_set:
            self.append(&item, NULL, 0)
            return
        words = array("q", ack_set)
        view = words
        self.append(&item, &view[0], <uint32_t>len(words))
