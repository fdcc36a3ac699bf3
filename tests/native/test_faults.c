/*
 * test_faults.c - every disk call fails, once or for good, early or late, on a real file system.
 *
 * Whatever fails, an answer is an answer: what was durable is there when the disk is well again,
 * what could not be done was refused with a sentence, and nothing hangs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "disk_faults.h"
#include "support.h"

enum { ENTRIES = 150 };

/* Adds until the end or the first refusal, waiting so many times 5 ms for room and twice that for
 * the disk; returns the number of entries known to be durable. */
static int64_t fill(storage *s, int patience) {
    int64_t sequences[ENTRIES], added = 0;
    for (; added < ENTRIES; added++) {
        int64_t sequence = STORAGE_FULL;
        for (int attempt = 0; attempt < patience && sequence == STORAGE_FULL; attempt++) {
            uint8_t header[ENTRY_HEADER_BYTES], data[4096];
            entry_header(header, 1, added);
            uint32_t length = entry_data(data, 1, added);
            sequence = storage_add(s, header, sizeof header, data, length, 0, 0);
            if (sequence == STORAGE_FULL) {
                storage_commit(s);
                usleep(5000);
            }
        }
        if (sequence < 0)
            break;
        sequences[added] = sequence;
        if (added % 6 == 5)
            storage_commit(s);
        if (added == ENTRIES / 3)
            storage_flush(s);
    }
    storage_commit(s);
    for (int i = 0; i < 2 * patience && added > 0 && storage_failure(s) == 0 &&
                    storage_durable_sequence(s) < (uint64_t)sequences[added - 1];
         i++)
        usleep(5000);
    uint64_t durable_sequence = storage_durable_sequence(s);
    int64_t durable = 0;
    while (durable < added && (uint64_t)sequences[durable] <= durable_sequence)
        durable++;
    return durable;
}

/* One fault, from an empty directory to the check after the disk is well again. */
static void one_fault(enum fault_call call, uint64_t after, uint64_t times, int error) {
    char context[96], text[512];
    snprintf(context, sizeof context, "%s after %llu times %llu error %d", fault_call_name(call),
             (unsigned long long)after, (unsigned long long)times, error);
    check_context = context;
    place p;
    place_make(&p);
    static disk_faults faults;
    disk_faults_open(&faults);
    fault_rule rule = {
        .call = call, .after = after, .times = times, .error = error, .short_bytes = -1};
    CHECK(disk_faults_add(&faults, &rule) == 0);
    storage_options options = place_options(&p, &faults.calls);
    storage *s = NULL;
    int64_t durable = 0;
    int status = storage_open(&options, &s, text, sizeof text);
    if (status == 0) {
        durable = fill(s, 20);
        for (int64_t entry = 0; entry < durable; entry++) {
            int read = read_entry(s, 1, entry);
            CHECK(read == 1 || (call == FAULT_PREAD && read == error) ||
                  (call == FAULT_OPEN && read == -EIO));
        }
        storage_close(s, after % 2 == 0);
    } else {
        CHECK(text[0] != '\0');
    }
    disk_faults_close(&faults);
    options = place_options(&p, NULL);
    s = must_open(&options);
    for (int64_t entry = 0; entry < durable; entry++)
        CHECK(read_entry(s, 1, entry) == 1);
    CHECK(take_errors(s) == 0);
    int64_t next = durable;
    while (read_entry(s, 1, next) == 1)
        next++;
    CHECK(wait_durable(s, add_entry(s, 1, next)) == 0);
    CHECK(storage_close(s, 1) == 0);
    place_remove(&p);
    check_context = NULL;
}

static void test_every_call_fails_once(void) {
    for (int call = 0; call < FAULT_CALLS; call++)
        for (uint64_t after = 0; after < 8; after += 1 + after / 3)
            one_fault((enum fault_call)call, after, 1, -EIO);
}

static void test_every_call_fails_for_good(void) {
    for (int call = 0; call < FAULT_CALLS; call++)
        for (uint64_t after = 0; after < 24; after = after * 2 + 1)
            one_fault((enum fault_call)call, after, UINT64_MAX, -EIO);
}

static void test_the_disk_is_full(void) {
    const enum fault_call calls[] = {FAULT_OPEN, FAULT_PWRITEV, FAULT_FALLOCATE, FAULT_RENAME,
                                     FAULT_MAKE_DIRECTORY};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (uint64_t after = 0; after < 16; after = after * 2 + 1)
            one_fault(calls[i], after, i % 2 == 0 ? UINT64_MAX : 3, -ENOSPC);
}

static void test_direct_writing_is_refused(void) {
    one_fault(FAULT_PWRITEV, 0, 1, -EINVAL);
    one_fault(FAULT_PWRITEV, 5, 1, -EINVAL);
    one_fault(FAULT_OPEN, 0, 1, -EINVAL);
}

static void test_interrupted_calls_are_repeated(void) {
    place p;
    place_make(&p);
    static disk_faults faults;
    disk_faults_open(&faults);
    fault_rule rules[] = {
        {.call = FAULT_PWRITEV, .after = 1, .times = 3, .error = -EINTR, .short_bytes = -1},
        {.call = FAULT_PREAD, .after = 0, .times = 3, .error = -EINTR, .short_bytes = -1}};
    for (size_t i = 0; i < 2; i++)
        CHECK(disk_faults_add(&faults, &rules[i]) == 0);
    storage_options options = place_options(&p, &faults.calls);
    storage *s = must_open(&options);
    CHECK(fill(s, 2000) == ENTRIES);
    CHECK(storage_close(s, 0) == 0);
    s = must_open(&options);
    for (int64_t entry = 0; entry < ENTRIES; entry++)
        CHECK(read_entry(s, 1, entry) == 1);
    CHECK(take_errors(s) == 0);
    CHECK(storage_close(s, 1) == 0);
    disk_faults_close(&faults);
    place_remove(&p);
}

static const check_test tests[] = {
    {"fault_every_call_fails_once", test_every_call_fails_once},
    {"fault_every_call_fails_for_good", test_every_call_fails_for_good},
    {"fault_the_disk_is_full", test_the_disk_is_full},
    {"fault_direct_writing_is_refused", test_direct_writing_is_refused},
    {"fault_interrupted_calls_are_repeated", test_interrupted_calls_are_repeated},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
