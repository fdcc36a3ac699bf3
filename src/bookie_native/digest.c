/* digest.c - the digests of BookKeeper's entries. */
#include "digest.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "crc32.h"
#include "crc32c.h"

/* Starts a hash with HMAC's key, padded with zeros and combined with the mask. */
static void digest_take_key(sha1_state *s, const uint8_t key[SHA1_BYTES], uint8_t mask) {
    uint8_t padded[SHA1_BLOCK_BYTES];
    memset(padded, mask, sizeof padded);
    for (int i = 0; i < SHA1_BYTES; i++)
        padded[i] ^= key[i];
    sha1_begin(s);
    sha1_add(s, padded, sizeof padded);
}

int digest_prepare(digest *d, int type, const uint8_t *password, size_t length) {
    static const uint32_t bytes[] = {
        [DIGEST_CRC32] = 8, [DIGEST_MAC] = SHA1_BYTES, [DIGEST_CRC32C] = 4, [DIGEST_DUMMY] = 0};
    if (type < DIGEST_CRC32 || type > DIGEST_DUMMY)
        return -EINVAL;
    memset(d, 0, sizeof *d);
    d->type = type;
    d->header_bytes = DIGEST_COVERED_BYTES + bytes[type];
    if (type == DIGEST_MAC) {
        sha1_state s;
        uint8_t key[SHA1_BYTES];
        sha1_begin(&s);
        sha1_add(&s, (const uint8_t *)"mac", 3);
        sha1_add(&s, password, length);
        sha1_end(&s, key);
        digest_take_key(&d->inner, key, 0x36);
        digest_take_key(&d->outer, key, 0x5c);
    }
    return 0;
}

static void digest_mac(const digest *d, const uint8_t *covered, const uint8_t *data,
                       uint32_t length, uint8_t out[SHA1_BYTES]) {
    sha1_state s = d->inner;
    sha1_add(&s, covered, DIGEST_COVERED_BYTES);
    sha1_add(&s, data, length);
    sha1_end(&s, out);
    s = d->outer;
    sha1_add(&s, out, SHA1_BYTES);
    sha1_end(&s, out);
}

void digest_write(const digest *d, uint8_t *header, const uint8_t *data, uint32_t length,
                  uint32_t data_crc32c) {
    uint8_t *at = header + DIGEST_COVERED_BYTES;
    uint32_t crc;
    switch (d->type) {
    case DIGEST_CRC32C:
        crc = crc32c(0, header, DIGEST_COVERED_BYTES);
        store_be32(at, crc32c_combine(crc, data_crc32c, length));
        break;
    case DIGEST_CRC32:
        crc = crc32_ieee(0, header, DIGEST_COVERED_BYTES);
        store_be64(at, crc32_ieee(crc, data, length));
        break;
    case DIGEST_MAC: digest_mac(d, header, data, length, at); break;
    default: break; /* DUMMY has no bytes */
    }
}

int digest_check(const digest *d, const uint8_t *packaged, uint32_t length) {
    if (length < d->header_bytes)
        return 0;
    const uint8_t *data = packaged + d->header_bytes;
    uint32_t data_length = length - d->header_bytes;
    uint8_t header[DIGEST_HEADER_BYTES_MAX];
    memcpy(header, packaged, DIGEST_COVERED_BYTES);
    uint32_t crc = d->type == DIGEST_CRC32C ? crc32c(0, data, data_length) : 0;
    digest_write(d, header, data, data_length, crc);
    /* Compares all bytes, so that the time does not reveal how many bytes of a forgery match. */
    uint8_t different = 0;
    for (uint32_t i = DIGEST_COVERED_BYTES; i < d->header_bytes; i++)
        different |= header[i] ^ packaged[i];
    return different == 0;
}
