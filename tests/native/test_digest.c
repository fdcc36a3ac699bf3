/* test_digest.c - digests of entries against published values, and every byte that may be wrong. */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "check.h"
#include "crc32.h"
#include "crc32c.h"
#include "digest.h"

enum { DATA_BYTES = 300 };

static const int types[] = {DIGEST_CRC32, DIGEST_MAC, DIGEST_CRC32C, DIGEST_DUMMY};

static int sha1_is(const char *text, size_t repeat, const char *wanted) {
    sha1_state s;
    uint8_t hash[SHA1_BYTES];
    char shown[2 * SHA1_BYTES + 1];
    sha1_begin(&s);
    for (size_t i = 0; i < repeat; i++)
        sha1_add(&s, (const uint8_t *)text, strlen(text));
    sha1_end(&s, hash);
    for (int i = 0; i < SHA1_BYTES; i++)
        snprintf(shown + 2 * i, 3, "%02x", hash[i]);
    return strcmp(shown, wanted) == 0;
}

/* FIPS 180-4's examples, in pieces that end before, at and behind the ends of blocks. */
static void test_sha1_has_the_published_values(void) {
    CHECK(sha1_is("", 1, "da39a3ee5e6b4b0d3255bfef95601890afd80709"));
    CHECK(sha1_is("abc", 1, "a9993e364706816aba3e25717850c26c9cd0d89d"));
    CHECK(sha1_is("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
                  "84983e441c3bd26ebaae4aa1f95129e5e54670f1"));
    CHECK(sha1_is("a", 1000000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"));
    CHECK(sha1_is("aaaaaaaaaaaaaaaaaaaaaaaaa", 40000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f"));
}

/* Of the fastest one the values are above; this one is what other processors have. */
static void test_sha1_variants_agree(void) {
    uint8_t data[9 * SHA1_BLOCK_BYTES];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i >> 3);
    for (size_t blocks = 0; blocks <= 8; blocks++)
        for (size_t at = 0; at < 16; at++) {
            sha1_state s;
            uint32_t words[5];
            sha1_begin(&s);
            memcpy(words, s.words, sizeof words);
            sha1_blocks_portable(words, data + at, blocks);
            sha1_add(&s, data + at, blocks * SHA1_BLOCK_BYTES);
            CHECK(memcmp(words, s.words, sizeof words) == 0);
        }
    /* "abc", padded to a block of its own */
    const uint32_t wanted[5] = {0xa9993e36u, 0x4706816au, 0xba3e2571u, 0x7850c26cu, 0x9cd0d89du};
    uint32_t words[5];
    uint8_t block[SHA1_BLOCK_BYTES] = {'a', 'b', 'c', 0x80};
    sha1_state s;
    sha1_begin(&s);
    memcpy(words, s.words, sizeof words);
    block[SHA1_BLOCK_BYTES - 1] = 24;
    sha1_blocks_portable(words, block, 1);
    CHECK(memcmp(words, wanted, sizeof words) == 0);
}

static void test_crc32_has_its_check_value_in_any_pieces(void) {
    const uint8_t *digits = (const uint8_t *)"123456789";
    CHECK(crc32_ieee(0, digits, 9) == 0xcbf43926u);
    for (size_t cut = 0; cut <= 9; cut++)
        CHECK(crc32_ieee(crc32_ieee(0, digits, cut), digits + cut, 9 - cut) == 0xcbf43926u);
}

static void test_a_type_that_is_none_is_refused(void) {
    digest d;
    CHECK(digest_prepare(&d, 0, NULL, 0) < 0);
    CHECK(digest_prepare(&d, 5, NULL, 0) < 0);
}

/* A packaged entry of the type; returns its length. */
static uint32_t packaged(const digest *d, uint8_t *out, uint32_t data_length) {
    uint8_t *data = out + d->header_bytes;
    for (int i = 0; i < DIGEST_COVERED_BYTES; i++)
        out[i] = (uint8_t)i;
    for (uint32_t i = 0; i < data_length; i++)
        data[i] = (uint8_t)(7 * i);
    digest_write(d, out, data, data_length, crc32c(0, data, data_length));
    return d->header_bytes + data_length;
}

static void test_a_digest_covers_every_byte(void) {
    uint8_t entry[DIGEST_HEADER_BYTES_MAX + DATA_BYTES];
    for (size_t n = 0; n < sizeof types / sizeof *types; n++) {
        digest d;
        CHECK(digest_prepare(&d, types[n], (const uint8_t *)"secret", 6) == 0);
        for (uint32_t data_length = 0; data_length <= DATA_BYTES; data_length += 25) {
            uint32_t length = packaged(&d, entry, data_length);
            CHECK(digest_check(&d, entry, length));
            for (uint32_t i = 0; i < length; i++) {
                entry[i] ^= 1;
                CHECK(digest_check(&d, entry, length) == (types[n] == DIGEST_DUMMY));
                entry[i] ^= 1;
            }
        }
        CHECK(!digest_check(&d, entry, d.header_bytes - 1));
    }
}

static void test_a_mac_needs_its_password(void) {
    uint8_t entry[DIGEST_HEADER_BYTES_MAX + DATA_BYTES];
    digest d, other;
    CHECK(digest_prepare(&d, DIGEST_MAC, (const uint8_t *)"secret", 6) == 0);
    CHECK(digest_prepare(&other, DIGEST_MAC, (const uint8_t *)"secreT", 6) == 0);
    uint32_t length = packaged(&d, entry, DATA_BYTES);
    CHECK(!digest_check(&other, entry, length));
}

static const check_test tests[] = {
    {"sha1_has_the_published_values", test_sha1_has_the_published_values},
    {"sha1_variants_agree", test_sha1_variants_agree},
    {"crc32_has_its_check_value_in_any_pieces", test_crc32_has_its_check_value_in_any_pieces},
    {"digest_of_a_type_that_is_none_is_refused", test_a_type_that_is_none_is_refused},
    {"digest_covers_every_byte", test_a_digest_covers_every_byte},
    {"digest_mac_needs_its_password", test_a_mac_needs_its_password},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
