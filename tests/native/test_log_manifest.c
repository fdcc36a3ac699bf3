/*
 * test_log_manifest.c - logs that are missing are missed, and space that could not be freed is
 * freed later.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "crc32c.h"
#include "log_manifest.h"
#include "scene.h"

enum { LOGS = 3, ENTRIES = 20, FILE_BYTES_MAX = 1 << 20 };

/* Three logs of one ledger each: ledger n is in log n. */
static void scene_open(scene *c) {
    scene_prepare(c);
    c->s = must_open(&c->options);
    for (int ledger = 1; ledger <= LOGS; ledger++) {
        for (int entry = 0; entry < ENTRIES; entry++)
            CHECK(add_entry(c->s, ledger, entry) > 0);
        CHECK(wait_durable(c->s, add_entry(c->s, ledger, ENTRIES)) == 0);
        must_flush(c->s);
    }
    CHECK(take_events(c->s, "") == 0);
}

static void path_of(const scene *c, const char *name, char *path, size_t bytes) {
    CHECK(snprintf(path, bytes, "%s/%s", c->p.ledgers, name) < (int)bytes);
}

static int exists(const scene *c, const char *name) {
    char path[2 * PLACE_PATH_BYTES];
    path_of(c, name, path, sizeof path);
    return access(path, F_OK) == 0;
}

static void remove_file(const scene *c, const char *name) {
    char path[2 * PLACE_PATH_BYTES];
    path_of(c, name, path, sizeof path);
    CHECK(unlink(path) == 0);
}

static size_t load(const scene *c, const char *name, uint8_t *content) {
    char path[2 * PLACE_PATH_BYTES];
    path_of(c, name, path, sizeof path);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t bytes = read(fd, content, FILE_BYTES_MAX);
    close(fd);
    CHECK(bytes >= 0 && bytes < FILE_BYTES_MAX);
    return (size_t)bytes;
}

static void store(const scene *c, const char *name, const uint8_t *content, size_t bytes) {
    char path[2 * PLACE_PATH_BYTES];
    path_of(c, name, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    CHECK(fd >= 0 && write(fd, content, bytes) == (ssize_t)bytes);
    close(fd);
}

/* The sentence with which an open is refused. */
static const char *refused(const scene *c, int expected) {
    static char error[512];
    storage *s = NULL;
    int status = storage_open(&c->options, &s, error, sizeof error);
    if (status != expected)
        printf("storage_open: %d %s\n", status, error);
    CHECK(status == expected);
    return error;
}

static int ledger_there(storage *s, int64_t ledger) {
    for (int entry = 0; entry <= ENTRIES; entry++) {
        int there = read_entry(s, ledger, entry);
        if (there != 1)
            return there;
    }
    return 1;
}

/* Waits, at most some seconds, until a log is gone. */
static void wait_gone(const scene *c, const char *name) {
    for (int i = 0; i < 8000 && exists(c, name); i++)
        usleep(1000);
    CHECK(!exists(c, name));
}

static void test_a_missing_log_is_named(void) {
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    remove_file(&c, "0000000000000002.log");
    CHECK(strcmp(refused(&c, -ENOENT),
                 "entry log 0000000000000002.log cannot be found, with up to 21 entries of 1 "
                 "ledgers: restore it from a backup, or start with --accept-loss to continue "
                 "without it") == 0);
    remove_file(&c, "0000000000000003.log");
    CHECK(strstr(refused(&c, -ENOENT),
                 "entry log 0000000000000002.log and 1 more entry logs cannot be found, with up to "
                 "42 entries of 2 ledgers") != NULL);
    c.options.accept_loss = 1;
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "up to 42 entries of 2 ledgers are lost (--accept-loss)") == 1);
    CHECK(ledger_there(c.s, 1) == 1);
    /* The journal may still have it. */
    int there = ledger_there(c.s, 2);
    CHECK(there == STORAGE_NO_LEDGER || there == 1);
    /* An id does not come back, for readers may know what was there before. */
    CHECK(wait_durable(c.s, add_entry(c.s, 9, 0)) == 0);
    must_flush(c.s);
    CHECK(exists(&c, "0000000000000004.log") && !exists(&c, "0000000000000003.log"));
    CHECK(storage_close(c.s, 1) == 0);
    c.options.accept_loss = 0;
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "") == 0 && ledger_there(c.s, 1) == 1);
    scene_close(&c);
}

/* Accepted once is accepted, also when nothing is written afterwards. */
static void test_an_accepted_loss_is_not_asked_about_again(void) {
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    remove_file(&c, "0000000000000001.log");
    c.options.accept_loss = 1;
    c.s = must_open(&c.options);
    CHECK(storage_close(c.s, 0) == 0);
    c.options.accept_loss = 0;
    c.s = must_open(&c.options);
    CHECK(ledger_there(c.s, 2) == 1 && ledger_there(c.s, 3) == 1);
    scene_close(&c);
}

static void test_a_directory_from_before_is_taken_in(void) {
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    remove_file(&c, "manifest");
    remove_file(&c, "manifest.tmp");
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "") == 0);
    for (int ledger = 1; ledger <= LOGS; ledger++)
        CHECK(ledger_there(c.s, ledger) == 1);
    CHECK(storage_close(c.s, 0) == 0);
    remove_file(&c, "0000000000000003.log");
    CHECK(strstr(refused(&c, -ENOENT), "0000000000000003.log") != NULL);
    c.options.accept_loss = 1;
    c.s = must_open(&c.options);
    scene_close(&c);
}

static void test_a_damaged_manifest_is_told_and_made_anew(void) {
    static uint8_t content[FILE_BYTES_MAX];
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    size_t bytes = load(&c, "manifest", content);
    CHECK(bytes >= BLOCK_BYTES);
    for (size_t at = 0; at <= MANIFEST_HEADER_BYTES + LOGS * MANIFEST_ROW_BYTES; at += 3) {
        int damaged = at < MANIFEST_HEADER_BYTES + LOGS * MANIFEST_ROW_BYTES;
        content[at] ^= 0x10;
        store(&c, "manifest", content, at % 2 == 0 && damaged ? bytes : at);
        content[at] ^= 0x10;
        c.s = must_open(&c.options);
        CHECK(take_events(c.s, "the manifest of entry logs is damaged and was rebuilt from the 3 "
                               "logs found") == damaged);
        CHECK(ledger_there(c.s, 2) == 1);
        CHECK(storage_close(c.s, 0) == 0);
        CHECK(load(&c, "manifest", content) >= at && content[0] == 'P');
    }
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "") == 0);
    scene_close(&c);
}

static void test_a_manifest_that_cannot_be_read_is_not_made_anew(void) {
    scene c;
    scene_open(&c);
    for (int times = 1; times <= 3; times += 2) {
        CHECK(storage_close(c.s, 1) == 0);
        break_call(FAULT_PREAD, "manifest", (uint64_t)times, -EIO);
        break_call(FAULT_OPEN, "manifest", (uint64_t)times, -EMFILE);
        c.s = must_open(&c.options);
        disk_faults_clear(&faults);
        CHECK(take_events(c.s, "") == 0);
    }
    CHECK(storage_close(c.s, 1) == 0);
    break_call(FAULT_PREAD, "manifest", UINT64_MAX, -EIO);
    CHECK(strcmp(refused(&c, -EIO),
                 "the manifest of entry logs cannot be read: Input/output error") == 0);
    disk_faults_clear(&faults);
    c.s = must_open(&c.options);
    scene_close(&c);
}

/* Each call of its way: the log is not written once more, and nothing is lost. */
static void test_a_manifest_that_cannot_be_written_is_tried_again(void) {
    const enum fault_call calls[] = {FAULT_OPEN, FAULT_PWRITEV, FAULT_FDATASYNC, FAULT_RENAME,
                                     FAULT_SYNC_DIRECTORY};
    const char *matches[] = {"manifest", "manifest", "manifest", "manifest", "ledgers"};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        scene c;
        scene_open(&c);
        fault_rule rule = {.call = calls[i],
                           .after = calls[i] == FAULT_SYNC_DIRECTORY, /* the log's own is first */
                           .times = 2,
                           .error = i % 2 == 0 ? -ENOSPC : -EIO,
                           .short_bytes = -1};
        snprintf(rule.match, sizeof rule.match, "%s", matches[i]);
        CHECK(disk_faults_add(&faults, &rule) == 0);
        CHECK(wait_durable(c.s, add_entry(c.s, 4, 0)) == 0);
        must_flush(c.s);
        CHECK(take_events(c.s, "could not be flushed") == 1);
        CHECK(exists(&c, "0000000000000004.log") && !exists(&c, "0000000000000005.log"));
        CHECK(storage_close(c.s, 0) == 0);
        disk_faults_clear(&faults);
        remove_file(&c, "0000000000000004.log");
        CHECK(strstr(refused(&c, -ENOENT), "0000000000000004.log") != NULL);
        c.options.accept_loss = 1;
        c.s = must_open(&c.options);
        scene_close(&c);
    }
}

/* Right before the unlink of a log: 1 when the manifest still names one that is not there. */
static const scene *observed;
static _Atomic int unlinks, named_too_long;

static void on_call(void *arg, enum fault_call call, const char *name) {
    (void)arg;
    static uint8_t content[FILE_BYTES_MAX];
    if (call != FAULT_UNLINK || strstr(name, ".log") == NULL)
        return;
    unlinks++;
    load(observed, "manifest", content);
    uint64_t count = load_le64(content + 16), id = strtoull(name, NULL, 16);
    for (uint64_t i = 0; i < count; i++)
        named_too_long |= load_le64(content + MANIFEST_HEADER_BYTES + i * MANIFEST_ROW_BYTES) == id;
}

static void test_a_log_leaves_the_manifest_before_the_disk(void) {
    scene c;
    scene_open(&c);
    observed = &c;
    unlinks = named_too_long = 0;
    pthread_mutex_lock(&faults.lock); /* other threads make calls all the time */
    faults.observe = on_call;
    pthread_mutex_unlock(&faults.lock);
    CHECK(storage_delete_ledger(c.s, 1) == 0 && storage_delete_ledger(c.s, 2) == 0);
    wait_gone(&c, "0000000000000001.log");
    wait_gone(&c, "0000000000000002.log");
    CHECK(unlinks == 2 && !named_too_long);
    CHECK(storage_close(c.s, 0) == 0);
    faults.observe = NULL;
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "") == 0 && ledger_there(c.s, 3) == 1);
    scene_close(&c);
}

/* Removing logs needs no block that is not there already. */
static void test_the_next_manifest_has_its_room(void) {
    scene c;
    scene_open(&c);
    char path[2 * PLACE_PATH_BYTES];
    path_of(&c, "manifest.tmp", path, sizeof path);
    struct stat about;
    CHECK(stat(path, &about) == 0 && about.st_blocks * 512 >= 2 * BLOCK_BYTES);
    break_call(FAULT_FALLOCATE, "", UINT64_MAX, -ENOSPC);
    CHECK(storage_delete_ledger(c.s, 1) == 0);
    wait_gone(&c, "0000000000000001.log");
    scene_close(&c);
}

/* A log that cannot be read keeps the broker from starting, unless that is accepted; its file and
 * its name in the manifest stay. */
static void test_a_log_that_cannot_be_read_can_be_gone_without(void) {
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    break_call(FAULT_PREAD, "0000000000000002.log", UINT64_MAX, -EIO);
    CHECK(strstr(refused(&c, -EIO), "entry log 0000000000000002.log cannot be read") != NULL);
    c.options.accept_loss = 1;
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "continuing without it (--accept-loss)") == 1);
    CHECK(ledger_there(c.s, 1) == 1 && ledger_there(c.s, 3) == 1);
    CHECK(wait_durable(c.s, add_entry(c.s, 4, 0)) == 0);
    must_flush(c.s); /* writes the manifest */
    CHECK(storage_close(c.s, 1) == 0);
    disk_faults_clear(&faults);
    c.options.accept_loss = 0;
    c.s = must_open(&c.options);
    CHECK(ledger_there(c.s, 2) == 1 && take_events(c.s, "") == 0);
    CHECK(storage_close(c.s, 1) == 0);
    remove_file(&c, "0000000000000002.log");
    CHECK(strstr(refused(&c, -ENOENT), "0000000000000002.log") != NULL);
    c.options.accept_loss = 1;
    c.s = must_open(&c.options);
    scene_close(&c);
}

/* The newest log is missing and the one before it cannot be read: neither name is given again. */
static void test_the_id_of_a_log_that_is_gone_does_not_come_back(void) {
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    remove_file(&c, "0000000000000003.log");
    break_call(FAULT_PREAD, "0000000000000002.log", UINT64_MAX, -EIO);
    c.options.accept_loss = 1;
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "(--accept-loss)") == 2);
    CHECK(wait_durable(c.s, add_entry(c.s, 4, 0)) == 0);
    must_flush(c.s);
    CHECK(exists(&c, "0000000000000004.log") && !exists(&c, "0000000000000003.log"));
    disk_faults_clear(&faults);
    scene_close(&c);
}

static void test_a_new_directory_has_no_manifest(void) {
    scene c;
    place_make(&c.p);
    disk_faults_open(&faults);
    c.options = place_options(&c.p, &faults.calls);
    c.s = must_open(&c.options);
    CHECK(storage_close(c.s, 1) == 0);
    CHECK(!exists(&c, "manifest") && !exists(&c, "manifest.tmp"));
    c.s = must_open(&c.options);
    scene_close(&c);
}

static blkcnt_t blocks(const scene *c, const char *name) {
    char path[2 * PLACE_PATH_BYTES];
    struct stat about;
    path_of(c, name, path, sizeof path);
    CHECK(stat(path, &about) == 0);
    return about.st_blocks;
}

static void test_space_that_could_not_be_freed_is_freed_later(void) {
    const enum fault_call calls[] = {FAULT_FALLOCATE, FAULT_OPEN};
    for (size_t i = 0; i < 2; i++) {
        scene c;
        scene_open(&c);
        blkcnt_t before = blocks(&c, "0000000000000003.log");
        break_call(calls[i], "0000000000000003.log", 3, i == 0 ? -ENOSPC : -EIO);
        CHECK(storage_delete_ledger(c.s, 3) == 0); /* the newest log, which stays */
        for (int k = 0; k < 8000 && blocks(&c, "0000000000000003.log") == before; k++)
            usleep(1000);
        CHECK(blocks(&c, "0000000000000003.log") < before);
        usleep(100000);
        storage_event event;
        int failed = 0, again = 0;
        while (storage_next_event(c.s, &event)) {
            failed += strstr(event.text, "the space of deleted ledgers could not be freed") != NULL;
            again += strstr(event.text, "is freed again") != NULL;
        }
        CHECK(failed == 1 && again == 1);
        scene_close(&c);
    }
}

/* While it cannot be removed, its space is given back at least. */
static void test_a_log_that_could_not_be_removed_is_removed_later(void) {
    scene c;
    scene_open(&c);
    blkcnt_t before = blocks(&c, "0000000000000001.log");
    break_call(FAULT_UNLINK, ".log", UINT64_MAX, -EIO);
    CHECK(storage_delete_ledger(c.s, 1) == 0);
    for (int k = 0; k < 8000 && blocks(&c, "0000000000000001.log") == before; k++)
        usleep(1000);
    CHECK(blocks(&c, "0000000000000001.log") < before);
    usleep(500000);
    storage_stats stats;
    storage_get_stats(c.s, &stats);
    CHECK(stats.entry_logs == LOGS && exists(&c, "0000000000000001.log"));
    disk_faults_clear(&faults);
    wait_gone(&c, "0000000000000001.log");
    usleep(100000);
    storage_event event;
    int failed = 0, again = 0;
    while (storage_next_event(c.s, &event)) {
        failed += strstr(event.text, "could not be removed") != NULL;
        again += strstr(event.text, "are removed again") != NULL;
    }
    CHECK(failed == 1 && again == 1);
    storage_get_stats(c.s, &stats);
    CHECK(stats.entry_logs == LOGS - 1);
    scene_close(&c);
}

/* A log of which too little can be read to know what is missing is not cleared away. */
static void test_a_log_that_lost_its_records_stays(void) {
    static uint8_t content[FILE_BYTES_MAX];
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    size_t bytes = load(&c, "0000000000000001.log", content);
    memset(content, 0x55, bytes);
    store(&c, "0000000000000001.log", content, bytes);
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "0000000000000001.log has 0 of the 21 entries") == 1);
    CHECK(storage_delete_ledger(c.s, 2) == 0);
    wait_gone(&c, "0000000000000002.log");
    usleep(50000);
    CHECK(exists(&c, "0000000000000001.log"));
    scene_close(&c);
}

/* A version and its checksum over bytes 12..end, as a newer one would write them. */
static void make_newer(uint8_t *at, size_t end, uint32_t version) {
    store_le32(at + 12, version);
    store_le32(at + 8, crc32c(0, at + 12, end - 12));
}

/* Header, footer or manifest: a newer one is not damaged, and nothing is made anew. */
static void test_files_of_a_newer_version_are_refused(void) {
    static uint8_t content[FILE_BYTES_MAX], changed[FILE_BYTES_MAX];
    const char log[] = "0000000000000002.log";
    scene c;
    scene_open(&c);
    CHECK(storage_close(c.s, 1) == 0);
    size_t bytes = load(&c, log, content);
    for (int which = 1; which <= 3; which++) {
        memcpy(changed, content, bytes);
        if (which & 1)
            make_newer(changed, 40, 7);
        if (which & 2)
            make_newer(changed + bytes - 128, 128, 7);
        store(&c, log, changed, bytes);
        CHECK(strcmp(refused(&c, -EPROTONOSUPPORT),
                     "entry log 0000000000000002.log was written by a newer pyxbroker (format 7; "
                     "this one reads up to 1)") == 0);
        CHECK(load(&c, log, changed) == bytes);
        /* With a wrong checksum it is damage like any other. */
        changed[which & 1 ? 8 : bytes - 120] ^= 1;
        if (which == 3)
            changed[bytes - 120] ^= 1;
        store(&c, log, changed, bytes);
        c.s = must_open(&c.options);
        CHECK(take_events(c.s, log) > 0 && ledger_there(c.s, 2) == 1);
        CHECK(storage_close(c.s, 0) == 0);
    }
    store(&c, log, content, bytes);
    bytes = load(&c, "manifest", content);
    memcpy(changed, content, bytes);
    make_newer(changed, MANIFEST_HEADER_BYTES, 3);
    store(&c, "manifest", changed, bytes);
    CHECK(strcmp(refused(&c, -EPROTONOSUPPORT),
                 "the manifest of entry logs was written by a newer pyxbroker (format 3; this one "
                 "reads up to 1)") == 0);
    store(&c, "manifest", content, bytes);
    c.s = must_open(&c.options);
    CHECK(take_events(c.s, "") == 0);
    scene_close(&c);
}

static const check_test tests[] = {
    {"manifest_missing_log_is_named", test_a_missing_log_is_named},
    {"manifest_accepted_loss_is_accepted", test_an_accepted_loss_is_not_asked_about_again},
    {"manifest_directory_from_before_is_taken_in", test_a_directory_from_before_is_taken_in},
    {"manifest_damaged_is_told_and_made_anew", test_a_damaged_manifest_is_told_and_made_anew},
    {"manifest_unreadable_is_not_made_anew", test_a_manifest_that_cannot_be_read_is_not_made_anew},
    {"manifest_write_is_tried_again", test_a_manifest_that_cannot_be_written_is_tried_again},
    {"manifest_log_leaves_it_before_the_disk", test_a_log_leaves_the_manifest_before_the_disk},
    {"manifest_next_one_has_its_room", test_the_next_manifest_has_its_room},
    {"manifest_log_that_cannot_be_read", test_a_log_that_cannot_be_read_can_be_gone_without},
    {"manifest_id_of_a_log_that_is_gone_does_not_come_back",
     test_the_id_of_a_log_that_is_gone_does_not_come_back},
    {"manifest_new_directory_has_none", test_a_new_directory_has_no_manifest},
    {"version_of_a_newer_one_is_refused", test_files_of_a_newer_version_are_refused},
    {"space_is_freed_later", test_space_that_could_not_be_freed_is_freed_later},
    {"space_of_a_log_is_freed_later", test_a_log_that_could_not_be_removed_is_removed_later},
    {"space_of_a_log_that_lost_its_records_stays", test_a_log_that_lost_its_records_stays},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
