/*
 * test_memory.c - allocations that fail while the storage writes: nothing ends, nothing is lost, it
 * is told, and all goes on when there is memory again.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "memory.h"
#include "support.h"

enum { ENTRIES = 160, LEDGERS = 40, WAITS_MAX = 400 };

/* Waits for a ring and does what the owner does after each: takes the events. */
static void turn(storage *s) {
    storage_event event;
    wait_event(s);
    while (storage_next_event(s, &event))
        ;
}

static void wait_trouble(storage *s, int error) {
    for (int waits = 0; storage_trouble(s) != error; waits++) {
        CHECK(waits < WAITS_MAX);
        turn(s);
    }
}

/* Adds an entry with the usual content; STORAGE_FULL is handed out. */
static int64_t try_entry(storage *s, int64_t ledger_id, int64_t entry_id) {
    uint8_t header[ENTRY_HEADER_BYTES], data[4096];
    entry_header(header, ledger_id, entry_id);
    uint32_t length = entry_data(data, ledger_id, entry_id);
    return storage_add(s, header, sizeof header, data, length, 0, 0);
}

static int64_t must_add(storage *s, int64_t ledger_id, int64_t entry_id) {
    int64_t sequence;
    for (int waits = 0; (sequence = try_entry(s, ledger_id, entry_id)) == STORAGE_FULL; waits++) {
        CHECK(waits < WAITS_MAX);
        storage_commit(s);
        turn(s);
    }
    CHECK(sequence > 0);
    return sequence;
}

static void must_be_durable(storage *s, int64_t sequence) {
    storage_commit(s);
    for (int waits = 0; storage_durable_sequence(s) < (uint64_t)sequence; waits++) {
        CHECK(waits < WAITS_MAX && storage_failure(s) == 0);
        turn(s);
    }
}

static uint64_t dirty_bytes(storage *s) {
    storage_stats stats;
    storage_get_stats(s, &stats);
    return stats.dirty_bytes;
}

static void test_an_add_without_memory_is_taken_later(void) {
    place p;
    place_make(&p);
    storage_options options = place_options(&p, NULL);
    storage *s = must_open(&options);
    must_be_durable(s, must_add(s, 1, 0));
    memory_fail(0, UINT64_MAX);
    CHECK(try_entry(s, 2, 0) == STORAGE_FULL);
    CHECK(storage_fence(s, 3) == STORAGE_FULL);
    CHECK(storage_trouble(s) == -ENOMEM && storage_failure(s) == 0);
    CHECK(read_entry(s, 1, 0) == 1);
    CHECK(memory_is_back() > 1);
    /* Nothing else happens: the storage itself says when to try again. */
    must_be_durable(s, must_add(s, 2, 0));
    CHECK(storage_trouble(s) == 0);
    CHECK(storage_close(s, 1) == 0);
    s = must_open(&options);
    CHECK(read_entry(s, 1, 0) == 1 && read_entry(s, 2, 0) == 1);
    CHECK(storage_close(s, 0) == 0);
    place_remove(&p);
}

static void test_trouble_ends_when_nobody_tries_again(void) {
    place p;
    place_make(&p);
    storage_options options = place_options(&p, NULL);
    storage *s = must_open(&options);
    /* A single failure could be that of the thread that prepares files. */
    memory_fail(0, UINT64_MAX);
    CHECK(try_entry(s, 2, 0) == STORAGE_FULL);
    CHECK(storage_trouble(s) == -ENOMEM);
    CHECK(memory_is_back() >= 1);
    wait_trouble(s, 0);
    CHECK(storage_close(s, 0) == 0);
    place_remove(&p);
}

/* Whether the owner's part of a flush has no memory, or the flush thread's. */
static void flush_without_memory(uint64_t after) {
    place p;
    place_make(&p);
    storage_options options = place_options(&p, NULL);
    storage *s = must_open(&options);
    int64_t sequence = 0;
    for (int64_t entry = 0; entry < 20; entry++)
        sequence = must_add(s, 1, entry);
    must_be_durable(s, sequence);
    memory_fail(after, UINT64_MAX);
    storage_flush(s);
    wait_trouble(s, -ENOMEM);
    CHECK(dirty_bytes(s) > 0);
    CHECK(memory_is_back() > 0);
    /* No add and no commit comes. */
    wait_trouble(s, 0);
    for (int waits = 0; dirty_bytes(s) > 0; waits++) {
        CHECK(waits < WAITS_MAX);
        turn(s);
    }
    CHECK(storage_close(s, 0) == 0);
    s = must_open(&options);
    storage_stats stats;
    storage_get_stats(s, &stats);
    CHECK(stats.entry_logs == 1);
    for (int64_t entry = 0; entry < 20; entry++)
        CHECK(read_entry(s, 1, entry) == 1);
    CHECK(storage_close(s, 0) == 0);
    place_remove(&p);
}

static void test_a_flush_without_memory_heals(void) {
    flush_without_memory(0);
    flush_without_memory(1);
}

/* Adds to many ledgers with flushes between, reads all; returns how many allocations failed. */
static uint64_t work(const place *p, uint64_t after, uint64_t times) {
    storage_options options = place_options(p, NULL);
    storage *s = must_open(&options);
    memory_fail(after, times);
    int64_t sequence = 0;
    for (int64_t entry = 0; entry < ENTRIES; entry++) {
        sequence = must_add(s, entry % LEDGERS, entry / LEDGERS);
        if (entry % 8 == 7)
            storage_commit(s);
        if (entry % 50 == 49)
            storage_flush(s);
    }
    must_be_durable(s, sequence);
    uint64_t failed = memory_is_back();
    wait_trouble(s, 0);
    for (int64_t entry = 0; entry < ENTRIES; entry++)
        CHECK(read_entry(s, entry % LEDGERS, entry / LEDGERS) == 1);
    CHECK(storage_close(s, 1) == 0);
    s = must_open(&options);
    for (int64_t entry = 0; entry < ENTRIES; entry++)
        CHECK(read_entry(s, entry % LEDGERS, entry / LEDGERS) == 1);
    CHECK(take_errors(s) == 0);
    CHECK(storage_close(s, 0) == 0);
    return failed;
}

static void test_every_allocation_fails_for_a_while(void) {
    char context[64];
    check_context = context;
    uint64_t failed = 1;
    for (uint64_t after = 0; failed > 0; after += 1 + after / 8) {
        snprintf(context, sizeof context, "after %llu", (unsigned long long)after);
        place p;
        place_make(&p);
        failed = work(&p, after, after % 2 == 0 ? 1 : 5);
        CHECK(failed > 0 || after > 100);
        place_remove(&p);
    }
    check_context = NULL;
}

static const check_test tests[] = {
    {"memory_an_add_is_taken_later", test_an_add_without_memory_is_taken_later},
    {"memory_trouble_ends_when_nobody_tries_again", test_trouble_ends_when_nobody_tries_again},
    {"memory_a_flush_heals", test_a_flush_without_memory_heals},
    {"memory_every_allocation_fails_for_a_while", test_every_allocation_fails_for_a_while},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
