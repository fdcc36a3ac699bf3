/* test_replay.c - journals whose bytes were changed behind the storage's back. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"
#include "events.h"
#include "journal.h"
#include "support.h"

enum { GROUPS = 6, PER_GROUP = 4, ENTRIES = GROUPS * PER_GROUP };

/* A disk with a journal of a few groups, as kill -9 leaves it. */
static sim_disk *written_by(int journal_sync_data) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    options.journal_sync_data = journal_sync_data;
    storage *s = must_open(&options);
    for (int entry = 0; entry < ENTRIES; entry++) {
        int64_t sequence = add_entry(s, 1, entry);
        if (entry % PER_GROUP == PER_GROUP - 1)
            CHECK(wait_durable(s, sequence) == 0);
    }
    sim_disk *killed = sim_disk_killed(disk);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
    return killed;
}

static sim_disk *written(void) {
    return written_by(1);
}

/* The journal file that has groups of this sequence on; name has room for 64 bytes. */
static uint8_t *journal_from(sim_disk *disk, uint64_t sequence, char *name, size_t *bytes) {
    for (int i = 0; sim_disk_name(disk, JOURNAL_DIRECTORY, ".journal", i, name, 64); i++) {
        uint8_t *data = sim_disk_file(disk, JOURNAL_DIRECTORY, name, bytes);
        group_header h;
        if (group_header_decode(data + BLOCK_BYTES, &h) && h.sequence >= sequence)
            return data;
    }
    CHECK(!"a journal file has groups");
    return NULL;
}

static uint8_t *journal_bytes(sim_disk *disk, size_t *bytes) {
    char name[64];
    return journal_from(disk, 0, name, bytes);
}

/* Where each group starts, and where the last one ends. */
static int group_places(sim_disk *disk, size_t places[GROUPS + 1]) {
    size_t bytes;
    const uint8_t *data = journal_bytes(disk, &bytes);
    size_t at = BLOCK_BYTES;
    int count = 0;
    group_header h;
    while (count < GROUPS && at + BLOCK_BYTES <= bytes && group_header_decode(data + at, &h)) {
        places[count++] = at;
        at += round_up(h.length, BLOCK_BYTES);
    }
    places[count] = at;
    return count;
}

typedef struct outcome {
    int there, missing, damaged, errors;
} outcome;

static outcome reopen(sim_disk *disk) {
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    outcome o = {0};
    for (int entry = 0; entry < ENTRIES; entry++) {
        int read = read_entry(s, 1, entry);
        o.there += read == 1;
        o.damaged += read == STORAGE_DAMAGED;
        o.missing += read == STORAGE_NO_ENTRY || read == STORAGE_NO_LEDGER;
    }
    storage_event event;
    while (storage_next_event(s, &event))
        o.errors += event.severity > 0;
    /* What was found is found again after everything went to the entry logs. */
    CHECK(storage_close(s, 1) == 0);
    s = must_open(&options);
    int again = 0;
    for (int entry = 0; entry < ENTRIES; entry++)
        again += read_entry(s, 1, entry) == 1;
    CHECK(again == o.there);
    CHECK(storage_close(s, 0) == 0);
    return o;
}

static void test_intact(void) {
    sim_disk *disk = written();
    outcome o = reopen(disk);
    CHECK(o.there == ENTRIES && o.errors == 0);
    sim_disk_free(disk);
}

/* The last group loses its end, at every sector: all groups before it stay. */
static void test_torn_at_every_sector(void) {
    sim_disk *model = written();
    size_t bytes, places[GROUPS + 1];
    CHECK(group_places(model, places) == GROUPS);
    for (size_t cut = places[GROUPS - 1]; cut < places[GROUPS]; cut += 512) {
        sim_disk *disk = sim_disk_killed(model);
        uint8_t *data = journal_bytes(disk, &bytes);
        memset(data + cut, 0, places[GROUPS] - cut);
        outcome o = reopen(disk);
        CHECK(o.there >= ENTRIES - PER_GROUP);
        CHECK(o.errors == 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* How many entries there are before the first that is missing. */
static int leading(sim_disk *disk) {
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    int entry = 0;
    while (entry < ENTRIES && read_entry(s, 1, entry) == 1)
        entry++;
    CHECK(storage_close(s, 0) == 0);
    return entry;
}

/* One sector of the last group is missing, whichever: still only torn, and what was added behind
 * something that is lost is not kept either, also at a later start. */
static void test_any_sector_of_the_last_write_lost(void) {
    sim_disk *model = written();
    size_t bytes, places[GROUPS + 1];
    CHECK(group_places(model, places) == GROUPS);
    for (size_t cut = places[GROUPS - 1]; cut < places[GROUPS]; cut += 512) {
        sim_disk *disk = sim_disk_killed(model);
        memset(journal_bytes(disk, &bytes) + cut, 0xa5, 512);
        int there = leading(disk);
        CHECK(there >= ENTRIES - PER_GROUP);
        outcome o = reopen(disk);
        CHECK(o.there == there && o.damaged == 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* A flipped bit in a group that later writes follow: damage, told, and only one entry is lost. */
static void test_flipped_bits_cost_one_entry(void) {
    sim_disk *model = written();
    size_t bytes, places[GROUPS + 1];
    CHECK(group_places(model, places) == GROUPS);
    uint64_t random = 3;
    for (int trial = 0; trial < 150; trial++) {
        sim_disk *disk = sim_disk_killed(model);
        size_t place = places[0] + sim_random(&random) % (places[GROUPS - 1] - places[0]);
        if (trial < GROUP_HEADER_BYTES) /* every byte of one group header, too */
            place = places[2] + (size_t)trial;
        uint8_t *data = journal_bytes(disk, &bytes);
        data[place] ^= (uint8_t)(1 << sim_random(&random) % 8);
        outcome o = reopen(disk);
        CHECK(o.there >= ENTRIES - 1);
        CHECK(o.there == ENTRIES || o.errors > 0);
        if (trial < GROUP_HEADER_BYTES)
            CHECK(o.there == ENTRIES && o.errors > 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* Nothing behind the last write tells that it was synced, and still one wrong bit in it is not
 * taken for a write that was torn. */
static void test_a_flipped_bit_in_the_last_write_is_told(void) {
    sim_disk *model = written();
    size_t bytes, places[GROUPS + 1];
    CHECK(group_places(model, places) == GROUPS);
    group_header h;
    CHECK(group_header_decode(journal_bytes(model, &bytes) + places[GROUPS - 1], &h));
    uint64_t random = 5;
    int whole = 0, damaged = 0;
    for (uint32_t at = 0; at < h.length; at++) {
        if (at >= 256 && sim_random(&random) % 16 != 0)
            continue; /* each byte of the headers, and some of the rest */
        sim_disk *disk = sim_disk_killed(model);
        uint8_t *data = journal_bytes(disk, &bytes);
        data[places[GROUPS - 1] + at] ^= (uint8_t)(1 << sim_random(&random) % 8);
        outcome o = reopen(disk);
        CHECK(o.there + o.damaged == ENTRIES);
        CHECK(o.damaged <= 1);
        CHECK(o.damaged == 0 || o.errors > 0);
        whole += o.damaged == 0;
        damaged += o.damaged;
        sim_disk_free(disk);
    }
    CHECK(whole > GROUP_HEADER_BYTES && damaged > 0);
    sim_disk_free(model);
}

/* A whole group in the middle is unreadable: its entries are gone, and that is told. */
static void test_lost_group_in_the_middle(void) {
    sim_disk *disk = written();
    size_t bytes, places[GROUPS + 1];
    uint8_t *data = journal_bytes(disk, &bytes);
    CHECK(group_places(disk, places) == GROUPS);
    memset(data + places[2], 0, places[3] - places[2]);
    outcome o = reopen(disk);
    CHECK(o.there == ENTRIES - PER_GROUP && o.errors > 0);
    sim_disk_free(disk);
}

/* Without syncs nothing tells whether a place was torn, and what is behind it may have been
 * acknowledged: all of it stays, whichever group or sector is unreadable. */
static void test_without_syncs_nothing_behind_an_unreadable_place_is_lost(void) {
    sim_disk *model = written_by(0);
    size_t bytes, places[GROUPS + 1];
    CHECK(group_places(model, places) == GROUPS);
    for (int group = 0; group < GROUPS; group++) {
        sim_disk *disk = sim_disk_killed(model);
        memset(journal_bytes(disk, &bytes) + places[group], 0, places[group + 1] - places[group]);
        outcome o = reopen(disk);
        CHECK(o.there == ENTRIES - PER_GROUP && o.damaged == 0);
        sim_disk_free(disk);
        disk = sim_disk_killed(model);
        memset(journal_bytes(disk, &bytes) + places[group] + 1024, 0xa5, 512);
        o = reopen(disk);
        CHECK(o.there >= ENTRIES - 3 && o.there < ENTRIES && o.errors > 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

enum { SECOND_LEDGER = 2, SECOND_GROUPS = 3 };

/* The groups of a second session, one entry of the second ledger each, behind those of the disk,
 * which nothing has flushed since. They stand in the file that is returned. */
static uint8_t *add_session(sim_disk *disk, size_t places[SECOND_GROUPS]) {
    sim_disk *other = sim_disk_killed(disk);
    storage_options options = small_options(sim_disk_calls(other));
    storage *s = must_open(&options);
    for (int entry = 0; entry < SECOND_GROUPS; entry++)
        CHECK(wait_durable(s, add_entry(s, SECOND_LEDGER, entry)) == 0);
    sim_disk *killed = sim_disk_killed(other);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(other);
    char name[64];
    size_t bytes, own_bytes, at = BLOCK_BYTES;
    uint8_t *data = journal_from(killed, GROUP_SEQUENCE_STEP + GROUPS, name, &bytes);
    group_header h;
    for (int group = 0; group < SECOND_GROUPS; group++) {
        CHECK(group_header_decode(data + at, &h));
        places[group] = at;
        at += round_up(h.length, BLOCK_BYTES);
    }
    if (sim_disk_file(disk, JOURNAL_DIRECTORY, name, &own_bytes) == NULL)
        sim_disk_put(disk, JOURNAL_DIRECTORY, name, data, bytes);
    uint8_t *own = sim_disk_file(disk, JOURNAL_DIRECTORY, name, &own_bytes);
    CHECK(own_bytes == bytes);
    memcpy(own, data, bytes);
    sim_disk_free(killed);
    return own;
}

/* How many entries of the second session there are, and how many errors were told. */
static int second_session(sim_disk *disk, int *errors) {
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    int there = 0;
    for (int entry = 0; entry < SECOND_GROUPS; entry++)
        there += read_entry(s, SECOND_LEDGER, entry) == 1;
    *errors = take_errors(s);
    CHECK(storage_close(s, 0) == 0);
    return there;
}

/* One session ends in a torn write, and the header of the next one's first group is unreadable: its
 * records are found, and they are not behind what was torn. */
static void test_a_torn_end_cuts_nothing_of_the_next_session(void) {
    sim_disk *disk = written();
    size_t bytes, places[GROUPS + 1], second[SECOND_GROUPS];
    CHECK(group_places(disk, places) == GROUPS);
    memset(journal_bytes(disk, &bytes) + places[GROUPS - 1] + 1024, 0xa5, 512);
    uint8_t *data = add_session(disk, second);
    memset(data + second[0], 0xa5, GROUP_HEADER_BYTES);
    int errors;
    CHECK(second_session(disk, &errors) == SECOND_GROUPS);
    CHECK(errors == 1); /* the header had been synced */
    sim_disk_free(disk);
}

/* The first two groups of a session are one write, and of the first one nothing came to the disk:
 * the other one goes with it, although the session before had been found intact. */
static void test_a_torn_first_write_of_a_session_is_cut(void) {
    sim_disk *disk = written();
    size_t second[SECOND_GROUPS];
    uint8_t *data = add_session(disk, second);
    group_header h;
    CHECK(group_header_decode(data + second[0], &h) && (h.flags & GROUP_AFTER_INTACT) != 0);
    store_le64(data + second[1] + 24, h.sequence);
    store_le32(data + second[1] + 4, crc32c(0, data + second[1] + 8, GROUP_HEADER_BYTES - 8));
    memset(data + second[0], 0, second[1] - second[0]);
    memset(data + second[2], 0, BLOCK_BYTES);
    int errors;
    CHECK(second_session(disk, &errors) == 0);
    CHECK(errors == 0);
    sim_disk_free(disk);
}

/* The first block of the file is damaged: told, and nothing is lost. */
static void test_damaged_file_header(void) {
    sim_disk *model = written();
    for (size_t place = 0; place < 32; place++) {
        sim_disk *disk = sim_disk_killed(model);
        size_t bytes;
        journal_bytes(disk, &bytes)[place] ^= 0x10;
        outcome o = reopen(disk);
        CHECK(o.there == ENTRIES && o.errors == 1);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* A journal file cut short, as a lost tail of a file would be. */
static void test_truncated_file(void) {
    sim_disk *model = written();
    size_t bytes, places[GROUPS + 1];
    uint8_t *data = journal_bytes(model, &bytes);
    CHECK(group_places(model, places) == GROUPS);
    for (int groups = 0; groups < GROUPS; groups++) {
        sim_disk *disk = sim_disk_new();
        group_header h;
        CHECK(group_header_decode(data + places[0], &h));
        char name[JOURNAL_NAME_BYTES];
        journal_file_name(name, h.file_id);
        sim_disk_put(disk, JOURNAL_DIRECTORY, name, data, places[groups] + 100);
        sim_disk_put_directory(disk, LEDGER_DIRECTORY);
        outcome o = reopen(disk);
        CHECK(o.there == groups * PER_GROUP && o.errors > 0);
        sim_disk_free(disk);
    }
    sim_disk_free(model);
}

/* Anything may lie in the directory. */
static void test_foreign_and_garbage_files(void) {
    sim_disk *disk = written();
    uint8_t garbage[3 * BLOCK_BYTES];
    uint64_t random = 5;
    for (size_t i = 0; i < sizeof garbage; i++)
        garbage[i] = (uint8_t)sim_random(&random);
    sim_disk_put(disk, JOURNAL_DIRECTORY, "prepare.tmp", garbage, sizeof garbage);
    sim_disk_put(disk, JOURNAL_DIRECTORY, "00000000000000aa.journal", garbage, sizeof garbage);
    sim_disk_put(disk, JOURNAL_DIRECTORY, "00000000000000ab.journal", garbage, 0);
    sim_disk_put(disk, JOURNAL_DIRECTORY, "00000000000000ac.journal", garbage, 100);
    sim_disk_put(disk, JOURNAL_DIRECTORY, "lost+found", garbage, 10);
    sim_disk_put(disk, LEDGER_DIRECTORY, "0000000000000001.log.tmp", garbage, sizeof garbage);
    sim_disk_put(disk, LEDGER_DIRECTORY, "VERSION", garbage, 10);
    outcome o = reopen(disk);
    CHECK(o.there == ENTRIES);
    sim_disk_free(disk);
}

/* Groups of a former life lie behind the new ones of a recycled file and stay dead. */
static void test_recycled_files_keep_their_past_dead(void) {
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    int64_t entry = 0, sequence = 0;
    for (int life = 0; life < 6; life++) {
        storage *s = must_open(&options);
        CHECK(take_errors(s) == 0);
        int64_t until = entry + 40 + life * 70;
        for (; entry < until; entry++) {
            sequence = add_entry(s, 1, entry);
            if (entry % 7 == 0)
                CHECK(wait_durable(s, sequence) == 0);
        }
        CHECK(wait_durable(s, sequence) == 0);
        /* In every other life the close recycles the files, in the others only flushes do. */
        sim_disk *next = life % 2 == 0 ? NULL : sim_disk_killed(disk);
        CHECK(storage_close(s, 1) == 0);
        if (next != NULL) {
            sim_disk_free(disk);
            disk = next;
        }
        options = small_options(sim_disk_calls(disk));
        s = must_open(&options);
        CHECK(storage_last_entry(s, 1) == entry - 1);
        for (int64_t e = 0; e < entry; e++)
            CHECK(read_entry(s, 1, e) == 1);
        CHECK(take_errors(s) == 0);
        CHECK(storage_close(s, 0) == 0);
    }
    sim_disk_free(disk);
}

/* Of many damaged entries the first ones are told, and then how many are not: a log that repeats
 * itself tells fewer of them than replay does. */
static void test_many_damaged_entries_are_told_in_a_few_lines(void) {
    enum { WRITES = 45, REPORTED = 32 };
    sim_disk *disk = sim_disk_new();
    storage_options options = small_options(sim_disk_calls(disk));
    options.journal_file_bytes = options.dirty_bytes_max = 1 << 20; /* all stays in the journal */
    storage *s = must_open(&options);
    for (int entry = 0; entry < WRITES; entry++)
        CHECK(wait_durable(s, add_entry(s, 1, entry)) == 0);
    sim_disk *killed = sim_disk_killed(disk);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
    size_t bytes, at = BLOCK_BYTES;
    uint8_t *data = journal_bytes(killed, &bytes);
    group_header h;
    int damaged = 0;
    while (at + BLOCK_BYTES <= bytes && group_header_decode(data + at, &h)) {
        size_t next = at + round_up(h.length, BLOCK_BYTES);
        /* Two bits within the entry: one alone would be known for what it is, also at the end. */
        data[at + h.length - 16] ^= 3;
        damaged++;
        at = next;
    }
    CHECK(damaged > REPORTED + 1);
    options = small_options(sim_disk_calls(killed));
    s = must_open(&options);
    storage_event event;
    int told = 0, more = 0;
    while (storage_next_event(s, &event)) {
        told += strstr(event.text, "of ledger 1 is ") != NULL;
        if (sscanf(event.text, "the journal has %d more unreadable places", &more) == 1)
            CHECK(event.severity == 2);
    }
    CHECK(told == EVENTS_PER_CAUSE_MAX);
    CHECK(more == damaged - REPORTED);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(killed);
}

static const disk_calls *inner;

static int open_no_new_log(void *ctx, int directory_fd, const char *name, int flags) {
    if (strstr(name, ".log.tmp") != NULL)
        return -ENOSPC;
    return inner->open(ctx, directory_fd, name, flags);
}

/* What was damaged and was added again before anything was flushed is in the journal twice: the
 * good one counts, although the other one is told of at the next start, too. */
static void test_what_was_added_again_after_damage_is_there(void) {
    enum { DAMAGED = 2 * PER_GROUP - 1 };
    sim_disk *disk = written();
    size_t bytes, places[GROUPS + 1];
    CHECK(group_places(disk, places) == GROUPS);
    uint8_t *data = journal_bytes(disk, &bytes);
    group_header h;
    CHECK(group_header_decode(data + places[1], &h));
    data[places[1] + h.length - 16] ^= 3; /* two bits: one alone is known for what it is */
    inner = sim_disk_calls(disk);
    disk_calls full = *inner;
    full.open = open_no_new_log;
    storage_options options = small_options(&full);
    storage *s = must_open(&options);
    CHECK(read_entry(s, 1, DAMAGED) == STORAGE_DAMAGED);
    CHECK(wait_durable(s, add_entry(s, 1, DAMAGED)) == 0);
    CHECK(read_entry(s, 1, DAMAGED) == 1);
    sim_disk *killed = sim_disk_killed(disk);
    CHECK(storage_close(s, 0) == 0);
    outcome o = reopen(killed);
    CHECK(o.there == ENTRIES && o.errors > 0);
    sim_disk_free(killed);
    sim_disk_free(disk);
}

/* However many starts the journal has seen since the last flush. */
static void test_many_sessions_are_read(void) {
    enum { SESSIONS = 70 };
    sim_disk *disk = sim_disk_new();
    for (int session = 0; session < SESSIONS; session++) {
        inner = sim_disk_calls(disk);
        disk_calls full = *inner;
        full.open = open_no_new_log;
        storage_options options = small_options(&full);
        options.dirty_bytes_max = options.cache_bytes_max = 64 << 20; /* nothing can be flushed */
        storage *s = must_open(&options);
        CHECK(wait_durable(s, add_entry(s, 1, session)) == 0);
        sim_disk *killed = sim_disk_killed(disk);
        CHECK(storage_close(s, 0) == 0);
        sim_disk_free(disk);
        disk = killed;
    }
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    for (int session = 0; session < SESSIONS; session++)
        CHECK(read_entry(s, 1, session) == 1);
    CHECK(take_errors(s) == 0);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

static int64_t read_up_to;

static ssize_t noted_pread(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    if (offset + (int64_t)bytes > read_up_to)
        read_up_to = offset + (int64_t)bytes;
    return inner->pread(ctx, fd, buffer, bytes, offset);
}

/* A file that is hardly written is not read to its end. */
static void test_the_unwritten_rest_of_a_file_is_not_read(void) {
    enum { WHOLE_BYTES = 12 << 20, READ_BYTES_MAX = 5 << 20 };
    sim_disk *model = written(), *disk = sim_disk_new();
    char name[64];
    size_t bytes;
    const uint8_t *data = journal_from(model, 0, name, &bytes);
    uint8_t *whole = calloc(1, WHOLE_BYTES);
    CHECK(whole != NULL && bytes < READ_BYTES_MAX);
    memcpy(whole, data, bytes);
    sim_disk_put(disk, JOURNAL_DIRECTORY, name, whole, WHOLE_BYTES);
    sim_disk_put_directory(disk, LEDGER_DIRECTORY);
    inner = sim_disk_calls(disk);
    disk_calls noting = *inner;
    noting.pread = noted_pread;
    storage_options options = small_options(&noting);
    read_up_to = 0;
    storage *s = must_open(&options);
    CHECK(read_up_to > (int64_t)bytes && read_up_to < READ_BYTES_MAX);
    for (int entry = 0; entry < ENTRIES; entry++)
        CHECK(read_entry(s, 1, entry) == 1);
    CHECK(storage_close(s, 0) == 0);
    free(whole);
    sim_disk_free(disk);
    sim_disk_free(model);
}

enum { DESCRIPTORS = 64 };
static disk_calls watching; /* the simulated disk's calls, but for these */
static const disk_calls *simulated;
static atomic_int is_synced[DESCRIPTORS], opened_early;

static int watch_open_directory(void *ctx, const char *path) {
    int fd = simulated->open_directory(ctx, path);
    if (fd >= 0)
        atomic_store(&is_synced[fd % DESCRIPTORS], 0);
    return fd;
}

static int watch_sync_directory(void *ctx, int fd) {
    atomic_store(&is_synced[fd % DESCRIPTORS], 1);
    return simulated->sync_directory(ctx, fd);
}

static int watch_open(void *ctx, int directory_fd, const char *name, int flags) {
    if (!atomic_load(&is_synced[directory_fd % DESCRIPTORS]))
        atomic_store(&opened_early, 1);
    return simulated->open(ctx, directory_fd, name, flags);
}

/* They may be of a process that was killed before it could make them durable. */
static void test_the_names_that_are_found_are_durable_before_a_file_is_looked_at(void) {
    sim_disk *disk = written();
    simulated = sim_disk_calls(disk);
    watching = *simulated;
    watching.open_directory = watch_open_directory;
    watching.sync_directory = watch_sync_directory;
    watching.open = watch_open;
    atomic_store(&opened_early, 0);
    storage_options options = small_options(&watching);
    storage *s = must_open(&options);
    CHECK(!atomic_load(&opened_early));
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

static const check_test tests[] = {
    {"replay_intact", test_intact},
    {"replay_names_are_durable_before_a_file_is_looked_at",
     test_the_names_that_are_found_are_durable_before_a_file_is_looked_at},
    {"replay_torn_at_every_sector", test_torn_at_every_sector},
    {"replay_flipped_bit_in_the_last_write", test_a_flipped_bit_in_the_last_write_is_told},
    {"replay_any_sector_of_the_last_write_lost", test_any_sector_of_the_last_write_lost},
    {"replay_flipped_bits_cost_one_entry", test_flipped_bits_cost_one_entry},
    {"replay_many_damaged_entries", test_many_damaged_entries_are_told_in_a_few_lines},
    {"replay_lost_group_in_the_middle", test_lost_group_in_the_middle},
    {"replay_without_syncs_nothing_behind_is_lost",
     test_without_syncs_nothing_behind_an_unreadable_place_is_lost},
    {"replay_torn_end_cuts_nothing_of_the_next_session",
     test_a_torn_end_cuts_nothing_of_the_next_session},
    {"replay_torn_first_write_of_a_session", test_a_torn_first_write_of_a_session_is_cut},
    {"replay_damaged_file_header", test_damaged_file_header},
    {"replay_truncated_file", test_truncated_file},
    {"replay_what_was_added_again_after_damage", test_what_was_added_again_after_damage_is_there},
    {"replay_many_sessions", test_many_sessions_are_read},
    {"replay_unwritten_rest_of_a_file", test_the_unwritten_rest_of_a_file_is_not_read},
    {"replay_foreign_and_garbage_files", test_foreign_and_garbage_files},
    {"replay_recycled_files_keep_their_past_dead", test_recycled_files_keep_their_past_dead},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
