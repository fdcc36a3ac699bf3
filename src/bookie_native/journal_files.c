/* journal_files.c - the thread that prepares, recycles and removes journal files. */
#define _GNU_SOURCE
#include "journal_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bytes.h"
#include "condition.h"
#include "crc32c.h"

enum {
    PREPARE_WRITE_BYTES = 1 << 20, /* when the journal needs the file soon */
    PREPARE_STEP_BYTES = 128 << 10, /* otherwise, so that the journal's writes wait briefly */
    PREPARE_PAUSE_MS = 4,
    SPARES_WANTED = 1,
    SPARES_MAX = 2,
    RETRY_MS_MIN = 50,
    RETRY_MS_MAX = 2000,
    HEADER_CRC_START = 12,
    HEADER_CRC_END = 32
};

static const char PREPARE_NAME[] = "prepare.tmp";
static const char JOURNAL_MAGIC[8] = {'P', 'Y', 'X', 'J', 'R', 'N', 'L', '1'};

void journal_file_name(char name[JOURNAL_NAME_BYTES], uint64_t id) {
    snprintf(name, JOURNAL_NAME_BYTES, "%016" PRIx64 ".journal", id);
}

int journal_file_parse(const char *name, uint64_t *id) {
    if (strlen(name) != 24 || strcmp(name + 16, ".journal") != 0 ||
        strspn(name, "0123456789abcdef") != 16)
        return 0;
    *id = strtoull(name, NULL, 16);
    return 1;
}

int journal_header_decode(const uint8_t *block, journal_header *out) {
    if (memcmp(block, JOURNAL_MAGIC, sizeof JOURNAL_MAGIC) != 0 ||
        crc32c(0, block + HEADER_CRC_START, HEADER_CRC_END - HEADER_CRC_START) !=
            load_le32(block + 8))
        return 0;
    out->version = load_le32(block + 12);
    out->id = load_le64(block + 16);
    out->bytes = load_le64(block + 24);
    return 1;
}

static void journal_header_encode(uint8_t *block, uint64_t id, uint64_t bytes) {
    memset(block, 0, BLOCK_BYTES);
    memcpy(block, JOURNAL_MAGIC, sizeof JOURNAL_MAGIC);
    store_le32(block + 12, JOURNAL_VERSION);
    store_le64(block + 16, id);
    store_le64(block + 24, bytes);
    store_le32(block + 8,
               crc32c(0, block + HEADER_CRC_START, HEADER_CRC_END - HEADER_CRC_START));
}

/* Writes the header and one zero block, which ends the leftovers of an earlier use of the file, and
 * syncs. Returns 0 or an error. */
static int journal_header_write(journal_files *files, int fd, uint64_t id, uint64_t bytes) {
    uint8_t *blocks = aligned_alloc(BLOCK_BYTES, 2 * BLOCK_BYTES);
    if (blocks == NULL)
        return -ENOMEM;
    journal_header_encode(blocks, id, bytes);
    memset(blocks + BLOCK_BYTES, 0, BLOCK_BYTES);
    int error = disk_write_all(files->disk, fd, blocks, 2 * BLOCK_BYTES, 0);
    free(blocks);
    if (error == 0)
        error = files->disk->fdatasync(files->disk->ctx, fd);
    return error;
}

void journal_files_open(journal_files *files, const disk_calls *disk, events *log,
                        int directory_fd, int event_fd, uint64_t full_bytes) {
    memset(files, 0, sizeof *files);
    files->disk = disk;
    files->events = log;
    files->directory_fd = directory_fd;
    files->event_fd = event_fd;
    files->full_bytes = full_bytes;
    files->next_id = 1;
    journal_manifest_open(&files->manifest, disk, directory_fd);
    pthread_mutex_init(&files->lock, NULL);
    condition_open(&files->work);
    condition_open(&files->ready);
}

static void journal_files_append(journal_file **list, journal_file *file) {
    while (*list != NULL)
        list = &(*list)->next;
    file->next = NULL;
    *list = file;
}

static unsigned journal_files_count(const journal_file *list) {
    unsigned count = 0;
    for (; list != NULL; list = list->next)
        count++;
    return count;
}

/* Appends a new file to the list. Under the lock, or before the thread runs. */
static int journal_files_new(journal_file **list, uint64_t id, uint64_t bytes, int fd,
                             uint64_t last_group) {
    journal_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return -ENOMEM;
    *file = (journal_file){.id = id, .bytes = bytes, .fd = fd, .last_group = last_group};
    journal_files_append(list, file);
    return 0;
}

int journal_files_adopt(journal_files *files, uint64_t id, uint64_t bytes, enum journal_use use,
                        uint64_t last_group) {
    if (id >= files->next_id)
        files->next_id = id + 1;
    if (use == JOURNAL_UNUSABLE)
        return journal_files_new(&files->retired, id, bytes, -1, 0);
    int listed = journal_manifest_has(&files->manifest, id);
    if (journal_manifest_add(&files->manifest, id) < 0)
        return -ENOMEM;
    if (use == JOURNAL_RETIRED)
        return journal_files_new(&files->retired, id, bytes, -1, last_group);
    char name[JOURNAL_NAME_BYTES];
    journal_file_name(name, id);
    int fd = disk_open_direct(files->disk, files->directory_fd, name, O_RDWR);
    if (fd < 0)
        return fd;
    int error = journal_files_new(listed ? &files->spares : &files->fresh, id, bytes, fd, 0);
    if (error < 0)
        files->disk->close(files->disk->ctx, fd);
    return error;
}

/* Returns 1 when a file is needed soon: the first one, or when the one in use is half full. */
static int journal_files_urgent(const journal_files *files) {
    return !files->running || files->waiting || files->closing ||
           atomic_load_explicit(&files->half_full, memory_order_relaxed);
}

/* Fills the file with zeros, in pieces, so that a shutdown does not wait for all of it. Unless the
 * file is urgent, pauses between them, so that the journal's syncs do not queue behind them. */
static int journal_file_fill(journal_files *files, int fd, uint64_t bytes) {
    void *zeros = mmap(NULL, PREPARE_WRITE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (zeros == MAP_FAILED)
        return -ENOMEM;
    int error = 0;
    uint64_t at = 0;
    while (at < bytes && error == 0) {
        pthread_mutex_lock(&files->lock);
        int urgent = journal_files_urgent(files);
        if (at > 0 && !urgent && !files->stopping)
            condition_wait_ms(&files->work, &files->lock, PREPARE_PAUSE_MS);
        if (files->stopping)
            error = -ECANCELED;
        pthread_mutex_unlock(&files->lock);
        uint64_t step = urgent ? PREPARE_WRITE_BYTES : PREPARE_STEP_BYTES;
        if (step > bytes - at)
            step = bytes - at;
        if (error == 0)
            error = disk_write_all(files->disk, fd, zeros, step, (int64_t)at);
        at += step;
    }
    munmap(zeros, PREPARE_WRITE_BYTES);
    return error;
}

/* Creates a file of zeros with a header, durable under its name. Returns the descriptor. */
static int journal_file_create(journal_files *files, uint64_t id, uint64_t bytes) {
    const disk_calls *disk = files->disk;
    int fd = disk_open_direct(disk, files->directory_fd, PREPARE_NAME, O_RDWR | O_CREAT | O_TRUNC);
    if (fd < 0)
        return fd;
    int error = disk->fallocate(disk->ctx, fd, 0, 0, (int64_t)bytes);
    if (error == -EOPNOTSUPP)
        error = 0; /* writing zeros allocates too, only less contiguously */
    if (error == 0)
        error = journal_file_fill(files, fd, bytes);
    if (error == 0)
        error = journal_header_write(files, fd, id, bytes);
    char name[JOURNAL_NAME_BYTES];
    journal_file_name(name, id);
    if (error == 0)
        error = disk->rename(disk->ctx, files->directory_fd, PREPARE_NAME, name);
    if (error == 0) {
        error = disk->sync_directory(disk->ctx, files->directory_fd);
        if (error < 0)
            disk->unlink(disk->ctx, files->directory_fd, name);
    } else {
        /* Frees the space; if this fails, the next attempt truncates the file. */
        disk->unlink(disk->ctx, files->directory_fd, PREPARE_NAME);
    }
    if (error < 0) {
        disk->close(disk->ctx, fd);
        return error;
    }
    return fd;
}

/* Turns a retired file into a spare with a new id. After an error the file is unusable. */
static int journal_file_recycle(journal_files *files, journal_file *file, uint64_t new_id) {
    const disk_calls *disk = files->disk;
    char from[JOURNAL_NAME_BYTES], to[JOURNAL_NAME_BYTES];
    journal_file_name(from, file->id);
    journal_file_name(to, new_id);
    /* The header comes first: between the two syncs name and header disagree, from which replay
     * concludes that no group of the file is needed. */
    int error = journal_header_write(files, file->fd, new_id, file->bytes);
    if (error == 0)
        error = disk->rename(disk->ctx, files->directory_fd, from, to);
    if (error < 0)
        return error;
    file->id = new_id;
    file->last_group = 0;
    return disk->sync_directory(disk->ctx, files->directory_fd);
}

/* Removes a file that the journal's manifest does not list. */
static void journal_file_remove(journal_files *files, int fd, uint64_t id) {
    char name[JOURNAL_NAME_BYTES];
    journal_file_name(name, id);
    if (fd >= 0)
        files->disk->close(files->disk->ctx, fd);
    int error = files->disk->unlink(files->disk->ctx, files->directory_fd, name);
    if (error < 0 && error != -ENOENT)
        events_add(files->events, EVENT_WARNING,
                   "journal file %s is no longer needed but could not be removed: %s", name,
                   strerror(-error));
}

/* Takes a retired file that the checkpoint covers from the list; NULL when none exists. */
static journal_file *journal_files_take_covered(journal_files *files) {
    for (journal_file **at = &files->retired; *at != NULL; at = &(*at)->next) {
        journal_file *file = *at;
        if (file->last_group <= files->checkpoint) {
            *at = file->next;
            file->next = NULL;
            return file;
        }
    }
    return NULL;
}

/* Takes the last spare from the list when space is short and the journal does not need it next;
 * NULL otherwise. */
static journal_file *journal_files_take_surplus(journal_files *files) {
    if (!files->saving || journal_files_count(files->spares) <= SPARES_WANTED)
        return NULL;
    journal_file **at = &files->spares;
    while ((*at)->next != NULL)
        at = &(*at)->next;
    journal_file *file = *at;
    *at = NULL;
    return file;
}

/* Stores the result of the thread's last attempt, and reports a change. Under the lock. */
static void journal_files_report(journal_files *files, int error) {
    if (error == -ECANCELED)
        error = 0; /* the storage closes; nothing is wrong with the disk */
    if (error < 0 && error != files->error)
        events_add(files->events, EVENT_ERROR,
                   "the next journal file could not be prepared (%s); retrying%s", strerror(-error),
                   disk_is_full(error) ? ", free some disk space" : "");
    else if (error == 0 && files->error < 0)
        events_add(files->events, EVENT_INFO, "the next journal file can be prepared again");
    files->error = error;
    if (atomic_exchange_explicit(&files->trouble, error, memory_order_release) != error)
        event_ring(files->event_fd);
    int starved = files->waiting && error < 0;
    if (atomic_exchange(&files->starved, starved) && !starved)
        event_ring(files->event_fd);
    if (error < 0)
        pthread_cond_signal(&files->ready);
}

/* Stores the journal's manifest; the files that it lists then become spares. Called with the lock,
 * which is released meanwhile. Returns 0 or an error. */
static int journal_files_store_manifest(journal_files *files) {
    pthread_mutex_unlock(&files->lock);
    int error = journal_manifest_store(&files->manifest);
    pthread_mutex_lock(&files->lock);
    while (error == 0 && files->fresh != NULL) {
        journal_file *file = files->fresh;
        files->fresh = file->next;
        journal_files_append(&files->spares, file);
        pthread_cond_signal(&files->ready);
    }
    return error;
}

/* Recycles or removes one file. Called with the lock, which is released meanwhile. Returns 0, or an
 * error when the file must stay for now. */
static int journal_files_reuse(journal_files *files, journal_file *file) {
    int recycle = file->fd >= 0 && file->bytes == files->full_bytes &&
                  journal_files_count(files->spares) <
                      (files->saving ? SPARES_WANTED : SPARES_MAX);
    uint64_t id = recycle ? files->next_id++ : 0;
    pthread_mutex_unlock(&files->lock);
    journal_manifest_remove(&files->manifest, file->id);
    int kept = journal_manifest_store(&files->manifest), error = 0;
    if (recycle && kept == 0) {
        error = journal_file_recycle(files, file, id);
        if (error == 0)
            error = journal_manifest_add(&files->manifest, id);
    }
    if (error < 0)
        events_add(files->events, EVENT_WARNING,
                   "journal file %016" PRIx64 ".journal could not be recycled and is removed: %s",
                   file->id, strerror(-error));
    if (kept == 0 && (!recycle || error < 0))
        journal_file_remove(files, file->fd, file->id);
    pthread_mutex_lock(&files->lock);
    if (kept < 0)
        journal_files_append(&files->retired, file);
    else if (recycle && error == 0)
        journal_files_append(&files->fresh, file);
    else
        free(file);
    return kept;
}

/* Adds a new file to the manifest and to `fresh`. Under the lock, or before the thread runs.
 * Returns 0, or an error after which the file is removed. */
static int journal_files_register(journal_files *files, uint64_t id, uint64_t bytes, int fd) {
    int error = journal_manifest_add(&files->manifest, id);
    if (error == 0)
        error = journal_files_new(&files->fresh, id, bytes, fd, 0);
    if (error == 0)
        return 0;
    journal_manifest_remove(&files->manifest, id);
    journal_file_remove(files, fd, id);
    return error;
}

/* Prepares one new file. Called with the lock, which is released meanwhile. Returns 0 or an
 * error. */
static int journal_files_prepare(journal_files *files) {
    uint64_t id = files->next_id++;
    uint64_t bytes = files->full_bytes;
    if (files->first_wanted && bytes > JOURNAL_FIRST_FILE_BYTES)
        bytes = JOURNAL_FIRST_FILE_BYTES;
    pthread_mutex_unlock(&files->lock);
    int fd = journal_file_create(files, id, bytes);
    pthread_mutex_lock(&files->lock);
    int error = fd < 0 ? fd : journal_files_register(files, id, bytes, fd);
    if (error == 0)
        files->first_wanted = 0;
    return error;
}

/* Does one unit of work. Called with the lock, which is released meanwhile. Returns 1 when there
 * may be more work, 0 when not, or an error after which the thread should pause. */
static int journal_files_step(journal_files *files) {
    int error = 0;
    if (files->manifest.changed || files->fresh != NULL)
        error = journal_files_store_manifest(files);
    if (error < 0)
        return error;
    journal_file *passed = journal_files_take_covered(files);
    if (passed == NULL)
        passed = journal_files_take_surplus(files);
    if (passed != NULL) {
        error = journal_files_reuse(files, passed);
        return error < 0 ? error : 1;
    }
    if (files->stopping || journal_files_count(files->spares) >= SPARES_WANTED)
        return 0;
    error = journal_files_prepare(files);
        /* During shutdown there is no next attempt, but there may be files to recycle. */
    return error < 0 && !files->stopping ? error : 1;
}

static void *journal_files_run(void *arg) {
    journal_files *files = arg;
    unsigned retry_ms = RETRY_MS_MIN;
    pthread_mutex_lock(&files->lock);
    for (;;) {
        int more = journal_files_step(files);
        /* Success is reported only when no work is left. */
        if (more <= 0)
            journal_files_report(files, more);
        if (files->stopping && more <= 0)
            break;
        if (more < 0) {
            condition_wait_ms(&files->work, &files->lock, retry_ms);
            retry_ms = retry_ms * 2 < RETRY_MS_MAX ? retry_ms * 2 : RETRY_MS_MAX;
        } else if (more == 0) {
            retry_ms = RETRY_MS_MIN;
            pthread_cond_wait(&files->work, &files->lock);
        }
    }
    pthread_mutex_unlock(&files->lock);
    return NULL;
}

int journal_files_start(journal_files *files) {
    /* Leftovers of a preparation interrupted by a crash would only use up space. */
    int left = files->disk->unlink(files->disk->ctx, files->directory_fd, PREPARE_NAME);
    if (left < 0 && left != -ENOENT)
        return left;
    int error = 0;
    pthread_mutex_lock(&files->lock);
    if (files->spares == NULL && files->fresh == NULL) {
        files->first_wanted = 1;
        error = journal_files_prepare(files);
    }
    /* With a full disk the storage opens for reading. */
    if (disk_is_full(error)) {
        journal_files_report(files, error);
        error = 0;
    }
    pthread_mutex_unlock(&files->lock);
    if (error < 0)
        return error;
    /* Set before the thread starts, because the thread reads it. */
    files->running = 1;
    error = -pthread_create(&files->thread, NULL, journal_files_run, files);
    if (error < 0)
        files->running = 0;
    return error;
}

static void journal_files_free(journal_files *files, journal_file *list) {
    while (list != NULL) {
        journal_file *next = list->next;
        if (list->fd >= 0)
            files->disk->close(files->disk->ctx, list->fd);
        free(list);
        list = next;
    }
}

int journal_files_save_space(journal_files *files, int on) {
    pthread_mutex_lock(&files->lock);
    if (files->saving != on)
        pthread_cond_signal(&files->work);
    files->saving = on;
    int waits = files->retired != NULL;
    pthread_mutex_unlock(&files->lock);
    return waits;
}

void journal_files_begin_shutdown(journal_files *files) {
    pthread_mutex_lock(&files->lock);
    files->closing = 1;
    pthread_cond_signal(&files->ready);
    pthread_mutex_unlock(&files->lock);
}

void journal_files_close(journal_files *files) {
    pthread_mutex_lock(&files->lock);
    files->stopping = 1;
    pthread_cond_signal(&files->work);
    pthread_cond_signal(&files->ready);
    pthread_mutex_unlock(&files->lock);
    if (files->running)
        pthread_join(files->thread, NULL);
    journal_files_free(files, files->fresh);
    journal_files_free(files, files->spares);
    journal_files_free(files, files->retired);
    journal_manifest_close(&files->manifest);
    pthread_cond_destroy(&files->work);
    pthread_cond_destroy(&files->ready);
    pthread_mutex_destroy(&files->lock);
}

int journal_files_take(journal_files *files, uint64_t group_bytes, journal_file **out) {
    journal_file *taken = NULL;
    int error = 0;
    pthread_mutex_lock(&files->lock);
    files->waiting = 1;
    while (taken == NULL) {
        journal_file *first = files->spares;
        if (first != NULL) {
            files->spares = first->next;
            first->next = NULL;
            pthread_cond_signal(&files->work);
            if (first->bytes - BLOCK_BYTES >= group_bytes)
                taken = first;
            else /* a small first file without groups, so the checkpoint covers it */
                journal_files_append(&files->retired, first);
        } else if (files->stopping || (files->closing && files->error < 0)) {
            error = files->error < 0 ? files->error : -ECANCELED;
            break;
        } else {
            atomic_store(&files->starved, files->error < 0);
            pthread_cond_signal(&files->work); /* ends the pause after a failure */
            pthread_cond_wait(&files->ready, &files->lock);
        }
    }
    files->waiting = 0;
    atomic_store_explicit(&files->half_full, 0, memory_order_relaxed);
    if (atomic_exchange(&files->starved, 0))
        event_ring(files->event_fd);
    pthread_mutex_unlock(&files->lock);
    *out = taken;
    return error;
}

void journal_files_retire(journal_files *files, journal_file *file) {
    pthread_mutex_lock(&files->lock);
    journal_files_append(&files->retired, file);
    pthread_cond_signal(&files->work);
    pthread_mutex_unlock(&files->lock);
}

void journal_files_checkpoint(journal_files *files, uint64_t group) {
    pthread_mutex_lock(&files->lock);
    if (group > files->checkpoint)
        files->checkpoint = group;
    pthread_cond_signal(&files->work);
    pthread_mutex_unlock(&files->lock);
}
