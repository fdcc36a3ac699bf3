/*
 * sha1.h - SHA-1 (FIPS 180-4), for BookKeeper's MAC digests and keys. It is what the format asks
 * for; nothing of our own rests on it.
 *
 * A state is a plain value: a copy goes on independently. Any thread, each with its own state.
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

/* Writes the hash; the state is used up. */
void sha1_end(sha1_state *s, uint8_t out[SHA1_BYTES]);

/* Takes whole blocks in, without the processor's own instructions; public for the tests. */
void sha1_blocks_portable(uint32_t state[5], const uint8_t *data, size_t count);

/* "sha-ni" or "portable": chosen when the library is loaded. */
const char *sha1_variant(void);

#endif
