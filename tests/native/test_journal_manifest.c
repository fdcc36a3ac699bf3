/* test_journal_manifest.c - the list of journal files: torn, damaged, grown, from the future. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"
#include "disk_faults.h"
#include "journal_manifest.h"
#include "support.h"

enum { COPIES = 4 };

static char error[512];
static int told; /* events of the last reading */

static sim_disk *empty(void) {
    sim_disk *disk = sim_disk_new();
    sim_disk_put_directory(disk, JOURNAL_DIRECTORY);
    return disk;
}

static int open_list(sim_disk *disk, journal_manifest *m) {
    const disk_calls *calls = sim_disk_calls(disk);
    static events log;
    storage_event event;
    events_open(&log, -1);
    int fd = calls->open_directory(calls->ctx, JOURNAL_DIRECTORY);
    CHECK(fd >= 0);
    journal_manifest_open(m, calls, fd);
    int found = journal_manifest_read(m, &log, error, sizeof error);
    for (told = 0; events_take(&log, &event);)
        told++;
    events_close(&log);
    return found;
}

static void close_list(journal_manifest *m) {
    m->disk->close(m->disk->ctx, m->directory_fd);
    journal_manifest_close(m);
}

/* A disk whose list went from {1..old} to {1..new}. */
static sim_disk *listed(uint64_t old, uint64_t new) {
    sim_disk *disk = empty();
    journal_manifest m;
    CHECK(open_list(disk, &m) == 0 && told == 0);
    for (uint64_t id = old; id > 0; id--)
        CHECK(journal_manifest_add(&m, id) == 0);
    CHECK(journal_manifest_store(&m) == 0);
    for (uint64_t id = old + 1; id <= new; id++)
        CHECK(journal_manifest_add(&m, id) == 0);
    for (uint64_t id = new + 1; id <= old; id++)
        journal_manifest_remove(&m, id);
    CHECK(journal_manifest_store(&m) == 0);
    close_list(&m);
    CHECK(sim_disk_clean(disk));
    return disk;
}

static int has_exactly(const journal_manifest *m, uint64_t count) {
    for (uint64_t id = 1; id <= count; id++)
        if (!journal_manifest_has(m, id))
            return 0;
    return m->count == count && !journal_manifest_has(m, count + 1) && !journal_manifest_has(m, 0);
}

static void test_stored_and_read(void) {
    const uint64_t counts[][2] = {{0, 0}, {0, 1}, {1, 0}, {3, 2}, {600, 2}, {2, 600}, {600, 5000}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        sim_disk *disk = listed(counts[i][0], counts[i][1]);
        journal_manifest m;
        CHECK(open_list(disk, &m) == 1 && told == 0);
        CHECK(has_exactly(&m, counts[i][1]));
        CHECK(!m.changed);
        close_list(&m);
        sim_disk_free(disk);
    }
}

/* Any flipped bit of the state that counts: the other copy serves, and both are made anew. */
static void test_one_flipped_bit_costs_nothing(void) {
    sim_disk *model = listed(3, 2);
    size_t bytes;
    sim_disk_file(model, JOURNAL_DIRECTORY, JOURNAL_MANIFEST_NAME, &bytes);
    CHECK(bytes == COPIES * BLOCK_BYTES);
    for (size_t copy = 0; copy < COPIES; copy++)
        for (size_t bit = 0; bit < 8 * 88; bit++) {
            sim_disk *disk = sim_disk_killed(model);
            uint8_t *data = sim_disk_file(disk, JOURNAL_DIRECTORY, JOURNAL_MANIFEST_NAME, &bytes);
            data[copy * BLOCK_BYTES + bit / 8] ^= (uint8_t)(1 << bit % 8);
            journal_manifest m;
            CHECK(open_list(disk, &m) == 1 && told == 0);
            CHECK(has_exactly(&m, 2));
            CHECK(journal_manifest_store(&m) == 0);
            close_list(&m);
            CHECK(open_list(disk, &m) == 1 && has_exactly(&m, 2));
            close_list(&m);
            sim_disk_free(disk);
        }
    sim_disk_free(model);
}

static void test_all_copies_damaged_is_told(void) {
    sim_disk *disk = listed(2, 3);
    size_t bytes;
    uint8_t *data = sim_disk_file(disk, JOURNAL_DIRECTORY, JOURNAL_MANIFEST_NAME, &bytes);
    for (size_t copy = 0; copy < COPIES; copy++)
        data[copy * BLOCK_BYTES + 70] ^= 1;
    journal_manifest m;
    CHECK(open_list(disk, &m) == 0 && told == 1);
    CHECK(m.count == 0 && journal_manifest_add(&m, 9) == 0 && journal_manifest_store(&m) == 0);
    close_list(&m);
    CHECK(open_list(disk, &m) == 1 && told == 0 && m.count == 1 && journal_manifest_has(&m, 9));
    close_list(&m);
    sim_disk_free(disk);
}

static void test_newer_version_is_refused(void) {
    sim_disk *disk = listed(2, 3);
    size_t bytes;
    uint8_t *data = sim_disk_file(disk, JOURNAL_DIRECTORY, JOURNAL_MANIFEST_NAME, &bytes);
    for (size_t copy = 0; copy < COPIES; copy++) {
        uint8_t *at = data + copy * BLOCK_BYTES;
        uint32_t count = load_le32(at + 20);
        store_le32(at + 12, 7);
        store_le32(at + 8, crc32c(0, at + 12, 64 - 12 + 8 * count));
    }
    journal_manifest m;
    CHECK(open_list(disk, &m) < 0);
    CHECK(strcmp(error, "journal.manifest was written by a newer pyxbroker (format 7; this one "
                        "reads up to 1)") == 0);
    close_list(&m);
    sim_disk_free(disk);
}

static void no_note(void *arg) {
    (void)arg;
}

/* Power cuts and kills before each change of the disk: the state before or the one after. */
static void test_cut_at_every_change(void) {
    const uint64_t counts[][2] = {{0, 1}, {2, 1}, {400, 503}, {2, 800}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        sim_disk *model = listed(1, counts[i][0]);
        for (uint64_t seed = 0; seed < 40; seed++)
            for (uint64_t change = 1; change < 12; change++) {
                sim_disk *disk = sim_disk_killed(model);
                sim_disk_cut_at(disk, sim_disk_changes(disk) + change, seed, no_note, NULL);
                journal_manifest m;
                CHECK(open_list(disk, &m) == 1);
                uint64_t from = counts[i][0], to = counts[i][1];
                for (uint64_t id = from + 1; id <= to; id++)
                    CHECK(journal_manifest_add(&m, id) == 0);
                for (uint64_t id = to + 1; id <= from; id++)
                    journal_manifest_remove(&m, id);
                CHECK(journal_manifest_store(&m) == 0);
                close_list(&m);
                sim_disk *taken = sim_disk_taken(disk);
                sim_disk_free(disk);
                if (taken == NULL)
                    break;
                CHECK(open_list(taken, &m) == 1 && told == 0);
                CHECK(has_exactly(&m, from) || has_exactly(&m, to));
                close_list(&m);
                sim_disk_free(taken);
            }
        sim_disk_free(model);
    }
}

/* Each call of a store fails once: the old list is still there, and the next attempt succeeds. */
static void test_failed_stores_are_tried_again(void) {
    const enum fault_call calls[] = {FAULT_OPEN, FAULT_PWRITEV, FAULT_FDATASYNC, FAULT_RENAME,
                                     FAULT_SYNC_DIRECTORY};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (uint64_t grown = 3; grown < 2000; grown += 1500) {
            char directory[] = "/tmp/pyxbroker-manifest-XXXXXX";
            CHECK(mkdtemp(directory) != NULL);
            static disk_faults faults;
            disk_faults_open(&faults);
            int fd = faults.calls.open_directory(&faults, directory);
            journal_manifest m;
            journal_manifest_open(&m, &faults.calls, fd);
            CHECK(journal_manifest_add(&m, 1) == 0 && journal_manifest_add(&m, 2) == 0);
            CHECK(journal_manifest_store(&m) == 0);
            for (uint64_t id = 3; id <= grown; id++)
                CHECK(journal_manifest_add(&m, id) == 0);
            fault_rule rule = {.call = calls[i], .times = 1, .error = -EIO, .short_bytes = -1};
            CHECK(disk_faults_add(&faults, &rule) == 0);
            int status = journal_manifest_store(&m);
            /* In place there are neither names nor directories to write. */
            CHECK(status == (grown == 3 && i >= 3 ? 0 : -EIO));
            CHECK(journal_manifest_store(&m) == 0);
            static events log;
            events_open(&log, -1);
            journal_manifest again;
            journal_manifest_open(&again, disk_system(), fd);
            CHECK(journal_manifest_read(&again, &log, error, sizeof error) == 1);
            CHECK(has_exactly(&again, grown));
            journal_manifest_close(&again);
            journal_manifest_close(&m);
            disk_system()->unlink(NULL, fd, JOURNAL_MANIFEST_NAME);
            faults.calls.close(&faults, fd);
            disk_faults_close(&faults);
            events_close(&log);
            CHECK(rmdir(directory) == 0);
        }
}

static const check_test tests[] = {
    {"journal_manifest_stored_and_read", test_stored_and_read},
    {"journal_manifest_one_flipped_bit_costs_nothing", test_one_flipped_bit_costs_nothing},
    {"journal_manifest_all_copies_damaged_is_told", test_all_copies_damaged_is_told},
    {"journal_manifest_newer_version_is_refused", test_newer_version_is_refused},
    {"journal_manifest_cut_at_every_change", test_cut_at_every_change},
    {"journal_manifest_failed_stores_are_tried_again", test_failed_stores_are_tried_again},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
