"""The hot path of `pyxbroker perf`; load_generator.pxd describes it."""
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_XDECREF
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from pyxbroker.commands cimport (
    CMD_ACK,
    CMD_FLOW,
    CMD_MESSAGE,
    CMD_SEND,
    CMD_SEND_RECEIPT,
    DECODE_OK,
    MetadataPeek,
    decode_base,
    peek_metadata,
)
from pyxbroker.fields cimport WIRE_BYTES, WIRE_VARINT, Field, parse_field
from pyxbroker.frames cimport Frame, frame_next, payload_metadata
from pyxbroker.integers cimport load_be32, load_be64, put_varint, store_be32, store_be64
from pyxbroker.native cimport NATIVE_API_CAPSULE, native_api

from pyxbroker import _native

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/timerfd.h>
    #include <time.h>
    #include <unistd.h>

    static inline int64_t load_clock_ns(int clock)
    {
        struct timespec now;
        clock_gettime(clock, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }

    static inline int load_timer_new(void)
    {
        return timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    }

    static inline int load_timer_set(int fd, int64_t at_ns)
    {
        struct itimerspec when = {{0, 0}, {at_ns / 1000000000, at_ns % 1000000000}};
        return timerfd_settime(fd, TFD_TIMER_ABSTIME, &when, NULL);
    }

    static inline void load_timer_read(int fd)
    {
        uint64_t expirations;
        ssize_t done = read(fd, &expirations, sizeof expirations);
        (void)done;
    }
    """
    int CLOCK_MONOTONIC
    int CLOCK_REALTIME
    int64_t load_clock_ns(int clock) nogil
    int load_timer_new()
    int load_timer_set(int fd, int64_t at_ns)
    void load_timer_read(int fd)
    void close(int fd)
    int __builtin_clzll(unsigned long long) nogil

cdef extern from "Python.h":
    # With the reference counts as they are, so that the object can be resized.
    PyObject *PyBytes_FromStringAndSize(const char *data, Py_ssize_t size)
    int _PyBytes_Resize(PyObject **data, Py_ssize_t size) except -1

cdef native_api *_api = <native_api *>PyCapsule_GetPointer(_native._c_api, NATIVE_API_CAPSULE)

cdef enum:
    SUB_BITS = 11                   # an HdrHistogram with 3 significant digits
    SUB_HALF = 1024
    BUCKETS = 25 * SUB_HALF         # up to 2**34 us
    BODIES_BYTES_MAX = 64 << 20
    FRAME_BYTES_MAX = 128 << 20

VALUE_MAX_US = (1 << 34) - 1
STAMP_MAGIC = b"pyxstamp"
STAMP_SIZE = STAMP_BYTES
NO_KEY, FIXED_KEY, INCREMENTED_KEY, RANDOM_KEY = KEY_NONE, KEY_FIXED, KEY_INCREMENT, KEY_RANDOM

cdef const char *_magic = "pyxstamp"


def now_ns():
    """Return CLOCK_MONOTONIC in nanoseconds."""
    return load_clock_ns(CLOCK_MONOTONIC)


cdef class Latencies:
    def __cinit__(self):
        self.counts = <uint64_t *>calloc(BUCKETS, sizeof(uint64_t))
        if self.counts == NULL:
            raise MemoryError("no memory for a histogram")

    def __dealloc__(self):
        free(self.counts)

    cdef void add(self, int64_t us, uint64_t count) noexcept nogil:
        cdef int shift
        cdef uint64_t value
        us = min(max(us, 0), <int64_t>((1 << 34) - 1))
        value = <uint64_t>us
        shift = 64 - SUB_BITS - __builtin_clzll(value | ((1 << SUB_BITS) - 1))
        self.counts[<uint64_t>shift * SUB_HALF + (value >> shift)] += count
        if self.count == 0 or us < self.min_us:
            self.min_us = us
        if us > self.max_us:
            self.max_us = us
        self.count += count
        self.total_us += us * <int64_t>count

    def record(self, int64_t us, uint64_t count=1):
        self.add(us, count)

    def reset(self):
        memset(self.counts, 0, BUCKETS * sizeof(uint64_t))
        self.count = 0
        self.total_us = self.min_us = self.max_us = 0

    def merge(self, Latencies other not None):
        """Add the values of another histogram."""
        cdef int i
        if other.count == 0:
            return
        for i in range(BUCKETS):
            self.counts[i] += other.counts[i]
        self.min_us = other.min_us if self.count == 0 else min(self.min_us, other.min_us)
        self.max_us = max(self.max_us, other.max_us)
        self.count += other.count
        self.total_us += other.total_us

    def percentiles(self, percents):
        """Return the highest value of the bucket of each percentile, in microseconds.

        `percents` ascend.
        """
        cdef int64_t seen = 0
        cdef int64_t wanted
        cdef int i = 0
        found = []
        for percent in percents:
            wanted = max(<int64_t>(percent * 0.01 * self.count + 0.5), 1)
            while seen < wanted and i < BUCKETS:
                seen += <int64_t>self.counts[i]
                i += 1
            found.append(_highest_of(i - 1) if self.count else 0)
        return found

    def buckets(self):
        """Return [(lowest value of a bucket in microseconds, count)] of buckets with values."""
        cdef int i
        return [(_lowest_of(i), self.counts[i]) for i in range(BUCKETS) if self.counts[i]]


cdef int64_t _lowest_of(int bucket) noexcept:
    cdef int shift = max(bucket // SUB_HALF - 1, 0)
    return <int64_t>(bucket - shift * SUB_HALF) << shift


cdef int64_t _highest_of(int bucket) noexcept:
    return _lowest_of(bucket + 1) - 1


cdef class LoadStats:
    def __cinit__(self):
        self.latencies = Latencies()
        self.since_sent = Latencies()

    def take(self):
        """Return (messages, bytes, failures) since the last call."""
        taken = (self.messages - self.taken_messages, self.bytes - self.taken_bytes,
                 self.failures - self.taken_failures)
        self.taken_messages = self.messages
        self.taken_bytes = self.bytes
        self.taken_failures = self.failures
        return taken


cdef class Body:
    pass


cdef class LoadPayload:
    def __cinit__(self, bytes payload not None, uint32_t batch_max=1, int codec=0,
                  object compress=None):
        """Prepare entries of up to batch_max messages (1: entries that are no batches)."""
        cdef bytes metadata
        if batch_max < 1:
            raise ValueError("a batch has at least one message")
        if codec and compress is None:
            raise ValueError("a codec needs a function that compresses")
        self.payload = payload
        self.size = <uint32_t>len(payload)
        self.batch_max = batch_max
        self.codec = codec
        self.compress = compress
        self.bodies = {}
        self.batch = b""
        self.entry_bytes_max = self.size
        self.slot = self.size
        if batch_max > 1:
            metadata = _varint_field(3, len(payload))  # SingleMessageMetadata.payload_size
            one = len(metadata).to_bytes(4, "big") + metadata + payload
            self.slot = <uint32_t>len(one)
            self.batch = one * batch_max
            self.entry_bytes_max = <uint32_t>len(self.batch)
        if codec:  # which may make random bytes longer
            self.entry_bytes_max += self.entry_bytes_max // 8 + 1024

    cdef Body body(self, uint32_t messages):
        found = self.bodies.get(messages)
        if found is not None:
            return <Body>found
        cdef Body body = Body()
        cdef uint32_t before = 0
        body.messages = messages
        body.data = self.payload
        body.size = self.size
        if self.batch_max > 1:
            body.data = self.batch
            body.size = messages * self.slot
            before = self.slot - self.size
        body.unpacked_size = body.size
        if self.codec:
            body.data = self.compress(self.codec, body.data[:body.size])
            body.size = <uint32_t>len(body.data)
            if body.size > self.entry_bytes_max:
                raise ValueError("the codec makes the payload longer by an eighth")
            self.bodies_bytes += body.size
            if self.bodies_bytes > BODIES_BYTES_MAX:
                self.bodies.clear()
                self.bodies_bytes = body.size
        elif self.size >= STAMP_BYTES:
            body.stamp_at = before
            body.head = before + STAMP_BYTES
        body.rest_crc = _api.crc32c(0, _data_of(body.data) + body.head, body.size - body.head)
        self.bodies[messages] = body
        return body


cdef inline uint8_t *_data_of(bytes data) noexcept:
    return <uint8_t *>PyBytes_AS_STRING(data)


cdef bytes _varint_field(uint32_t number, uint64_t value):
    cdef uint8_t out[20]
    cdef uint8_t *end = put_varint(put_varint(out, number << 3), value)
    return out[:end - out]


cdef inline uint8_t *_put_bytes(uint8_t *at, uint32_t number, bytes data) noexcept:
    at = put_varint(put_varint(at, number << 3 | WIRE_BYTES), <uint64_t>len(data))
    memcpy(at, _data_of(data), <size_t>len(data))
    return at + len(data)


cdef inline uint8_t *_put_number(uint8_t *at, uint32_t number, uint64_t value) noexcept:
    return put_varint(put_varint(at, number << 3), value)


cdef class LoadProducer:
    def __cinit__(self, uint64_t producer_id, bytes name not None, LoadPayload payload not None,
                  LoadStats stats not None, uint32_t outstanding_max, uint64_t quota=<uint64_t>-1,
                  uint64_t next_sequence_id=0, int key_mode=KEY_NONE, bytes key=b"",
                  uint64_t key_bound=1 << 31, uint64_t seed=1):
        if outstanding_max < 1 or key_bound < 1:
            raise ValueError("outstanding_max and key_bound are at least 1")
        if key_mode != KEY_NONE and payload.batch_max > 1:
            raise ValueError("messages of a batch have no keys")
        self.producer_id = producer_id
        self.name = name
        self.payload = payload
        self.stats = stats
        self.outstanding_max = outstanding_max
        self.quota = quota
        self.next_sequence_id = next_sequence_id
        self.key_mode = key_mode
        self.key = key
        self.key_bound = key_bound
        self.random_state = seed * <uint64_t>0x9e3779b97f4a7c15 | 1
        self.pending_capacity = outstanding_max
        self.pending = <SentEntry *>malloc(<size_t>outstanding_max * sizeof(SentEntry))
        if self.pending == NULL:
            raise MemoryError("no memory for %d messages without receipt" % outstanding_max)

    def __dealloc__(self):
        free(self.pending)

    def schedule(self, int64_t first_ns, double interval_ns, int64_t window_ns=0):
        """Send the first message at first_ns, then one each interval_ns (0: at any time)."""
        self.first_ns = first_ns
        self.scheduled = 0
        self.interval_ns = interval_ns
        self.window_ns = window_ns if self.payload.batch_max > 1 else 0

    def stop(self):
        """Send no further messages."""
        self.quota = 0

    def give_up(self):
        """Count the messages without receipt as failures."""
        self.stats.failures += self.outstanding
        self.outstanding = self.pending_count = 0

    cdef int64_t due_ns(self) noexcept:
        cdef uint64_t until_full
        cdef int64_t due = self.first_ns + <int64_t>(self.scheduled * self.interval_ns)
        if self.window_ns == 0:
            return due
        # A batch is due when it is full, or when its first message has waited for window_ns.
        until_full = min(<uint64_t>self.payload.batch_max, self.quota) - 1
        return due + min(self.window_ns, <int64_t>(until_full * self.interval_ns))

    cdef uint32_t ready(self, int64_t now_ns) noexcept:
        cdef uint64_t most
        if self.quota == 0 or self.outstanding >= self.outstanding_max:
            return 0
        most = min(<uint64_t>self.payload.batch_max, self.quota)
        if self.interval_ns == 0:
            # A batch waits until the window has room for all of it.
            most = min(most, <uint64_t>self.outstanding_max)
            return <uint32_t>most if most <= self.outstanding_max - self.outstanding else 0
        if now_ns < self.due_ns():
            return 0
        most = min(most, <uint64_t>(self.outstanding_max - self.outstanding))
        return <uint32_t>min(most, self.backlog(now_ns))

    cdef uint64_t backlog(self, int64_t now_ns) noexcept:
        cdef int64_t due = <int64_t>((now_ns - self.first_ns) / self.interval_ns) + 1
        return <uint64_t>max(due - <int64_t>self.scheduled, 1)

    cdef uint8_t *write(self, uint8_t *out, Body body, int64_t now_ns,
                        int64_t wall_offset_ns) except NULL:
        cdef uint32_t messages = body.messages
        cdef int64_t scheduled_ns = now_ns
        cdef int64_t step_ns = 0
        cdef uint64_t highest = self.next_sequence_id + messages - 1
        cdef uint8_t command[64]
        cdef uint8_t *end = command
        cdef uint8_t *section
        cdef uint8_t *payload
        cdef uint32_t command_size, crc, copied
        cdef SentEntry *entry
        if self.interval_ns != 0:
            scheduled_ns = self.first_ns + <int64_t>(self.scheduled * self.interval_ns)
            step_ns = <int64_t>self.interval_ns
        # BaseCommand with a CommandSend
        end = _put_number(end, 1, self.producer_id)
        end = _put_number(end, 2, self.next_sequence_id)
        if messages > 1:
            end = _put_number(end, 3, messages)
            end = _put_number(end, 6, highest)
        command_size = <uint32_t>(end - command)
        end = _put_number(out + 8, 1, CMD_SEND)
        end = put_varint(put_varint(end, CMD_SEND << 3 | WIRE_BYTES), command_size)
        memcpy(end, command, command_size)
        section = end + command_size
        store_be32(out + 4, <uint32_t>(section - out - 8))
        # The section: checksum, metadata, payload
        section[0] = 0x0e
        section[1] = 0x01
        payload = self._write_metadata(section + 10, body,
                                       (scheduled_ns + wall_offset_ns) // 1_000_000)
        store_be32(section + 6, <uint32_t>(payload - section - 10))
        copied = body.head if _is_referenced(body) else body.size
        memcpy(payload, _data_of(body.data), copied)
        if body.head:
            memcpy(payload + body.stamp_at, _magic, 8)
            store_be64(payload + body.stamp_at + 8, <uint64_t>(scheduled_ns + wall_offset_ns))
            store_be64(payload + body.stamp_at + 16, <uint64_t>step_ns)
        crc = _api.crc32c(0, section + 6, <size_t>(payload - section) - 6 + body.head)
        crc = _api.crc32c_combine(crc, body.rest_crc, body.size - body.head)
        store_be32(section + 2, crc)
        store_be32(out, <uint32_t>(payload - out - 4) + body.size)

        entry = &self.pending[(self.pending_first + self.pending_count) % self.pending_capacity]
        entry.sequence_id = self.next_sequence_id
        entry.scheduled_ns = scheduled_ns
        entry.sent_ns = now_ns
        entry.step_ns = step_ns
        entry.messages = messages
        self.pending_count += 1
        self.outstanding += messages
        self.scheduled += messages
        self.next_sequence_id += messages
        self.quota -= messages
        self.stats.sent += messages
        return payload + copied

    cdef uint8_t *_write_metadata(self, uint8_t *at, Body body, int64_t publish_time_ms) noexcept:
        cdef uint8_t key[20]
        cdef uint64_t number
        cdef int digits = 0
        at = _put_bytes(at, 1, self.name)
        at = _put_number(at, 2, self.next_sequence_id)
        at = _put_number(at, 3, <uint64_t>publish_time_ms)
        if self.key_mode == KEY_FIXED:
            at = _put_bytes(at, 6, self.key)
        elif self.key_mode != KEY_NONE:
            number = self.next_sequence_id
            if self.key_mode == KEY_RANDOM:
                number = self._random() % self.key_bound
            while digits == 0 or number:
                digits += 1
                key[20 - digits] = <uint8_t>(48 + number % 10)
                number //= 10
            at = put_varint(put_varint(at, 6 << 3 | WIRE_BYTES), <uint64_t>digits)
            memcpy(at, &key[20 - digits], <size_t>digits)
            at += digits
        if self.payload.codec:
            at = _put_number(at, 8, <uint64_t>self.payload.codec)
            at = _put_number(at, 9, body.unpacked_size)
        if self.payload.batch_max > 1:
            at = _put_number(at, 11, body.messages)
            at = _put_number(at, 24, self.next_sequence_id + body.messages - 1)
        return at

    cdef inline uint64_t _random(self) noexcept:
        self.random_state ^= self.random_state << 13
        self.random_state ^= self.random_state >> 7
        self.random_state ^= self.random_state << 17
        return self.random_state >> 11

    cdef void on_receipt(self, uint64_t sequence_id, bint is_stored, int64_t now_ns) noexcept:
        cdef SentEntry *entry
        cdef uint32_t i
        cdef Latencies latencies = self.stats.latencies
        while self.pending_count:
            entry = &self.pending[self.pending_first]
            if entry.sequence_id > sequence_id:
                return
            self.pending_first = (self.pending_first + 1) % self.pending_capacity
            self.pending_count -= 1
            self.outstanding -= entry.messages
            if entry.sequence_id != sequence_id or not is_stored:
                # Receipts come in order: an earlier entry without one was lost.
                self.stats.failures += entry.messages
                continue
            self.stats.messages += entry.messages
            self.stats.bytes += <uint64_t>entry.messages * self.payload.size
            self.stats.since_sent.add((now_ns - entry.sent_ns) // 1000, entry.messages)
            if entry.step_ns == 0:
                latencies.add((now_ns - entry.scheduled_ns) // 1000, entry.messages)
                continue
            for i in range(entry.messages):
                latencies.add((now_ns - entry.scheduled_ns - i * entry.step_ns) // 1000, 1)


cdef class LoadConsumer:
    def __cinit__(self, uint64_t consumer_id, LoadStats stats not None, uint32_t permits_max,
                  bint acknowledges=True):
        if permits_max < 1:
            raise ValueError("permits_max is at least 1")
        self.consumer_id = consumer_id
        self.stats = stats
        self.permits_max = permits_max
        self.acknowledges = acknowledges
        self.ids = bytearray()


cdef class LoadConnection:
    """The producers and consumers of one connection. Their ids ascend without gaps."""

    def __cinit__(self):
        self.producers = []
        self.consumers = []
        self.answers = bytearray()
        self.next_due_ns = -1
        self.wall_offset_ns = load_clock_ns(CLOCK_REALTIME) - load_clock_ns(CLOCK_MONOTONIC)

    def add_producer(self, LoadProducer producer not None):
        if not self.producers:
            self.first_producer_id = producer.producer_id
        if producer.producer_id != self.first_producer_id + len(self.producers):
            raise ValueError("producer id %d is not the next one" % producer.producer_id)
        self.producers.append(producer)

    def add_consumer(self, LoadConsumer consumer not None):
        """Add a consumer, and queue its first FLOW."""
        if not self.consumers:
            self.first_consumer_id = consumer.consumer_id
        if consumer.consumer_id != self.first_consumer_id + len(self.consumers):
            raise ValueError("consumer id %d is not the next one" % consumer.consumer_id)
        self.consumers.append(consumer)
        self.answers += _flow(consumer.consumer_id, consumer.permits_max)

    @property
    def outstanding(self):
        """Messages of all producers without receipt."""
        return sum(each.outstanding for each in self.producers)

    def produce(self, uint64_t bytes_max, int64_t now_ns=0):
        """Return the SEND frames that are due as a list of buffers, and set `next_due_ns`.

        They have about bytes_max bytes. The caller calls again until the list is empty.
        """
        cdef LoadProducer producer
        cdef Body body
        cdef uint32_t count = <uint32_t>len(self.producers)
        cdef uint32_t messages
        cdef uint32_t idle = 0
        cdef uint64_t total = 0
        cdef uint64_t room
        cdef uint8_t *start
        cdef uint8_t *at
        cdef uint8_t *end
        if now_ns == 0:
            now_ns = load_clock_ns(CLOCK_MONOTONIC)
        room = self._room(bytes_max, now_ns)
        frames = []
        if room == 0:
            return frames
        memory = FrameMemory(room)
        start = at = memory.data()
        while idle < count and total < bytes_max:
            producer = <LoadProducer>self.producers[self.turn]
            messages = producer.ready(now_ns)
            if messages == 0:
                idle += 1
            else:
                if <uint64_t>(at - start) + _frame_bytes(producer) > room:
                    break
                idle = 0
                body = producer.payload.body(messages)
                end = producer.write(at, body, now_ns, self.wall_offset_ns)
                total += <uint64_t>(end - at)
                at = end
                if _is_referenced(body):
                    frames.append(start[:at - start])
                    frames.append(memoryview(body.data)[body.head:body.size])
                    total += body.size - body.head
                    room -= <uint64_t>(at - start)
                    start = at
            self.turn = (self.turn + 1) % count
        if not frames:
            frames.append(memory.take(<uint64_t>(at - start)))
        elif at > start:
            frames.append(start[:at - start])
        self._find_next_due()
        return frames

    cdef uint64_t _room(self, uint64_t bytes_max, int64_t now_ns) except? 0:
        """Return the bytes to allocate for the frames that are due now; 0: none is due."""
        cdef LoadProducer producer
        cdef uint64_t entries, messages
        cdef uint64_t room = 0
        for producer in self.producers:
            if producer.ready(now_ns) == 0:
                continue
            messages = min(<uint64_t>(producer.outstanding_max - producer.outstanding),
                           producer.quota)
            if producer.interval_ns != 0:
                messages = min(messages, producer.backlog(now_ns))
            entries = messages // producer.payload.batch_max + 1
            room += entries * _frame_bytes(producer)
            if room >= bytes_max:
                return bytes_max + _frame_bytes(producer)
        if room == 0:
            self._find_next_due()
        return room

    cdef int _find_next_due(self) except -1:
        cdef LoadProducer producer
        cdef int64_t due
        self.next_due_ns = -1
        for producer in self.producers:
            if producer.quota == 0:
                continue
            if producer.interval_ns == 0 or producer.outstanding >= producer.outstanding_max:
                due = 0
            else:
                due = producer.due_ns()
            if self.next_due_ns < 1 or 0 < due < self.next_due_ns:
                self.next_due_ns = due
        return 0

    def receive(self, const uint8_t[::1] data not None, int64_t now_ns=0):
        """Handle the receipts and messages at the start of data; return the bytes consumed.

        Stop at another kind of frame, which `is_other_next` reports, or at an incomplete one.
        Raise ValueError for a malformed frame.
        """
        cdef Frame frame
        cdef uint64_t size = <uint64_t>data.shape[0]
        cdef uint64_t at = 0
        cdef int64_t taken
        cdef uint32_t kind, message_size
        cdef const uint8_t *message
        if now_ns == 0:
            now_ns = load_clock_ns(CLOCK_MONOTONIC)
        self.is_other_next = False
        while at < size:
            taken = frame_next(&data[0] + at, size - at, FRAME_BYTES_MAX, &frame)
            if taken < 0:
                raise ValueError("the broker sent a malformed frame")
            if taken == 0:
                break
            kind = 0
            if decode_base(frame.command, frame.command_size, &kind, &message,
                           &message_size) != DECODE_OK:
                kind = 0
            if kind == CMD_SEND_RECEIPT:
                self._on_receipt(message, message_size, now_ns)
            elif kind == CMD_MESSAGE:
                self._on_message(message, message_size, frame.payload, frame.payload_size, now_ns)
            else:
                self.is_other_next = True
                break
            at += <uint64_t>taken
        return at

    def fail(self, uint64_t producer_id, uint64_t sequence_id):
        """Count the entry of a SEND_ERROR as failed."""
        if producer_id - self.first_producer_id < <uint64_t>len(self.producers):
            (<LoadProducer>self.producers[producer_id - self.first_producer_id]).on_receipt(
                sequence_id, False, 0)

    cdef int _on_receipt(self, const uint8_t *data, uint32_t size, int64_t now_ns) except -1:
        cdef Field field
        cdef uint32_t at = 0
        cdef uint64_t producer_id = 0
        cdef uint64_t sequence_id = 0
        while at < size:
            if parse_field(data, size, &at, &field) != 0:
                raise ValueError("the broker sent a malformed receipt")
            if field.wire == WIRE_VARINT and field.number == 1:
                producer_id = field.value
            elif field.wire == WIRE_VARINT and field.number == 2:
                sequence_id = field.value
        producer_id -= self.first_producer_id
        if producer_id >= <uint64_t>len(self.producers):
            raise ValueError("the broker sent a receipt for an unknown producer")
        (<LoadProducer>self.producers[producer_id]).on_receipt(sequence_id, True, now_ns)
        return 0

    cdef int _on_message(self, const uint8_t *data, uint32_t size, const uint8_t *section,
                         uint32_t section_size, int64_t now_ns) except -1:
        cdef Field field
        cdef uint32_t at = 0
        cdef uint64_t consumer_id = 0
        cdef const uint8_t *id = NULL
        cdef uint32_t id_size = 0
        cdef LoadConsumer consumer
        cdef uint8_t head[16]
        cdef uint8_t *end
        while at < size:
            if parse_field(data, size, &at, &field) != 0:
                raise ValueError("the broker sent a malformed message")
            if field.wire == WIRE_VARINT and field.number == 1:
                consumer_id = field.value
            elif field.wire == WIRE_BYTES and field.number == 2:
                id = field.data
                id_size = field.size
        consumer_id -= self.first_consumer_id
        if id == NULL or consumer_id >= <uint64_t>len(self.consumers):
            raise ValueError("the broker sent a message for an unknown consumer")
        consumer = <LoadConsumer>self.consumers[consumer_id]
        consumer.used += self._count_message(consumer.stats, section, section_size, now_ns)
        if consumer.acknowledges:
            end = put_varint(put_varint(head, 3 << 3 | WIRE_BYTES), id_size)
            consumer.ids += head[:end - head]
            consumer.ids += id[:id_size]
            consumer.ids_count += 1
            if consumer.ids_count >= ACK_IDS_MAX:
                self._flush_acks(consumer)
        if consumer.used * 2 >= consumer.permits_max:
            self.answers += _flow(consumer.consumer_id, consumer.used)
            consumer.used = 0
        return 0

    cdef int _count_message(self, LoadStats stats, const uint8_t *section, uint32_t section_size,
                            int64_t now_ns) except -1:
        cdef const uint8_t *metadata
        cdef const uint8_t *payload
        cdef uint32_t metadata_size, payload_size
        cdef uint64_t before = 0
        cdef int64_t scheduled_ns, step_ns
        cdef int32_t i
        cdef MetadataPeek peek
        if (payload_metadata(section, section_size, &metadata, &metadata_size) != 0
                or peek_metadata(metadata, metadata_size, &peek) != DECODE_OK
                or not 0 <= peek.num_messages <= (1 << 24)):
            raise ValueError("the broker sent a message with malformed metadata")
        peek.num_messages = max(peek.num_messages, 1)
        payload = metadata + metadata_size
        payload_size = section_size - <uint32_t>(payload - section)
        stats.messages += <uint64_t>peek.num_messages
        stats.bytes += peek.uncompressed_size if peek.compression else payload_size
        if peek.is_batch and payload_size >= 4:
            before = 4 + <uint64_t>load_be32(payload)
        now_ns += self.wall_offset_ns
        if (peek.compression or before + STAMP_BYTES > payload_size
                or memcmp(payload + before, _magic, 8) != 0):
            stats.latencies.add(now_ns // 1000 - <int64_t>peek.publish_time * 1000,
                                <uint64_t>peek.num_messages)
            return peek.num_messages
        scheduled_ns = load_be64(payload + before + 8)
        step_ns = load_be64(payload + before + 16)
        if step_ns == 0:
            stats.latencies.add((now_ns - scheduled_ns) // 1000, <uint64_t>peek.num_messages)
            return peek.num_messages
        for i in range(peek.num_messages):
            stats.latencies.add((now_ns - scheduled_ns - i * step_ns) // 1000, 1)
        return peek.num_messages

    def flush_acks(self):
        """Queue an ACK for each consumer with messages that are not acknowledged."""
        for consumer in self.consumers:
            self._flush_acks(<LoadConsumer>consumer)

    cdef int _flush_acks(self, LoadConsumer consumer) except -1:
        if consumer.ids_count:
            body = _varint_field(1, consumer.consumer_id) + _varint_field(2, 0)
            self.answers += _command(CMD_ACK, body + bytes(consumer.ids))
            consumer.ids.clear()
            consumer.ids_count = 0
        return 0

    def take_answers(self):
        """Return the FLOW and ACK frames to send."""
        if not self.answers:
            return b""
        answers = bytes(self.answers)
        self.answers.clear()
        return answers


cdef inline bint _is_referenced(Body body) noexcept:
    """Return True if the frames refer to the payload after the stamp, instead of copying it."""
    return body.size - body.head >= REFERENCE_BYTES_MIN


cdef inline uint64_t _frame_bytes(LoadProducer producer) noexcept:
    """Return the maximum number of bytes that `write` writes."""
    return (SEND_OVERHEAD_BYTES + <uint64_t>len(producer.name) + <uint64_t>len(producer.key)
            + min(producer.payload.entry_bytes_max, <uint32_t>(REFERENCE_BYTES_MIN + 64)))


cdef class FrameMemory:
    def __cinit__(self, uint64_t size):
        self.frames = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
        if self.frames == NULL:
            raise MemoryError("no memory for %d bytes of frames" % size)

    def __dealloc__(self):
        Py_XDECREF(self.frames)

    cdef uint8_t *data(self) noexcept:
        return <uint8_t *>PyBytes_AS_STRING(<object>self.frames)

    cdef bytes take(self, uint64_t size):
        _PyBytes_Resize(&self.frames, <Py_ssize_t>size)  # raises MemoryError, and sets it to NULL
        return <bytes>self.frames


cdef bytes _flow(uint64_t consumer_id, uint32_t permits):
    return _command(CMD_FLOW, _varint_field(1, consumer_id) + _varint_field(2, permits))


cdef bytes _command(uint32_t kind, bytes body):
    """Return the frame of a command without payload."""
    cdef uint8_t head[20]
    cdef uint8_t *end = put_varint(put_varint(_put_number(head, 1, kind),
                                              kind << 3 | WIRE_BYTES), <uint64_t>len(body))
    command = head[:end - head] + body
    size = len(command)
    return (size + 4).to_bytes(4, "big") + size.to_bytes(4, "big") + command


cdef class WakeTimer:
    def __cinit__(self):
        self.fd = load_timer_new()
        if self.fd < 0:
            raise OSError("the system has no timer left")

    def __dealloc__(self):
        self.close()

    def close(self):
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    def set(self, int64_t at_ns):
        """Make the descriptor readable at a time of CLOCK_MONOTONIC; 0: never."""
        load_timer_set(self.fd, at_ns)

    def read(self):
        """Make the descriptor unreadable again."""
        load_timer_read(self.fd)
