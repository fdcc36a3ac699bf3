/*
 * sha1.h - SHA-1 (FIPS 180-4), for BookKeeper's MAC digests and master keys. The format requires
 * it; pyxbroker uses it for nothing else.
 *
 * A state can be copied; the copies are independent. Any thread, each with its own state.
 */
#ifndef PYXBROKER_SHA1_H
#define PYXBROKER_SHA1_H

#include <stddef.h>
#include <stdint.h>

enum { SHA1_BYTES = 20, SHA1_BLOCK_BYTES = 64 };

typedef struct sha1_state {
    uint32_t words[5];
    uint64_t length;                 /* bytes so far */
    uint8_t block[SHA1_BLOCK_BYTES]; /* the last length % 64 of them */
} sha1_state;

void sha1_begin(sha1_state *s);
void sha1_add(sha1_state *s, const uint8_t *data, size_t length);

/* Writes the hash. The state cannot be used afterwards. */
void sha1_end(sha1_state *s, uint8_t out[SHA1_BYTES]);

/* Processes whole blocks without special instructions of the processor; public for the tests. */
void sha1_blocks_portable(uint32_t state[5], const uint8_t *data, size_t count);

#endif
