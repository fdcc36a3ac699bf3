/*
 * record.h - one record, in the journal and in the entry logs alike.
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
 * It ties a header to the place it was written for: what a former life of the same disk block left
 * behind, or a client put into a payload, is never taken for a record. Header and payload have
 * checksums of their own so that a damaged payload still tells whose it was, and so that the CRC a
 * client sent over its data can be reused: the payload CRC is independent of the place.
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
    uint32_t payload_crc; /* as stated, not as computed */
    uint8_t type;
    int64_t ledger_id;
    int64_t entry_id;
} record;

/* What a step of a scan found. */
enum record_found {
    RECORD_NONE,    /* the end */
    RECORD_GOOD,    /* a record, both checksums right */
    RECORD_DAMAGED, /* a record whose payload fails its checksum; the identity is right */
    RECORD_LOST     /* bytes that are no record; skipped_bytes tells how many */
};

typedef struct record_scan {
    const uint8_t *data; /* starts at a multiple of 8 of its container */
    size_t bytes;
    size_t at;
    size_t skipped_bytes; /* by the last step that said RECORD_LOST */
    uint32_t seed;
} record_scan;

/* The seed of all records of one container. */
uint32_t record_seed(uint64_t container, uint64_t salt);

/* Header, payload and padding, in bytes. */
static inline uint64_t record_bytes(uint64_t payload_length) {
    return (RECORD_HEADER_BYTES + payload_length + RECORD_ALIGNMENT - 1) &
           ~(uint64_t)(RECORD_ALIGNMENT - 1);
}

/* Writes the 32 header bytes. */
void record_encode(uint8_t *at, uint32_t seed, const record *r);

/* 1 and *out when a valid header stands at data and its record fits in bytes; 0 otherwise. */
int record_decode(const uint8_t *data, size_t bytes, uint32_t seed, record *out);

/* 1 when the payload has the stated checksum. */
int record_payload_intact(const record *r);

/* For a record whose payload has not the stated checksum: 1 when it is one bit that is wrong. A
 * torn write, of which whole sectors are old, looks like that once in 2^32 divided by the bits of
 * the payload. Takes eight steps for each byte. */
int record_payload_has_one_wrong_bit(const record *r);

/* Where no header is valid at data: puts one wrong bit of its 32 bytes right, if that makes it
 * valid; returns 1 then, and leaves the bytes as they are otherwise. bytes as in record_decode. */
int record_mend_header(uint8_t *data, size_t bytes, uint32_t seed);

/* The next finding; after damage it looks on at every multiple of 8. */
enum record_found record_scan_next(record_scan *scan, record *out);

#endif
