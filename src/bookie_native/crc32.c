/* crc32.c - CRC-32 by table lookup. */
#include "crc32.h"

#include "crc_slices.h"

#define CRC32_POLYNOMIAL 0xedb88320u /* reflected */

static uint32_t slices[8][256];

__attribute__((constructor)) static void crc32_prepare(void) {
    crc_slices_prepare(slices, CRC32_POLYNOMIAL);
}

uint32_t crc32_ieee(uint32_t crc, const uint8_t *data, size_t length) {
    return ~crc_slices_add(slices, ~crc, data, length);
}
