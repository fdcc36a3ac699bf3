/* bytes.h - integers of a stated byte order at any address, and rounding to powers of two. */
#ifndef PYXBROKER_BYTES_H
#define PYXBROKER_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BYTES_LITTLE32(v) (v)
#define BYTES_LITTLE64(v) (v)
#define BYTES_BIG32(v) __builtin_bswap32(v)
#define BYTES_BIG64(v) __builtin_bswap64(v)
#else
#define BYTES_LITTLE32(v) __builtin_bswap32(v)
#define BYTES_LITTLE64(v) __builtin_bswap64(v)
#define BYTES_BIG32(v) (v)
#define BYTES_BIG64(v) (v)
#endif

/* Disk blocks: the alignment of direct input and output and of journal groups. */
enum { BLOCK_BYTES = 4096 };

static inline uint32_t load_le32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return BYTES_LITTLE32(value);
}

static inline uint64_t load_le64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return BYTES_LITTLE64(value);
}

static inline uint32_t load_be32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return BYTES_BIG32(value);
}

static inline int64_t load_be64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return (int64_t)BYTES_BIG64(value);
}

static inline void store_le32(uint8_t *at, uint32_t value) {
    value = BYTES_LITTLE32(value);
    memcpy(at, &value, sizeof value);
}

static inline void store_le64(uint8_t *at, uint64_t value) {
    value = BYTES_LITTLE64(value);
    memcpy(at, &value, sizeof value);
}

static inline void store_be32(uint8_t *at, uint32_t value) {
    value = BYTES_BIG32(value);
    memcpy(at, &value, sizeof value);
}

static inline void store_be64(uint8_t *at, uint64_t value) {
    value = BYTES_BIG64(value);
    memcpy(at, &value, sizeof value);
}

static inline uint64_t round_up(uint64_t value, uint64_t power_of_two) {
    return (value + power_of_two - 1) & ~(power_of_two - 1);
}

static inline uint64_t round_down(uint64_t value, uint64_t power_of_two) {
    return value & ~(power_of_two - 1);
}

/* Returns 1 when all bytes are zero. */
static inline int all_zero(const uint8_t *at, size_t bytes) {
    return bytes == 0 || (at[0] == 0 && memcmp(at, at + 1, bytes - 1) == 0);
}

#endif
