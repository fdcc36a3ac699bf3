/* test_journal_files.c - how the next journal file is prepared beside one that is in use. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "bytes.h"
#include "check.h"
#include "journal_files.h"
#include "support.h"

enum { FILE_BYTES = 8 << 20, SMALL_STEP = 128 << 10, LARGE_STEP = 1 << 20 };

static disk_calls counting;   /* the simulated disk's calls, but for pwritev */
static const disk_calls *simulated;
static _Atomic int small_steps, large_steps;
static _Atomic(journal_files *) watched; /* while somebody waits for a file, or NULL */
static _Atomic int refused_steps;        /* that were written while adds were refused */

static ssize_t count_write(void *ctx, int fd, const struct iovec *parts, int count,
                           int64_t offset) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        bytes += parts[i].iov_len;
    atomic_fetch_add(&small_steps, bytes == SMALL_STEP);
    atomic_fetch_add(&large_steps, bytes == LARGE_STEP);
    journal_files *files = atomic_load(&watched);
    if (files != NULL)
        atomic_fetch_add(&refused_steps, atomic_load(&files->starved));
    return simulated->pwritev(ctx, fd, parts, count, offset);
}

static _Atomic int create_error; /* of the next files, or 0 */

static int create(void *ctx, int directory_fd, const char *name, int flags) {
    int error = atomic_load(&create_error);
    if (error < 0 && strcmp(name, "prepare.tmp") == 0)
        return error;
    return simulated->open(ctx, directory_fd, name, flags);
}

typedef struct setting {
    sim_disk *disk;
    events events;
    journal_files files;
    int directory_fd, event_fd;
} setting;

static void start(setting *t) {
    memset(t, 0, sizeof *t);
    t->disk = sim_disk_new();
    sim_disk_put_directory(t->disk, JOURNAL_DIRECTORY);
    simulated = sim_disk_calls(t->disk);
    counting = *simulated;
    counting.pwritev = count_write;
    counting.open = create;
    atomic_store(&small_steps, 0);
    atomic_store(&large_steps, 0);
    t->event_fd = eventfd(0, EFD_NONBLOCK);
    t->directory_fd = counting.open_directory(counting.ctx, JOURNAL_DIRECTORY);
    CHECK(t->event_fd >= 0 && t->directory_fd >= 0);
    events_open(&t->events, t->event_fd);
    journal_files_open(&t->files, &counting, &t->events, t->directory_fd, t->event_fd, FILE_BYTES);
    CHECK(journal_files_start(&t->files) == 0);
}

static void stop(setting *t, journal_file *taken) {
    journal_files_retire(&t->files, taken);
    journal_files_close(&t->files);
    events_close(&t->events);
    counting.close(counting.ctx, t->directory_fd);
    close(t->event_fd);
    CHECK(sim_disk_clean(t->disk));
    sim_disk_free(t->disk);
}

static journal_file *take(setting *t) {
    journal_file *taken;
    CHECK(journal_files_take(&t->files, BLOCK_BYTES, &taken) == 0);
    return taken;
}

static int spares(setting *t) {
    pthread_mutex_lock(&t->files.lock);
    int count = 0;
    for (journal_file *file = t->files.spares; file != NULL; file = file->next)
        count++;
    pthread_mutex_unlock(&t->files.lock);
    return count;
}

static void wait_for_spares(setting *t, int count) {
    for (int waited = 0; spares(t) != count; waited++) {
        CHECK(waited < 10000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

static void wait_for_a_spare(setting *t) {
    wait_for_spares(t, 1);
}

/* 1 while a file with this id has its name. */
static int is_there(setting *t, uint64_t id) {
    char name[JOURNAL_NAME_BYTES];
    journal_file_name(name, id);
    int fd = counting.open(counting.ctx, t->directory_fd, name, O_RDONLY);
    if (fd >= 0)
        counting.close(counting.ctx, fd);
    return fd >= 0;
}

static void wait_until_gone(setting *t, uint64_t id) {
    for (int waited = 0; is_there(t, id); waited++) {
        CHECK(waited < 10000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* The first file is small and made at once, the next one in small steps. */
static void test_steps_are_small_while_there_is_time(void) {
    setting t;
    start(&t);
    CHECK(large_steps == JOURNAL_FIRST_FILE_BYTES / LARGE_STEP && small_steps == 0);
    journal_file *first = take(&t);
    CHECK(first != NULL);
    journal_files_filled(&t.files, first, first->bytes / 4);
    wait_for_a_spare(&t);
    CHECK(large_steps == JOURNAL_FIRST_FILE_BYTES / LARGE_STEP);
    CHECK(small_steps == FILE_BYTES / SMALL_STEP);
    stop(&t, first);
}

static void test_steps_are_large_when_half_of_the_file_is_used(void) {
    setting t;
    start(&t);
    journal_file *first = take(&t);
    CHECK(first != NULL);
    journal_files_filled(&t.files, first, first->bytes / 2 + BLOCK_BYTES);
    wait_for_a_spare(&t);
    /* It may have begun before that was known. */
    CHECK(small_steps < FILE_BYTES / SMALL_STEP / 2);
    stop(&t, first);
}

static void test_who_waits_for_the_file_gets_it_soon(void) {
    setting t;
    start(&t);
    journal_file *first = take(&t);
    CHECK(first != NULL);
    atomic_store(&refused_steps, 0);
    atomic_store(&watched, &t.files);
    journal_file *second = take(&t);
    atomic_store(&watched, NULL);
    CHECK(second != NULL && second->bytes == FILE_BYTES);
    CHECK(small_steps < FILE_BYTES / SMALL_STEP / 2);
    /* The disk is well: nothing is refused meanwhile. */
    CHECK(refused_steps == 0);
    journal_files_retire(&t.files, first);
    stop(&t, second);
}

/* A file that is no longer needed goes at a close, whatever the thread was about. */
static void test_a_close_during_a_preparation_removes_what_is_not_needed(void) {
    setting t;
    start(&t);
    journal_file *first = take(&t);
    CHECK(first != NULL);
    while (small_steps == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    CHECK(spares(&t) == 0);
    char name[JOURNAL_NAME_BYTES];
    size_t bytes;
    journal_file_name(name, first->id);
    CHECK(sim_disk_file(t.disk, JOURNAL_DIRECTORY, name, &bytes) != NULL);
    first->last_group = 5;
    journal_files_retire(&t.files, first);
    journal_files_checkpoint(&t.files, 5);
    journal_files_close(&t.files);
    CHECK(sim_disk_file(t.disk, JOURNAL_DIRECTORY, name, &bytes) == NULL);
    events_close(&t.events);
    counting.close(counting.ctx, t.directory_fd);
    close(t.event_fd);
    CHECK(sim_disk_clean(t.disk));
    sim_disk_free(t.disk);
}

/* Once the storage closes nobody waits for a disk that cannot make the file, and is told why. */
static void test_who_gets_no_file_is_told_why(void) {
    setting t;
    start(&t);
    atomic_store(&create_error, -EIO);
    journal_file *first = take(&t), *second;
    journal_files_begin_shutdown(&t.files);
    CHECK(journal_files_take(&t.files, FILE_BYTES, &second) == -EIO && second == NULL);
    atomic_store(&create_error, 0);
    stop(&t, first);
}

/* Nothing went wrong: what is asked for while the storage closes is not made any more. */
static void test_who_comes_when_the_storage_closes_is_told_so(void) {
    setting t;
    start(&t);
    journal_file *first = take(&t), *second;
    pthread_mutex_lock(&t.files.lock);
    t.files.stopping = 1;
    pthread_mutex_unlock(&t.files.lock);
    CHECK(journal_files_take(&t.files, FILE_BYTES, &second) == -ECANCELED && second == NULL);
    stop(&t, first);
}

/* A file with a damaged header is there to be removed. */
static void test_a_file_that_is_useless_is_not_written_to(void) {
    setting t;
    start(&t);
    journal_file *first = take(&t);
    wait_for_a_spare(&t);
    pthread_mutex_lock(&t.files.lock);
    int before = t.files.fresh != NULL;
    CHECK(journal_files_adopt(&t.files, 77, FILE_BYTES, JOURNAL_UNUSABLE, 9) == 0);
    CHECK((t.files.fresh != NULL) == before && t.files.retired->id == 77);
    CHECK(t.files.retired->last_group == 0 && !journal_manifest_has(&t.files.manifest, 77));
    pthread_mutex_unlock(&t.files.lock);
    stop(&t, first);
}

/* While space is short one spare stays, for the journal, and all others give their space back. */
static void test_spares_are_given_back_while_space_is_short(void) {
    setting t;
    start(&t);
    journal_file *first = take(&t), *second = take(&t);
    wait_for_a_spare(&t);
    second->last_group = 1;
    journal_files_retire(&t.files, second);
    CHECK(journal_files_save_space(&t.files, 0) == 1); /* it waits for a flush */
    journal_files_checkpoint(&t.files, 1);
    wait_for_spares(&t, 2);
    uint64_t spare = t.files.spares->id, surplus = t.files.spares->next->id;
    CHECK(is_there(&t, spare) && is_there(&t, surplus));

    CHECK(journal_files_save_space(&t.files, 1) == 0);
    wait_for_a_spare(&t);
    wait_until_gone(&t, surplus);
    CHECK(is_there(&t, spare));

    /* A file that a flush frees now is removed instead of recycled. */
    journal_file *third = take(&t);
    uint64_t id = third->id;
    CHECK(id == spare);
    wait_for_a_spare(&t);
    third->last_group = 2;
    journal_files_retire(&t.files, third);
    journal_files_checkpoint(&t.files, 2);
    wait_until_gone(&t, id);
    CHECK(spares(&t) == 1);

    /* With space again files are recycled again. */
    journal_files_save_space(&t.files, 0);
    journal_file *fourth = take(&t);
    wait_for_a_spare(&t);
    fourth->last_group = 3;
    journal_files_retire(&t.files, fourth);
    journal_files_checkpoint(&t.files, 3);
    wait_for_spares(&t, 2);
    stop(&t, first);
}

static const check_test tests[] = {
    {"journal_files_spares_are_given_back_while_space_is_short",
     test_spares_are_given_back_while_space_is_short},
    {"journal_files_steps_are_small_while_there_is_time", test_steps_are_small_while_there_is_time},
    {"journal_files_steps_are_large_when_half_of_the_file_is_used",
     test_steps_are_large_when_half_of_the_file_is_used},
    {"journal_files_who_waits_for_the_file_gets_it_soon",
     test_who_waits_for_the_file_gets_it_soon},
    {"journal_files_a_close_during_a_preparation_removes_what_is_not_needed",
     test_a_close_during_a_preparation_removes_what_is_not_needed},
    {"journal_files_who_gets_no_file_is_told_why", test_who_gets_no_file_is_told_why},
    {"journal_files_one_that_is_useless_is_not_written_to",
     test_a_file_that_is_useless_is_not_written_to},
    {"journal_files_who_comes_when_the_storage_closes_is_told_so",
     test_who_comes_when_the_storage_closes_is_told_so},
};

int main(int argc, char **argv) {
    return check_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
