/* sha1.c - SHA-1, a block at a time. */
#include "sha1.h"

#include <string.h>

#include "bytes.h"

enum { SHA1_LENGTH_AT = 56 }; /* where a last block has the length */

static inline uint32_t rotate(uint32_t value, int bits) {
    return value << bits | value >> (32 - bits);
}

/* The function of each round's quarter, and its constant. */
static inline uint32_t sha1_mix(int round, uint32_t b, uint32_t c, uint32_t d) {
    if (round < 20)
        return (d ^ (b & (c ^ d))) + 0x5a827999u;
    if (round < 40)
        return (b ^ c ^ d) + 0x6ed9eba1u;
    if (round < 60)
        return ((b & c) | (d & (b | c))) + 0x8f1bbcdcu;
    return (b ^ c ^ d) + 0xca62c1d6u;
}

static void sha1_block(sha1_state *s, const uint8_t *data) {
    uint32_t words[80];
    for (int i = 0; i < 16; i++)
        words[i] = load_be32(data + 4 * i);
    for (int i = 16; i < 80; i++)
        words[i] = rotate(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    uint32_t a = s->words[0], b = s->words[1], c = s->words[2], d = s->words[3], e = s->words[4];
    for (int i = 0; i < 80; i++) {
        uint32_t next = rotate(a, 5) + sha1_mix(i, b, c, d) + e + words[i];
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    s->words[0] += a;
    s->words[1] += b;
    s->words[2] += c;
    s->words[3] += d;
    s->words[4] += e;
}

void sha1_begin(sha1_state *s) {
    static const uint32_t first[5] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u,
                                      0xc3d2e1f0u};
    memcpy(s->words, first, sizeof first);
    s->length = 0;
}

void sha1_add(sha1_state *s, const uint8_t *data, size_t length) {
    size_t filled = s->length % SHA1_BLOCK_BYTES;
    size_t missing = SHA1_BLOCK_BYTES - filled;
    s->length += length;
    if (length < missing) {
        memcpy(s->block + filled, data, length);
        return;
    }
    if (filled > 0) {
        memcpy(s->block + filled, data, missing);
        sha1_block(s, s->block);
        data += missing;
        length -= missing;
    }
    for (; length >= SHA1_BLOCK_BYTES; data += SHA1_BLOCK_BYTES, length -= SHA1_BLOCK_BYTES)
        sha1_block(s, data);
    memcpy(s->block, data, length);
}

void sha1_end(sha1_state *s, uint8_t out[SHA1_BYTES]) {
    uint64_t bits = s->length * 8;
    size_t filled = s->length % SHA1_BLOCK_BYTES;
    s->block[filled++] = 0x80;
    if (filled > SHA1_LENGTH_AT) {
        memset(s->block + filled, 0, SHA1_BLOCK_BYTES - filled);
        sha1_block(s, s->block);
        filled = 0;
    }
    memset(s->block + filled, 0, SHA1_LENGTH_AT - filled);
    store_be64(s->block + SHA1_LENGTH_AT, bits);
    sha1_block(s, s->block);
    for (int i = 0; i < 5; i++)
        store_be32(out + 4 * i, s->words[i]);
}
