/* test_journal.c - the journal thread alone: what one write has, and when a file is left. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "journal.h"
#include "support.h"

static disk_calls watching; /* the simulated disk's calls, but for pwritev */
static const disk_calls *simulated;
static _Atomic size_t largest_write;

static ssize_t watch_write(void *ctx, int fd, const struct iovec *parts, int count,
                           int64_t offset) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    if (bytes > atomic_load(&largest_write))
        atomic_store(&largest_write, bytes);
    return simulated->pwritev(ctx, fd, parts, count, offset);
}

typedef struct setting {
    sim_disk *disk;
    events events;
    journal_files files;
    journal journal;
    segment_pool *pool;
    int directory_fd, event_fd;
} setting;

/* A journal whose thread does not run yet, with the files that it takes. */
static void prepare(setting *t, uint64_t file_bytes, size_t segment_bytes, int sync_data) {
    memset(t, 0xa5, sizeof *t); /* all that is opened does without zeros */
    t->disk = sim_disk_new();
    sim_disk_put_directory(t->disk, JOURNAL_DIRECTORY);
    simulated = sim_disk_calls(t->disk);
    watching = *simulated;
    watching.pwritev = watch_write;
    atomic_store(&largest_write, 0);
    t->event_fd = eventfd(0, EFD_NONBLOCK);
    t->directory_fd = watching.open_directory(watching.ctx, JOURNAL_DIRECTORY);
    CHECK(t->event_fd >= 0 && t->directory_fd >= 0);
    events_open(&t->events, t->event_fd);
    journal_files_open(&t->files, &watching, &t->events, t->directory_fd, t->event_fd, file_bytes);
    CHECK(journal_files_start(&t->files) == 0);
    journal_options options = {.disk = &watching,
                               .events = &t->events,
                               .files = &t->files,
                               .event_fd = t->event_fd,
                               .sync_data = sync_data,
                               .intact = 1};
    CHECK(journal_open(&t->journal, &options) == 0);
    t->pool = segment_pool_open(segment_bytes, 8, NULL, NULL);
    CHECK(t->pool != NULL);
}

static void stop(setting *t) {
    CHECK(journal_close(&t->journal) == 0);
    journal_free(&t->journal);
    journal_files_close(&t->files);
    segment_pool_close(t->pool);
    events_close(&t->events);
    watching.close(watching.ctx, t->directory_fd);
    close(t->event_fd);
    CHECK(sim_disk_clean(t->disk));
    sim_disk_free(t->disk);
}

static segment *take_segment(setting *t) {
    int error;
    segment *taken = segment_take_or_error(t->pool, &error);
    CHECK(taken != NULL);
    CHECK(journal_use_segment(&t->journal, taken, NULL) == 0);
    return taken;
}

static void append(setting *t, int64_t entry_id, const uint8_t *data, uint32_t length) {
    record r = {.type = RECORD_ENTRY, .ledger_id = 1, .entry_id = entry_id, .length = length};
    CHECK(journal_append(&t->journal, &r, data, length, NULL, 0) != NULL);
}

/* What piled up behind a slow disk goes out in several writes: nobody waits for all of it. */
static void test_one_write_has_no_more_than_its_limit(void) {
    enum { SEGMENT_BYTES = JOURNAL_WRITE_BYTES_MAX / 2, SEGMENTS = 5 };
    const uint32_t length = SEGMENT_BYTES - GROUP_HEADER_BYTES - RECORD_HEADER_BYTES;
    setting t;
    segment *segments[SEGMENTS];
    uint8_t *data = calloc(1, length);
    CHECK(data != NULL);
    prepare(&t, (SEGMENTS + 1) * SEGMENT_BYTES, SEGMENT_BYTES, 1);
    uint64_t last = 0;
    for (int i = 0; i < SEGMENTS; i++) {
        segments[i] = take_segment(&t);
        append(&t, i, data, length);
    }
    CHECK(journal_use_segment(&t.journal, NULL, &last) == 0);
    CHECK(journal_start(&t.journal) == 0);
    CHECK(journal_wait(&t.journal, last) == 0);
    CHECK(largest_write == JOURNAL_WRITE_BYTES_MAX && t.journal.syncs == (SEGMENTS + 1) / 2);
    for (int i = 0; i < SEGMENTS; i++)
        pin_drop(&segments[i]->pin);
    free(data);
    stop(&t);
}

/* More than there is room for at first, and the room is a ring that began somewhere. */
static void test_groups_that_wait_keep_their_order_however_many_they_are(void) {
    enum { GROUPS = 150, BYTES = (GROUPS + 1) * BLOCK_BYTES };
    static const uint8_t data[100] = {1, 2, 3};
    setting t;
    prepare(&t, BYTES, BYTES, 1);
    t.journal.sealed_first = 40;
    segment *active = take_segment(&t);
    uint64_t last = 0;
    for (int i = 0; i < GROUPS; i++) {
        append(&t, i, data, sizeof data);
        CHECK(journal_use_segment(&t.journal, active, &last) == 0);
    }
    CHECK(journal_start(&t.journal) == 0);
    CHECK(journal_wait(&t.journal, last) == 0);
    char name[JOURNAL_NAME_BYTES];
    size_t bytes;
    journal_file_name(name, t.journal.file_id);
    sim_disk *whole = sim_disk_killed(t.disk);
    const uint8_t *written = sim_disk_file(whole, JOURNAL_DIRECTORY, name, &bytes);
    CHECK(written != NULL && bytes == BYTES);
    for (uint64_t i = 1; i <= GROUPS; i++) {
        group_header h;
        CHECK(group_header_decode(written + i * BLOCK_BYTES, &h));
        CHECK(h.sequence == last - GROUPS + i);
    }
    sim_disk_free(whole);
    pin_drop(&active->pin);
    stop(&t);
}

/* Replay takes bad bytes in a file that was left for damage: a power cut must not make any. */
static void test_without_syncs_a_file_is_left_only_after_its_sync(void) {
    enum { FILE_BYTES = 16 * BLOCK_BYTES, SEGMENT_BYTES = 64 * BLOCK_BYTES, CUTS = 16 };
    static const uint8_t data[100] = {1, 2, 3};
    setting t;
    prepare(&t, FILE_BYTES, SEGMENT_BYTES, 0);
    segment *active = take_segment(&t);
    CHECK(journal_start(&t.journal) == 0);
    uint64_t first = 0, group = 0;
    for (int64_t entry = 0; first == 0 || t.journal.file_id == first; entry++) {
        append(&t, entry, data, sizeof data);
        CHECK(journal_use_segment(&t.journal, active, &group) == 0);
        CHECK(journal_wait(&t.journal, group) == 0);
        first = first == 0 ? t.journal.file_id : first;
    }
    char name[JOURNAL_NAME_BYTES];
    size_t bytes, there;
    journal_file_name(name, first);
    sim_disk *whole = sim_disk_killed(t.disk);
    const uint8_t *written = sim_disk_file(whole, JOURNAL_DIRECTORY, name, &bytes);
    group_header h;
    CHECK(written != NULL && group_header_decode(written + bytes - BLOCK_BYTES, &h));
    for (uint64_t seed = 1; seed <= CUTS; seed++) {
        sim_disk *cut = sim_disk_cut(t.disk, seed);
        const uint8_t *durable = sim_disk_file(cut, JOURNAL_DIRECTORY, name, &there);
        CHECK(durable != NULL && there == bytes && memcmp(durable, written, bytes) == 0);
        sim_disk_free(cut);
    }
    sim_disk_free(whole);
    pin_drop(&active->pin);
    stop(&t);
}

static const check_test tests[] = {
    {"journal_one_write_has_no_more_than_its_limit", test_one_write_has_no_more_than_its_limit},
    {"journal_groups_that_wait_keep_their_order",
     test_groups_that_wait_keep_their_order_however_many_they_are},
    {"journal_without_syncs_a_file_is_left_only_after_its_sync",
     test_without_syncs_a_file_is_left_only_after_its_sync},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
