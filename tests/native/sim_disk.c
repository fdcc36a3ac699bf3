/* sim_disk.c - the table of disk calls of the simulated disk. */
#define _GNU_SOURCE
#include "sim_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim_disk_parts.h"

/* Counts a change of the disk, and cuts the power of a copy when its time has come. */
static void disk_changes(sim_disk *disk) {
    if (++disk->changes != disk->cut_at || disk->taken != NULL)
        return;
    disk->note(disk->note_arg);
    disk->taken = sim_copy(disk, disk->cut_seed, disk->cut_seed != 0);
}

static void enter(sim_disk *disk) {
    pthread_mutex_lock(&disk->lock);
}

static int leave(sim_disk *disk, int result) {
    pthread_mutex_unlock(&disk->lock);
    return result;
}

static sim_descriptor *descriptor(sim_disk *disk, int fd) {
    int number = fd - SIM_FIRST_DESCRIPTOR;
    if (number < 0 || number >= SIM_DESCRIPTORS_MAX || !disk->descriptors[number].open)
        abort();
    return &disk->descriptors[number];
}

static int descriptor_new(sim_disk *disk, sim_file *file, sim_directory *directory, int direct) {
    for (int i = 0; i < SIM_DESCRIPTORS_MAX; i++)
        if (!disk->descriptors[i].open) {
            if (file != NULL)
                file->references++;
            disk->descriptors[i] = (sim_descriptor){
                .file = file, .directory = directory, .open = 1, .direct = direct};
            return SIM_FIRST_DESCRIPTOR + i;
        }
    return -EMFILE;
}

static int sim_make_directory(void *ctx, const char *path) {
    sim_disk *disk = ctx;
    enter(disk);
    if (strcmp(path, "/") == 0 || sim_directory_find(disk, path) != NULL)
        return leave(disk, -EEXIST);
    disk_changes(disk);
    sim_directory_add(disk, path, 0);
    return leave(disk, 0);
}

static int sim_open_directory(void *ctx, const char *path) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_directory *directory = sim_directory_find(disk, path);
    if (directory == NULL && strcmp(path, "/") == 0)
        directory = sim_directory_add(disk, path, 1);
    return leave(disk, directory == NULL ? -ENOENT : descriptor_new(disk, NULL, directory, 0));
}

static int sim_list(void *ctx, int fd, disk_name_fn found, void *arg) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_names names = descriptor(disk, fd)->directory->visible;
    leave(disk, 0);
    int result = 0;
    for (int i = 0; i < names.count && result >= 0; i++)
        result = found(arg, names.entries[i].name);
    return result < 0 ? result : 0;
}

static int sim_lock_directory(void *ctx, int fd) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_directory *directory = descriptor(disk, fd)->directory;
    if (directory->locked)
        return leave(disk, -EWOULDBLOCK);
    directory->locked = 1;
    return leave(disk, 0);
}

static int sim_sync_directory(void *ctx, int fd) {
    sim_disk *disk = ctx;
    enter(disk);
    disk_changes(disk);
    sim_directory *directory = descriptor(disk, fd)->directory;
    for (const sim_change *c = directory->changes; c != NULL; c = c->next)
        sim_names_apply(&directory->synced, c);
    sim_directory_forget_changes(directory);
    size_t length = strcmp(directory->path, "/") == 0 ? 0 : strlen(directory->path);
    for (int i = 0; i < disk->directory_count; i++) {
        const char *path = disk->directories[i]->path;
        if (strncmp(path, directory->path, length) == 0 && path[length] == '/' &&
            strchr(path + length + 1, '/') == NULL)
            disk->directories[i]->durable = 1;
    }
    return leave(disk, 0);
}

static int sim_open(void *ctx, int directory_fd, const char *name, int flags) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_directory *directory = descriptor(disk, directory_fd)->directory;
    sim_name *entry = sim_names_find(&directory->visible, name);
    if (entry == NULL && !(flags & O_CREAT))
        return leave(disk, -ENOENT);
    if (entry == NULL) {
        disk_changes(disk);
        sim_directory_change(directory, "", name, sim_file_new());
        entry = sim_names_find(&directory->visible, name);
    } else if (flags & O_TRUNC) {
        /* The old bytes may be what a power cut leaves; a new file stands for that well enough. */
        disk_changes(disk);
        sim_directory_change(directory, "", name, sim_file_new());
        entry = sim_names_find(&directory->visible, name);
    }
    return leave(disk, descriptor_new(disk, entry->file, NULL, (flags & O_DIRECT) != 0));
}

static int sim_close(void *ctx, int fd) {
    sim_disk *disk = ctx;
    if (fd < SIM_FIRST_DESCRIPTOR)
        return disk_system()->close(NULL, fd); /* the eventfd */
    enter(disk);
    sim_descriptor *d = descriptor(disk, fd);
    if (d->file != NULL)
        sim_file_drop(d->file);
    else
        d->directory->locked = 0;
    d->open = 0;
    return leave(disk, 0);
}

static int sim_rename(void *ctx, int directory_fd, const char *from, const char *to) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_directory *directory = descriptor(disk, directory_fd)->directory;
    sim_name *entry = sim_names_find(&directory->visible, from);
    if (entry == NULL)
        return leave(disk, -ENOENT);
    disk_changes(disk);
    sim_directory_change(directory, from, to, entry->file);
    return leave(disk, 0);
}

static int sim_unlink(void *ctx, int directory_fd, const char *name) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_directory *directory = descriptor(disk, directory_fd)->directory;
    sim_name *entry = sim_names_find(&directory->visible, name);
    if (entry == NULL)
        return leave(disk, -ENOENT);
    disk_changes(disk);
    sim_directory_change(directory, name, "", entry->file);
    return leave(disk, 0);
}

static int64_t sim_file_bytes(void *ctx, int fd) {
    sim_disk *disk = ctx;
    enter(disk);
    int64_t bytes = (int64_t)descriptor(disk, fd)->file->visible_bytes;
    leave(disk, 0);
    return bytes;
}

static ssize_t sim_pread(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    sim_disk *disk = ctx;
    enter(disk);
    const sim_file *file = descriptor(disk, fd)->file;
    size_t count = 0;
    if ((uint64_t)offset < file->visible_bytes) {
        count = file->visible_bytes - (size_t)offset;
        if (count > bytes)
            count = bytes;
        memcpy(buffer, file->visible + offset, count);
    }
    leave(disk, 0);
    return (ssize_t)count;
}

/* Changes visible bytes and remembers the write. */
static void file_write(sim_file *file, const uint8_t *data, size_t bytes, uint64_t offset) {
    if (bytes == 0)
        return;
    if (offset + bytes > file->visible_bytes)
        sim_buffer_resize(&file->visible, &file->visible_bytes, offset + bytes);
    memcpy(file->visible + offset, data, bytes);
    sim_write *w = sim_need(calloc(1, sizeof *w));
    w->offset = offset;
    w->bytes = bytes;
    w->data = sim_need(malloc(bytes));
    memcpy(w->data, data, bytes);
    *file->unsynced_last = w;
    file->unsynced_last = &w->next;
}

static ssize_t sim_pwritev(void *ctx, int fd, const struct iovec *parts, int count,
                           int64_t offset) {
    sim_disk *disk = ctx;
    enter(disk);
    sim_descriptor *d = descriptor(disk, fd);
    disk_changes(disk);
    size_t written = 0;
    for (int i = 0; i < count; i++) {
        if (d->direct && ((uintptr_t)parts[i].iov_base % 4096 != 0 ||
                          parts[i].iov_len % 4096 != 0 || offset % 4096 != 0))
            disk->unaligned = 1;
        file_write(d->file, parts[i].iov_base, parts[i].iov_len, (uint64_t)offset + written);
        written += parts[i].iov_len;
    }
    leave(disk, 0);
    return (ssize_t)written;
}

static int sim_fdatasync(void *ctx, int fd) {
    sim_disk *disk = ctx;
    enter(disk);
    disk_changes(disk);
    sim_file *file = descriptor(disk, fd)->file;
    size_t before = file->durable_bytes;
    sim_buffer_resize(&file->durable, &file->durable_bytes, file->visible_bytes);
    if (file->visible_bytes > before)
        memcpy(file->durable + before, file->visible + before, file->visible_bytes - before);
    for (const sim_write *w = file->unsynced; w != NULL; w = w->next)
        memcpy(file->durable + w->offset, file->visible + w->offset, w->bytes);
    sim_file_forget_writes(file);
    return leave(disk, 0);
}

static int sim_fallocate(void *ctx, int fd, int mode, int64_t offset, int64_t bytes) {
    sim_disk *disk = ctx;
    enter(disk);
    disk_changes(disk);
    sim_file *file = descriptor(disk, fd)->file;
    if (mode & FALLOC_FL_PUNCH_HOLE) {
        uint8_t *zeros = sim_need(calloc(1, (size_t)bytes));
        file_write(file, zeros, (size_t)bytes, (uint64_t)offset);
        free(zeros);
    } else if (!(mode & FALLOC_FL_KEEP_SIZE) && (size_t)(offset + bytes) > file->visible_bytes) {
        sim_buffer_resize(&file->visible, &file->visible_bytes, (size_t)(offset + bytes));
    }
    return leave(disk, 0);
}

static int sim_drop_direct(void *ctx, int fd) {
    sim_disk *disk = ctx;
    enter(disk);
    descriptor(disk, fd)->direct = 0;
    return leave(disk, 0);
}

/* --- for tests --- */

sim_disk *sim_disk_new(void) {
    sim_disk *disk = sim_need(calloc(1, sizeof *disk));
    pthread_mutex_init(&disk->lock, NULL);
    disk->calls = (disk_calls){.ctx = disk,
                               .make_directory = sim_make_directory,
                               .open_directory = sim_open_directory,
                               .list = sim_list,
                               .lock_directory = sim_lock_directory,
                               .sync_directory = sim_sync_directory,
                               .open = sim_open,
                               .close = sim_close,
                               .rename = sim_rename,
                               .unlink = sim_unlink,
                               .file_bytes = sim_file_bytes,
                               .pread = sim_pread,
                               .pwritev = sim_pwritev,
                               .fdatasync = sim_fdatasync,
                               .fallocate = sim_fallocate,
                               .drop_direct = sim_drop_direct,
                               .clock_ns = disk_system()->clock_ns,
                               .entropy = disk_system()->entropy};
    return disk;
}

void sim_disk_free(sim_disk *disk) {
    if (disk == NULL)
        return;
    for (int i = 0; i < disk->directory_count; i++) {
        sim_directory *directory = disk->directories[i];
        sim_directory_forget_changes(directory);
        while (directory->visible.count > 0)
            sim_names_remove(&directory->visible, directory->visible.entries[0].name);
        while (directory->synced.count > 0)
            sim_names_remove(&directory->synced, directory->synced.entries[0].name);
        free(directory);
    }
    pthread_mutex_destroy(&disk->lock);
    free(disk);
}

const disk_calls *sim_disk_calls(sim_disk *disk) {
    return &disk->calls;
}

uint64_t sim_disk_changes(sim_disk *disk) {
    enter(disk);
    uint64_t changes = disk->changes;
    leave(disk, 0);
    return changes;
}

void sim_disk_cut_at(sim_disk *disk, uint64_t change, uint64_t seed, void (*note)(void *arg),
                     void *arg) {
    enter(disk);
    disk->cut_at = change;
    disk->cut_seed = seed;
    disk->note = note;
    disk->note_arg = arg;
    leave(disk, 0);
}

sim_disk *sim_disk_taken(sim_disk *disk) {
    enter(disk);
    sim_disk *taken = disk->taken;
    disk->taken = NULL;
    disk->cut_at = 0;
    leave(disk, 0);
    return taken;
}

sim_disk *sim_disk_cut(sim_disk *disk, uint64_t seed) {
    enter(disk);
    sim_disk *copy = sim_copy(disk, seed, 1);
    leave(disk, 0);
    return copy;
}

sim_disk *sim_disk_killed(sim_disk *disk) {
    enter(disk);
    sim_disk *copy = sim_copy(disk, 0, 0);
    leave(disk, 0);
    return copy;
}

uint8_t *sim_disk_file(sim_disk *disk, const char *directory, const char *name, size_t *bytes) {
    sim_directory *found = sim_directory_find(disk, directory);
    sim_name *entry = found == NULL ? NULL : sim_names_find(&found->visible, name);
    if (entry == NULL)
        return NULL;
    *bytes = entry->file->visible_bytes;
    return entry->file->visible;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int sim_disk_name(sim_disk *disk, const char *directory, const char *suffix, int number,
                  char *name, size_t name_bytes) {
    enter(disk);
    sim_directory *found = sim_directory_find(disk, directory);
    const char *names[SIM_NAMES_MAX];
    int count = 0;
    for (int i = 0; found != NULL && i < found->visible.count; i++) {
        const char *candidate = found->visible.entries[i].name;
        size_t length = strlen(candidate), wanted = strlen(suffix);
        if (length >= wanted && strcmp(candidate + length - wanted, suffix) == 0)
            names[count++] = candidate;
    }
    if (number >= count)
        return leave(disk, 0);
    qsort(names, (size_t)count, sizeof *names, by_name);
    snprintf(name, name_bytes, "%s", names[number]);
    return leave(disk, 1);
}

int sim_disk_zero(sim_disk *disk, const char *directory, const char *name, size_t at,
                  size_t bytes) {
    enter(disk);
    size_t size;
    const uint8_t *data = sim_disk_file(disk, directory, name, &size);
    int zero = data != NULL && at + bytes <= size;
    for (size_t i = 0; zero && i < bytes; i++)
        zero = data[at + i] == 0;
    return leave(disk, zero);
}

void sim_disk_put_directory(sim_disk *disk, const char *path) {
    char level[SIM_PATH_BYTES];
    snprintf(level, sizeof level, "%s", path);
    for (char *slash = strchr(level + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        if (sim_directory_find(disk, level) == NULL)
            sim_directory_add(disk, level, 1);
        if (slash == NULL)
            return;
        *slash = '/';
    }
}

void sim_disk_put(sim_disk *disk, const char *directory, const char *name, const uint8_t *data,
                  size_t bytes) {
    sim_disk_put_directory(disk, directory);
    sim_directory *found = sim_directory_find(disk, directory);
    sim_file *file = sim_file_new();
    sim_buffer_resize(&file->visible, &file->visible_bytes, bytes);
    sim_buffer_resize(&file->durable, &file->durable_bytes, bytes);
    if (bytes > 0) {
        memcpy(file->visible, data, bytes);
        memcpy(file->durable, data, bytes);
    }
    sim_names_put(&found->visible, name, file);
    sim_names_put(&found->synced, name, file);
}

int sim_disk_clean(sim_disk *disk) {
    int clean = !disk->unaligned;
    for (int i = 0; i < SIM_DESCRIPTORS_MAX; i++)
        clean = clean && !disk->descriptors[i].open;
    return clean;
}
