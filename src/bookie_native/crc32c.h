/*
 * crc32c.h - CRC-32C (Castagnoli): polynomial 0x1EDC6F41, reflected, initial value and final xor
 * 0xFFFFFFFF. Check value: crc32c(0, "123456789", 9) == 0xE3069283.
 *
 * Any thread may call these functions. The fastest variant for the processor is chosen when the
 * library is loaded.
 */
#ifndef PYXBROKER_CRC32C_H
#define PYXBROKER_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the CRC of the bytes whose CRC is `crc`, followed by `length` bytes of data. `crc` is 0
 * at the start. */
uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t length);

/* Returns the CRC of A followed by B, from the CRC of each and the length of B in bytes. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* Table-driven variants that run on every processor; public for the tests. */
uint32_t crc32c_portable(uint32_t crc, const uint8_t *data, size_t length);
uint32_t crc32c_combine_portable(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* Returns "sse4.2+pclmul", "armv8" or "portable". */
const char *crc32c_variant(void);

#endif
