/* test_window.c - stretches of entry logs: what is held, and in which memory. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "support.h"
#include "window.h"

enum { LOG = 7, STEP_BYTES = 512 << 10, LOG_BYTES = 24 << 20, PIECES_MAX = 64 };

/* A disk with a log whose every eight bytes say where they lie. */
static sim_disk *disk_with_log(windows *w) {
    sim_disk *disk = sim_disk_new();
    uint64_t *content = malloc(LOG_BYTES);
    CHECK(content != NULL);
    for (uint64_t at = 0; at < LOG_BYTES / sizeof *content; at++)
        content[at] = at;
    char name[LOG_NAME_BYTES];
    entry_log_name(name, LOG);
    sim_disk_put_directory(disk, LEDGER_DIRECTORY);
    sim_disk_put(disk, LEDGER_DIRECTORY, name, (const uint8_t *)content, LOG_BYTES);
    free(content);
    const disk_calls *calls = sim_disk_calls(disk);
    int directory_fd = calls->open_directory(calls->ctx, LEDGER_DIRECTORY);
    CHECK(directory_fd >= 0);
    CHECK(windows_open(w, calls, directory_fd) == 0);
    return disk;
}

static void close_both(windows *w, sim_disk *disk) {
    int directory_fd = w->directory_fd;
    const disk_calls *calls = w->disk;
    windows_close(w);
    calls->close(calls->ctx, directory_fd);
    CHECK(sim_disk_clean(disk));
    sim_disk_free(disk);
}

/* Reads one step at a place, checks its content and lets go; returns the memory it lay in. */
static const uint8_t *step(windows *w, uint64_t from) {
    window found;
    CHECK(windows_get(w, LOG, LOG_BYTES, from, from + STEP_BYTES, 1, &found) == 0);
    uint64_t first, last;
    memcpy(&first, window_at(&found, from), sizeof first);
    memcpy(&last, window_at(&found, from + STEP_BYTES - sizeof last), sizeof last);
    CHECK(first == from / 8 && last == (from + STEP_BYTES) / 8 - 1);
    const uint8_t *base = found.memory->base;
    pin_drop(&found.memory->pin);
    return base;
}

typedef struct pieces {
    const uint8_t *base[PIECES_MAX];
    int count;
} pieces;

static void remember(pieces *seen, const uint8_t *base) {
    for (int i = 0; i < seen->count; i++)
        if (seen->base[i] == base)
            return;
    CHECK(seen->count < PIECES_MAX);
    seen->base[seen->count++] = base;
}

static void test_a_reader_alone_stays_in_its_memory(void) {
    windows w;
    sim_disk *disk = disk_with_log(&w);
    pieces seen = {0};
    for (uint64_t at = 0; at + STEP_BYTES <= LOG_BYTES; at += STEP_BYTES)
        remember(&seen, step(&w, at));
    CHECK(seen.count <= 3);
    close_both(&w, disk);
}

static void test_who_follows_closely_finds_what_the_first_read(void) {
    windows w;
    sim_disk *disk = disk_with_log(&w);
    step(&w, 0);
    for (uint64_t at = STEP_BYTES; at + STEP_BYTES <= LOG_BYTES; at += STEP_BYTES) {
        step(&w, at);
        /* The end of the step before is where the second reader is. */
        CHECK(windows_reach(&w, LOG, at - 1) != 0);
    }
    close_both(&w, disk);
}

static void test_readers_far_apart_do_not_take_each_others_place(void) {
    windows w;
    sim_disk *disk = disk_with_log(&w);
    uint64_t half = LOG_BYTES / 2;
    for (uint64_t at = 0; at + STEP_BYTES <= half; at += STEP_BYTES) {
        step(&w, at);
        step(&w, half + at);
        CHECK(windows_reach(&w, LOG, at) != 0 && windows_reach(&w, LOG, half + at) != 0);
    }
    close_both(&w, disk);
}

static void test_what_is_pinned_outlives_its_place(void) {
    windows w;
    sim_disk *disk = disk_with_log(&w);
    window first;
    CHECK(windows_get(&w, LOG, LOG_BYTES, 0, STEP_BYTES, 1, &first) == 0);
    for (uint64_t at = 0; at + STEP_BYTES <= LOG_BYTES; at += STEP_BYTES)
        step(&w, at);
    uint64_t value;
    for (uint64_t at = 0; at < STEP_BYTES; at += 4096) {
        memcpy(&value, window_at(&first, at), sizeof value);
        CHECK(value == at / 8);
    }
    pin_drop(&first.memory->pin);
    close_both(&w, disk);
}

/* The byte behind a stretch is the next one's, also where that is held as well. */
static void test_a_stretch_reaches_up_to_its_end_and_not_beyond(void) {
    windows w;
    window first, second;
    sim_disk *disk = disk_with_log(&w);
    CHECK(windows_get(&w, LOG, LOG_BYTES, 0, STEP_BYTES, 1, &first) == 0);
    CHECK(windows_reach(&w, LOG, first.to - 1) == first.to);
    CHECK(windows_reach(&w, LOG, first.to) == 0);
    CHECK(windows_get(&w, LOG, LOG_BYTES, first.to, first.to + STEP_BYTES, 1, &second) == 0);
    CHECK(second.from == first.to && windows_reach(&w, LOG, second.from) == second.to);
    pin_drop(&first.memory->pin);
    pin_drop(&second.memory->pin);
    close_both(&w, disk);
}

static void test_what_is_forgotten_is_one_log(void) {
    windows w;
    sim_disk *disk = disk_with_log(&w);
    step(&w, 0);
    windows_release_log(&w, LOG + 1);
    CHECK(windows_reach(&w, LOG, 0) != 0);
    windows_release_log(&w, LOG);
    CHECK(windows_reach(&w, LOG, 0) == 0);
    close_both(&w, disk);
}

static const check_test tests[] = {
    {"window_a_reader_alone_stays_in_its_memory", test_a_reader_alone_stays_in_its_memory},
    {"window_who_follows_closely_finds_what_the_first_read",
     test_who_follows_closely_finds_what_the_first_read},
    {"window_readers_far_apart_do_not_take_each_others_place",
     test_readers_far_apart_do_not_take_each_others_place},
    {"window_what_is_pinned_outlives_its_place", test_what_is_pinned_outlives_its_place},
    {"window_a_stretch_reaches_up_to_its_end_and_not_beyond",
     test_a_stretch_reaches_up_to_its_end_and_not_beyond},
    {"window_what_is_forgotten_is_one_log", test_what_is_forgotten_is_one_log},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
