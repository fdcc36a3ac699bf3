/* native_api.h - the functions that pyxbroker._native exports to the Cython modules through a
 * capsule. */
#ifndef PYXBROKER_NATIVE_API_H
#define PYXBROKER_NATIVE_API_H

#include "digest.h"
#include "storage.h"

#define NATIVE_API_CAPSULE "pyxbroker._native._c_api"

typedef struct native_api {
    uint32_t (*crc32c)(uint32_t crc, const uint8_t *data, size_t length);
    /* CRC32C of A followed by B, from the CRC of each and the length of B in bytes. */
    uint32_t (*crc32c_combine)(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);
    int (*digest_prepare)(digest *, int, const uint8_t *, size_t);
    void (*digest_write)(const digest *, uint8_t *, const uint8_t *, uint32_t, uint32_t);
    int (*digest_check)(const digest *, const uint8_t *, uint32_t);
    int64_t (*add)(storage *, const uint8_t *, uint32_t, const uint8_t *, uint32_t, uint32_t,
                   uint32_t);
    void (*commit)(storage *);
    uint64_t (*durable_sequence)(const storage *);
    int (*failure)(const storage *);
    int (*read_cached)(storage *, int64_t, int64_t, int64_t, int, uint64_t, entry_ref *);
    int (*read_submit)(storage *, int64_t, int64_t, int64_t, int, uint64_t, entry_ref *, uint64_t);
    int (*read_completions)(storage *, read_completion *, int);
    void (*unpin)(entry_ref *, int);
} native_api;

#endif
