"""Hot commands of the binary protocol, decoded and built in place; see commands.pxd."""
from libc.string cimport memcpy, memset

from pyxbroker.fields cimport (
    WIRE_BYTES,
    WIRE_FIXED32,
    WIRE_FIXED64,
    WIRE_VARINT,
    Field,
    parse_field,
)
from pyxbroker.integers cimport get_varint, put_varint, store_be32, varint_size

cdef enum:
    NESTED_MAX = 100                # nesting limit of protobuf


cdef int decode_base(const uint8_t *data, uint32_t size, uint32_t *type_out,
                     const uint8_t **message, uint32_t *message_size) noexcept nogil:
    cdef uint32_t at = 0
    cdef Field field
    if parse_field(data, size, &at, &field) != 0:
        return DECODE_MALFORMED
    if field.number != 1 or field.wire != WIRE_VARINT or field.value >> 16 != 0:
        return DECODE_MALFORMED
    type_out[0] = <uint32_t>field.value
    if parse_field(data, size, &at, &field) != 0:
        return DECODE_MALFORMED
    if field.number != type_out[0] or field.wire != WIRE_BYTES or at != size:
        return DECODE_MALFORMED
    message[0] = field.data
    message_size[0] = field.size
    return DECODE_OK


cdef int _take_fields(const uint8_t *data, uint32_t size, list shape, int depth,
                      int64_t *room) except -1:
    """Subtract from `room` one for each field of a message and its nested messages, and for each
    number of a packed field. Stop when `room` is used up, and where protobuf would stop parsing.
    """
    cdef uint32_t at = 0
    cdef uint32_t i
    cdef uint64_t key, length
    while at < size and room[0] > 0:
        room[0] -= 1
        if get_varint(data, size, &at, &key) != 0:
            return 0
        length = 0
        if key & 7 == WIRE_VARINT:
            if get_varint(data, size, &at, &length) != 0:
                return 0
            continue
        if key & 7 == WIRE_BYTES:
            if get_varint(data, size, &at, &length) != 0:
                return 0
        elif key & 7 == WIRE_FIXED64:
            length = 8
        elif key & 7 == WIRE_FIXED32:
            length = 4
        # The remaining wire types start or end a group, whose fields count like others.
        if length > size - at:
            return 0
        if key & 7 == WIRE_BYTES and key >> 3 < <uint64_t>len(shape):
            inner = shape[key >> 3]
            if inner is True:
                for i in range(at, at + <uint32_t>length):
                    room[0] -= data[i] < 0x80
            elif inner is not None and depth < NESTED_MAX:
                _take_fields(data + at, <uint32_t>length, inner, depth + 1, room)
        at += <uint32_t>length
    return 0


def has_more_fields(const uint8_t[::1] data not None, list shape not None, int64_t fields_max):
    """Return True if a message, including nested messages, has more than fields_max fields.

    shape is indexed by field number: the shape of a nested message, True for numbers that may be
    packed, None for anything else. The memory and time of a parser grow with the number of fields;
    counting takes a fraction of that time and stops after fields_max fields.
    """
    cdef int64_t room = fields_max + 1
    _take_fields(_start(data), <uint32_t>data.shape[0], shape, 0, &room)
    return room <= 0


def find_number(const uint8_t[::1] data not None, uint32_t number, int64_t fields_max):
    """Return the first varint field `number` among the first fields_max fields of a command's
    message. Return None if it is missing, or if the BaseCommand does not have the usual layout.
    """
    cdef uint32_t at = 0
    cdef uint32_t kind, size
    cdef const uint8_t *message
    cdef Field field
    if decode_base(_start(data), <uint32_t>data.shape[0], &kind, &message, &size) != 0:
        return None
    while fields_max > 0:
        fields_max -= 1
        if at >= size or parse_field(message, size, &at, &field) != 0:
            return None
        if field.number == number and field.wire == WIRE_VARINT:
            return field.value
    return None


cdef int decode_send(const uint8_t *data, uint32_t size, SendCommand *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint32_t seen = 0
    cdef uint32_t txn_parts = 0
    cdef Field field
    memset(out, 0, sizeof(SendCommand))
    out.num_messages = 1
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.wire != WIRE_VARINT:
            continue
        if field.number == 1:
            out.producer_id = field.value
            seen |= 1
        elif field.number == 2:
            out.sequence_id = field.value
            seen |= 2
        elif field.number == 3:
            out.num_messages = <int32_t>field.value
        elif field.number == 4:
            out.txnid_least_bits = field.value
            txn_parts |= 1
        elif field.number == 5:
            out.txnid_most_bits = field.value
            txn_parts |= 2
        elif field.number == 6:
            out.highest_sequence_id = field.value
        elif field.number == 7:
            out.is_chunk = field.value != 0
        elif field.number == 8:
            out.marker = field.value != 0
    out.has_txn = txn_parts == 3
    return DECODE_OK if seen == 3 else DECODE_MALFORMED


cdef int decode_flow(const uint8_t *data, uint32_t size, FlowCommand *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint32_t seen = 0
    cdef Field field
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.wire != WIRE_VARINT:
            continue
        if field.number == 1:
            out.consumer_id = field.value
            seen |= 1
        elif field.number == 2:
            out.permits = <uint32_t>field.value
            seen |= 2
    return DECODE_OK if seen == 3 else DECODE_MALFORMED


cdef int decode_ack(const uint8_t *data, uint32_t size, AckCommand *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint32_t seen = 0
    cdef uint32_t txn_parts = 0
    cdef Field field
    memset(out, 0, sizeof(AckCommand))
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.number == ACK_IDS and field.wire == WIRE_BYTES:
            out.ids += 1
        elif field.wire != WIRE_VARINT:
            continue
        elif field.number == 1:
            out.consumer_id = field.value
            seen |= 1
        elif field.number == 2:
            if field.value > 1:
                return DECODE_MALFORMED
            out.cumulative = field.value == 1
            seen |= 2
        elif field.number == 4:
            out.has_validation_error = True
        elif field.number == 6:
            out.txnid_least_bits = field.value
            txn_parts |= 1
        elif field.number == 7:
            out.txnid_most_bits = field.value
            txn_parts |= 2
        elif field.number == 8:
            out.request_id = field.value
            out.has_request_id = True
    out.has_txn = txn_parts == 3
    return DECODE_OK if seen == 3 else DECODE_MALFORMED


cdef int decode_redeliver(const uint8_t *data, uint32_t size,
                          RedeliverCommand *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef bint has_consumer = False
    cdef Field field
    memset(out, 0, sizeof(RedeliverCommand))
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.number == REDELIVER_IDS and field.wire == WIRE_BYTES:
            out.ids += 1
        elif field.wire != WIRE_VARINT:
            continue
        elif field.number == 1:
            out.consumer_id = field.value
            has_consumer = True
        elif field.number == 3:
            out.consumer_epoch = field.value
            out.has_epoch = True
    return DECODE_OK if has_consumer else DECODE_MALFORMED


cdef int decode_next_id(const uint8_t *data, uint32_t size, uint32_t field_number, uint32_t *at,
                        AckedId *out) noexcept nogil:
    cdef Field field
    while at[0] < size:
        if parse_field(data, size, at, &field) != 0:
            return DECODE_MALFORMED
        if field.number == field_number and field.wire == WIRE_BYTES:
            return 1 if _decode_acked_id(field.data, field.size, out) == 0 else DECODE_MALFORMED
    return 0


cdef int _decode_acked_id(const uint8_t *data, uint32_t size, AckedId *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint32_t seen = 0
    cdef uint32_t packed_at
    cdef uint64_t word
    cdef Field field
    out.batch_index = -1
    out.batch_size = 0
    out.ack_set_words = 0
    out.message = data
    out.message_size = size
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.number == 5 and field.wire == WIRE_BYTES:
            packed_at = 0
            while packed_at < field.size:
                if get_varint(field.data, field.size, &packed_at, &word) != 0:
                    return DECODE_MALFORMED
                out.ack_set_words += 1
        elif field.wire != WIRE_VARINT:
            continue
        elif field.number == 1:
            out.ledger_id = <int64_t>field.value
            seen |= 1
        elif field.number == 2:
            out.entry_id = <int64_t>field.value
            seen |= 2
        elif field.number == 4:
            out.batch_index = <int32_t>field.value
        elif field.number == 5:
            out.ack_set_words += 1
        elif field.number == 6:
            out.batch_size = <int32_t>field.value
    return DECODE_OK if seen == 3 else DECODE_MALFORMED


cdef int decode_ack_set(const AckedId *id, int64_t *words, uint32_t words_max) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint32_t packed_at
    cdef uint32_t n = 0
    cdef uint64_t word
    cdef Field field
    while at < id.message_size:
        if parse_field(id.message, id.message_size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.number != 5:
            continue
        if field.wire == WIRE_VARINT:
            if n == words_max:
                return DECODE_MALFORMED
            words[n] = <int64_t>field.value
            n += 1
        elif field.wire == WIRE_BYTES:
            packed_at = 0
            while packed_at < field.size:
                if n == words_max or get_varint(field.data, field.size, &packed_at, &word) != 0:
                    return DECODE_MALFORMED
                words[n] = <int64_t>word
                n += 1
    return <int>n


cdef uint32_t _count_packed(const uint8_t *data, uint32_t size) noexcept nogil:
    cdef uint32_t count = 0
    cdef uint32_t i
    for i in range(size):
        count += data[i] < 0x80
    return count


cdef int peek_batched(const uint8_t *data, uint32_t size, BatchedPeek *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef bint has_size = False
    cdef Field field
    memset(out, 0, sizeof(BatchedPeek))
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        if field.wire == WIRE_VARINT:
            if field.number == 3:
                out.payload_size = <int32_t>field.value
                has_size = True
            elif field.number == 4:
                out.is_compacted_out = field.value != 0
            elif field.number == 9:
                out.has_null_value = field.value != 0
        elif field.wire == WIRE_BYTES and field.number == 2:
            out.partition_key = field.data
            out.partition_key_size = field.size
    return DECODE_OK if has_size and out.payload_size >= 0 else DECODE_MALFORMED


cdef int peek_metadata(const uint8_t *data, uint32_t size, MetadataPeek *out) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint32_t seen = 0
    cdef uint32_t txn_parts = 0
    cdef Field field
    memset(out, 0, sizeof(MetadataPeek))
    out.num_messages = 1
    out.marker_type = -1
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return DECODE_MALFORMED
        out.fields += 1
        if field.wire == WIRE_VARINT:
            if field.number == 2:
                out.sequence_id = field.value
                seen |= 2
            elif field.number == 3:
                out.publish_time = field.value
                seen |= 4
            elif field.number == 8:
                out.compression = <int32_t>field.value
            elif field.number == 9:
                out.uncompressed_size = <uint32_t>field.value
                out.has_uncompressed_size = True
            elif field.number == 11:
                out.num_messages = <int32_t>field.value
                out.is_batch = True
            elif field.number == 17:
                out.partition_key_b64 = field.value != 0
            elif field.number == 19:
                out.deliver_at_time = <int64_t>field.value
            elif field.number == 20:
                out.marker_type = <int32_t>field.value
            elif field.number == 22:
                out.txnid_least_bits = field.value
                txn_parts |= 1
            elif field.number == 23:
                out.txnid_most_bits = field.value
                txn_parts |= 2
            elif field.number == 24:
                out.highest_sequence_id = field.value
            elif field.number == 25:
                out.has_null_value = field.value != 0
            elif field.number == 27:
                out.num_chunks = <int32_t>field.value
            elif field.number == 29:
                out.chunk_id = <int32_t>field.value
            elif field.number == 31:
                out.compacted_indexes += 1
        elif field.wire == WIRE_BYTES:
            if field.number == 1:
                out.producer_name = field.data
                out.producer_name_size = field.size
                seen |= 1
            elif field.number == 6:
                out.partition_key = field.data
                out.partition_key_size = field.size
            elif field.number == 13:
                out.is_encrypted = True
            elif field.number == 18:
                out.ordering_key = field.data
                out.ordering_key_size = field.size
            elif field.number == 26:
                out.uuid = field.data
                out.uuid_size = field.size
            elif field.number == 31:
                out.compacted_indexes += _count_packed(field.data, field.size)
    out.has_txn = txn_parts == 3
    return DECODE_OK if seen == 7 else DECODE_MALFORMED


cdef uint64_t peek_broker_timestamp(const uint8_t *data, uint32_t size) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint64_t found = 0
    cdef Field field
    while at < size:
        if parse_field(data, size, &at, &field) != 0:
            return 0
        if field.number == 1 and field.wire == WIRE_VARINT:
            found = field.value
    return found


cdef inline uint8_t *_build_uint(uint8_t *p, uint32_t number, uint64_t value) noexcept nogil:
    return put_varint(put_varint(p, number << 3), value)


# Write a message of at most 127 bytes as the field `number`.
cdef inline uint8_t *_build_sub(uint8_t *p, uint32_t number, const uint8_t *body,
                                uint32_t size) noexcept nogil:
    p = put_varint(p, (number << 3) | WIRE_BYTES)
    p = put_varint(p, size)
    memcpy(p, body, size)
    return p + size


cdef uint32_t build_receipt(uint8_t *out, uint64_t producer_id, uint64_t sequence_id,
                            uint64_t highest_sequence_id, uint64_t ledger_id,
                            uint64_t entry_id) noexcept nogil:
    cdef uint8_t message_id[24]
    cdef uint8_t body[72]
    cdef uint8_t *end
    cdef uint8_t *p
    end = _build_uint(_build_uint(message_id, 1, ledger_id), 2, entry_id)
    p = _build_uint(_build_uint(body, 1, producer_id), 2, sequence_id)
    p = _build_sub(p, 3, message_id, <uint32_t>(end - message_id))
    if highest_sequence_id:
        p = _build_uint(p, 4, highest_sequence_id)
    end = _build_sub(_build_uint(out + 8, 1, CMD_SEND_RECEIPT), CMD_SEND_RECEIPT, body,
                     <uint32_t>(p - body))
    store_be32(out, <uint32_t>(end - out) - 4)
    store_be32(out + 4, <uint32_t>(end - out) - 8)
    return <uint32_t>(end - out)


cdef uint32_t _build_message_body(uint8_t *body, uint64_t consumer_id, uint64_t ledger_id,
                                  uint64_t entry_id, int32_t partition,
                                  uint32_t redelivery_count) noexcept nogil:
    cdef uint8_t message_id[40]
    cdef uint8_t *end
    cdef uint8_t *p
    end = _build_uint(_build_uint(message_id, 1, ledger_id), 2, entry_id)
    if partition >= 0:
        end = _build_uint(end, 3, <uint64_t>partition)
    p = _build_sub(_build_uint(body, 1, consumer_id), 2, message_id, <uint32_t>(end - message_id))
    if redelivery_count:
        p = _build_uint(p, 3, redelivery_count)
    return <uint32_t>(p - body)


cdef uint32_t build_message_header(uint8_t *out, uint64_t consumer_id, uint64_t ledger_id,
                                   uint64_t entry_id, int32_t partition,
                                   uint32_t redelivery_count, const int64_t *ack_set,
                                   uint32_t ack_set_words, int64_t consumer_epoch,
                                   uint32_t payload_size) noexcept nogil:
    cdef uint8_t body[96]
    cdef uint32_t i
    cdef uint32_t fixed = _build_message_body(body, consumer_id, ledger_id, entry_id, partition,
                                              redelivery_count)
    cdef uint32_t size = fixed
    cdef uint8_t *p
    for i in range(ack_set_words):
        size += 1 + varint_size(<uint64_t>ack_set[i])
    if consumer_epoch >= 0:
        size += 1 + varint_size(<uint64_t>consumer_epoch)
    p = _build_uint(out + 8, 1, CMD_MESSAGE)
    p = put_varint(p, (CMD_MESSAGE << 3) | WIRE_BYTES)
    p = put_varint(p, size)
    memcpy(p, body, fixed)
    p += fixed
    for i in range(ack_set_words):
        p = _build_uint(p, 4, <uint64_t>ack_set[i])
    if consumer_epoch >= 0:
        p = _build_uint(p, 5, <uint64_t>consumer_epoch)
    store_be32(out, <uint32_t>(p - out) - 4 + payload_size)
    store_be32(out + 4, <uint32_t>(p - out) - 8)
    return <uint32_t>(p - out)


# The functions below are for tests, which compare them with slow decoders.

cdef const uint8_t *_start(const uint8_t[::1] data) noexcept:
    return &data[0] if data.shape[0] > 0 else <const uint8_t *>b""


def decode_base_py(const uint8_t[::1] data not None):
    """Return (type, message bytes) of a BaseCommand with the usual layout, or None."""
    cdef uint32_t kind, size
    cdef const uint8_t *message
    if decode_base(_start(data), <uint32_t>data.shape[0], &kind, &message, &size) != 0:
        return None
    return kind, message[:size]


def decode_send_py(const uint8_t[::1] data not None):
    """Decode CommandSend to a dict; None if malformed."""
    cdef SendCommand out
    if decode_send(_start(data), <uint32_t>data.shape[0], &out) != 0:
        return None
    return out


def decode_flow_py(const uint8_t[::1] data not None):
    """Decode CommandFlow to a dict; None if malformed."""
    cdef FlowCommand out
    if decode_flow(_start(data), <uint32_t>data.shape[0], &out) != 0:
        return None
    return out


def decode_ack_py(const uint8_t[::1] data not None):
    """Return (CommandAck as dict, [(ledger, entry, batch_index, batch_size, [words])]), or None."""
    cdef AckCommand out
    cdef AckedId id
    cdef uint32_t at = 0
    cdef int64_t words[1024]
    cdef int n, i, got
    cdef const uint8_t *start = _start(data)
    if decode_ack(start, <uint32_t>data.shape[0], &out) != 0:
        return None
    ids = []
    while True:
        got = decode_next_id(start, <uint32_t>data.shape[0], ACK_IDS, &at, &id)
        if got == 0:
            return out, ids
        n = decode_ack_set(&id, words, 1024) if got == 1 else DECODE_MALFORMED
        if n < 0:
            return None
        ids.append((id.ledger_id, id.entry_id, id.batch_index, id.batch_size,
                    [words[i] for i in range(n)]))


def decode_redeliver_py(const uint8_t[::1] data not None):
    """Return (CommandRedeliverUnacknowledgedMessages as a dict, [(ledger, entry)]), or None."""
    cdef RedeliverCommand out
    cdef AckedId id
    cdef uint32_t at = 0
    cdef int got
    cdef const uint8_t *start = _start(data)
    if decode_redeliver(start, <uint32_t>data.shape[0], &out) != 0:
        return None
    ids = []
    while True:
        got = decode_next_id(start, <uint32_t>data.shape[0], REDELIVER_IDS, &at, &id)
        if got == 0:
            return out, ids
        if got < 0:
            return None
        ids.append((id.ledger_id, id.entry_id))


def peek_metadata_py(const uint8_t[::1] data not None):
    """Return the fields of MessageMetadata that the broker uses as a dict; None if malformed."""
    cdef MetadataPeek out
    if peek_metadata(_start(data), <uint32_t>data.shape[0], &out) != 0:
        return None
    return {
        "sequence_id": out.sequence_id, "highest_sequence_id": out.highest_sequence_id,
        "publish_time": out.publish_time,
        "deliver_at_time": out.deliver_at_time, "num_messages": out.num_messages,
        "marker_type": out.marker_type, "is_batch": bool(out.is_batch),
        "transaction": ((out.txnid_most_bits, out.txnid_least_bits) if out.has_txn else None),
        "is_encrypted": bool(out.is_encrypted),
        "partition_key": out.partition_key[:out.partition_key_size],
        "partition_key_b64": bool(out.partition_key_b64),
        "ordering_key": out.ordering_key[:out.ordering_key_size],
        "producer_name": out.producer_name[:out.producer_name_size],
        "uuid": out.uuid[:out.uuid_size], "num_chunks": out.num_chunks, "chunk_id": out.chunk_id,
        "compacted_indexes": out.compacted_indexes,
    }


def build_receipt_py(producer_id, sequence_id, highest_sequence_id, ledger_id, entry_id):
    """Build a whole SEND_RECEIPT frame."""
    cdef uint8_t out[RECEIPT_BYTES_MAX]
    n = build_receipt(out, producer_id, sequence_id, highest_sequence_id, ledger_id, entry_id)
    return out[:n]


def build_message_header_py(consumer_id, ledger_id, entry_id, partition, redelivery_count,
                            ack_set, consumer_epoch, payload_size):
    """Build the start of a MESSAGE frame; ack_set is a list of at most 64 words."""
    cdef uint8_t out[MESSAGE_HEADER_BYTES_MAX + 64 * ACK_SET_WORD_BYTES_MAX]
    cdef int64_t words[64]
    if len(ack_set) > 64:
        raise ValueError("an ack set has at most 64 words here")
    for i, word in enumerate(ack_set):
        words[i] = word
    n = build_message_header(out, consumer_id, ledger_id, entry_id, partition, redelivery_count,
                             words, <uint32_t>len(ack_set), consumer_epoch, payload_size)
    return out[:n]
