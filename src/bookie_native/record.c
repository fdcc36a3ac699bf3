/* record.c - encoding, checking and scanning records. */
#include "record.h"

#include "bytes.h"
#include "crc32c.h"

uint32_t record_seed(uint64_t container, uint64_t salt) {
    uint8_t bytes[16];
    store_le64(bytes, container);
    store_le64(bytes + 8, salt);
    return crc32c(0, bytes, sizeof bytes);
}

void record_encode(uint8_t *at, uint32_t seed, const record *r) {
    store_le32(at + 4, r->payload_crc);
    store_le32(at + 8, r->length);
    store_le32(at + 12, r->type);
    store_le64(at + 16, (uint64_t)r->ledger_id);
    store_le64(at + 24, (uint64_t)r->entry_id);
    store_le32(at, crc32c(seed, at + 4, RECORD_HEADER_BYTES - 4));
}

int record_decode(const uint8_t *data, size_t bytes, uint32_t seed, record *out) {
    if (bytes < RECORD_HEADER_BYTES)
        return 0;
    uint32_t type = load_le32(data + 12);
    uint32_t length = load_le32(data + 8);
    /* Cheap checks first: a scan after damage calls this at every multiple of 8. */
    if (type < RECORD_ENTRY || type > RECORD_MASTER_KEY || record_bytes(length) > bytes)
        return 0;
    if (crc32c(seed, data + 4, RECORD_HEADER_BYTES - 4) != load_le32(data))
        return 0;
    if ((type == RECORD_MASTER_KEY && length != MASTER_KEY_BYTES) ||
        (type == RECORD_FENCE && length != 0))
        return 0;
    out->payload = data + RECORD_HEADER_BYTES;
    out->length = length;
    out->payload_crc = load_le32(data + 4);
    out->type = (uint8_t)type;
    out->ledger_id = (int64_t)load_le64(data + 16);
    out->entry_id = (int64_t)load_le64(data + 24);
    return out->ledger_id >= 0 && (type != RECORD_ENTRY || out->entry_id >= 0);
}

int record_payload_intact(const record *r) {
    return crc32c(0, r->payload, r->length) == r->payload_crc;
}

int record_payload_has_one_wrong_bit(const record *r) {
    static const uint8_t zero[1];
    uint32_t wrong = crc32c(0, r->payload, r->length) ^ r->payload_crc;
    uint32_t change[8]; /* of the CRC, by each flipped bit in the byte at `at` from the end */
    for (int bit = 0; bit < 8; bit++)
        change[bit] = 1u << bit;
    /* From the last byte to the first: each byte after the wrong one shifts its change once. The
     * inversions cancel those of crc32c. */
    for (uint32_t at = 0; at < r->length; at++)
        for (int bit = 0; bit < 8; bit++) {
            change[bit] = ~crc32c(~change[bit], zero, 1);
            if (change[bit] == wrong)
                return 1;
        }
    return 0;
}

int record_repair_header(uint8_t *data, size_t bytes, uint32_t seed) {
    if (bytes < RECORD_HEADER_BYTES)
        return 0;
    for (int bit = 0; bit < RECORD_HEADER_BYTES * 8; bit++) {
        record found;
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (record_decode(data, bytes, seed, &found))
            return 1;
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    return 0;
}

enum record_found record_scan_next(record_scan *scan, record *out) {
    size_t start = scan->at;
    while (scan->at + RECORD_HEADER_BYTES <= scan->bytes) {
        if (record_decode(scan->data + scan->at, scan->bytes - scan->at, scan->seed, out)) {
            if (scan->at != start) {
                scan->skipped_bytes = scan->at - start;
                return RECORD_LOST;
            }
            scan->at += record_bytes(out->length);
            return record_payload_intact(out) ? RECORD_GOOD : RECORD_DAMAGED;
        }
        scan->at += RECORD_ALIGNMENT;
    }
    if (start >= scan->bytes)
        return RECORD_NONE;
    scan->at = scan->bytes;
    scan->skipped_bytes = scan->bytes - start;
    return RECORD_LOST;
}
