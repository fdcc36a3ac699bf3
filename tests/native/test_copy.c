/* test_copy.c - the entry logs that storage_begin_copy names have the entries of one moment. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"
#include "memory.h"
#include "support.h"

enum { LEDGERS = 3, STEPS_MAX = 120, ROUNDS = 40, NAME_BYTES = 64, POLL_US = 200 };

static void add_run(storage *s, int64_t *next, uint64_t *random) {
    int ledger = (int)(sim_random(random) % LEDGERS);
    for (uint64_t left = 1 + sim_random(random) % 12; left > 0; left--)
        CHECK(add_entry(s, ledger, next[ledger]++) > 0);
    storage_commit(s);
}

/* Begins a copy once no other flush is under way. An add that waited for the end of that flush
 * would begin the next one. */
static int begin_copy(storage *s, uint64_t *end) {
    for (;;) {
        int status = storage_begin_copy(s, end);
        if (status != -EAGAIN)
            return status;
        wait_event(s);
    }
}

static int has_log(sim_disk *disk, uint64_t id) {
    char name[NAME_BYTES];
    for (int i = 0; sim_disk_name(disk, LEDGER_DIRECTORY, ".log", i, name, sizeof name); i++)
        if (strtoull(name, NULL, 16) >= id)
            return 1;
    return 0;
}

/* A disk with nothing but the entry logs below end. */
static sim_disk *copy_of(sim_disk *disk, uint64_t end) {
    sim_disk *killed = sim_disk_killed(disk), *copy = sim_disk_new();
    sim_disk_put_directory(copy, JOURNAL_DIRECTORY);
    sim_disk_put_directory(copy, LEDGER_DIRECTORY);
    char name[NAME_BYTES];
    for (int i = 0; sim_disk_name(killed, LEDGER_DIRECTORY, ".log", i, name, sizeof name); i++) {
        if (strtoull(name, NULL, 16) >= end)
            continue;
        size_t bytes;
        const uint8_t *data = sim_disk_file(killed, LEDGER_DIRECTORY, name, &bytes);
        sim_disk_put(copy, LEDGER_DIRECTORY, name, data, bytes);
    }
    sim_disk_free(killed);
    return copy;
}

static void check_copy(sim_disk *copy, const int64_t *moment) {
    storage_options options = small_options(sim_disk_calls(copy));
    storage *s = must_open(&options);
    for (int ledger = 0; ledger < LEDGERS; ledger++) {
        int64_t last = storage_last_entry(s, ledger);
        CHECK(last == (moment[ledger] == 0 ? STORAGE_NO_LEDGER : moment[ledger] - 1));
        for (int64_t entry = 0; entry <= last; entry++)
            CHECK(read_entry(s, ledger, entry) == 1);
    }
    CHECK(take_errors(s) == 0);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(copy);
}

static void copy_under_load(uint64_t *random) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    int64_t next[LEDGERS] = {0}, moment[LEDGERS];
    for (uint64_t left = sim_random(random) % STEPS_MAX; left > 0; left--)
        add_run(s, next, random);
    uint64_t end;
    int status = begin_copy(s, &end);
    CHECK(status >= 0);
    for (int ledger = 0; ledger < LEDGERS; ledger++)
        moment[ledger] = next[ledger];
    for (uint64_t left = sim_random(random) % STEPS_MAX; left > 0; left--)
        add_run(s, next, random);
    while (status == 1 && !has_log(disk, end - 1))
        usleep(POLL_US);
    sim_disk *copy = copy_of(disk, end);
    CHECK(storage_close(s, 1) == 0);
    check_copy(copy, moment);
    CHECK(sim_disk_clean(disk));
    sim_disk_free(disk);
}

static void test_a_copy_under_load_has_the_entries_of_its_moment(void) {
    char context[NAME_BYTES];
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        snprintf(context, sizeof context, "seed %llu", (unsigned long long)seed);
        check_context = context;
        uint64_t random = seed;
        copy_under_load(&random);
    }
    check_context = NULL;
}

static void test_a_copy_of_what_is_flushed_starts_no_flush(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    uint64_t empty, end;
    CHECK(storage_begin_copy(s, &empty) == 0);
    CHECK(wait_durable(s, add_entry(s, 0, 0)) == 0);
    must_flush(s);
    CHECK(storage_begin_copy(s, &end) == 0);
    CHECK(end == empty + 1);
    check_copy(copy_of(disk, end), (int64_t[LEDGERS]){1});
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

static void test_a_copy_without_memory_can_be_tried_again(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    CHECK(wait_durable(s, add_entry(s, 0, 0)) == 0);
    uint64_t end;
    memory_fail(0, UINT64_MAX);
    int status = storage_begin_copy(s, &end);
    CHECK(memory_is_back() > 0);
    CHECK(status == -ENOMEM);
    CHECK(storage_begin_copy(s, &end) == 1);
    while (!has_log(disk, end - 1))
        usleep(POLL_US);
    check_copy(copy_of(disk, end), (int64_t[LEDGERS]){1});
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

static const check_test tests[] = {
    {"copy_under_load_has_the_entries_of_its_moment",
     test_a_copy_under_load_has_the_entries_of_its_moment},
    {"copy_of_what_is_flushed_starts_no_flush", test_a_copy_of_what_is_flushed_starts_no_flush},
    {"copy_without_memory_can_be_tried_again", test_a_copy_without_memory_can_be_tried_again},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
