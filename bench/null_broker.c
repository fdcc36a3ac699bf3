/*
 * null_broker.c - answers a run of SEND frames with receipts, for a broker that stores nothing.
 *
 * answer_sends() reads whole SEND frames at data[0:size]. It writes a SEND_RECEIPT for each at out,
 * which has room for out_size bytes. It stops at another command, at an incomplete frame, or when
 * the room is used up. It returns the number of consumed bytes, and the bytes of the receipts in
 * *out_used. *needed is the size of the incomplete frame, or 0 before another command.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SEND = 6, SEND_RECEIPT = 7, RECEIPT_MAX = 64 };

static uint32_t be32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static const uint8_t *varint(const uint8_t *at, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        *value |= (uint64_t)(*at & 0x7f) << shift;
        if (*at++ < 0x80)
            break;
    }
    return at;
}

static uint8_t *put(uint8_t *at, uint8_t key, uint64_t value) {
    *at++ = key;
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static size_t receipt(uint8_t *out, uint64_t producer_id, uint64_t sequence_id) {
    uint8_t body[RECEIPT_MAX];
    uint8_t *end = put(put(body, 1 << 3, producer_id), 2 << 3, sequence_id);
    *end++ = 3 << 3 | 2; /* message_id: ledger 0, entry = sequence id */
    uint8_t *size = end++;
    end = put(put(end, 1 << 3, 0), 2 << 3, sequence_id);
    *size = (uint8_t)(end - size - 1);
    uint8_t *at = put(out + 8, 1 << 3, SEND_RECEIPT);
    at = put(at, SEND_RECEIPT << 3 | 2, (uint64_t)(end - body));
    memcpy(at, body, (size_t)(end - body));
    at += end - body;
    uint32_t total = (uint32_t)(at - out - 4), command = total - 4;
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t)(total >> (24 - 8 * i));
        out[4 + i] = (uint8_t)(command >> (24 - 8 * i));
    }
    return (size_t)(at - out);
}

size_t answer_sends(const uint8_t *data, size_t size, uint8_t *out, size_t out_size,
                    size_t *out_used, size_t *needed) {
    size_t at = 0;
    *out_used = *needed = 0;
    while (*out_used + RECEIPT_MAX <= out_size) {
        /* type 6, key of field 6, length, producer id, sequence id: 40 bytes at most */
        if (size - at < 48) {
            *needed = size > at && size - at >= 4 ? 4 + (size_t)be32(data + at) : 48;
            break;
        }
        size_t total = 4 + (size_t)be32(data + at);
        if (data[at + 9] != SEND)
            break;
        if (size - at < total) {
            *needed = total;
            break;
        }
        uint64_t length, producer_id, sequence_id;
        const uint8_t *field = varint(data + at + 11, &length);
        field = varint(field + 1, &producer_id);
        varint(field + 1, &sequence_id);
        *out_used += receipt(out + *out_used, producer_id, sequence_id);
        at += total;
    }
    return at;
}
