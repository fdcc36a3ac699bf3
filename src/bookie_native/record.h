/*
 * record.h - one record, in the journal and in the entry logs.
 *
 * Layout, little-endian, starting at a multiple of 8:
 *
 *   offset size
 *        0    4  header CRC: CRC32C of the seed's 16 bytes followed by bytes 4..31 of this header
 *        4    4  payload CRC: CRC32C of the payload
 *        8    4  payload length in bytes
 *       12    1  type (record_type)
 *       13    3  zero
 *       16    8  ledger id
 *       24    8  entry id, -1 where the type has none
 *       32    n  payload: a packaged entry (ENTRY), nothing (FENCE), 20 bytes (MASTER_KEY)
 *     32+n       zero bytes up to a multiple of 8
 *
 * The seed is the number of the container (group sequence or log id, 8 bytes) and a salt (8 bytes).
 * It ties a header to its place: leftovers of an earlier use of the disk block, or bytes that a
 * client put into a payload, are never taken for a record. Header and payload have separate
 * checksums, so that a damaged payload can still be attributed to its entry. The payload CRC does
 * not depend on the place, so that the CRC sent by the client can be reused.
 */
#ifndef PYXBROKER_RECORD_H
#define PYXBROKER_RECORD_H

#include <stddef.h>
#include <stdint.h>

enum { RECORD_HEADER_BYTES = 32, RECORD_ALIGNMENT = 8, MASTER_KEY_BYTES = 20 };

enum record_type { RECORD_ENTRY = 1, RECORD_FENCE = 2, RECORD_MASTER_KEY = 3 };

typedef struct record {
    const uint8_t *payload;
    uint32_t length;      /* of the payload, bytes */
    uint32_t payload_crc; /* as stored, not as computed */
    uint8_t type;
    int64_t ledger_id;
    int64_t entry_id;
} record;

/* The result of one step of a scan. */
enum record_found {
    RECORD_NONE,    /* the end */
    RECORD_GOOD,    /* a record with two valid checksums */
    RECORD_DAMAGED, /* a record with a valid header and an invalid payload checksum */
    RECORD_LOST     /* bytes that are not a record; skipped_bytes is their number */
};

typedef struct record_scan {
    const uint8_t *data; /* starts at a multiple of 8 of its container */
    size_t bytes;
    size_t at;
    size_t skipped_bytes; /* by the last step that returned RECORD_LOST */
    uint32_t seed;
} record_scan;

/* Returns the seed of all records of one container. */
uint32_t record_seed(uint64_t container, uint64_t salt);

/* Returns the size of header, payload and padding, in bytes. */
static inline uint64_t record_bytes(uint64_t payload_length) {
    return (RECORD_HEADER_BYTES + payload_length + RECORD_ALIGNMENT - 1) &
           ~(uint64_t)(RECORD_ALIGNMENT - 1);
}

/* Writes the 32 header bytes. */
void record_encode(uint8_t *at, uint32_t seed, const record *r);

/* Returns 1 and *out when data holds a valid header whose record fits in `bytes`; 0 otherwise. */
int record_decode(const uint8_t *data, size_t bytes, uint32_t seed, record *out);

/* Returns 1 when the payload matches its checksum. */
int record_payload_intact(const record *r);

/* For a record with an invalid payload checksum: returns 1 when a single flipped bit explains it. A
 * torn write, with whole sectors of old data, looks like that with a probability of (bits of the
 * payload) / 2^32. Takes eight steps per byte. */
int record_payload_has_one_wrong_bit(const record *r);

/* For 32 bytes that are not a valid header: corrects one flipped bit if that makes the header
 * valid, and returns 1. Otherwise returns 0 and changes nothing. bytes as in record_decode. */
int record_repair_header(uint8_t *data, size_t bytes, uint32_t seed);

/* Returns the next finding; after damage it tries every multiple of 8. */
enum record_found record_scan_next(record_scan *scan, record *out);

#endif
