/*
 * test_read_errors.c - reads of entry logs on a disk that has a bad day.
 *
 * An error of the disk says nothing about an entry: the reader is told to try again. Damage is what
 * a second look at the disk confirms.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "disk_faults.h"
#include "support.h"

enum { ENTRIES = 60, RUN_MAX = 64, LEDGER = 1, OTHER = 2 };

/* What one pread of a log brings: armed by the test, used by the read thread. */
typedef struct bad_read {
    _Atomic int flips;         /* reads whose memory gets a wrong bit, at flip_at of the file */
    _Atomic uint64_t flip_at;
    _Atomic uint64_t bad_from, bad_to; /* bytes of the file that cannot be read */
    _Atomic int held;          /* 1: the next read waits until this is 0 again; -1: it does */
} bad_read;

static bad_read bad;
static disk_faults faults;

static ssize_t bad_pread(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    uint64_t from = (uint64_t)offset, to = from + bytes;
    if (from < bad.bad_to && bad.bad_from < to)
        return -EIO;
    ssize_t got = faults.calls.pread(ctx, fd, buffer, bytes, offset);
    uint64_t at = bad.flip_at;
    if (bad.flips > 0 && from <= at && at < to) {
        bad.flips--;
        ((uint8_t *)buffer)[at - from] ^= 4;
    }
    return got;
}

/* A storage whose entries are all in one log, and none in the cache. */
typedef struct scene {
    place p;
    disk_calls calls;
    storage_options options;
    storage *s;
} scene;

static void scene_open(scene *c) {
    memset(&bad, 0, sizeof bad);
    place_make(&c->p);
    disk_faults_open(&faults);
    c->calls = faults.calls;
    c->calls.pread = bad_pread;
    c->options = place_options(&c->p, &c->calls);
    c->s = must_open(&c->options);
    for (int entry = 0; entry < ENTRIES; entry++)
        CHECK(add_entry(c->s, LEDGER, entry) > 0 && add_entry(c->s, OTHER, entry) > 0);
    CHECK(storage_close(c->s, 1) == 0);
    c->s = must_open(&c->options);
    CHECK(take_errors(c->s) == 0);
}

static void scene_close(scene *c) {
    CHECK(storage_close(c->s, 1) == 0);
    disk_faults_close(&faults);
    place_remove(&c->p);
}

static void break_call(enum fault_call call, const char *match, uint64_t times, int error) {
    fault_rule rule = {.call = call, .times = times, .error = error, .short_bytes = -1};
    snprintf(rule.match, sizeof rule.match, "%s", match);
    CHECK(disk_faults_add(&faults, &rule) == 0);
}

/* The answer to a request for a run of entries. */
static int64_t read_run(storage *s, int64_t ledger_id, int64_t first, int count) {
    entry_ref refs[RUN_MAX];
    CHECK(storage_read_submit(s, ledger_id, first, first + count - 1, count, 1 << 30, refs, 3) ==
          0);
    read_completion done;
    while (storage_read_completions(s, &done, 1) == 0)
        wait_event(s);
    if (done.count > 0)
        storage_unpin(refs, (int)done.count);
    return done.count;
}

static uint64_t damaged(storage *s) {
    storage_stats stats;
    storage_get_stats(s, &stats);
    return stats.damaged_entries;
}

static int open_log(const scene *c, int flags) {
    char path[2 * PLACE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/0000000000000001.log", c->p.ledgers);
    int fd = open(path, flags);
    CHECK(fd >= 0);
    return fd;
}

/* Where an entry's payload lies in the log, which has no ledger but these two. */
static uint64_t entry_place(const scene *c, int64_t ledger_id, int64_t entry_id) {
    static uint8_t log[1 << 20];
    int fd = open_log(c, O_RDONLY);
    ssize_t bytes = pread(fd, log, sizeof log, 0);
    close(fd);
    for (ssize_t at = BLOCK_BYTES; at + 32 <= bytes; at += 8)
        if (load_le32(log + at + 12) == 1 && load_le64(log + at + 16) == (uint64_t)ledger_id &&
            load_le64(log + at + 24) == (uint64_t)entry_id)
            return (uint64_t)at + 32;
    CHECK(0);
    return 0;
}

static void test_an_error_of_a_moment_costs_nothing(void) {
    scene c;
    scene_open(&c);
    for (uint64_t times = 1; times <= 3; times++) {
        break_call(FAULT_PREAD, ".log", times, -EIO);
        CHECK(read_entry(c.s, LEDGER, 7 * (int64_t)times) == 1);
        disk_faults_clear(&faults);
    }
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == ENTRIES);
    CHECK(damaged(c.s) == 0 && take_errors(c.s) == 0);
    scene_close(&c);
}

static void test_while_the_disk_cannot_be_read_nothing_is_damaged(void) {
    scene c;
    scene_open(&c);
    break_call(FAULT_PREAD, ".log", UINT64_MAX, -EIO);
    for (int entry = 0; entry < 8; entry++) {
        CHECK(read_entry(c.s, LEDGER, entry) == -EIO);
        CHECK(read_run(c.s, OTHER, entry, 20) == -EIO);
    }
    CHECK(damaged(c.s) == 0);
    CHECK(take_errors(c.s) == 1); /* one line, however often it is tried */
    disk_faults_clear(&faults);
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == ENTRIES);
    CHECK(read_run(c.s, OTHER, 0, ENTRIES) == ENTRIES);
    CHECK(take_events(c.s, "is read again") == 1);
    CHECK(damaged(c.s) == 0);
    scene_close(&c);
}

/* A bad sector answers ENODATA, a damaged file system EBADMSG: as answers to a read they would say
 * that the entry is not here, or damaged. */
static void test_the_numbers_of_disks_are_not_taken_for_answers(void) {
    const int errors[] = {-ENODATA, -EBADMSG, -ESTALE, -ENOBUFS, -ENOENT};
    scene c;
    scene_open(&c);
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        break_call(i == 4 ? FAULT_OPEN : FAULT_PREAD, ".log", UINT64_MAX, errors[i]);
        CHECK(read_entry(c.s, LEDGER, 5) == -EIO);
        disk_faults_clear(&faults);
        CHECK(storage_close(c.s, 0) == 0);
        c.s = must_open(&c.options);
    }
    break_call(FAULT_OPEN, ".log", UINT64_MAX, -EMFILE);
    CHECK(read_entry(c.s, LEDGER, 5) == -EMFILE);
    disk_faults_clear(&faults);
    CHECK(read_entry(c.s, LEDGER, 5) == 1 && damaged(c.s) == 0);
    scene_close(&c);
}

/* One bad block: entries before it and behind it are there, those on it wait. */
static void test_a_bad_block_stops_only_who_needs_it(void) {
    scene c;
    scene_open(&c);
    uint64_t at = round_down(entry_place(&c, LEDGER, 30), BLOCK_BYTES);
    bad.bad_from = at;
    bad.bad_to = at + BLOCK_BYTES;
    int64_t next = 0, waiting = 0;
    while (next < ENTRIES) {
        int64_t count = read_run(c.s, LEDGER, next, (int)(ENTRIES - next));
        CHECK(count > 0 || count == -EIO);
        waiting += count < 0;
        next += count < 0 ? 1 : count;
    }
    CHECK(waiting >= 1 && waiting <= 12 && damaged(c.s) == 0);
    bad.bad_to = 0;
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == ENTRIES);
    scene_close(&c);
}

static void test_a_bit_that_flipped_in_memory_is_no_damage(void) {
    scene c;
    scene_open(&c);
    bad.flip_at = entry_place(&c, LEDGER, 30) + 3;
    bad.flips = 1;
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == ENTRIES);
    CHECK(bad.flips == 0);
    CHECK(read_entry(c.s, LEDGER, 30) == 1 && damaged(c.s) == 0);
    CHECK(take_events(c.s, "had a wrong checksum once") == 1);
    scene_close(&c);
}

static void test_damage_is_what_the_disk_says_twice(void) {
    scene c;
    scene_open(&c);
    bad.flip_at = entry_place(&c, LEDGER, 30) + 3;
    bad.flips = 1000;
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == 30);
    CHECK(read_entry(c.s, LEDGER, 30) == STORAGE_DAMAGED);
    CHECK(read_run(c.s, LEDGER, 31, ENTRIES - 31) == ENTRIES - 31);
    CHECK(take_events(c.s, "is damaged and is served to nobody") >= 1);
    /* An error at the second look leaves the question open. */
    CHECK(storage_close(c.s, 0) == 0);
    c.s = must_open(&c.options);
    fault_rule rule = {
        .call = FAULT_PREAD, .match = ".log", .after = 1, .times = 1, .error = -EIO,
        .short_bytes = -1};
    CHECK(disk_faults_add(&faults, &rule) == 0);
    CHECK(read_entry(c.s, LEDGER, 30) == -EIO && damaged(c.s) == 0);
    CHECK(read_entry(c.s, LEDGER, 30) == STORAGE_DAMAGED);
    scene_close(&c);
}

static void test_short_reads_are_continued(void) {
    scene c;
    scene_open(&c);
    fault_rule rule = {
        .call = FAULT_PREAD, .match = ".log", .times = UINT64_MAX, .short_bytes = 4096};
    CHECK(disk_faults_add(&faults, &rule) == 0);
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == ENTRIES);
    CHECK(take_errors(c.s) == 0);
    disk_faults_clear(&faults);
    scene_close(&c);
}

static const check_test tests[] = {
    {"read_error_of_a_moment_costs_nothing", test_an_error_of_a_moment_costs_nothing},
    {"read_error_for_a_while_is_no_damage", test_while_the_disk_cannot_be_read_nothing_is_damaged},
    {"read_error_numbers_are_not_taken_for_answers",
     test_the_numbers_of_disks_are_not_taken_for_answers},
    {"read_error_of_a_block_stops_only_who_needs_it", test_a_bad_block_stops_only_who_needs_it},
    {"read_error_in_memory_is_no_damage", test_a_bit_that_flipped_in_memory_is_no_damage},
    {"read_error_damage_is_what_the_disk_says_twice", test_damage_is_what_the_disk_says_twice},
    {"read_error_short_reads_are_continued", test_short_reads_are_continued},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
