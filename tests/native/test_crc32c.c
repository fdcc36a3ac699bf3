/* test_crc32c.c - check values, every variant against a bitwise one, and joins at every place. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "crc32c.h"
#include "sim_disk.h"

enum { DATA_BYTES = 40000 };

static uint32_t bitwise(const uint8_t *data, size_t length) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static void fill(uint8_t *data, size_t bytes) {
    uint64_t random = 42;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)sim_random(&random);
}

/* RFC 3720, appendix B.4. */
static void test_check_values(void) {
    uint8_t data[32];
    CHECK(crc32c(0, (const uint8_t *)"123456789", 9) == 0xe3069283u);
    memset(data, 0, sizeof data);
    CHECK(crc32c(0, data, sizeof data) == 0x8a9136aau);
    memset(data, 0xff, sizeof data);
    CHECK(crc32c(0, data, sizeof data) == 0x62a8ab43u);
    for (int i = 0; i < 32; i++)
        data[i] = (uint8_t)i;
    CHECK(crc32c(0, data, sizeof data) == 0x46dd794eu);
    CHECK(crc32c(0, data, 0) == 0);
}

static void test_variants_agree(void) {
    static uint8_t data[DATA_BYTES];
    fill(data, sizeof data);
    for (size_t length = 0; length < 1200; length++) {
        uint32_t wanted = bitwise(data + length % 16, length);
        CHECK(crc32c(0, data + length % 16, length) == wanted);
        CHECK(crc32c_portable(0, data + length % 16, length) == wanted);
    }
    for (size_t length = 1200; length < DATA_BYTES; length += 977) {
        CHECK(crc32c(0, data, length) == bitwise(data, length));
        CHECK(crc32c_portable(0, data, length) == bitwise(data, length));
    }
}

static void test_combine_at_every_place(void) {
    static uint8_t data[DATA_BYTES];
    fill(data, sizeof data);
    uint32_t whole = crc32c(0, data, 2000);
    for (size_t cut = 0; cut <= 2000; cut++) {
        uint32_t a = crc32c(0, data, cut), b = crc32c(0, data + cut, 2000 - cut);
        CHECK(crc32c(a, data + cut, 2000 - cut) == whole);
        CHECK(crc32c_combine(a, b, 2000 - cut) == whole);
        CHECK(crc32c_combine_portable(a, b, 2000 - cut) == whole);
    }
}

/* Lengths beyond any buffer: combining with zeros step by step must agree with one large step. */
static void test_combine_with_huge_lengths(void) {
    static uint8_t zeros[1 << 16];
    uint32_t zeros_crc = crc32c(0, zeros, sizeof zeros), crc = 0x12345678u, step = crc;
    for (int i = 0; i < 70000; i++)
        step = crc32c_combine(step, zeros_crc, sizeof zeros);
    uint32_t many = 0;
    for (int i = 0; i < 70000; i++)
        many = crc32c_combine(many, zeros_crc, sizeof zeros);
    CHECK(crc32c_combine(crc, many, 70000ull << 16) == step);
    CHECK(crc32c_combine_portable(crc, many, 70000ull << 16) == step);
}

static const check_test tests[] = {
    {"crc32c_check_values", test_check_values},
    {"crc32c_variants_agree", test_variants_agree},
    {"crc32c_combine_at_every_place", test_combine_at_every_place},
    {"crc32c_combine_with_huge_lengths", test_combine_with_huge_lengths},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
