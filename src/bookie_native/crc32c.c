/*
 * crc32c.c - CRC-32C by the processor's instruction, in three parallel lanes, or by table lookup.
 *
 * Values here are reflected: bit 31 of a 32-bit value is the coefficient of x^0. Appending n zero
 * bytes to a message multiplies its remainder by x^(8n) mod P. This operation, called "shift" here,
 * joins the three lanes; crc32c_combine consists of it alone. The shift by a 64-bit length is a
 * product of at most eight precomputed powers, one for each byte of the length.
 */
#include "crc32c.h"

#include <string.h>

#include "crc_slices.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define CRC32C_X86 1
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define CRC32C_ARM 1
#endif

enum {
    CRC32C_POLYNOMIAL_BITS = 32,
    CRC32C_LANE_LONG = 4096, /* bytes per lane */
    CRC32C_LANE_SHORT = 256
};

#define CRC32C_POLYNOMIAL 0x82f63b78u /* reflected */
#define CRC32C_ONE 0x80000000u        /* x^0 */

/* powers[d][v] is x^(8 * v * 256^d) mod P. */
static uint32_t powers[8][256];
static uint32_t slices[8][256];

/* a * b mod P, one bit per step. */
static uint32_t multiply_portable(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (int bit = 0; bit < CRC32C_POLYNOMIAL_BITS; bit++) {
        product ^= b & (0u - ((a >> 31) & 1u));
        a <<= 1;
        b = (b >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (b & 1u)));
    }
    return product;
}

static uint32_t shift_portable(uint32_t crc, uint64_t bytes) {
    for (int digit = 0; bytes != 0; digit++, bytes >>= 8)
        if ((bytes & 255) != 0)
            crc = multiply_portable(crc, powers[digit][bytes & 255]);
    return crc;
}

uint32_t crc32c_combine_portable(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
    return shift_portable(crc_a, length_b) ^ crc_b;
}

uint32_t crc32c_portable(uint32_t crc, const uint8_t *data, size_t length) {
    return ~crc_slices_add(slices, ~crc, data, length);
}

static uint32_t (*crc32c_chosen)(uint32_t, const uint8_t *, size_t) = crc32c_portable;
static uint32_t (*combine_chosen)(uint32_t, uint32_t, uint64_t) = crc32c_combine_portable;
static const char *variant = "portable";

#if defined(CRC32C_X86)

/* In clang, SSE 4.2 does not include the CRC instruction. */
#if defined(__clang__)
#define CRC32C_TARGET __attribute__((target("sse4.2,crc32,pclmul")))
#else
#define CRC32C_TARGET __attribute__((target("sse4.2,pclmul")))
#endif

/* shifted[d][v] is x^(8 * v * 256^d - 33) mod P: the instruction pair below multiplies by x^33. */
static uint32_t shifted[8][256];
static uint32_t lane_long[2], lane_short[2]; /* shifts by one lane and by two */

static inline uint64_t load64(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* a * b * x^33 mod P: the reflected 63-bit product is one bit too low, which is a factor x, and the
 * CRC instruction multiplies by x^32 while it reduces. */
CRC32C_TARGET static inline uint32_t multiply_clmul(uint32_t a, uint32_t b) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)a),
                                           _mm_cvtsi64_si128((long long)b), 0);
    return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

CRC32C_TARGET static uint32_t combine_clmul(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
    for (int digit = 0; length_b != 0; digit++, length_b >>= 8)
        if ((length_b & 255) != 0)
            crc_a = multiply_clmul(crc_a, shifted[digit][length_b & 255]);
    return crc_a ^ crc_b;
}

/* Processes three lanes. The instruction takes three cycles, but one can start in each cycle. */
CRC32C_TARGET static inline uint64_t three_lanes(uint64_t state, const uint8_t *data, size_t lane,
                                                 const uint32_t shifts[2]) {
    uint64_t first = state, second = 0, third = 0;
    for (size_t line = 0; line < lane; line += 64) {
        /* Prefetches the next three lanes: the hardware prefetcher stops at the end of a page, and
         * a lane is at most one page. Prefetching beyond the buffer is harmless. */
        _mm_prefetch((const char *)((uintptr_t)data + 3 * lane + line), _MM_HINT_T0);
        _mm_prefetch((const char *)((uintptr_t)data + 4 * lane + line), _MM_HINT_T0);
        _mm_prefetch((const char *)((uintptr_t)data + 5 * lane + line), _MM_HINT_T0);
        for (size_t at = line; at < line + 64; at += 8) {
            first = _mm_crc32_u64(first, load64(data + at));
            second = _mm_crc32_u64(second, load64(data + lane + at));
            third = _mm_crc32_u64(third, load64(data + 2 * lane + at));
        }
    }
    return multiply_clmul((uint32_t)first, shifts[1]) ^
           multiply_clmul((uint32_t)second, shifts[0]) ^ third;
}

CRC32C_TARGET static uint32_t crc32c_sse(uint32_t crc, const uint8_t *data, size_t length) {
    uint64_t state = ~crc;
    while (length >= 3 * CRC32C_LANE_LONG) {
        state = three_lanes(state, data, CRC32C_LANE_LONG, lane_long);
        data += 3 * CRC32C_LANE_LONG;
        length -= 3 * CRC32C_LANE_LONG;
    }
    while (length >= 3 * CRC32C_LANE_SHORT) {
        state = three_lanes(state, data, CRC32C_LANE_SHORT, lane_short);
        data += 3 * CRC32C_LANE_SHORT;
        length -= 3 * CRC32C_LANE_SHORT;
    }
    for (; length >= 8; data += 8, length -= 8)
        state = _mm_crc32_u64(state, load64(data));
    for (; length > 0; data++, length--)
        state = _mm_crc32_u8((uint32_t)state, *data);
    return ~(uint32_t)state;
}

static void choose_x86(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul"))
        return;
    /* x^-33 is (x^-1)^33, and x^-1 = (P + 1) / x. */
    uint32_t inverse = CRC32C_POLYNOMIAL << 1 | 1u;
    uint32_t minus33 = CRC32C_ONE;
    for (int i = 0; i < 33; i++)
        minus33 = multiply_portable(minus33, inverse);
    for (int digit = 0; digit < 8; digit++)
        for (int value = 0; value < 256; value++)
            shifted[digit][value] = multiply_portable(powers[digit][value], minus33);
    for (int lanes = 1; lanes <= 2; lanes++) {
        lane_long[lanes - 1] = multiply_portable(
            shift_portable(CRC32C_ONE, (uint64_t)lanes * CRC32C_LANE_LONG), minus33);
        lane_short[lanes - 1] = multiply_portable(
            shift_portable(CRC32C_ONE, (uint64_t)lanes * CRC32C_LANE_SHORT), minus33);
    }
    crc32c_chosen = crc32c_sse;
    combine_chosen = combine_clmul;
    variant = "sse4.2+pclmul";
}

#elif defined(CRC32C_ARM)

__attribute__((target("+crc"))) static uint32_t crc32c_armv8(uint32_t crc, const uint8_t *data,
                                                             size_t length) {
    uint32_t state = ~crc;
    for (; length >= 8; data += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        state = __crc32cd(state, word);
    }
    for (; length > 0; data++, length--)
        state = __crc32cb(state, *data);
    return ~state;
}

static void choose_arm(void) {
    enum { HAS_CRC32 = 1 << 7 }; /* HWCAP_CRC32 of Linux */
    if ((getauxval(AT_HWCAP) & HAS_CRC32) == 0)
        return;
    crc32c_chosen = crc32c_armv8;
    variant = "armv8";
}

#endif

__attribute__((constructor)) static void crc32c_prepare(void) {
    crc_slices_prepare(slices, CRC32C_POLYNOMIAL);
    uint32_t unit = CRC32C_ONE >> 8; /* x^8: one byte */
    for (int digit = 0; digit < 8; digit++) {
        powers[digit][0] = CRC32C_ONE;
        for (int value = 1; value < 256; value++)
            powers[digit][value] = multiply_portable(powers[digit][value - 1], unit);
        unit = multiply_portable(powers[digit][255], unit);
    }
#if defined(CRC32C_X86)
    choose_x86();
#elif defined(CRC32C_ARM)
    choose_arm();
#endif
}

uint32_t crc32c(uint32_t crc, const uint8_t *data, size_t length) {
    return crc32c_chosen(crc, data, length);
}

uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
    return combine_chosen(crc_a, crc_b, length_b);
}

const char *crc32c_variant(void) {
    return variant;
}
