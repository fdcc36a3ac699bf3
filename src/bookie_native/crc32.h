/*
 * crc32.h - CRC-32 (IEEE 802.3, as zlib has it): polynomial 0x04C11DB7, reflected, initial value
 * and final xor 0xFFFFFFFF. Check value: crc32_ieee(0, "123456789", 9) == 0xCBF43926.
 *
 * Any thread.
 */
#ifndef PYXBROKER_CRC32_H
#define PYXBROKER_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Returns the CRC of the bytes whose CRC is `crc`, followed by `length` bytes of data. `crc` is 0
 * at the start. */
uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t length);

#endif
