/* sha1.c - SHA-1 by the processor's instructions, or in C. */
#include "sha1.h"

#include <string.h>

#include "bytes.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define SHA1_X86 1
#endif

enum { SHA1_LENGTH_AT = 56 }; /* offset of the length in the last block */

static inline uint32_t rotate(uint32_t value, int bits) {
    return value << bits | value >> (32 - bits);
}

static inline uint32_t choose(uint32_t b, uint32_t c, uint32_t d) {
    return d ^ (b & (c ^ d));
}

static inline uint32_t parity(uint32_t b, uint32_t c, uint32_t d) {
    return b ^ c ^ d;
}

static inline uint32_t majority(uint32_t b, uint32_t c, uint32_t d) {
    return (b & c) | (d & (b | c));
}

/* Returns the word of a round; words from 16 on replace the word sixteen rounds earlier. */
static inline uint32_t sha1_word(uint32_t words[16], int round) {
    if (round < 16)
        return words[round];
    uint32_t mixed = words[(round + 13) & 15] ^ words[(round + 8) & 15] ^
                     words[(round + 2) & 15] ^ words[round & 15];
    return words[round & 15] = rotate(mixed, 1);
}

/* A quarter of the rounds, which share a function and a constant. After five rounds every variable
 * has its original role again, so that no values are moved. */
#define SHA1_ROUND(a, b, c, d, e, f, constant, round)                                              \
    e += rotate(a, 5) + f(b, c, d) + constant + sha1_word(words, round);                           \
    b = rotate(b, 30)
#define SHA1_QUARTER(f, constant, first)                                                           \
    for (int round = first; round < first + 20; round += 5) {                                      \
        SHA1_ROUND(a, b, c, d, e, f, constant, round);                                             \
        SHA1_ROUND(e, a, b, c, d, f, constant, round + 1);                                         \
        SHA1_ROUND(d, e, a, b, c, f, constant, round + 2);                                         \
        SHA1_ROUND(c, d, e, a, b, f, constant, round + 3);                                         \
        SHA1_ROUND(b, c, d, e, a, f, constant, round + 4);                                         \
    }

void sha1_blocks_portable(uint32_t state[5], const uint8_t *data, size_t count) {
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], words[16];
    for (; count > 0; count--, data += SHA1_BLOCK_BYTES) {
        for (int i = 0; i < 16; i++)
            words[i] = load_be32(data + 4 * i);
        SHA1_QUARTER(choose, 0x5a827999u, 0)
        SHA1_QUARTER(parity, 0x6ed9eba1u, 20)
        SHA1_QUARTER(majority, 0x8f1bbcdcu, 40)
        SHA1_QUARTER(parity, 0xca62c1d6u, 60)
        state[0] = a += state[0];
        state[1] = b += state[1];
        state[2] = c += state[2];
        state[3] = d += state[3];
        state[4] = e += state[4];
    }
}

static void (*blocks_chosen)(uint32_t *, const uint8_t *, size_t) = sha1_blocks_portable;

#if defined(SHA1_X86)

#define SHA1_TARGET __attribute__((target("sha,sse4.1")))

/* Does four rounds of a quarter. The instruction requires the quarter as a constant. */
SHA1_TARGET static inline __m128i four_rounds(__m128i abcd, __m128i e, int quarter) {
    switch (quarter) {
    case 0: return _mm_sha1rnds4_epu32(abcd, e, 0);
    case 1: return _mm_sha1rnds4_epu32(abcd, e, 1);
    case 2: return _mm_sha1rnds4_epu32(abcd, e, 2);
    default: return _mm_sha1rnds4_epu32(abcd, e, 3);
    }
}

/* Processes whole blocks. The instructions expect the first of four words in the highest lane. */
SHA1_TARGET static void blocks_x86(uint32_t state[5], const uint8_t *data, size_t count) {
    const __m128i reversed = _mm_set_epi64x(0x0001020304050607, 0x08090a0b0c0d0e0f);
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0x1b);
    __m128i e = _mm_set_epi32((int)state[4], 0, 0, 0);
    for (; count > 0; count--, data += SHA1_BLOCK_BYTES) {
        const __m128i abcd_before = abcd, e_before = e;
        __m128i words[4], last = abcd; /* abcd before the last four rounds */
#pragma GCC unroll 20
        for (int four = 0; four < 20; four++) {
            __m128i now;
            if (four < 4) {
                now = _mm_loadu_si128((const __m128i *)(data + 16 * four));
                now = _mm_shuffle_epi8(now, reversed);
            } else {
                now = _mm_sha1msg1_epu32(words[four & 3], words[(four + 1) & 3]);
                now = _mm_xor_si128(now, words[(four + 2) & 3]);
                now = _mm_sha1msg2_epu32(now, words[(four + 3) & 3]);
            }
            words[four & 3] = now;
            now = four == 0 ? _mm_add_epi32(e, now) : _mm_sha1nexte_epu32(last, now);
            last = abcd;
            abcd = four_rounds(abcd, now, four / 5);
        }
        e = _mm_sha1nexte_epu32(last, e_before);
        abcd = _mm_add_epi32(abcd, abcd_before);
    }
    _mm_storeu_si128((__m128i *)state, _mm_shuffle_epi32(abcd, 0x1b));
    state[4] = (uint32_t)_mm_extract_epi32(e, 3);
}

__attribute__((constructor)) static void sha1_prepare(void) {
    enum { EXTENDED_FEATURES = 7, HAS_SHA = 1 << 29 };
    unsigned a, b = 0, c, d;
    __builtin_cpu_init();
    if (__get_cpuid_count(EXTENDED_FEATURES, 0, &a, &b, &c, &d) && (b & HAS_SHA) != 0 &&
        __builtin_cpu_supports("sse4.1")) {
        blocks_chosen = blocks_x86;
    }
}

#endif

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
        blocks_chosen(s->words, s->block, 1);
        data += missing;
        length -= missing;
    }
    size_t blocks = length / SHA1_BLOCK_BYTES;
    blocks_chosen(s->words, data, blocks);
    memcpy(s->block, data + blocks * SHA1_BLOCK_BYTES, length % SHA1_BLOCK_BYTES);
}

void sha1_end(sha1_state *s, uint8_t out[SHA1_BYTES]) {
    uint64_t bits = s->length * 8;
    size_t filled = s->length % SHA1_BLOCK_BYTES;
    s->block[filled++] = 0x80;
    if (filled > SHA1_LENGTH_AT) {
        memset(s->block + filled, 0, SHA1_BLOCK_BYTES - filled);
        blocks_chosen(s->words, s->block, 1);
        filled = 0;
    }
    memset(s->block + filled, 0, SHA1_LENGTH_AT - filled);
    store_be64(s->block + SHA1_LENGTH_AT, bits);
    blocks_chosen(s->words, s->block, 1);
    for (int i = 0; i < 5; i++)
        store_be32(out + 4 * i, s->words[i]);
}
