"""Inner loops of dispatch: choose consumers, skip entries, and build frames."""
from libc.math cimport ceil
from libc.stdint cimport INT64_MAX, uint8_t
from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from pyxbroker.ackset cimport PositionSet, count_bits
from pyxbroker.buffers cimport OutVector
from pyxbroker.commands cimport (
    ACK_SET_WORD_BYTES_MAX,
    MESSAGE_HEADER_BYTES_MAX,
    build_message_header,
    peek_broker_timestamp,
    peek_metadata,
)
from pyxbroker.connection cimport OUT_PENDING_DISPATCH
from pyxbroker.delayed_index cimport DelayedIndex
from pyxbroker.frames cimport broker_metadata_size, payload_metadata
from pyxbroker.keys cimport key_hash
from pyxbroker.native cimport entry_ref

from typing import NamedTuple

cdef double AVERAGE_WEIGHT = 0.5        # of the newest delivery in the moving average
cdef double KEYED_WEIGHT = 0.0625       # of the newest entry of a key in the moving average

cdef enum:
    # low 32 bits of a value in `pending`; the key hash is above them
    MESSAGES_MASK = 0x7fffffff

    SLOTS_GONE_MIN = 32             # smaller rotations are not compacted

cdef int64_t NO_CONSUMER = INT64_MAX    # level of a slot without eligible consumer

# Number of the current round, so that each connection pins a batch once per round.
cdef uint64_t _rounds = 0


cdef class UnackedCount:
    """Number of unacknowledged messages of a subscription or of the broker; see delivery.pxd."""

    def __init__(self, int64_t limit=0, UnackedCount whole=None, int64_t share=0):
        self.limit = limit
        self.whole = whole
        self.share = share

    cdef int add(self, int64_t messages) noexcept:
        self.messages += messages
        if self.limit > 0 and self.messages >= self.limit:
            self.blocked = True
        elif self.blocked and (self.limit <= 0 or self.messages * 2 < self.limit):
            self.blocked = False
        if self.whole is not None:
            self.whole.add(messages)
        return 0

    cdef bint stops(self) noexcept:
        if self.blocked:
            return True
        return (self.whole is not None and self.whole.blocked
                and self.messages > self.share)

    def set_limit(self, int64_t limit):
        """Change the limit. Consumers below the new limit resume immediately."""
        self.limit = limit
        self.blocked = limit > 0 and self.messages >= limit

    @property
    def is_stopped(self):
        """True if nothing more may be sent until messages are acknowledged."""
        return self.stops()


cdef class SentCount:
    """Counts of what was sent to the consumers of a subscription; see delivery.pxd."""

    def take(self):
        """Return (entries, messages, bytes) since the last call."""
        taken = (self.entries, self.messages, self.bytes)
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        return taken


cdef class Holders:
    """Index from delivered entries to the consumers that hold them; see delivery.pxd."""

    def __init__(self):
        self.consumers = [None]
        self.free = []
        self.ledgers = {}

    def add(self, ConsumerState consumer not None):
        """Start recording the deliveries to a consumer. It must not hold any entry yet."""
        if self.free:
            consumer.holder_slot = self.free.pop()
            self.consumers[consumer.holder_slot] = consumer
        else:
            consumer.holder_slot = len(self.consumers)
            self.consumers.append(consumer)
        consumer.holders = self

    def remove(self, ConsumerState consumer not None):
        """Remove a consumer whose deliveries are settled or revoked."""
        if consumer.holders is not self:
            return
        self.consumers[consumer.holder_slot] = None
        self.free.append(consumer.holder_slot)
        consumer.holders = None

    def clear(self):
        """Remove all records and return their dict, to be freed with free_items()."""
        cdef dict noted = self.ledgers
        self.ledgers = {}
        self.last_page = None
        return noted

    def holder(self, int64_t ledger_id, int64_t entry_id):
        """Return the consumer that may hold an entry, or None."""
        return self.find(ledger_id, entry_id)

    def __len__(self):
        """Return the number of held entries."""
        return sum([(<HeldPage>page).used
                    for pages in self.ledgers.values() for page in pages.values()])

    def settle(self, AckRun run not None, ConsumerState consumer not None, AckSet acks not None,
               dict redelivery_counts not None):
        """Apply an ACK that the cursor has already processed: release acknowledged entries and
        messages from the consumers that hold them.

        Returns the other consumers that held any of them, each once.
        """
        cdef dict others = {}
        cdef ConsumerState other
        cdef AckItem *item
        cdef int64_t held
        cdef int i
        for i in range(run.count):
            item = &run.items[i]
            if item.left:
                self._settle_batch(item, acks, redelivery_counts, others)
            else:
                held = consumer._settle(item.ledger_id, item.entry_id)
                if held:
                    consumer.acked += held & MESSAGES_MASK
                else:
                    # Another consumer than the current holder may have acknowledged the entry.
                    other = self.find(item.ledger_id, item.entry_id)
                    if other is not None and other._settle(item.ledger_id, item.entry_id):
                        others[other] = None
                if redelivery_counts:
                    redelivery_counts.pop((item.ledger_id, item.entry_id), None)
        others.pop(consumer, None)
        return list(others)

    cdef int _settle_batch(self, AckItem *item, AckSet acks, dict redelivery_counts,
                           dict others) except -1:
        cdef ConsumerState holder
        cdef bytes words
        if 0 < item.batch_size <= item.left:
            # The ACK acknowledges no message. The stored ack set may be much longer than this one.
            return 0
        holder = self.find(item.ledger_id, item.entry_id)
        if acks.contains(item.ledger_id, item.entry_id):
            # Together with earlier acknowledgements the batch is complete.
            redelivery_counts.pop((item.ledger_id, item.entry_id), None)
            if holder is not None and holder._settle(item.ledger_id, item.entry_id):
                others[holder] = None
            return 0
        words = acks.ack_set_words(item.ledger_id, item.entry_id)
        if holder is not None and words is not None and holder.reduce_pending(
                item.ledger_id, item.entry_id, count_bits(words, len(words) * 8)):
            others[holder] = None
        return 0

    cdef ConsumerState find(self, int64_t ledger_id, int64_t entry_id):
        cdef HeldPage page
        page = self._page(ledger_id, entry_id >> HELD_PAGE_BITS)
        if page is None:
            return None
        # Ids from the wire may be negative, so mask instead of using the remainder.
        return self.consumers[page.slots[entry_id & (HELD_PAGE_ENTRIES - 1)]]

    cdef HeldPage _page(self, int64_t ledger_id, int64_t number):
        cdef dict pages
        cdef HeldPage page
        if (self.last_page is not None and self.last_number == number
                and self.last_ledger_id == ledger_id):
            return self.last_page
        pages = self.ledgers.get(ledger_id)
        page = None if pages is None else pages.get(number)
        if page is not None:
            self.last_page = page
            self.last_number = number
            self.last_ledger_id = ledger_id
        return page

    cdef int hold(self, int64_t ledger_id, int64_t entry_id, int32_t slot) except -1:
        cdef int64_t number = entry_id >> HELD_PAGE_BITS
        cdef HeldPage page = self._page(ledger_id, number)
        cdef int at = entry_id & (HELD_PAGE_ENTRIES - 1)
        if page is None:
            page = HeldPage()
            self.ledgers.setdefault(ledger_id, {})[number] = page
        page.used += page.slots[at] == 0
        page.slots[at] = slot
        return 0

    cdef int release(self, int64_t ledger_id, int64_t entry_id, int32_t slot) except -1:
        cdef int64_t number = entry_id >> HELD_PAGE_BITS
        cdef HeldPage page = self._page(ledger_id, number)
        cdef int at = entry_id & (HELD_PAGE_ENTRIES - 1)
        cdef dict pages
        if page is None or page.slots[at] != slot:
            return 0
        page.slots[at] = 0
        page.used -= 1
        if page.used == 0:
            self.last_page = None
            pages = self.ledgers[ledger_id]
            del pages[number]
            if not pages:
                del self.ledgers[ledger_id]
        return 0


cdef class HeldPage:
    pass


cdef class ConsumerState:
    """Permits, deliveries and unacknowledged entries of one consumer."""

    def __init__(self, Connection connection not None, uint64_t consumer_id,
                 int32_t partition=-1):
        self.connection = connection
        self.consumer_id = consumer_id
        self.partition = partition
        self.consumer_epoch = -1
        self.messages_per_entry = 1.0
        self.tracks_pending = True
        self.pending = {}

    @property
    def permits(self):
        """Messages the client still accepts; negative after a batch that exceeded the permits."""
        return self.wanted

    @permits.setter
    def permits(self, int64_t messages):
        self.wanted = messages
        if messages > 0 and self.skip_reason == NO_PERMITS:
            self.rotation._stop_skipping(self)

    @property
    def can_deliver(self):
        """True if the consumer has permits and its connection accepts more bytes."""
        return self._can_take()

    @property
    def is_at_limit(self):
        """True once unacked_max was reached, until at most half of it are unacknowledged."""
        return self.at_limit

    @property
    def is_blocked(self):
        """True while the consumer, or another one of its subscription, must acknowledge messages
        first.
        """
        return self.at_limit or (self.unacked_total is not None and self.unacked_total.stops())

    def set_unacked_max(self, int64_t messages):
        """Change the limit. Below the new limit the consumer resumes immediately."""
        self.unacked_max = messages
        self.at_limit = messages > 0 and self.unacked_messages >= messages
        if not self.at_limit and self.skip_reason == AT_LIMIT:
            self.rotation._stop_skipping(self)

    cdef bint _can_take(self) noexcept:
        if self.wanted <= 0 or self.at_limit or self.closed:
            return False
        if self.unacked_total is not None and self.unacked_total.stops():
            return False
        return self.connection.can_deliver()

    def read_budget(self, int entries_max, int64_t bytes_max):
        """Return (entries, bytes) to read: what its permits and its connection accept now.

        Entries read beyond that would have to be read again.
        """
        cdef double entries = ceil(<double>max(self.wanted, 1) / self.messages_per_entry)
        cdef int64_t room = OUT_PENDING_DISPATCH - self.connection.out.pending
        return (<int>min(entries, <double>entries_max), max(min(room, bytes_max), 1))

    def deliver(self, EntryBatch batch not None, int start, int stop, AckSet acks not None,
                dict redelivery_counts, list undeliverable not None, DelayedIndex delayed=None,
                chunked=None):
        """Send entries start..stop-1 of a batch while there are permits. Return the index where it
        stopped.

        Acknowledged entries are skipped. Entries that clients never receive (markers, undecodable
        metadata) are skipped and appended to undeliverable as (ledger_id, entry_id). Entries that
        are not due yet are added to delayed, if given. chunked is a ChunkedMessages or None; it may
        assign a chunk to another consumer, or hold it back.
        """
        cdef MetadataPeek peek
        cdef ConsumerState taker
        cdef int64_t entry_id
        cdef int i = start
        cdef int sent = 0
        cdef int64_t before = self.wanted
        cdef bint pinned = False
        cdef uint32_t count = 0
        cdef int32_t messages
        cdef bytes words                # ack set of a batch; None: all messages
        while i < stop and self._can_take():
            entry_id = batch.refs[i].entry_id
            i += 1
            if acks.contains(batch.ledger_id, entry_id):
                continue
            if not peek_message(batch, i - 1, &peek):
                undeliverable.append((batch.ledger_id, entry_id))
                continue
            if delayed is not None and peek.deliver_at_time > delayed.now:
                delayed.add(peek.deliver_at_time, batch.ledger_id, entry_id)
                continue
            if redelivery_counts:
                count = redelivery_counts.get((batch.ledger_id, entry_id), 0)
            messages = peek.num_messages
            words = acks.trimmed_ack_set(batch.ledger_id, entry_id, &messages)
            if messages == 0:
                undeliverable.append((batch.ledger_id, entry_id))
                continue
            if chunked is not None and peek.num_chunks > 1 and peek.uuid_size:
                taker = chunked.consumer_for(peek.uuid[:peek.uuid_size],
                                             (batch.ledger_id, entry_id),
                                             peek.chunk_id == peek.num_chunks - 1, self)
                if taker is not self:
                    if taker is not None:
                        taker._send(batch, i - 1, messages, words, 0, count, True)
                        taker._mark_sent()
                        taker.chunks_out += 1
                    continue
            self._send(batch, i - 1, messages, words, 0, count, not pinned)
            self.chunks_out += peek.num_chunks > 1
            pinned = True
            sent += 1
        if pinned:
            self._mark_sent()
            self.messages_per_entry += ((before - self.wanted) / <double>sent
                                        - self.messages_per_entry) * AVERAGE_WEIGHT
        return i

    cdef void _mark_sent(self) except *:
        cdef timespec now
        clock_gettime(CLOCK_REALTIME, &now)
        self.last_sent_ms = now.tv_sec * 1000 + now.tv_nsec // 1000000
        if self.first_sent_ms == 0:
            self.first_sent_ms = self.last_sent_ms
        self.connection.group.mark_dirty(self.connection)

    cdef int _send(self, EntryBatch batch, int i, int32_t messages, bytes ack_set, int32_t hash,
                   uint32_t redelivery_count, bint pin) except -1:
        cdef OutVector out = self.connection.out
        cdef entry_ref *ref = &batch.refs[i]
        cdef const uint8_t *data = ref.data + batch.data_offset
        cdef uint32_t size = ref.length - batch.data_offset
        # Broker entry metadata is sent only to clients that support it.
        cdef uint32_t skipped = (0 if self.wants_broker_metadata
                                 else broker_metadata_size(data, size))
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
        self.wanted -= messages
        self.msg_out += messages
        self.bytes_out += size
        if self.sent_total is not None:
            self.sent_total.entries += 1
            self.sent_total.messages += messages
            self.sent_total.bytes += size
        if not self.tracks_pending:
            return 0
        ledger = self.pending.get(batch.ledger_id)
        if ledger is None:
            ledger = self.pending[batch.ledger_id] = {}
        ledger[ref.entry_id] = messages | (<int64_t>hash << 32)
        if self.holders is not None:
            self.holders.hold(batch.ledger_id, ref.entry_id, self.holder_slot)
        self.unacked_messages += messages
        if self.unacked_max > 0 and self.unacked_messages >= self.unacked_max:
            self.at_limit = True
        if self.unacked_total is not None:
            self.unacked_total.add(messages)
        if redelivery_count:
            self.redelivered += messages
        return 0

    cdef int64_t _settle(self, int64_t ledger_id, int64_t entry_id) except -1:
        """Settle one delivered entry; return its value in `pending`, or 0 if it was not pending."""
        cdef dict ledger = self.pending.get(ledger_id)
        cdef int64_t held
        if ledger is None:
            return 0
        held = ledger.pop(entry_id, 0)
        if not ledger:
            del self.pending[ledger_id]
        if held:
            self._on_settled(held)
            if self.holders is not None:
                self.holders.release(ledger_id, entry_id, self.holder_slot)
        return held

    cdef int _on_settled(self, int64_t held) except -1:
        self._reduce_unacked(held & MESSAGES_MASK)
        if self.keys is not None:
            self.keys.release(<int32_t>(held >> 32), self.slot)
        return 0

    cdef int _reduce_unacked(self, int64_t messages) except -1:
        self.unacked_messages -= messages
        if self.at_limit and self.unacked_messages * 2 <= self.unacked_max:
            self.at_limit = False
            if self.skip_reason == AT_LIMIT:
                self.rotation._stop_skipping(self)
        if self.unacked_total is not None:
            self.unacked_total.add(-messages)
        return 0

    def settle(self, AckRun run not None):
        """Settle the whole entries of an individual ACK; return the number of their messages."""
        cdef int i
        cdef int64_t held
        cdef int64_t messages = 0
        for i in range(run.count):
            if run.items[i].left != 0:
                continue
            held = self._settle(run.items[i].ledger_id, run.items[i].entry_id)
            messages += held & MESSAGES_MASK
        self.acked += messages
        return messages

    def reduce_pending(self, int64_t ledger_id, int64_t entry_id, int64_t left):
        """Reduce a delivered batch to `left` messages; return how many were settled."""
        cdef dict ledger = self.pending.get(ledger_id)
        cdef int64_t held, messages
        if ledger is None or entry_id not in ledger:
            return 0
        held = ledger[entry_id]
        messages = held & MESSAGES_MASK
        if left >= messages:
            return 0
        ledger[entry_id] = held - messages + left
        self._reduce_unacked(messages - left)
        return messages - left

    def settle_one(self, int64_t ledger_id, int64_t entry_id):
        """Settle one delivered entry; return the number of its messages, or 0 if it was not pending
        here.
        """
        return self._settle(ledger_id, entry_id) & MESSAGES_MASK

    def is_pending(self, int64_t ledger_id, int64_t entry_id):
        cdef dict ledger = self.pending.get(ledger_id)
        return ledger is not None and entry_id in ledger

    def key_hash_of(self, int64_t ledger_id, int64_t entry_id):
        """Return the key hash of a pending entry of a Key_Shared subscription, or 0."""
        cdef dict ledger = self.pending.get(ledger_id)
        return 0 if ledger is None else ledger.get(entry_id, 0) >> 32

    def pending_up_to(self, int64_t ledger_id, int64_t entry_id, Py_ssize_t count_max):
        """Yield the pending positions up to a position in lists of at most count_max. Entries
        settled during the iteration may be included.
        """
        for ledger in sorted(self.pending):
            if ledger > ledger_id:
                break
            # Copying a million ids is cheap compared to creating position tuples for them.
            entries = list(self.pending.get(ledger, ()))
            for at in range(0, len(entries), count_max):
                yield [(ledger, entry) for entry in entries[at:at + count_max]
                       if ledger < ledger_id or entry <= entry_id]

    def pending_positions(self):
        """Return all pending positions in order."""
        return sorted((ledger_id, entry_id)
                      for ledger_id, entries in self.pending.items() for entry_id in entries)

    def take_back(self):
        """Revoke all pending deliveries and return them."""
        cdef TakenBack taken = TakenBack()
        taken.pending = self.pending
        taken.keys = self.keys
        taken.slot = self.slot
        taken.holders = self.holders
        taken.holder_slot = self.holder_slot
        self.pending = {}
        self._reduce_unacked(self.unacked_messages)
        return taken

    def count_acked(self, AckRun run not None):
        """Count acknowledgements of a consumer whose deliveries are not stored as pending."""
        cdef int i
        cdef double messages = 0
        for i in range(run.count):
            messages += self.messages_per_entry if run.items[i].left == 0 else 1
        self.acked += <uint64_t>(messages + 0.5)

    def count_acked_entries(self, int64_t entries):
        """Count acknowledged entries, like count_acked."""
        self.acked += <uint64_t>(max(entries, 0) * self.messages_per_entry + 0.5)


cdef class TakenBack:
    """Revoked deliveries of a consumer that are not queued for redelivery yet."""

    def put_back(self, AckSet acks not None, PositionSet to, dict redelivery_counts,
                 int64_t entries_max):
        """Queue up to entries_max entries for redelivery: in `to`, or (None) with the entries of
        their key. Acknowledged entries are dropped. Redelivery counts are incremented if given.
        Return True when no entry is left.
        """
        cdef list some
        cdef int64_t entry_id, held, ledger_id
        while True:
            if not self.entries:
                if not self.pending:
                    return True
                self.ledger_id, self.entries = self.pending.popitem()
                continue
            if entries_max <= 0:
                return False
            some = [self.entries.popitem()
                    for _ in range(min(entries_max, <int64_t>len(self.entries)))]
            entries_max -= len(some)
            if self.keys is not None:
                # Sorted entries are inserted into the queue of their key in constant time.
                some.sort()
            ledger_id = self.ledger_id
            for entry, noted in some:
                entry_id = entry
                held = noted
                if self.keys is not None:
                    self.keys.release(<int32_t>(held >> 32), self.slot)
                if self.holders is not None:
                    self.holders.release(ledger_id, entry_id, self.holder_slot)
                if acks.contains(ledger_id, entry_id):
                    continue
                if self.keys is None:
                    to.put(ledger_id, entry_id)
                else:
                    self.keys.requeue(<int32_t>(held >> 32), ledger_id, entry_id)
                if redelivery_counts is not None:
                    position = (ledger_id, entry)
                    redelivery_counts[position] = redelivery_counts.get(position, 0) + 1

    def forget(self):
        """Return the dicts to free with free_items(). The entries will be read again."""
        return [self.pending, self.entries]


def free_items(list dicts not None, int64_t items_max):
    """Free up to items_max items of nested dicts that are no longer in use. Return True when none
    is left. Freeing a million items in one call takes too long.
    """
    cdef dict last
    while dicts:
        last = dicts[len(dicts) - 1]
        if not last:
            dicts.pop()
            continue
        if items_max <= 0:
            return False
        items_max -= 1
        value = last.popitem()[1]
        if isinstance(value, dict):
            dicts.append(value)
    return True


def find_consumer(list consumers not None, ConsumerState consumer not None):
    """Return the index of a consumer in a list, searched from the end, where the consumers of a
    disconnecting client usually are.
    """
    cdef Py_ssize_t at
    for at in range(len(consumers) - 1, -1, -1):
        if consumers[at] is consumer:
            return at
    raise ValueError("the consumer %d is not in the list" % consumer.consumer_id)


cdef class Rotation:
    """Round-robin order of the consumers of a Shared subscription; see delivery.pxd."""

    def __cinit__(self):
        self.consumers = []
        self.chosen = -1

    def __dealloc__(self):
        free(self.levels)

    def add(self, ConsumerState consumer not None):
        """Add a consumer after all others of its priority level."""
        if len(self.consumers) == self.width:
            self._rebuild()
        consumer.rotation = self
        consumer.rotation_slot = len(self.consumers)
        consumer.skip_reason = NO_PERMITS
        self.consumers.append(consumer)
        if consumer.wanted > 0:
            self._stop_skipping(consumer)

    def remove(self, ConsumerState consumer not None):
        """Remove a consumer."""
        if consumer.rotation is not self:
            return
        # An eligible consumer is in no other list.
        self._stop_skipping(consumer)
        self._set(consumer.rotation_slot, NO_CONSUMER)
        self.consumers[consumer.rotation_slot] = None
        self.gone += 1
        consumer.rotation = None
        if self.gone > SLOTS_GONE_MIN and self.gone * 2 > len(self.consumers):
            self._rebuild()

    def next(self):
        """Return the consumer for the next entries, or None if no consumer can receive any.

        Among the eligible consumers with the best priority level, this is the first one after the
        consumer served last, in order of arrival.
        """
        cdef ConsumerState consumer
        cdef Py_ssize_t slot
        self.chosen = -1
        while self.width and self.levels[1] != NO_CONSUMER:
            slot = self._find(self.turn_of, self.levels[1])
            if slot < 0:
                slot = self._find(0, self.levels[1])
            consumer = self.consumers[slot]
            self.eligibility_checks += 1
            if consumer._can_take():
                self.chosen = slot
                return consumer
            if consumer.wanted <= 0 or consumer.closed or consumer.connection.closed:
                self._skip(consumer, NO_PERMITS)
            elif consumer.unacked_total is not None and consumer.unacked_total.stops():
                return None     # the limit holds for all consumers
            elif consumer.at_limit:
                self._skip(consumer, AT_LIMIT)
            else:
                self._skip(consumer, SOCKET_FULL)
        return None

    def advance(self):
        """Advance past the consumer that next() returned."""
        self.turn_of = self.chosen + 1

    @property
    def is_limited(self):
        """True if next() returned None and a consumer waits for acknowledgements."""
        return self.at_limit > 0 or (self.width > 0 and self.levels[1] != NO_CONSUMER)

    def take_newly_full(self):
        """Return the connections that became too full for a consumer since the last call."""
        cdef list taken = self.newly_full
        self.newly_full = None
        return taken or ()

    def is_waiting_for(self, Connection connection not None):
        """Return True if a consumer is skipped until retry_connection() is called for its
        connection.
        """
        return self.full is not None and connection in self.full

    def retry_connection(self, Connection connection not None):
        """Stop skipping the consumers of a connection whose socket accepts more."""
        if self.full is not None:
            for consumer in list(self.full.get(connection, ())):
                self._stop_skipping(consumer)

    cdef Py_ssize_t _find(self, Py_ssize_t start, int64_t level) noexcept:
        """Find the first slot from `start` on with that level, which is the best one; -1 if none.
        """
        cdef Py_ssize_t node = start + self.width
        if start >= self.width:
            return -1
        while self.levels[node] != level:
            # Move to the right neighbour. From a right child that is the neighbour of its parent.
            while node & 1:
                node >>= 1
            if node == 0:
                return -1
            node += 1
        while node < self.width:
            node *= 2
            if self.levels[node] != level:
                node += 1
        return node - self.width

    cdef int _set(self, Py_ssize_t slot, int64_t level) noexcept:
        cdef Py_ssize_t node = slot + self.width
        cdef int64_t best
        self.levels[node] = level
        while node > 1:
            node >>= 1
            best = min(self.levels[2 * node], self.levels[2 * node + 1])
            if self.levels[node] == best:
                break
            self.levels[node] = best
        return 0

    cdef int _rebuild(self) except -1:
        """Grow the tree, and drop the slots of removed consumers."""
        cdef list consumers = [each for each in self.consumers if each is not None]
        cdef Py_ssize_t width = 1
        cdef Py_ssize_t slot, node
        cdef Py_ssize_t turn_of = 0
        cdef int64_t *levels
        cdef ConsumerState consumer
        while width <= len(consumers):
            width *= 2
        levels = <int64_t *>malloc(2 * width * sizeof(int64_t))
        if levels == NULL:
            raise MemoryError("no memory for the order of consumers")
        for slot in range(len(consumers)):
            consumer = consumers[slot]
            levels[width + slot] = self.levels[self.width + consumer.rotation_slot]
            turn_of += consumer.rotation_slot < self.turn_of
            consumer.rotation_slot = slot
        for slot in range(len(consumers), width):
            levels[width + slot] = NO_CONSUMER
        for node in range(width - 1, 0, -1):
            levels[node] = min(levels[2 * node], levels[2 * node + 1])
        free(self.levels)
        self.levels = levels
        self.width = width
        self.consumers = consumers
        self.gone = 0
        self.turn_of = turn_of
        self.chosen = -1
        return 0

    cdef int _skip(self, ConsumerState consumer, SkipReason why) except -1:
        """Skip a consumer until the reason is gone."""
        cdef Connection connection = consumer.connection
        if why == AT_LIMIT:
            self.at_limit += 1
        elif why == SOCKET_FULL:
            if self.full is None:
                self.full = {}
            if connection not in self.full:
                self.full[connection] = {}
                if self.newly_full is None:
                    self.newly_full = []
                self.newly_full.append(connection)
            self.full[connection][consumer] = None
        consumer.skip_reason = why
        return self._set(consumer.rotation_slot, NO_CONSUMER)

    cdef int _stop_skipping(self, ConsumerState consumer) except -1:
        cdef SkipReason why = consumer.skip_reason
        cdef dict others
        if why == NOT_SKIPPED:
            return 0
        if why == AT_LIMIT:
            self.at_limit -= 1
        elif why == SOCKET_FULL:
            others = self.full[consumer.connection]
            del others[consumer]
            if not others:
                del self.full[consumer.connection]
        consumer.skip_reason = NOT_SKIPPED
        return self._set(consumer.rotation_slot, consumer.priority_level)


cdef class BlockedConsumers:
    """Consumers that have permits but cannot receive: one for each cause. They are used to
    determine when delivery can resume.
    """

    def __init__(self):
        self.consumers = []

    cdef int add(self, ConsumerState consumer) except -1:
        if consumer.wanted <= 0 or consumer.closed:
            return 0
        if consumer.is_blocked:
            if not self.limited:
                self.limited = True
                self.consumers.append(consumer)
        elif consumer.connection is not self.last:
            # Consecutive consumers often share a connection.
            self.last = consumer.connection
            if self.connections is None:
                self.connections = set()
            if self.last not in self.connections:
                self.connections.add(self.last)
                self.consumers.append(consumer)
        return 0


def total_read_budget(list consumers not None, int entries_max, int64_t bytes_max,
                      BlockedConsumers blocked not None):
    """Return (entries, bytes) that the consumers can receive together, up to these limits."""
    cdef ConsumerState consumer
    cdef int64_t entries = 0
    cdef int64_t size = 0
    for consumer in consumers:
        if consumer._can_take():
            more, room = consumer.read_budget(entries_max, bytes_max)
            entries += more
            size += room
            if entries >= entries_max and size >= bytes_max:
                break
        else:
            blocked.add(consumer)
    return min(entries, <int64_t>entries_max), min(size, bytes_max)


def next_ready(list consumers not None, Py_ssize_t turn_of, KeyShared keys not None,
               BlockedConsumers blocked not None):
    """Return the index of the first consumer at or after turn_of that can receive a waiting entry
    now, or -1.
    """
    cdef Py_ssize_t count = len(consumers)
    cdef Py_ssize_t step, at
    cdef ConsumerState consumer
    for step in range(count):
        at = (turn_of + step) % count
        consumer = consumers[at]
        if consumer.slot >= keys.slots or keys.queues[consumer.slot].count == 0:
            continue
        if not keys.has_ready(consumer.slot):
            continue
        if consumer._can_take():
            return at
        blocked.add(consumer)
    return -1


cdef bint peek_message(EntryBatch batch, int i, MetadataPeek *peek) except -1:
    return (_peek(batch, i, peek)
            and peek.marker_type < 0
            and not (peek.has_txn and batch.aborted is not None
                     and _txn_of(peek) in batch.aborted))


cdef bint _peek(EntryBatch batch, int i, MetadataPeek *peek) noexcept:
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    cdef entry_ref *ref = &batch.refs[i]
    cdef uint32_t offset = batch.data_offset
    return (ref.length >= offset
            and payload_metadata(ref.data + offset, ref.length - offset, &metadata,
                                 &metadata_size) == 0
            and peek_metadata(metadata, metadata_size, peek) == 0)


cdef tuple _txn_of(const MetadataPeek *peek):
    return <int64_t>peek.txnid_most_bits, <int64_t>peek.txnid_least_bits


def transactions_of(EntryBatch batch not None):
    """Return [(index, (most bits, least bits), marker type)] of the entries of transactions. The
    marker type is -1 for messages.
    """
    cdef MetadataPeek peek
    cdef list found = []
    cdef int i
    for i in range(batch.count):
        if _peek(batch, i, &peek) and peek.has_txn:
            found.append((i, _txn_of(&peek), peek.marker_type))
    return found


# Send an entry to the owner of its key. Returns 0 if all its messages are acknowledged.
cdef int _dispatch_to(ConsumerState consumer, EntryBatch batch, int i, MetadataPeek *peek,
                      int32_t hash, AckSet acks, dict redelivery_counts) except -1:
    cdef uint32_t count = 0
    cdef bint first = consumer.pinned_in != _rounds
    cdef int32_t messages = peek.num_messages
    cdef bytes words = acks.trimmed_ack_set(batch.ledger_id, batch.refs[i].entry_id, &messages)
    if messages == 0:
        return 0
    if redelivery_counts:
        count = redelivery_counts.get((batch.ledger_id, batch.refs[i].entry_id), 0)
    consumer._send(batch, i, messages, words, hash, count, first)
    consumer.chunks_out += peek.num_chunks > 1
    consumer.keys.hold(hash, consumer.slot)
    consumer.messages_per_entry += (messages - consumer.messages_per_entry) * KEYED_WEIGHT
    if first:
        consumer.pinned_in = _rounds
        consumer._mark_sent()
    return 1


def dispatch_by_key(EntryBatch batch not None, list consumers not None, KeyShared keys not None,
                    AckSet acks not None, dict redelivery_counts, list undeliverable not None,
                    int64_t waiting_max, DelayedIndex delayed=None, bint again=False):
    """Send entries to the owners of their keys. Entries that cannot be sent wait in keys.

    consumers is indexed by slot; the first one is None. Stops when waiting_max entries wait, and
    returns the index where it stopped. Acknowledged entries are skipped, as are entries that
    clients never receive, which are appended to undeliverable. Entries that are not due yet are
    added to delayed, if given. `again` is set for entries that come from there; they precede other
    waiting entries.
    """
    global _rounds
    cdef MetadataPeek peek
    cdef ConsumerState consumer
    cdef int64_t entry_id
    cdef int32_t hash, slot
    cdef int i
    _rounds += 1
    for i in range(batch.count):
        if keys.waiting >= waiting_max:
            return i
        entry_id = batch.refs[i].entry_id
        if acks.contains(batch.ledger_id, entry_id):
            continue
        if not peek_message(batch, i, &peek):
            undeliverable.append((batch.ledger_id, entry_id))
            continue
        if delayed is not None and peek.deliver_at_time > delayed.now:
            delayed.add(peek.deliver_at_time, batch.ledger_id, entry_id)
            continue
        hash = key_hash(&peek, keys.hashes)
        slot = keys.owner(hash)
        if slot and keys.may_send(hash, slot):
            consumer = consumers[slot]
            if consumer._can_take():
                if not _dispatch_to(consumer, batch, i, &peek, hash, acks, redelivery_counts):
                    undeliverable.append((batch.ledger_id, entry_id))
                continue
        if again:
            keys.requeue(hash, batch.ledger_id, entry_id)
        else:
            keys.wait(hash, batch.ledger_id, entry_id)
    return batch.count


def dispatch_waiting(EntryBatch batch not None, list consumers not None, KeyShared keys not None,
                     AckSet acks not None, dict redelivery_counts, list undeliverable not None):
    """Send waiting entries that are first for their key; return how many stopped waiting.

    Acknowledged entries stop waiting. Entries without unacknowledged messages are appended to
    undeliverable. Entries that do not wait are skipped.
    """
    global _rounds
    cdef MetadataPeek peek
    cdef ConsumerState consumer
    cdef int64_t entry_id
    cdef int32_t hash, slot
    cdef int i
    cdef int gone = 0
    _rounds += 1
    for i in range(batch.count):
        if not peek_message(batch, i, &peek):
            continue
        entry_id = batch.refs[i].entry_id
        hash = key_hash(&peek, keys.hashes)
        if not keys.is_first(hash, batch.ledger_id, entry_id):
            continue
        if acks.contains(batch.ledger_id, entry_id):
            keys.remove_first(hash)
            gone += 1
            continue
        slot = keys.owner(hash)
        if slot == 0 or not keys.may_send_first(hash, slot):
            continue
        consumer = consumers[slot]
        if consumer._can_take():
            if not _dispatch_to(consumer, batch, i, &peek, hash, acks, redelivery_counts):
                undeliverable.append((batch.ledger_id, entry_id))
            keys.remove_first(hash)
            gone += 1
    return gone


def count_messages(EntryBatch batch not None, int start, int stop):
    """Count the messages of entries start..stop-1 of a batch, without markers."""
    cdef MetadataPeek peek
    cdef int i
    cdef int64_t messages = 0
    for i in range(max(start, 0), min(stop, <int>batch.count)):
        if peek_message(batch, i, &peek):
            messages += max(peek.num_messages, 1)
    return messages


def dispatch_without_queue(EntryBatch batch not None, int start, int stop, list consumers not None,
                           KeyShared keys not None):
    """Send entries start..stop-1 to the owners of their keys; return the number of messages that
    were dropped.

    consumers is indexed by slot; the first one is None. Entries neither wait nor are they held back
    for the order within a key.
    """
    global _rounds
    cdef MetadataPeek peek
    cdef ConsumerState consumer
    cdef int32_t slot, messages
    cdef bint first
    cdef int i
    cdef int64_t lost = 0
    _rounds += 1
    for i in range(max(start, 0), min(stop, <int>batch.count)):
        if not peek_message(batch, i, &peek):
            continue
        messages = max(peek.num_messages, 1)
        slot = keys.owner(key_hash(&peek, keys.hashes))
        consumer = consumers[slot] if slot else None
        if consumer is None or not consumer._can_take():
            lost += messages
            continue
        first = consumer.pinned_in != _rounds
        consumer._send(batch, i, messages, None, 0, 0, first)
        consumer.chunks_out += peek.num_chunks > 1
        if first:
            consumer.pinned_in = _rounds
            consumer._mark_sent()
    return lost


class Peeked(NamedTuple):
    """Metadata of an entry, as peek_entry returns it."""

    publish_time: int               # ms since the epoch
    num_messages: int
    is_batch: bool
    marker_type: int                # -1: not a marker
    broker_time: int = 0            # ms since the epoch; 0: no broker timestamp
    # most and least bits of the id of its transaction; None: not in one
    transaction: tuple[int, int] | None = None

    @property
    def time(self) -> int:
        """Publish time: the broker's timestamp if present, else the client's."""
        return self.broker_time or self.publish_time


def peek_entry(EntryBatch batch not None, int i):
    """Return the metadata of an entry, or None if it cannot be decoded. Raise IndexError."""
    cdef MetadataPeek peek
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    cdef entry_ref *ref
    cdef const uint8_t *data
    cdef uint32_t block
    if i < 0 or i >= batch.count:
        raise IndexError(i)
    ref = &batch.refs[i]
    if ref.length < batch.data_offset:
        return None
    data = ref.data + batch.data_offset
    if (payload_metadata(data, ref.length - batch.data_offset, &metadata, &metadata_size) != 0
            or peek_metadata(metadata, metadata_size, &peek) != 0):
        return None
    block = broker_metadata_size(data, ref.length - batch.data_offset)
    return Peeked(peek.publish_time, max(peek.num_messages, 1), bool(peek.is_batch),
                  peek.marker_type, peek_broker_timestamp(data + 6, block - 6) if block else 0,
                  _txn_of(&peek) if peek.has_txn else None)
