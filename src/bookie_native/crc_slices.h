/*
 * crc_slices.h - any reflected 32-bit CRC by table lookup, eight bytes per step.
 *
 * slices[n][v] is the remainder of byte v followed by n zero bytes. States are inverted CRCs.
 */
#ifndef PYXBROKER_CRC_SLICES_H
#define PYXBROKER_CRC_SLICES_H

#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

/* Fills the tables for the reflected polynomial. */
static inline void crc_slices_prepare(uint32_t slices[8][256], uint32_t polynomial) {
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t state = value;
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (polynomial & (0u - (state & 1u)));
        slices[0][value] = state;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int value = 0; value < 256; value++)
            slices[slice][value] =
                (slices[slice - 1][value] >> 8) ^ slices[0][slices[slice - 1][value] & 255];
}

/* Returns the state after `length` more bytes. */
static inline uint32_t crc_slices_add(uint32_t slices[8][256], uint32_t state, const uint8_t *data,
                                      size_t length) {
    for (; length >= 8; data += 8, length -= 8) {
        state ^= load_le32(data);
        state = slices[7][state & 255] ^ slices[6][(state >> 8) & 255] ^
                slices[5][(state >> 16) & 255] ^ slices[4][state >> 24] ^ slices[3][data[4]] ^
                slices[2][data[5]] ^ slices[1][data[6]] ^ slices[0][data[7]];
    }
    for (; length > 0; data++, length--)
        state = (state >> 8) ^ slices[0][(state ^ *data) & 255];
    return state;
}

#endif
