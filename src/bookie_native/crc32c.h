/*
 * crc32c.h - CRC-32C (Castagnoli): polynomial 0x1EDC6F41, reflected, initial value and final xor
 * 0xFFFFFFFF. Check value: crc32c(0, "123456789", 9) == 0xE3069283.
 *
 * All functions may be called by any thread; the fastest variant for this processor is chosen when
 * the library is loaded.
 */
#ifndef PYXBROKER_CRC32C_H
#define PYXBROKER_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The CRC of the bytes that gave crc, followed by length bytes of data; crc is 0 at the start. */
uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t length);

/* CRC32C of A followed by B, from the CRC of each and B's length in bytes. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* The table-driven variants, which every processor has; public for the tests. */
uint32_t crc32c_portable(uint32_t crc, const uint8_t *data, size_t length);
uint32_t crc32c_combine_portable(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* "sse4.2+pclmul", "armv8" or "portable". */
const char *crc32c_variant(void);

#endif
