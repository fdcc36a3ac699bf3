"""A dispatch round's loops over entries: who gets them, what is left out, the frames."""
from libc.math cimport ceil
from libc.stdint cimport INT64_MAX, uint8_t
from libc.stdlib cimport free, malloc
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from pyxbroker.ackset cimport PositionSet, bits_below
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

cdef double AVERAGE_WEIGHT = 0.5        # of the newest delivery among all before it
cdef double DEALT_WEIGHT = 0.0625       # of the newest entry of a key

cdef enum:
    MESSAGES_MASK = 0x7fffffff      # of what pending holds; the key's hash is above 32 bits

    SLOTS_GONE_MIN = 32             # a rotation of so few is not worth tidying

cdef int64_t NOBODY = INT64_MAX         # a level that no consumer has

# Numbers the rounds of dealing, so that each connection pins a batch once in each.
cdef uint64_t _rounds = 0


cdef class UnackedCount:
    """Messages sent and not acknowledged, of a subscription or the broker; see delivery.pxd."""

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
        """A policy changed: consumers below the new limit go on at once."""
        self.limit = limit
        self.blocked = limit > 0 and self.messages >= limit

    @property
    def is_stopped(self):
        """Nothing more may be sent until something is acknowledged."""
        return self.stops()


cdef class SentCount:
    """What was sent to the consumers of a subscription; see delivery.pxd."""

    def take(self):
        """(entries, messages, bytes) since it was asked last."""
        taken = (self.entries, self.messages, self.bytes)
        self.entries = 0
        self.messages = 0
        self.bytes = 0
        return taken


cdef class Holders:
    """Who has what is delivered and not settled, of one subscription; see delivery.pxd."""

    def __init__(self):
        self.consumers = [None]
        self.free = []
        self.ledgers = {}

    def add(self, ConsumerState consumer not None):
        """What is sent to a consumer from now on is noted; it must have nothing yet."""
        if self.free:
            consumer.holder_slot = self.free.pop()
            self.consumers[consumer.holder_slot] = consumer
        else:
            consumer.holder_slot = len(self.consumers)
            self.consumers.append(consumer)
        consumer.holders = self

    def remove(self, ConsumerState consumer not None):
        """A consumer is gone; what it had is settled or taken back."""
        if consumer.holders is not self:
            return
        self.consumers[consumer.holder_slot] = None
        self.free.append(consumer.holder_slot)
        consumer.holders = None

    def clear(self):
        """Nobody has anything any more; the dict of what was noted, for free_some()."""
        cdef dict noted = self.ledgers
        self.ledgers = {}
        self.last_page = None
        return noted

    def holder(self, int64_t ledger_id, int64_t entry_id):
        """The consumer that may have an entry, or None."""
        return self.find(ledger_id, entry_id)

    def __len__(self):
        """How many entries are noted."""
        return sum([(<HeldPage>page).used
                    for pages in self.ledgers.values() for page in pages.values()])

    def settle(self, AckRun run not None, ConsumerState consumer not None, AckSet acks not None,
               dict redelivery_counts not None):
        """What an ACK says, which the cursor knows already: who has the entries, has them no
        longer, or fewer of their messages.

        Returns the consumers besides the one that acknowledges that had some, each once.
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
                    # It may be acknowledged by another consumer than the one that has it now.
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
            # It acknowledges nothing. What is left may be much longer than these words.
            return 0
        holder = self.find(item.ledger_id, item.entry_id)
        if acks.contains(item.ledger_id, item.entry_id):
            # Earlier acknowledgements had what this one left out.
            redelivery_counts.pop((item.ledger_id, item.entry_id), None)
            if holder is not None and holder._settle(item.ledger_id, item.entry_id):
                others[holder] = None
            return 0
        words = acks.left_of(item.ledger_id, item.entry_id)
        if holder is not None and words is not None and holder.settle_all_but(
                item.ledger_id, item.entry_id, bits_below(words, len(words) * 8)):
            others[holder] = None
        return 0

    cdef ConsumerState find(self, int64_t ledger_id, int64_t entry_id):
        cdef HeldPage page
        page = self._page(ledger_id, entry_id >> HELD_PAGE_BITS)
        if page is None:
            return None
        # An id from the wire may be negative: no remainder of a division here.
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
        """Messages that the client still wants; below 0 after a batch larger than they were."""
        return self.wanted

    @permits.setter
    def permits(self, int64_t messages):
        self.wanted = messages
        if messages > 0 and self.passed_over == NO_PERMITS:
            self.rotation._ask_again(self)

    @property
    def can_deliver(self):
        """True when the consumer may get entries and its connection takes more bytes."""
        return self._can_take()

    @property
    def is_at_limit(self):
        """It has reached unacked_max, and has still more than half of that unacknowledged."""
        return self.at_limit

    @property
    def is_blocked(self):
        """It, or another of its subscription, must acknowledge something before it gets more."""
        return self.at_limit or (self.unacked_total is not None and self.unacked_total.stops())

    def set_unacked_max(self, int64_t messages):
        """A policy changed: below the new limit it goes on at once."""
        self.unacked_max = messages
        self.at_limit = messages > 0 and self.unacked_messages >= messages
        if not self.at_limit and self.passed_over == AT_LIMIT:
            self.rotation._ask_again(self)

    cdef bint _can_take(self) noexcept:
        if self.wanted <= 0 or self.at_limit or self.closed:
            return False
        if self.unacked_total is not None and self.unacked_total.stops():
            return False
        return self.connection.can_deliver()

    def worth_reading(self, int entries_max, int64_t bytes_max):
        """(entries, bytes) to read for it: no more than its permits and its connection take now.

        What is read beyond that would be read once more when the client has asked for it.
        """
        cdef double entries = ceil(<double>max(self.wanted, 1) / self.messages_per_entry)
        cdef int64_t room = OUT_PENDING_DISPATCH - self.connection.out.pending
        return (<int>min(entries, <double>entries_max), max(min(room, bytes_max), 1))

    def deliver(self, EntryBatch batch not None, int start, int stop, AckSet acks not None,
                dict redelivery_counts, list left_out not None, DelayedIndex delayed=None,
                chunked=None):
        """Sends entries start..stop-1 of a batch while there are permits; returns where it stopped.

        Acknowledged entries are passed over. Entries that no client may see (markers, metadata that
        cannot be decoded) are passed over and appended to left_out as (ledger_id, entry_id). Those
        that are not due yet are set aside, where there is an index for that. chunked, which is a
        ChunkedMessages or None, may give a chunk to another consumer, or keep it.
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
        cdef bytes words                # of the messages left of a batch, None: all are
        while i < stop and self._can_take():
            entry_id = batch.refs[i].entry_id
            i += 1
            if acks.contains(batch.ledger_id, entry_id):
                continue
            if not peek_message(batch, i - 1, &peek):
                left_out.append((batch.ledger_id, entry_id))
                continue
            if delayed is not None and peek.deliver_at_time > delayed.now:
                delayed.add(peek.deliver_at_time, batch.ledger_id, entry_id)
                continue
            if redelivery_counts:
                count = redelivery_counts.get((batch.ledger_id, entry_id), 0)
            messages = peek.num_messages
            words = acks.left_of_batch(batch.ledger_id, entry_id, &messages)
            if messages == 0:
                left_out.append((batch.ledger_id, entry_id))
                continue
            if chunked is not None and peek.num_chunks > 1 and peek.uuid_size:
                taker = chunked.taker(peek.uuid[:peek.uuid_size], (batch.ledger_id, entry_id),
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
        # What brokers have put in front is for brokers, unless the client knows it.
        cdef uint32_t skipped = 0 if self.wants_block else broker_metadata_size(data, size)
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
        """Forgets one delivered entry; returns what pending had of it, 0 when it had nothing."""
        cdef dict ledger = self.pending.get(ledger_id)
        cdef int64_t held
        if ledger is None:
            return 0
        held = ledger.pop(entry_id, 0)
        if not ledger:
            del self.pending[ledger_id]
        if held:
            self._settled(held)
            if self.holders is not None:
                self.holders.release(ledger_id, entry_id, self.holder_slot)
        return held

    cdef int _settled(self, int64_t held) except -1:
        self._less_unacked(held & MESSAGES_MASK)
        if self.keys is not None:
            self.keys.release(<int32_t>(held >> 32), self.slot)
        return 0

    cdef int _less_unacked(self, int64_t messages) except -1:
        self.unacked_messages -= messages
        if self.at_limit and self.unacked_messages * 2 <= self.unacked_max:
            self.at_limit = False
            if self.passed_over == AT_LIMIT:
                self.rotation._ask_again(self)
        if self.unacked_total is not None:
            self.unacked_total.add(-messages)
        return 0

    def settle(self, AckRun run not None):
        """Forgets the whole entries of an individual ack; returns the messages that they had."""
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

    def settle_all_but(self, int64_t ledger_id, int64_t entry_id, int64_t left):
        """Of a delivered batch only so many messages are left; returns how many were settled."""
        cdef dict ledger = self.pending.get(ledger_id)
        cdef int64_t held, messages
        if ledger is None or entry_id not in ledger:
            return 0
        held = ledger[entry_id]
        messages = held & MESSAGES_MASK
        if left >= messages:
            return 0
        ledger[entry_id] = held - messages + left
        self._less_unacked(messages - left)
        return messages - left

    def settle_one(self, int64_t ledger_id, int64_t entry_id):
        """Forgets one delivered entry; returns its messages, 0 when it was not pending here."""
        return self._settle(ledger_id, entry_id) & MESSAGES_MASK

    def is_pending(self, int64_t ledger_id, int64_t entry_id):
        cdef dict ledger = self.pending.get(ledger_id)
        return ledger is not None and entry_id in ledger

    def key_hash_of(self, int64_t ledger_id, int64_t entry_id):
        """The key's hash of a delivered entry of a Key_Shared subscription; 0: not pending."""
        cdef dict ledger = self.pending.get(ledger_id)
        return 0 if ledger is None else ledger.get(entry_id, 0) >> 32

    def pending_up_to(self, int64_t ledger_id, int64_t entry_id, Py_ssize_t count_max):
        """Parts of what it has up to a position, of at most so many; what is settled meanwhile may
        be among them.
        """
        for ledger in sorted(self.pending):
            if ledger > ledger_id:
                break
            # To list the numbers of a million is a small part of what making positions of them is.
            entries = list(self.pending.get(ledger, ()))
            for at in range(0, len(entries), count_max):
                yield [(ledger, entry) for entry in entries[at:at + count_max]
                       if ledger < ledger_id or entry <= entry_id]

    def pending_positions(self):
        """Every delivered, unacknowledged position, in order."""
        return sorted((ledger_id, entry_id)
                      for ledger_id, entries in self.pending.items() for entry_id in entries)

    def take_back(self):
        """TakenBack: everything that is delivered and not settled, which it has no longer."""
        cdef TakenBack taken = TakenBack()
        taken.pending = self.pending
        taken.keys = self.keys
        taken.slot = self.slot
        taken.holders = self.holders
        taken.holder_slot = self.holder_slot
        self.pending = {}
        self._less_unacked(self.unacked_messages)
        return taken

    def note_acked(self, AckRun run not None):
        """The client has acknowledged entries that are not kept as pending."""
        cdef int i
        cdef double messages = 0
        for i in range(run.count):
            messages += self.messages_per_entry if run.items[i].left == 0 else 1
        self.acked += <uint64_t>(messages + 0.5)

    def note_acked_entries(self, int64_t entries):
        """The same for so many of them."""
        self.acked += <uint64_t>(max(entries, 0) * self.messages_per_entry + 0.5)


cdef class TakenBack:
    """What was taken back from a consumer and does not wait to be sent again yet."""

    def put_back(self, AckSet acks not None, PositionSet to, dict redelivery_counts,
                 int64_t entries_max):
        """Has at most so many entries wait to be sent again: in `to` or (None) among those of their
        key, but for those that are acknowledged. Each is counted as redelivered, unless there are
        no counts. True when it was the last of them.
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
                # In order, its place among those of its key is found at once.
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
                    self.keys.wait_again(<int32_t>(held >> 32), ledger_id, entry_id)
                if redelivery_counts is not None:
                    position = (ledger_id, entry)
                    redelivery_counts[position] = redelivery_counts.get(position, 0) + 1

    def forget(self):
        """Dicts, for free_some(): it is read again, whoever has it."""
        return [self.pending, self.entries]


def free_some(list dicts not None, int64_t items_max):
    """Frees at most so many items of dicts that nobody uses any more, and of dicts in them; True
    when it was the last of them. To free a million at once takes long.
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


def place_of(list consumers not None, ConsumerState consumer not None):
    """The index of a consumer, which is in the list; looked for from its end, where those of a
    client that hangs up are.
    """
    cdef Py_ssize_t at
    for at in range(len(consumers) - 1, -1, -1):
        if consumers[at] is consumer:
            return at
    raise ValueError("the consumer %d is not in the list" % consumer.consumer_id)


cdef class Rotation:
    """Whose turn it is among the consumers of a Shared subscription; see delivery.pxd."""

    def __cinit__(self):
        self.consumers = []
        self.chosen = -1

    def __dealloc__(self):
        free(self.levels)

    def add(self, ConsumerState consumer not None):
        """One more, behind all others of its priority level."""
        if len(self.consumers) == self.width:
            self._rebuild()
        consumer.rotation = self
        consumer.rotation_slot = len(self.consumers)
        consumer.passed_over = NO_PERMITS
        self.consumers.append(consumer)
        if consumer.wanted > 0:
            self._ask_again(consumer)

    def remove(self, ConsumerState consumer not None):
        """It has left."""
        if consumer.rotation is not self:
            return
        # As one of those that are asked it is nowhere else.
        self._ask_again(consumer)
        self._set(consumer.rotation_slot, NOBODY)
        self.consumers[consumer.rotation_slot] = None
        self.gone += 1
        consumer.rotation = None
        if self.gone > SLOTS_GONE_MIN and self.gone * 2 > len(self.consumers):
            self._rebuild()

    def next(self):
        """The consumer that gets the next entries, or None: nobody can take any.

        Among those of the best priority level that can take some it is the first one after who was
        served last, in the order in which they came.
        """
        cdef ConsumerState consumer
        cdef Py_ssize_t slot
        self.chosen = -1
        while self.width and self.levels[1] != NOBODY:
            slot = self._find(self.turn_of, self.levels[1])
            if slot < 0:
                slot = self._find(0, self.levels[1])
            consumer = self.consumers[slot]
            self.asked += 1
            if consumer._can_take():
                self.chosen = slot
                return consumer
            if consumer.wanted <= 0 or consumer.closed or consumer.connection.closed:
                self._pass_over(consumer, NO_PERMITS)
            elif consumer.unacked_total is not None and consumer.unacked_total.stops():
                return None     # nor can any of the others
            elif consumer.at_limit:
                self._pass_over(consumer, AT_LIMIT)
            else:
                self._pass_over(consumer, SOCKET_FULL)
        return None

    def served(self):
        """Who was found last has had its turn."""
        self.turn_of = self.chosen + 1

    @property
    def is_limited(self):
        """After next() has found nobody: whether there is one that waits for acknowledgements."""
        return self.at_limit > 0 or (self.width > 0 and self.levels[1] != NOBODY)

    def take_newly_full(self):
        """Connections whose sockets have kept consumers from entries since it was asked last."""
        cdef list taken = self.newly_full
        self.newly_full = None
        return taken or ()

    def waits_for(self, Connection connection not None):
        """Whether there is a consumer that is not asked before has_room() of its connection."""
        return self.full is not None and connection in self.full

    def has_room(self, Connection connection not None):
        """A socket takes more, so its consumers are asked again."""
        if self.full is not None:
            for consumer in list(self.full.get(connection, ())):
                self._ask_again(consumer)

    cdef Py_ssize_t _find(self, Py_ssize_t start, int64_t level) noexcept:
        """The first slot from one on with that level, which nobody has a better one than; -1: none.
        """
        cdef Py_ssize_t node = start + self.width
        if start >= self.width:
            return -1
        while self.levels[node] != level:
            # What is right of it: a right one's is right of the node above it.
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
        """Has room for more, and no slots of those that have left."""
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
            levels[width + slot] = NOBODY
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

    cdef int _pass_over(self, ConsumerState consumer, PassedOver why) except -1:
        """It is not asked again before what kept it from taking entries is over."""
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
        consumer.passed_over = why
        return self._set(consumer.rotation_slot, NOBODY)

    cdef int _ask_again(self, ConsumerState consumer) except -1:
        cdef PassedOver why = consumer.passed_over
        cdef dict others
        if why == NOT_PASSED_OVER:
            return 0
        if why == AT_LIMIT:
            self.at_limit -= 1
        elif why == SOCKET_FULL:
            others = self.full[consumer.connection]
            del others[consumer]
            if not others:
                del self.full[consumer.connection]
        consumer.passed_over = NOT_PASSED_OVER
        return self._set(consumer.rotation_slot, consumer.priority_level)


cdef class Blocked:
    """Of consumers that have permits and cannot take any all the same, one for each cause: they
    are asked why, so that it is known when they can again.
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
            # Others of that connection mostly come right after it.
            self.last = consumer.connection
            if self.connections is None:
                self.connections = set()
            if self.last not in self.connections:
                self.connections.add(self.last)
                self.consumers.append(consumer)
        return 0


def worth_together(list consumers not None, int entries_max, int64_t bytes_max,
                   Blocked blocked not None):
    """(entries, bytes) that consumers can take together, up to these, as long as it had to ask."""
    cdef ConsumerState consumer
    cdef int64_t entries = 0
    cdef int64_t size = 0
    for consumer in consumers:
        if consumer._can_take():
            more, room = consumer.worth_reading(entries_max, bytes_max)
            entries += more
            size += room
            if entries >= entries_max and size >= bytes_max:
                break
        else:
            blocked.add(consumer)
    return min(entries, <int64_t>entries_max), min(size, bytes_max)


def next_ready(list consumers not None, Py_ssize_t turn_of, KeyShared keys not None,
               Blocked blocked not None):
    """The index of the first consumer at or after turn_of for which something waits that it can
    have now; -1: there is none.
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


cdef bint peek_message(EntryBatch batch, int i, MetadataPeek *peek) noexcept:
    cdef const uint8_t *metadata
    cdef uint32_t metadata_size
    cdef entry_ref *ref = &batch.refs[i]
    cdef uint32_t offset = batch.data_offset
    return (ref.length >= offset
            and payload_metadata(ref.data + offset, ref.length - offset, &metadata,
                                 &metadata_size) == 0
            and peek_metadata(metadata, metadata_size, peek) == 0
            and peek.marker_type < 0)


# Sends an entry to the owner of its key within a round of dealing; 0 when nothing of it is left.
cdef int _deal_to(ConsumerState consumer, EntryBatch batch, int i, MetadataPeek *peek, int32_t hash,
                  AckSet acks, dict redelivery_counts) except -1:
    cdef uint32_t count = 0
    cdef bint first = consumer.pinned_in != _rounds
    cdef int32_t messages = peek.num_messages
    cdef bytes words = acks.left_of_batch(batch.ledger_id, batch.refs[i].entry_id, &messages)
    if messages == 0:
        return 0
    if redelivery_counts:
        count = redelivery_counts.get((batch.ledger_id, batch.refs[i].entry_id), 0)
    consumer._send(batch, i, messages, words, hash, count, first)
    consumer.chunks_out += peek.num_chunks > 1
    consumer.keys.hold(hash, consumer.slot)
    consumer.messages_per_entry += (messages - consumer.messages_per_entry) * DEALT_WEIGHT
    if first:
        consumer.pinned_in = _rounds
        consumer._mark_sent()
    return 1


def deal(EntryBatch batch not None, list consumers not None, KeyShared keys not None,
         AckSet acks not None, dict redelivery_counts, list left_out not None,
         int64_t waiting_max, DelayedIndex delayed=None, bint again=False):
    """Sends entries to the owners of their keys; those that cannot take them wait in keys.

    consumers: by slot, the first one is None. Stops when waiting_max entries wait; returns where it
    stopped. Acknowledged entries are passed over, as are those that no client may see, which are
    appended to left_out. Those that are not due yet are set aside, where there is an index for
    that; again: they were, and lie before others that wait.
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
            left_out.append((batch.ledger_id, entry_id))
            continue
        if delayed is not None and peek.deliver_at_time > delayed.now:
            delayed.add(peek.deliver_at_time, batch.ledger_id, entry_id)
            continue
        hash = key_hash(&peek, keys.hashes)
        slot = keys.owner(hash)
        if slot and keys.may_send(hash, slot):
            consumer = consumers[slot]
            if consumer._can_take():
                if not _deal_to(consumer, batch, i, &peek, hash, acks, redelivery_counts):
                    left_out.append((batch.ledger_id, entry_id))
                continue
        if again:
            keys.wait_again(hash, batch.ledger_id, entry_id)
        else:
            keys.wait(hash, batch.ledger_id, entry_id)
    return batch.count


def deal_waiting(EntryBatch batch not None, list consumers not None, KeyShared keys not None,
                 AckSet acks not None, dict redelivery_counts, list left_out not None):
    """Sends entries of a batch that wait in keys and have their turn; returns how many went.

    Those that are acknowledged meanwhile wait no longer, and those of which nothing is left are
    appended to left_out. Entries that do not wait are passed over.
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
            keys.drop_first(hash)
            gone += 1
            continue
        slot = keys.owner(hash)
        if slot == 0 or not keys.may_go_on(hash, slot):
            continue
        consumer = consumers[slot]
        if consumer._can_take():
            if not _deal_to(consumer, batch, i, &peek, hash, acks, redelivery_counts):
                left_out.append((batch.ledger_id, entry_id))
            keys.drop_first(hash)
            gone += 1
    return gone


def count_messages(EntryBatch batch not None, int start, int stop):
    """Messages in entries start..stop-1 of a batch, of those that clients may see."""
    cdef MetadataPeek peek
    cdef int i
    cdef int64_t messages = 0
    for i in range(max(start, 0), min(stop, <int>batch.count)):
        if peek_message(batch, i, &peek):
            messages += max(peek.num_messages, 1)
    return messages


def deal_now(EntryBatch batch not None, int start, int stop, list consumers not None,
             KeyShared keys not None):
    """Sends entries start..stop-1 to the owners of their keys; returns the messages of those that
    nobody took.

    consumers: by slot, the first one is None. Nothing waits, and nothing is held back for the order
    within a key.
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
    """What peek_entry tells of an entry."""

    publish_time: int               # ms since the epoch
    num_messages: int
    is_batch: bool
    marker_type: int                # -1: a message, not a marker
    broker_time: int = 0            # ms since the epoch; 0: the broker has noted none

    @property
    def time(self) -> int:
        """When it was published: the clock of the broker counts, where it was noted."""
        return self.broker_time or self.publish_time


def peek_entry(EntryBatch batch not None, int i):
    """The Peeked of an entry of a batch, or None when its metadata cannot be decoded."""
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
                  peek.marker_type, peek_broker_timestamp(data + 6, block - 6) if block else 0)
