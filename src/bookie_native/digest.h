/*
 * digest.h - how a packaged entry is checked between a broker and its bookies (BookKeeper's
 * DigestManager).
 *
 *   offset  bytes
 *        0      8  ledger id
 *        8      8  entry id
 *       16      8  last add confirmed
 *       24      8  length of the ledger in bytes, this entry included
 *       32      n  digest of the 32 bytes before it and of all data behind it
 *     32+n         data
 *
 * Integers are big-endian. n and the digest follow from the ledger's type:
 *   CRC32   8  CRC-32, in eight bytes
 *   MAC    20  HMAC-SHA1; its key is SHA-1 of "mac" and the password, so it tells who wrote
 *   CRC32C  4  CRC-32C
 *   DUMMY   0
 * The numbers of the types are those of ledger metadata.
 *
 * Any thread; a prepared digest is never changed.
 */
#ifndef PYXBROKER_DIGEST_H
#define PYXBROKER_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "sha1.h"

enum digest_type { DIGEST_CRC32 = 1, DIGEST_MAC = 2, DIGEST_CRC32C = 3, DIGEST_DUMMY = 4 };

enum {
    DIGEST_COVERED_BYTES = 32, /* before the digest */
    DIGEST_BYTES_MAX = 20,
    DIGEST_HEADER_BYTES_MAX = DIGEST_COVERED_BYTES + DIGEST_BYTES_MAX
};

typedef struct digest {
    int type;
    uint32_t header_bytes;      /* where the data begins */
    sha1_state inner, outer;    /* of a MAC: HMAC's two hashes, each with its padded key */
} digest;

/* Returns 0, or -EINVAL for a type that is none. */
int digest_prepare(digest *d, int type, const uint8_t *password, size_t length);

/* Writes the digest behind the covered bytes of a header, for data whose CRC-32C is known. */
void digest_write(const digest *d, uint8_t *header, const uint8_t *data, uint32_t length,
                  uint32_t data_crc32c);

/* 1 when a packaged entry has the digest that it should have. */
int digest_check(const digest *d, const uint8_t *packaged, uint32_t length);

#endif
