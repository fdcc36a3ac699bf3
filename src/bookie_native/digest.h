/*
 * digest.h - the checksum of an entry as it travels between broker and bookie (BookKeeper's
 * DigestManager).
 *
 *   offset  bytes
 *        0      8  ledger id
 *        8      8  entry id
 *       16      8  last add confirmed
 *       24      8  length of the ledger in bytes, this entry included
 *       32      n  digest of the 32 bytes before it and of all data after it
 *     32+n         data
 *
 * Integers are big-endian. n and the digest depend on the digest type:
 *   CRC32   8  CRC-32, in eight bytes
 *   MAC    20  HMAC-SHA1 with the key SHA-1("mac" + password); authenticates the writer
 *   CRC32C  4  CRC-32C
 *   DUMMY   0
 * The type numbers are those of BookKeeper's ledger metadata.
 *
 * Any thread. A prepared digest does not change.
 */
#ifndef PYXBROKER_DIGEST_H
#define PYXBROKER_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#include "sha1.h"

enum digest_type { DIGEST_CRC32 = 1, DIGEST_MAC = 2, DIGEST_CRC32C = 3, DIGEST_DUMMY = 4 };

enum {
    DIGEST_COVERED_BYTES = 32, /* the bytes before the digest */
    DIGEST_BYTES_MAX = 20,
    DIGEST_HEADER_BYTES_MAX = DIGEST_COVERED_BYTES + DIGEST_BYTES_MAX
};

typedef struct digest {
    int type;
    uint32_t header_bytes;      /* where the data begins */
    sha1_state inner, outer;    /* MAC only: HMAC's two hashes, each with its padded key */
} digest;

/* Returns 0, or -EINVAL for an unknown type. */
int digest_prepare(digest *d, int type, const uint8_t *password, size_t length);

/* Writes the digest after the covered bytes of the header. The CRC-32C of the data is known. */
void digest_write(const digest *d, uint8_t *header, const uint8_t *data, uint32_t length,
                  uint32_t data_crc32c);

/* Returns 1 when the packaged entry has a valid digest. */
int digest_check(const digest *d, const uint8_t *packaged, uint32_t length);

#endif
