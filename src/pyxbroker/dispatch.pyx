"""A dispatch round's loop over entries: permits, what is left out, one consumer's frames."""
from libc.math cimport ceil
from libc.stdint cimport uint8_t

from pyxbroker.ackset cimport bits_below
from pyxbroker.buffers cimport OutVector
from pyxbroker.commands cimport (
    ACK_SET_WORD_BYTES_MAX,
    MESSAGE_HEADER_BYTES_MAX,
    MetadataPeek,
    build_message_header,
    peek_metadata,
)
from pyxbroker.connection cimport OUT_PENDING_DISPATCH
from pyxbroker.frames cimport broker_metadata_size, payload_metadata
from pyxbroker.native cimport entry_ref

from typing import NamedTuple

cdef double AVERAGE_WEIGHT = 0.5        # of the newest delivery among all before it


cdef class ConsumerState:
    """Permits, deliveries and unacknowledged entries of one consumer."""

    def __init__(self, Connection connection not None, uint64_t consumer_id,
                 int32_t partition=-1):
        self.connection = connection
        self.consumer_id = consumer_id
        self.partition = partition
        self.messages_per_entry = 1.0
        self.pending = {}

    @property
    def can_deliver(self):
        """True when the consumer may get entries and its connection takes more bytes."""
        return self._can_take()

    @property
    def is_blocked(self):
        """It must acknowledge something before it gets more."""
        return self.unacked_max > 0 and self.unacked_messages >= self.unacked_max

    cdef bint _can_take(self) noexcept:
        if self.unacked_max > 0 and self.unacked_messages >= self.unacked_max:
            return False
        return self.permits > 0 and not self.closed and self.connection.can_deliver()

    def worth_reading(self, int entries_max, int64_t bytes_max):
        """(entries, bytes) to read for it: no more than its permits and its connection take now.

        What is read beyond that would be read once more when the client has asked for it.
        """
        cdef double entries = ceil(<double>max(self.permits, 1) / self.messages_per_entry)
        cdef int64_t room = OUT_PENDING_DISPATCH - self.connection.out.pending
        return (<int>min(entries, <double>entries_max), max(min(room, bytes_max), 1))

    def deliver(self, EntryBatch batch not None, int start, int stop, AckSet acks not None,
                dict redelivery_counts, list left_out not None):
        """Sends entries start..stop-1 of a batch while there are permits; returns where it stopped.

        Acknowledged entries are passed over. Entries that no client may see (markers, metadata that
        cannot be decoded) are passed over and appended to left_out as (ledger_id, entry_id).
        """
        cdef MetadataPeek peek
        cdef const uint8_t *metadata
        cdef uint32_t metadata_size
        cdef entry_ref *ref
        cdef int i = start
        cdef int sent = 0
        cdef int64_t before = self.permits
        cdef bint pinned = False
        cdef uint32_t offset = batch.data_offset
        cdef uint32_t count = 0
        cdef int32_t messages
        cdef bytes words                # of the messages left of a batch, None: all are
        while i < stop and self._can_take():
            ref = &batch.refs[i]
            i += 1
            if acks.contains(batch.ledger_id, ref.entry_id):
                continue
            if (ref.length < offset
                    or payload_metadata(ref.data + offset, ref.length - offset, &metadata,
                                        &metadata_size) != 0
                    or peek_metadata(metadata, metadata_size, &peek) != 0
                    or peek.marker_type >= 0):
                left_out.append((batch.ledger_id, ref.entry_id))
                continue
            if redelivery_counts:
                count = redelivery_counts.get((batch.ledger_id, ref.entry_id), 0)
            messages = max(peek.num_messages, 1)
            words = acks.left_of(batch.ledger_id, ref.entry_id)
            if words is not None:
                messages = bits_below(words, messages)
                if messages == 0:
                    left_out.append((batch.ledger_id, ref.entry_id))
                    continue
            self._send(batch, i - 1, messages, words, count, not pinned)
            pinned = True
            sent += 1
        if pinned:
            self.connection.group.mark_dirty(self.connection)
            self.messages_per_entry += ((before - self.permits) / <double>sent
                                        - self.messages_per_entry) * AVERAGE_WEIGHT
        return i

    cdef int _send(self, EntryBatch batch, int i, int32_t messages, bytes ack_set,
                   uint32_t redelivery_count, bint pin) except -1:
        cdef OutVector out = self.connection.out
        cdef entry_ref *ref = &batch.refs[i]
        cdef const uint8_t *data = ref.data + batch.data_offset
        cdef uint32_t size = ref.length - batch.data_offset
        # What another broker has put in front is for brokers.
        cdef uint32_t skipped = broker_metadata_size(data, size)
        cdef uint32_t words = 0 if ack_set is None else <uint32_t>(len(ack_set) // 8)
        cdef uint8_t *at = out.reserve(MESSAGE_HEADER_BYTES_MAX + words * ACK_SET_WORD_BYTES_MAX)
        cdef dict ledger
        if at == NULL:
            raise MemoryError("no memory for the header of a message")
        out.commit(build_message_header(
            at, self.consumer_id, <uint64_t>batch.ledger_id, <uint64_t>ref.entry_id,
            self.partition, redelivery_count,
            <const int64_t *><const char *>ack_set if words else NULL, words,
            self.consumer_epoch, size - skipped))
        out.reference(data + skipped, size - skipped, batch if pin else None)
        ledger = self.pending.get(batch.ledger_id)
        if ledger is None:
            ledger = self.pending[batch.ledger_id] = {}
        ledger[ref.entry_id] = messages
        self.unacked_messages += messages
        self.permits -= messages
        self.msg_out += messages
        self.bytes_out += size
        if redelivery_count:
            self.redelivered += messages
        return 0

    cdef int64_t _settle(self, int64_t ledger_id, int64_t entry_id) except -1:
        """Forgets one delivered entry; returns its messages, 0 when it was not pending here."""
        cdef dict ledger = self.pending.get(ledger_id)
        cdef int64_t messages
        if ledger is None:
            return 0
        messages = ledger.pop(entry_id, 0)
        if not ledger:
            del self.pending[ledger_id]
        self.unacked_messages -= messages
        return messages

    def settle(self, AckRun run not None):
        """Forgets the whole entries of an individual ack; returns the messages that they had."""
        cdef int i
        cdef int64_t messages = 0
        for i in range(run.count):
            if run.items[i].left == 0:
                messages += self._settle(run.items[i].ledger_id, run.items[i].entry_id)
        return messages

    def settle_all_but(self, int64_t ledger_id, int64_t entry_id, int64_t left):
        """Of a delivered batch only so many messages are left; returns how many were settled."""
        cdef dict ledger = self.pending.get(ledger_id)
        cdef int64_t messages
        if ledger is None or entry_id not in ledger:
            return 0
        messages = ledger[entry_id]
        if left >= messages:
            return 0
        ledger[entry_id] = left
        self.unacked_messages -= messages - left
        return messages - left

    def settle_one(self, int64_t ledger_id, int64_t entry_id):
        """Forgets one delivered entry; returns its messages, 0 when it was not pending here."""
        return self._settle(ledger_id, entry_id)

    def settle_up_to(self, int64_t ledger_id, int64_t entry_id):
        """Forgets every delivered entry up to a position; returns the messages that they had."""
        cdef int64_t before = self.unacked_messages
        for held in list(self.pending):
            if held > ledger_id:
                continue
            for entry in list(self.pending[held]):
                if held < ledger_id or entry <= entry_id:
                    self._settle(held, entry)
        return before - self.unacked_messages

    def is_pending(self, int64_t ledger_id, int64_t entry_id):
        cdef dict ledger = self.pending.get(ledger_id)
        return ledger is not None and entry_id in ledger

    def pending_positions(self):
        """Every delivered, unacknowledged position, in order."""
        return sorted((ledger_id, entry_id)
                      for ledger_id, entries in self.pending.items() for entry_id in entries)

    def clear_pending(self):
        """Forgets all deliveries: they will be sent again, to this consumer or to others."""
        self.pending = {}
        self.unacked_messages = 0


class Peeked(NamedTuple):
    """What peek_entry tells of an entry."""

    publish_time: int               # ms since the epoch
    num_messages: int
    is_batch: bool
    marker_type: int                # -1: a message, not a marker


def peek_entry(EntryBatch batch not None, int i):
    """The Peeked of an entry of a batch, or None when its metadata cannot be decoded."""
    cdef MetadataPeek peek
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    cdef entry_ref *ref
    if i < 0 or i >= batch.count:
        raise IndexError(i)
    ref = &batch.refs[i]
    if (ref.length < batch.data_offset
            or payload_metadata(ref.data + batch.data_offset, ref.length - batch.data_offset,
                                &metadata, &metadata_size) != 0
            or peek_metadata(metadata, metadata_size, &peek) != 0):
        return None
    return Peeked(peek.publish_time, max(peek.num_messages, 1), bool(peek.is_batch),
                  peek.marker_type)
