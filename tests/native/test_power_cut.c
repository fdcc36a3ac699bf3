/*
 * test_power_cut.c - the power goes at a random change of the disk, again and again.
 *
 * After each cut the storage must start, have every entry, fence and master key that was durable at
 * that moment, serve nothing but the right bytes, and report no damage: what was torn was never
 * acknowledged.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "support.h"

enum { LEDGERS = 4, STEPS = 200, LIVES = 4, SEQUENCES_MAX = 1 << 16 };

/* What was added in this life, by sequence, and what must be there after a cut. */
typedef struct life {
    storage *_Atomic s; /* note_cut runs on whichever thread touches the disk */
    struct {
        int remembered; /* 0: an add that need not survive */
        int64_t ledger_id, entry_id; /* -2: a fence, -3: a master key */
    } adds[SEQUENCES_MAX];
    uint64_t count;
    _Atomic uint64_t durable; /* at the cut */
    _Atomic int cut;
} life;

typedef struct world {
    int64_t acknowledged[LEDGERS]; /* the last entry that must be there, -1 for none */
    int64_t next[LEDGERS];         /* the next entry to write */
    int fenced[LEDGERS], keyed[LEDGERS];
} world;

static void note_cut(void *arg) {
    life *l = arg;
    storage *s = l->s;
    l->durable = s == NULL ? 0 : storage_durable_sequence(s);
    l->cut = 1;
}

static void remember(life *l, int64_t sequence, int64_t ledger_id, int64_t entry_id) {
    CHECK(sequence > 0 && sequence < SEQUENCES_MAX);
    l->adds[sequence].remembered = 1;
    l->adds[sequence].ledger_id = ledger_id;
    l->adds[sequence].entry_id = entry_id;
    l->count = (uint64_t)sequence;
}

/* A ledger of its own comes, goes to an entry log or not, and is deleted; after a cut it may be
 * back, punched or not, and nobody asks for it. */
static void come_and_go(storage *s, int64_t ledger_id, unsigned choice) {
    if (choice < 10) {
        int64_t first = storage_last_entry(s, ledger_id);
        for (int64_t entry = first < 0 ? 0 : first + 1; entry < first + 12; entry++)
            CHECK(add_entry(s, ledger_id, entry) > 0);
    } else {
        int deleted = storage_delete_ledger(s, ledger_id);
        CHECK(deleted == 0 || deleted == STORAGE_NO_LEDGER);
    }
}

/* A fence, or a master key, waiting while the cache is full. Returns what storage.h says. */
static int64_t add_state(storage *s, int64_t ledger_id, const uint8_t *key) {
    for (;;) {
        int64_t stored = key == NULL ? storage_fence(s, ledger_id)
                                     : storage_master_key(s, ledger_id, key);
        if (stored != STORAGE_FULL)
            return stored;
        storage_commit(s);
        wait_event(s);
    }
}

/* One life: a few hundred adds in runs of random sizes, with flushes, fences and keys between. */
static void live(life *l, world *w, uint64_t *random) {
    for (int step = 0; step < STEPS && !l->cut; step++) {
        int run = 1 + (int)(sim_random(random) % 12);
        for (int i = 0; i < run; i++) {
            int ledger = (int)(sim_random(random) % LEDGERS);
            if (storage_is_fenced(l->s, ledger) == 1)
                continue;
            int64_t entry = w->next[ledger]++;
            remember(l, add_entry(l->s, ledger, entry), ledger, entry);
        }
        int ledger = (int)(sim_random(random) % LEDGERS);
        uint8_t key[20];
        memset(key, ledger, sizeof key);
        unsigned choice = sim_random(random) % 64;
        if (choice == 0)
            storage_flush(l->s);
        else if (choice == 1 && ledger == LEDGERS - 1)
            remember(l, add_state(l->s, ledger, NULL), ledger, -2);
        else if (choice < 6) {
            int64_t stored = add_state(l->s, ledger, key);
            CHECK(stored >= 0);
            if (stored > 0)
                remember(l, stored, ledger, -3);
        } else if (choice < 12) {
            come_and_go(l->s, LEDGERS + ledger, choice);
        }
        storage_commit(l->s);
        if (sim_random(random) % 4 != 0 && l->count > 0)
            CHECK(wait_durable(l->s, (int64_t)l->count) == 0);
    }
}

/* Adds what was durable to what must be there. */
static void acknowledge(world *w, const life *l) {
    for (uint64_t sequence = 1; sequence <= l->durable && sequence <= l->count; sequence++) {
        if (!l->adds[sequence].remembered)
            continue;
        int64_t ledger = l->adds[sequence].ledger_id, entry = l->adds[sequence].entry_id;
        if (entry == -2)
            w->fenced[ledger] = 1;
        else if (entry == -3)
            w->keyed[ledger] = 1;
        else if (entry > w->acknowledged[ledger])
            w->acknowledged[ledger] = entry;
    }
}

static void verify(storage *s, world *w) {
    for (int ledger = 0; ledger < LEDGERS; ledger++) {
        for (int64_t entry = 0; entry <= w->acknowledged[ledger]; entry++) {
            int there = read_entry(s, ledger, entry);
            if (there != 1)
                printf("ledger %d entry %lld of %lld: %d\n", ledger, (long long)entry,
                       (long long)w->acknowledged[ledger], there);
            CHECK(there == 1);
        }
        int gone = 0;
        for (int64_t entry = w->acknowledged[ledger] + 1; entry < w->next[ledger]; entry++) {
            int there = read_entry(s, ledger, entry);
            CHECK(there == 1 || there == STORAGE_NO_ENTRY || there == STORAGE_NO_LEDGER);
            /* Of what nobody was told is stored there is a beginning, or nothing. */
            CHECK(!gone || there != 1);
            gone |= there != 1;
        }
        uint8_t other[20];
        memset(other, 99, sizeof other);
        if (w->fenced[ledger])
            CHECK(storage_is_fenced(s, ledger) == 1);
        if (w->keyed[ledger])
            CHECK(storage_master_key(s, ledger, other) == -13);
        /* The next life goes on at the first missing entry, as a recovering broker would. */
        w->next[ledger] = w->acknowledged[ledger] + 1;
        while (read_entry(s, ledger, w->next[ledger]) == 1)
            w->next[ledger]++;
        w->fenced[ledger] = storage_is_fenced(s, ledger) == 1;
    }
    CHECK(take_errors(s) == 0);
}

/* A few lives of one disk, each ended by a power cut; the last one by a clean close. */
static void one_trial(uint64_t seed, uint64_t changes_max) {
    static life l;
    world w;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < LEDGERS; i++)
        w.acknowledged[i] = -1;
    uint64_t random = seed;
    sim_disk *disk = sim_disk_new();
    for (int number = 0; number < LIVES; number++) {
        memset(&l, 0, sizeof l);
        uint64_t at = sim_disk_changes(disk) + 1 + sim_random(&random) % changes_max;
        /* Now and then only the process dies; what is not durable then is at stake in the next cut.
         */
        uint64_t cut_seed = sim_random(&random) % 3 == 0 ? 0 : sim_random(&random);
        sim_disk_cut_at(disk, at, cut_seed, note_cut, &l);
        storage_options options = small_options(sim_disk_calls(disk));
        l.s = must_open(&options);
        verify(l.s, &w);
        live(&l, &w, &random);
        int flush = sim_random(&random) % 2 == 0;
        sim_disk *taken = sim_disk_taken(disk);
        if (taken == NULL) { /* it did not come to the cut: cut now */
            note_cut(&l);
            taken = cut_seed == 0 ? sim_disk_killed(disk) : sim_disk_cut(disk, cut_seed);
        }
        CHECK(storage_close(l.s, flush) == 0);
        CHECK(sim_disk_clean(disk));
        sim_disk_free(disk);
        acknowledge(&w, &l);
        disk = taken;
    }
    storage_options options = small_options(sim_disk_calls(disk));
    storage *s = must_open(&options);
    verify(s, &w);
    CHECK(storage_close(s, 1) == 0);
    s = must_open(&options);
    storage_stats stats;
    storage_get_stats(s, &stats);
    CHECK(stats.replayed_entries == 0);
    verify(s, &w);
    CHECK(storage_close(s, 0) == 0);
    sim_disk_free(disk);
}

enum { TRIALS = 60 };

static int trials(void) {
    const char *wanted = getenv("POWER_CUTS");
    return wanted == NULL ? TRIALS : atoi(wanted);
}

/* Of the moments of a kill that are tried, as great a part as of the power cuts. */
static uint64_t moments_apart(void) {
    int wanted = trials();
    return wanted > 0 && wanted < TRIALS ? (uint64_t)(TRIALS / wanted) : 1;
}

static void run_trials(uint64_t first_seed, int count, uint64_t changes_max) {
    const char *only = getenv("POWER_CUT_SEED");
    char context[64];
    for (int i = 0; i < count; i++) {
        uint64_t seed = only != NULL ? strtoull(only, NULL, 10) : first_seed + (uint64_t)i;
        snprintf(context, sizeof context, "seed %llu", (unsigned long long)seed);
        check_context = context;
        one_trial(seed, changes_max);
        if (only != NULL)
            break;
    }
    check_context = NULL;
}

static void test_power_cut_under_load(void) {
    run_trials(1000, trials(), 300);
}

static void test_power_cut_at_the_very_first_start(void) {
    run_trials(5000, trials(), 24);
}

/* kill -9 right before each change of the disk in turn, from an empty disk on. */
static void kill_at_every_change(int journal_sync_data) {
    static life l;
    uint64_t changes = 0, apart = moments_apart();
    for (uint64_t at = 1; at == 1 || at <= changes; at += (1 + at / 40) * apart) {
        memset(&l, 0, sizeof l);
        sim_disk *disk = sim_disk_new();
        sim_disk_cut_at(disk, at, 0, note_cut, &l);
        storage_options options = small_options(sim_disk_calls(disk));
        options.journal_sync_data = journal_sync_data;
        l.s = must_open(&options);
        for (int64_t entry = 0; entry < 120; entry++) {
            remember(&l, add_entry(l.s, entry % 3, entry / 3), entry % 3, entry / 3);
            if (entry % 5 == 4)
                CHECK(wait_durable(l.s, (int64_t)l.count) == 0);
        }
        CHECK(wait_durable(l.s, (int64_t)l.count) == 0);
        CHECK(storage_close(l.s, 1) == 0);
        changes = sim_disk_changes(disk);
        sim_disk *taken = sim_disk_taken(disk);
        sim_disk_free(disk);
        if (taken == NULL)
            break;
        world w = {.acknowledged = {-1, -1, -1, -1}, .next = {40, 40, 40, 0}};
        acknowledge(&w, &l);
        options = small_options(sim_disk_calls(taken));
        storage *s = must_open(&options);
        verify(s, &w);
        CHECK(storage_close(s, 0) == 0);
        sim_disk_free(taken);
    }
    CHECK(changes > 50);
}

static void test_kill_at_every_change(void) {
    kill_at_every_change(1);
}

static void test_kill_at_every_change_without_syncs(void) {
    kill_at_every_change(0);
}

static const check_test tests[] = {
    {"kill_at_every_change", test_kill_at_every_change},
    {"kill_at_every_change_without_syncs", test_kill_at_every_change_without_syncs},
    {"power_cut_under_load", test_power_cut_under_load},
    {"power_cut_at_the_very_first_start", test_power_cut_at_the_very_first_start},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
