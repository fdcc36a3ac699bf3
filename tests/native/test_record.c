/* test_record.c - records cut at every length, flipped at every bit, and put in the wrong place. */
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"
#include "id_map.h"
#include "record.h"
#include "sim_disk.h"

enum { RECORDS = 6, SPACE_BYTES = 4096 };

/* A run of records of several sizes; returns its length. */
static size_t build(uint8_t *space, uint32_t seed) {
    size_t at = 0;
    memset(space, 0, SPACE_BYTES);
    for (int i = 0; i < RECORDS; i++) {
        uint32_t length = (uint32_t)(i * 37 + 16);
        for (uint32_t k = 0; k < length; k++)
            space[at + RECORD_HEADER_BYTES + k] = (uint8_t)(i * 31 + (int)k);
        record r = {.type = RECORD_ENTRY, .ledger_id = 5, .entry_id = i, .length = length};
        r.payload_crc = crc32c(0, space + at + RECORD_HEADER_BYTES, length);
        record_encode(space + at, seed, &r);
        at += record_bytes(length);
    }
    return at;
}

/* Counts the good, damaged and lost findings of a scan of an exact copy, so that a read too far is
 * seen by the sanitizer. */
static void scan(const uint8_t *space, size_t bytes, uint32_t seed, int counts[4]) {
    uint8_t *copy = malloc(bytes + 1);
    CHECK(copy != NULL);
    memcpy(copy, space, bytes);
    record_scan s = {.data = copy, .bytes = bytes, .seed = seed};
    record r;
    enum record_found found;
    memset(counts, 0, 4 * sizeof *counts);
    while ((found = record_scan_next(&s, &r)) != RECORD_NONE) {
        counts[found]++;
        if (found == RECORD_GOOD) {
            CHECK(r.ledger_id == 5 && r.entry_id >= 0 && r.entry_id < RECORDS);
            CHECK(r.length == (uint32_t)r.entry_id * 37 + 16);
        }
    }
    free(copy);
}

static void test_cut_at_every_length(void) {
    uint8_t space[SPACE_BYTES];
    uint32_t seed = record_seed(77, 88);
    size_t bytes = build(space, seed);
    int counts[4];
    for (size_t cut = 0; cut <= bytes; cut++) {
        int whole = 0;
        size_t end = 0;
        for (int i = 0; i < RECORDS; i++) {
            end += record_bytes((uint32_t)(i * 37 + 16));
            whole += end <= cut;
        }
        scan(space, cut, seed, counts);
        CHECK(counts[RECORD_GOOD] == whole);
        CHECK(counts[RECORD_DAMAGED] == 0);
    }
}

/* A key has its length, and a fence none: whoever takes one relies on that. */
static void test_lengths_that_a_type_does_not_have(void) {
    static const struct {
        uint8_t type;
        uint32_t length;
        int is_record;
    } cases[] = {
        {RECORD_ENTRY, 3, 1},
        {RECORD_ENTRY, 0, 1},
        {RECORD_FENCE, 0, 1},
        {RECORD_FENCE, 3, 0},
        {RECORD_MASTER_KEY, MASTER_KEY_BYTES, 1},
        {RECORD_MASTER_KEY, MASTER_KEY_BYTES - 1, 0},
        {RECORD_MASTER_KEY, 0, 0},
        {RECORD_ENTRY - 1, 3, 0},
        {RECORD_MASTER_KEY + 1, 3, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t space[SPACE_BYTES] = {0};
        record r = {.type = cases[i].type, .ledger_id = 5, .length = cases[i].length};
        r.payload_crc = crc32c(0, space + RECORD_HEADER_BYTES, r.length);
        record_encode(space, 9, &r);
        record decoded;
        CHECK(record_decode(space, SPACE_BYTES, 9, &decoded) == cases[i].is_record);
    }
}

static void test_every_flipped_bit_costs_one_record(void) {
    uint8_t space[SPACE_BYTES];
    uint32_t seed = record_seed(77, 88);
    size_t bytes = build(space, seed);
    int counts[4];
    for (size_t bit = 0; bit < bytes * 8; bit++) {
        space[bit / 8] ^= (uint8_t)(1 << bit % 8);
        scan(space, bytes, seed, counts);
        space[bit / 8] ^= (uint8_t)(1 << bit % 8);
        /* Padding is not covered; everything else costs its own record and no other. */
        CHECK(counts[RECORD_GOOD] >= RECORDS - 1);
        CHECK(counts[RECORD_GOOD] + counts[RECORD_DAMAGED] + counts[RECORD_LOST] >= RECORDS);
    }
}

static void test_records_of_another_place_are_none(void) {
    uint8_t space[SPACE_BYTES];
    size_t bytes = build(space, record_seed(77, 88));
    int counts[4];
    scan(space, bytes, record_seed(78, 88), counts);
    CHECK(counts[RECORD_GOOD] == 0 && counts[RECORD_DAMAGED] == 0);
    scan(space, bytes, record_seed(77, 89), counts);
    CHECK(counts[RECORD_GOOD] == 0 && counts[RECORD_DAMAGED] == 0);
}

static void test_id_map_against_an_array(void) {
    enum { IDS = 300, ROUNDS = 20000 };
    static char values[IDS];
    id_map map = {0};
    int present[IDS] = {0};
    size_t count = 0;
    uint64_t random = 9;
    for (int round = 0; round < ROUNDS; round++) {
        int64_t id = (int64_t)(sim_random(&random) % IDS);
        /* Ids that are far apart and ids that are neighbours. */
        int64_t key = id % 2 == 0 ? id : id << 40;
        if (sim_random(&random) % 2 == 0) {
            CHECK(id_map_put(&map, key, &values[id]) == 0);
            count += !present[id];
            present[id] = 1;
        } else {
            CHECK(id_map_remove(&map, key) == (present[id] ? &values[id] : NULL));
            count -= (size_t)present[id];
            present[id] = 0;
        }
        CHECK(map.count == count);
        id = (int64_t)(sim_random(&random) % IDS);
        key = id % 2 == 0 ? id : id << 40;
        CHECK(id_map_get(&map, key) == (present[id] ? &values[id] : NULL));
    }
    id_map_free(&map);
}

static const check_test tests[] = {
    {"record_cut_at_every_length", test_cut_at_every_length},
    {"record_lengths_that_a_type_does_not_have", test_lengths_that_a_type_does_not_have},
    {"record_every_flipped_bit_costs_one_record", test_every_flipped_bit_costs_one_record},
    {"record_of_another_place_is_none", test_records_of_another_place_are_none},
    {"id_map_against_an_array", test_id_map_against_an_array},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
