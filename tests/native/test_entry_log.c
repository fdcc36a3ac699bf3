/* test_entry_log.c - sealed logs: damage of every part, punched ranges, pins, eviction. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crc32c.h"
#include "bytes.h"
#include "check.h"
#include "entry_log_index.h"
#include "index.h"
#include "memory.h"
#include "support.h"

enum { LEDGERS = 3, ENTRIES = 12 };

/* A disk whose journal is empty and whose only log holds a few ledgers, one of them fenced. */
static sim_disk *flushed(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    uint8_t key[20] = {1, 2, 3};
    int64_t sequence = 0;
    for (int ledger = 0; ledger < LEDGERS; ledger++)
        for (int entry = 0; entry < ENTRIES; entry++)
            sequence = add_entry(s, ledger, entry);
    CHECK(storage_master_key(s, 1, key) > 0);
    sequence = storage_fence(s, 1);
    CHECK(wait_durable(s, sequence) == 0);
    CHECK(storage_close(s, 1) == 0);
    sim_disk *closed = sim_disk_killed(disk);
    sim_disk_free(disk);
    return closed;
}

static uint8_t *log_bytes(sim_disk *disk, size_t *bytes) {
    char name[64];
    CHECK(sim_disk_name(disk, LEDGER_DIRECTORY, ".log", 0, name, sizeof name));
    return sim_disk_file(disk, LEDGER_DIRECTORY, name, bytes);
}

/* Opens a damaged disk and reads everything; returns how many entries are there. */
static int reopen(sim_disk *disk, int *events) {
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    int there = 0;
    for (int ledger = 0; ledger < LEDGERS; ledger++)
        for (int entry = 0; entry < ENTRIES; entry++) {
            int read = read_entry(s, ledger, entry);
            CHECK(read == 1 || read == STORAGE_DAMAGED || read == STORAGE_NO_ENTRY);
            there += read == 1;
        }
    uint8_t key[20] = {1, 2, 3};
    CHECK(storage_is_fenced(s, 1) == 1 && storage_is_fenced(s, 0) == 0);
    CHECK(storage_master_key(s, 1, key) == 0);
    storage_event event;
    *events = 0;
    while (storage_next_event(s, &event))
        *events += event.severity > 0;
    CHECK(storage_close(s, 0) == 0);
    return there;
}

static void test_intact(void) {
    sim_disk *disk = flushed();
    int events;
    CHECK(reopen(disk, &events) == LEDGERS * ENTRIES);
    CHECK(events == 0);
    sim_disk_free(disk);
}

static void flip_and_check(sim_disk *model, size_t place, int bit) {
    sim_disk *disk = sim_disk_killed(model);
    size_t bytes;
    log_bytes(disk, &bytes)[place] ^= (uint8_t)(1 << bit);
    int events, there = reopen(disk, &events);
    CHECK(there >= LEDGERS * ENTRIES - 1);
    CHECK(there == LEDGERS * ENTRIES || events > 0);
    sim_disk_free(disk);
}

static void test_flipped_bits_anywhere_cost_one_entry(void) {
    sim_disk *model = flushed();
    size_t bytes;
    log_bytes(model, &bytes);
    uint64_t random = 17;
    for (int trial = 0; trial < 150; trial++)
        flip_and_check(model, sim_random(&random) % bytes, (int)(sim_random(&random) % 8));
    sim_disk_free(model);
}

/* Header, index, table and footer: every fourth byte of them. None costs an entry. */
static void test_flipped_bits_in_the_index(void) {
    sim_disk *model = flushed();
    size_t bytes;
    const uint8_t *data = log_bytes(model, &bytes);
    const uint8_t *footer = data + bytes - LOG_FOOTER_BYTES;
    uint64_t table = load_le64(footer + 40);
    size_t index = table - LEDGERS * ENTRIES * LOG_ENTRY_BYTES;
    for (size_t place = 0; place < bytes; place += 4) {
        if ((place >= 40 && place < index) ||
            (place >= table + LEDGERS * LOG_ROW_BYTES && place < bytes - LOG_FOOTER_BYTES))
            continue;
        sim_disk *disk = sim_disk_killed(model);
        log_bytes(disk, &bytes)[place] ^= 0x20;
        int events;
        CHECK(reopen(disk, &events) == LEDGERS * ENTRIES);
        CHECK(events > 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* Right checksums over a row that cannot be: the table is made anew from the records. */
static void test_a_row_that_says_what_cannot_be_is_not_believed(void) {
    const struct { /* at which byte of the row which number */
        int at;
        uint64_t value;
    } wrong[] = {{0, UINT64_MAX},  {8, ENTRIES},     {8, UINT64_MAX}, {24, UINT64_MAX},
                 {32, UINT64_MAX}, {40, UINT64_MAX}};
    sim_disk *model = flushed();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sim_disk *disk = sim_disk_killed(model);
        size_t bytes;
        uint8_t *data = log_bytes(disk, &bytes), *footer = data + bytes - LOG_FOOTER_BYTES;
        uint8_t *table = data + load_le64(footer + 40);
        store_le64(table + (LEDGERS - 1) * LOG_ROW_BYTES + wrong[i].at, wrong[i].value);
        store_le32(footer + 52, crc32c(0, table, LEDGERS * LOG_ROW_BYTES));
        store_le32(footer + 8, crc32c(0, footer + 12, LOG_FOOTER_BYTES - 12));
        int events;
        CHECK(reopen(disk, &events) == LEDGERS * ENTRIES && events > 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

static void test_truncated_at_every_block(void) {
    sim_disk *model = flushed();
    size_t bytes;
    uint8_t *data = log_bytes(model, &bytes);
    char name[64];
    CHECK(sim_disk_name(model, LEDGER_DIRECTORY, ".log", 0, name, sizeof name));
    for (size_t cut = 0; cut < bytes; cut += 1000) {
        sim_disk *disk = sim_disk_killed(model);
        uint8_t *copy = malloc(cut + 1);
        memcpy(copy, data, cut);
        sim_disk_put(disk, LEDGER_DIRECTORY, name, copy, cut);
        free(copy);
        storage_options options = small_options(sim_disk_calls(disk));
        storage *s = must_open(&options);
        for (int ledger = 0; ledger < LEDGERS; ledger++)
            for (int entry = 0; entry < ENTRIES; entry++)
                CHECK(read_entry(s, ledger, entry) != 0);
        CHECK(take_events(s, "") > 0);
        CHECK(storage_close(s, 1) == 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* A deleted ledger is punched at once: what a reader still holds is in memory of its own. A log
 * survives a punch. */
static void test_punch_leaves_readers_alone_and_survives_a_restart(void) {
    sim_disk *disk = flushed();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    entry_ref refs[ENTRIES];
    CHECK(storage_read_submit(s, 0, 0, ENTRIES - 1, ENTRIES, 1 << 20, refs, 1) == 0);
    read_completion done;
    while (storage_read_completions(s, &done, 1) == 0)
        wait_event(s);
    CHECK(done.count == ENTRIES && refs[0].from_disk == 1);
    uint32_t before = crc32c(0, refs[ENTRIES - 1].data, refs[ENTRIES - 1].length);
    char name[64];
    CHECK(sim_disk_name(disk, LEDGER_DIRECTORY, ".log", 0, name, sizeof name));
    CHECK(storage_delete_ledger(s, 0) == 0);
    CHECK(read_entry(s, 0, 0) == STORAGE_NO_LEDGER);
    for (int i = 0; i < 5000; i++) {
        if (sim_disk_zero(disk, LEDGER_DIRECTORY, name, 2 * BLOCK_BYTES, 512))
            break;
        usleep(1000);
    }
    CHECK(sim_disk_zero(disk, LEDGER_DIRECTORY, name, 2 * BLOCK_BYTES, 512));
    CHECK(crc32c(0, refs[ENTRIES - 1].data, refs[ENTRIES - 1].length) == before);
    storage_unpin(refs, ENTRIES);
    for (int entry = 0; entry < ENTRIES; entry++)
        CHECK(read_entry(s, 2, entry) == 1);
    CHECK(storage_close(s, 1) == 0);
    s = must_open(&options);
    CHECK(take_errors(s) == 0);
    int back = read_entry(s, 0, 5);
    CHECK(back == STORAGE_DAMAGED || back == STORAGE_NO_ENTRY || back == STORAGE_NO_LEDGER);
    for (int entry = 0; entry < ENTRIES; entry++)
        CHECK(read_entry(s, 1, entry) == 1);
    CHECK(storage_delete_ledger(s, 0) == 0);
    CHECK(storage_close(s, 1) == 0);
    sim_disk_free(disk);
}

/* Deleting all ledgers of old logs removes these logs, and the checkpoint is not lost with them. */
static void test_empty_logs_are_removed(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    for (int round = 0; round < 5; round++) {
        for (int entry = 0; entry < ENTRIES; entry++)
            add_entry(s, round, entry);
        CHECK(wait_durable(s, add_entry(s, round, ENTRIES)) == 0);
        must_flush(s);
    }
    char name[64];
    CHECK(sim_disk_name(disk, LEDGER_DIRECTORY, ".log", 4, name, sizeof name));
    for (int round = 0; round < 5; round++)
        CHECK(storage_delete_ledger(s, round) == 0);
    for (int i = 0; i < 5000 && sim_disk_name(disk, LEDGER_DIRECTORY, ".log", 1, name, sizeof name);
         i++)
        usleep(1000);
    CHECK(!sim_disk_name(disk, LEDGER_DIRECTORY, ".log", 1, name, sizeof name));
    CHECK(sim_disk_name(disk, LEDGER_DIRECTORY, ".log", 0, name, sizeof name));
    CHECK(storage_close(s, 0) == 0);
    s = must_open(&options);
    storage_stats stats;
    storage_get_stats(s, &stats);
    CHECK(stats.replayed_entries == 0 && take_errors(s) == 0);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

/* What a pin holds does not change, however much is written and evicted meanwhile. */
static void test_pins_outlive_eviction(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    CHECK(wait_durable(s, add_entry(s, 1, 0)) == 0);
    entry_ref ref;
    CHECK(storage_read_cached(s, 1, 0, 0, 1, 1 << 20, &ref) == 1);
    uint8_t before[8192];
    memcpy(before, ref.data, ref.length);
    for (int entry = 0; entry < 3000; entry++) {
        add_entry(s, 2, entry);
        if (entry % 20 == 0)
            storage_commit(s);
    }
    entry_ref again;
    CHECK(storage_read_cached(s, 1, 0, 0, 1, 1 << 20, &again) == 0);
    CHECK(memcmp(before, ref.data, ref.length) == 0);
    storage_unpin(&ref, 1);
    for (int entry = 0; entry < 3000; entry += 7)
        CHECK(read_entry(s, 2, entry) == 1);
    CHECK(read_entry(s, 1, 0) == 1);
    CHECK(storage_close(s, 1) == 0);
    sim_disk_free(disk);
}

/* There is no entry behind it to look for. */
static void test_the_last_entry_id_there_can_be(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    CHECK(wait_durable(s, add_entry(s, 1, INT64_MAX)) == 0);
    entry_ref refs[2];
    CHECK(storage_read_cached(s, 1, INT64_MAX, INT64_MAX, 2, 1 << 20, refs) == 1);
    CHECK(refs[0].entry_id == INT64_MAX);
    storage_unpin(refs, 1);
    CHECK(storage_close(s, 1) == 0);
    sim_disk_free(disk);
}

/* Ledgers that rest for some generations and then go on: what they had in a generation that is gone
 * must not be taken for a part of the new one, which may lie at the same address. */
static void test_ledgers_rest_for_generations(void) {
    enum { RESTING = 40, ROUNDS = 12 };
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    int64_t busy = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int ledger = 0; ledger < RESTING; ledger++)
            if (ledger % 3 == round % 3)
                CHECK(add_entry(s, 100 + ledger, round / 3) > 0);
        for (int i = 0; i < 400; i++)
            CHECK(add_entry(s, 1, busy++) > 0);
        storage_commit(s);
    }
    for (int ledger = 0; ledger < RESTING; ledger++)
        for (int entry = 0; entry < ROUNDS / 3; entry++)
            CHECK(read_entry(s, 100 + ledger, entry) == 1);
    CHECK(storage_close(s, 1) == 0);
    s = must_open(&options);
    for (int ledger = 0; ledger < RESTING; ledger++)
        for (int entry = 0; entry < ROUNDS / 3; entry++)
            CHECK(read_entry(s, 100 + ledger, entry) == 1);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

/* Indexes come and go within their limit; one that is larger than it is there while it is used. */
static void test_indexes_take_no_more_than_their_limit(void) {
    sim_disk *disk = flushed();
    const disk_calls *calls = sim_disk_calls(disk);
    char error[256];
    events told;
    events_open(&told, -1);
    int fd = calls->open_directory(calls->ctx, LEDGER_DIRECTORY);
    entry_log *log = NULL;
    CHECK(entry_log_open(calls, &told, fd, 1, &log, error, sizeof error) == 0);
    CHECK(log->row_count == LEDGERS);
    const size_t one = ENTRIES * LOG_ENTRY_BYTES, limits[] = {0, one - 1, one, 2 * one, 3 * one};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        log_indexes indexes;
        log_indexes_open(&indexes, calls, &told, fd, limits[i]);
        uint64_t random = i;
        for (int step = 0; step < 200; step++) {
            log_row *row = &log->rows[sim_random(&random) % LEDGERS];
            CHECK(log_indexes_ensure(&indexes, row) == 0);
            int64_t entry = (int64_t)(sim_random(&random) % ENTRIES);
            log_place place;
            CHECK(log_row_entry(row, log_row_position(row, entry), &place) == entry);
            size_t there = 0;
            for (int ledger = 0; ledger < LEDGERS; ledger++)
                there += log->rows[ledger].index != NULL ? one : 0;
            CHECK(there == indexes.bytes && (there <= limits[i] || there == one));
            CHECK(step < 20 || there + one > limits[i]); /* and the room is used */
        }
        log_indexes_release(&indexes, log);
        CHECK(indexes.bytes == 0 && indexes.latest == NULL && indexes.oldest == NULL);
    }
    entry_log_free(log);
    calls->close(calls->ctx, fd);
    events_close(&told);
    CHECK(sim_disk_clean(disk));
    sim_disk_free(disk);
}

/* What an index says of a place counts only as far as the log goes. */
static void test_an_entry_that_would_not_lie_in_its_log_is_damaged(void) {
    enum { LENGTH = 100 };
    entry_log log = {.id = 1, .bytes = 2 * BLOCK_BYTES};
    uint8_t index[LOG_ENTRY_BYTES];
    log_row row = {.ledger_id = 1, .entry_count = 1, .index = index, .log = &log};
    const uint64_t last = log.bytes - record_bytes(LENGTH);
    const uint64_t offsets[] = {0, last, last + RECORD_ALIGNMENT, log.bytes,
                                log.bytes + RECORD_ALIGNMENT, 4 * log.bytes};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        store_le64(index, 5);
        store_le32(index + 8, (uint32_t)(offsets[i] / RECORD_ALIGNMENT));
        store_le32(index + 12, LENGTH);
        log_place place;
        CHECK(log_row_entry(&row, 0, &place) == 5);
        CHECK(place.length == (offsets[i] <= last ? LENGTH : 0));
    }
}

/* Without memory for it no log is opened, and none is left over. */
static void test_a_log_is_opened_when_there_is_memory(void) {
    sim_disk *disk = flushed();
    const disk_calls *calls = sim_disk_calls(disk);
    char error[256];
    events told;
    events_open(&told, -1);
    int fd = calls->open_directory(calls->ctx, LEDGER_DIRECTORY);
    entry_log *log = NULL;
    int status = -ENOMEM;
    uint64_t refused = 0;
    for (; status == -ENOMEM; refused++) {
        memory_fail(refused, 1);
        status = entry_log_open(calls, &told, fd, 1, &log, error, sizeof error);
        CHECK(memory_is_back() == (status == 0 ? 0 : 1));
        CHECK(status == 0 || (log == NULL && strstr(error, "cannot be read: ") != NULL));
    }
    CHECK(refused > 1 && status == 0 && log->row_count == LEDGERS);
    entry_log_free(log);
    calls->close(calls->ctx, fd);
    events_close(&told);
    CHECK(sim_disk_clean(disk));
    sim_disk_free(disk);
}

static int any_row(void *arg, const log_row *row) {
    (void)arg;
    (void)row;
    return 0;
}

/* Listing them is tried again at once, all else by who asked. */
static void test_logs_are_found_when_there_is_memory(void) {
    sim_disk *disk = flushed();
    const disk_calls *calls = sim_disk_calls(disk);
    char error[256];
    events told;
    events_open(&told, -1);
    int fd = calls->open_directory(calls->ctx, LEDGER_DIRECTORY);
    int status = -ENOMEM;
    uint64_t refused = 0, failed = 1;
    for (; failed > 0; refused++) {
        log_list list;
        memset(&list, 0, sizeof list);
        log_list_prepare(&list);
        memory_fail(refused, 1);
        status = log_list_open(&list, calls, &told, fd, any_row, NULL, error, sizeof error);
        failed = memory_is_back();
        CHECK(status == -ENOMEM ? failed == 1 : status == 0 && list.next_id == 2);
        log_list_close(&list);
    }
    CHECK(refused > 2 && status == 0);
    calls->close(calls->ctx, fd);
    events_close(&told);
    CHECK(sim_disk_clean(disk));
    sim_disk_free(disk);
}

static const check_test tests[] = {
    {"cache_ledgers_rest_for_generations", test_ledgers_rest_for_generations},
    {"entry_log_intact", test_intact},
    {"entry_log_flipped_bits_anywhere", test_flipped_bits_anywhere_cost_one_entry},
    {"entry_log_flipped_bits_in_the_index", test_flipped_bits_in_the_index},
    {"entry_log_row_that_says_what_cannot_be",
     test_a_row_that_says_what_cannot_be_is_not_believed},
    {"entry_log_truncated_at_every_block", test_truncated_at_every_block},
    {"entry_log_punch_leaves_readers_alone",
     test_punch_leaves_readers_alone_and_survives_a_restart},
    {"entry_log_empty_logs_are_removed", test_empty_logs_are_removed},
    {"entry_log_indexes_keep_their_limit", test_indexes_take_no_more_than_their_limit},
    {"entry_log_an_entry_that_would_not_lie_in_it_is_damaged",
     test_an_entry_that_would_not_lie_in_its_log_is_damaged},
    {"entry_log_is_opened_when_there_is_memory", test_a_log_is_opened_when_there_is_memory},
    {"entry_logs_are_found_when_there_is_memory", test_logs_are_found_when_there_is_memory},
    {"cache_pins_outlive_eviction", test_pins_outlive_eviction},
    {"cache_the_last_entry_id_there_can_be", test_the_last_entry_id_there_can_be},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
