/*
 * test_read_errors.c - reads of entry logs on a disk that has a bad day.
 *
 * An error of the disk says nothing about an entry: the reader is told to try again. Damage is what
 * a second look at the disk confirms.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "scene.h"

enum { ENTRIES = 60, RUN_MAX = 64, LEDGER = 1, OTHER = 2 };

/* What one pread of a log brings: armed by the test, used by the read thread. */
typedef struct bad_read {
    _Atomic int flips;         /* reads whose memory gets a wrong bit, at flip_at of the file */
    _Atomic uint64_t flip_at;
    _Atomic uint64_t bad_from, bad_to; /* bytes of the file that cannot be read */
    _Atomic int held; /* 1: the next read of a log waits until this is 0 again; -1: it does */
    _Atomic int held_open; /* the same for opening a log */
} bad_read;

static bad_read bad;

/* Waits where the test wants it to, until it lets go. */
static void bad_wait(_Atomic int *held) {
    int armed = 1;
    if (atomic_compare_exchange_strong(held, &armed, -1))
        while (*held != 0)
            usleep(200);
}

static int bad_open(void *ctx, int directory_fd, const char *name, int flags) {
    if (strstr(name, ".log") != NULL && (flags & O_ACCMODE) == O_RDONLY)
        bad_wait(&bad.held_open);
    return faults.calls.open(ctx, directory_fd, name, flags);
}

static ssize_t bad_pread(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    uint64_t from = (uint64_t)offset, to = from + bytes;
    bad_wait(&bad.held);
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
static void scene_open(scene *c) {
    memset(&bad, 0, sizeof bad);
    scene_prepare(c);
    c->calls.pread = bad_pread;
    c->calls.open = bad_open;
    c->s = must_open(&c->options);
    for (int entry = 0; entry < ENTRIES; entry++)
        CHECK(add_entry(c->s, LEDGER, entry) > 0 && add_entry(c->s, OTHER, entry) > 0);
    CHECK(storage_close(c->s, 1) == 0);
    c->s = must_open(&c->options);
    CHECK(take_errors(c->s) == 0);
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
    CHECK(take_events(c.s, "can be read again") == 1);
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
    CHECK(take_events(c.s, "is damaged and is not served") >= 1);
    /* An error at the second look leaves the question open. */
    CHECK(storage_close(c.s, 0) == 0);
    c.s = must_open(&c.options);
    CHECK(read_entry(c.s, LEDGER, 29) == 1);
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

/* Less than a block, and the file goes on: the disk gave up, which says nothing of the entries. */
static void test_a_read_that_ends_within_a_block_is_no_damage(void) {
    scene c;
    scene_open(&c);
    fault_rule rule = {
        .call = FAULT_PREAD, .match = ".log", .times = UINT64_MAX, .short_bytes = 512};
    CHECK(disk_faults_add(&faults, &rule) == 0);
    CHECK(read_entry(c.s, LEDGER, 30) == -EIO && damaged(c.s) == 0);
    disk_faults_clear(&faults);
    CHECK(read_run(c.s, LEDGER, 0, ENTRIES) == ENTRIES);
    scene_close(&c);
}

/* A log that somebody cut while it was open: what it lost is lost, and the rest is served. */
static void test_a_log_that_became_shorter_is_damage(void) {
    scene c;
    scene_open(&c);
    CHECK(read_entry(c.s, LEDGER, 0) == 1);
    int fd = open_log(&c, O_RDWR);
    CHECK(ftruncate(fd, (off_t)entry_place(&c, OTHER, 20)) == 0);
    close(fd);
    for (int entry = 0; entry < ENTRIES; entry++) {
        CHECK(read_entry(c.s, LEDGER, entry) == 1);
        CHECK(read_entry(c.s, OTHER, entry) == (entry < 20 ? 1 : STORAGE_DAMAGED));
    }
    scene_close(&c);
}

/* Asks for an entry, and when the read has come as far as held, deletes its ledger. */
static void read_and_delete(scene *c, _Atomic int *held, entry_ref *ref) {
    *held = 1;
    CHECK(storage_read_submit(c->s, LEDGER, 30, 30, 1, 1 << 20, ref, 3) == 0);
    while (*held == 1)
        usleep(200);
    CHECK(storage_delete_ledger(c->s, LEDGER) == 0);
}

static int64_t wait_read(storage *s) {
    read_completion done;
    while (storage_read_completions(s, &done, 1) == 0)
        wait_event(s);
    return done.count;
}

static void test_what_was_punched_under_a_reader_is_no_damage(void) {
    scene c;
    scene_open(&c);
    uint64_t at = entry_place(&c, LEDGER, 30);
    CHECK(read_entry(c.s, LEDGER, 0) == 1); /* so that the index is there */
    entry_ref ref;
    read_and_delete(&c, &bad.held, &ref);
    int fd = open_log(&c, O_RDONLY);
    uint64_t word = 1;
    for (int i = 0; i < 5000 && word != 0; i++) {
        usleep(1000);
        CHECK(pread(fd, &word, sizeof word, (off_t)at) == sizeof word);
    }
    close(fd);
    CHECK(word == 0);
    bad.held = 0;
    CHECK(wait_read(c.s) == STORAGE_NO_ENTRY);
    CHECK(damaged(c.s) == 0 && take_events(c.s, "") == 0);
    CHECK(read_run(c.s, OTHER, 0, ENTRIES) == ENTRIES);
    scene_close(&c);
}

static void test_a_log_that_went_under_a_reader_is_no_error(void) {
    scene c;
    scene_open(&c);
    CHECK(wait_durable(c.s, add_entry(c.s, 3, 0)) == 0);
    must_flush(c.s);
    CHECK(storage_delete_ledger(c.s, OTHER) == 0);
    entry_ref ref;
    read_and_delete(&c, &bad.held_open, &ref);
    char path[2 * PLACE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/0000000000000001.log", c.p.ledgers);
    for (int i = 0; i < 5000 && access(path, F_OK) == 0; i++)
        usleep(1000);
    CHECK(access(path, F_OK) != 0);
    bad.held_open = 0;
    CHECK(wait_read(c.s) == STORAGE_NO_ENTRY);
    CHECK(damaged(c.s) == 0 && take_events(c.s, "") == 0);
    scene_close(&c);
}

/* The index of OTHER, the last bytes before the table: its entries' offsets. */
static uint64_t index_place(const scene *c) {
    uint8_t footer[128];
    int fd = open_log(c, O_RDONLY);
    off_t end = lseek(fd, 0, SEEK_END);
    CHECK(pread(fd, footer, sizeof footer, end - 128) == 128);
    close(fd);
    return load_le64(footer + 40) - 16;
}

static void test_an_index_that_cannot_be_read_is_not_made_anew(void) {
    scene c;
    scene_open(&c);
    bad.bad_from = index_place(&c);
    bad.bad_to = bad.bad_from + 16;
    for (int i = 0; i < 3; i++)
        CHECK(read_entry(c.s, OTHER, 5) == -EIO);
    bad.bad_to = 0;
    CHECK(read_run(c.s, OTHER, 0, ENTRIES) == ENTRIES);
    CHECK(take_events(c.s, "could not be read") == 1 && take_events(c.s, "rebuilt") == 0);
    scene_close(&c);
}

static void test_an_index_is_made_anew_when_it_is_wrong_twice(void) {
    for (int flips = 1; flips <= 2; flips++) {
        scene c;
        scene_open(&c);
        bad.flip_at = index_place(&c);
        bad.flips = flips;
        if (flips == 2) {
            /* While its records cannot be read either, there is no answer. */
            bad.bad_from = entry_place(&c, OTHER, 40);
            bad.bad_to = bad.bad_from + 1;
            bad.flips = 1000;
            CHECK(read_entry(c.s, OTHER, 5) == -EIO);
            bad.bad_to = 0;
            bad.flips = 2;
        }
        CHECK(read_run(c.s, OTHER, 0, ENTRIES) == ENTRIES);
        CHECK(bad.flips == 0);
        CHECK(take_events(c.s, "rebuilt") == (flips == 2));
        CHECK(damaged(c.s) == 0);
        scene_close(&c);
    }
}

/* The records of a ledger end before the file does: what is behind them is no damage. */
static void test_an_index_that_is_made_anew_tells_of_no_other_damage(void) {
    scene c;
    scene_open(&c);
    bad.flip_at = index_place(&c);
    bad.flips = 2;
    CHECK(read_run(c.s, OTHER, 0, ENTRIES) == ENTRIES);
    CHECK(bad.flips == 0);
    CHECK(take_events(c.s, "are not a valid record") == 0);
    scene_close(&c);
}

/* Reads a storage that was opened after the disk was unwell; nothing was made anew. */
static void check_opened(scene *c) {
    disk_faults_clear(&faults);
    CHECK(take_events(c->s, "") == 0);
    CHECK(read_run(c->s, LEDGER, 0, ENTRIES) == ENTRIES);
    CHECK(read_run(c->s, OTHER, 0, ENTRIES) == ENTRIES);
}

static void test_an_error_at_open_is_waited_for(void) {
    const enum fault_call calls[] = {FAULT_OPEN, FAULT_FILE_BYTES, FAULT_PREAD};
    scene c;
    scene_open(&c);
    for (size_t i = 0; i < 3; i++)
        for (uint64_t times = 1; times <= 4; times += 3) {
            CHECK(storage_close(c.s, 0) == 0);
            break_call(calls[i], ".log", times, -EIO);
            c.s = must_open(&c.options);
            check_opened(&c);
        }
    scene_close(&c);
}

static void test_an_error_at_open_that_stays_refuses_the_start(void) {
    const enum fault_call calls[] = {FAULT_OPEN, FAULT_PREAD};
    scene c;
    scene_open(&c);
    for (size_t i = 0; i < 2; i++) {
        CHECK(storage_close(c.s, 0) == 0);
        break_call(calls[i], ".log", UINT64_MAX, -EIO);
        char error[512];
        uint64_t start = disk_system()->clock_ns(NULL);
        CHECK(storage_open(&c.options, &c.s, error, sizeof error) == -EIO);
        uint64_t took = disk_system()->clock_ns(NULL) - start;
        CHECK(took > 1900000000u && took < 3000000000u);
        CHECK(strcmp(error, "entry log 0000000000000001.log cannot be read: Input/output error") ==
              0);
        disk_faults_clear(&faults);
        c.s = must_open(&c.options);
        check_opened(&c);
    }
    scene_close(&c);
}

/* Who has all that was asked for does not wait for the log that has what follows. */
static void test_a_read_that_is_done_looks_into_no_other_log(void) {
    scene c;
    scene_open(&c);
    CHECK(wait_durable(c.s, add_entry(c.s, LEDGER, ENTRIES)) == 0);
    must_flush(c.s);
    CHECK(storage_close(c.s, 0) == 0);
    c.s = must_open(&c.options);
    break_call(FAULT_OPEN, "0000000000000002.log", UINT64_MAX, -EIO);
    CHECK(read_run(c.s, LEDGER, ENTRIES - 3, 3) == 3);
    CHECK(take_events(c.s, "") == 0);
    CHECK(read_run(c.s, LEDGER, ENTRIES, 1) == -EIO);
    disk_faults_clear(&faults);
    scene_close(&c);
}

/* Of header and footer only what the disk says twice counts. */
static void test_a_footer_that_was_wrong_once_is_not_made_anew(void) {
    scene c;
    scene_open(&c);
    uint64_t table = index_place(&c) + 16;
    for (uint64_t at = 16; at <= table + 8; at += table - 8) {
        CHECK(storage_close(c.s, 0) == 0);
        bad.flip_at = at;
        bad.flips = 1;
        c.s = must_open(&c.options);
        CHECK(bad.flips == 0);
        check_opened(&c);
    }
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
    {"read_error_a_block_in_part_is_no_damage", test_a_read_that_ends_within_a_block_is_no_damage},
    {"read_error_shorter_log_is_damage", test_a_log_that_became_shorter_is_damage},
    {"read_error_punched_under_a_reader", test_what_was_punched_under_a_reader_is_no_damage},
    {"read_error_removed_under_a_reader", test_a_log_that_went_under_a_reader_is_no_error},
    {"read_error_of_an_index_makes_nothing_anew",
     test_an_index_that_cannot_be_read_is_not_made_anew},
    {"read_error_index_wrong_twice_is_made_anew",
     test_an_index_is_made_anew_when_it_is_wrong_twice},
    {"read_error_index_made_anew_is_all_the_damage",
     test_an_index_that_is_made_anew_tells_of_no_other_damage},
    {"read_error_of_a_log_that_is_not_needed", test_a_read_that_is_done_looks_into_no_other_log},
    {"read_error_at_open_is_waited_for", test_an_error_at_open_is_waited_for},
    {"read_error_at_open_refuses_the_start", test_an_error_at_open_that_stays_refuses_the_start},
    {"read_error_footer_wrong_once_is_not_made_anew",
     test_a_footer_that_was_wrong_once_is_not_made_anew},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
