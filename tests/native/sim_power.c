/* sim_power.c - names, files and what a power cut makes of them. */
#include "sim_disk_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sim_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void *sim_need(void *memory) {
    if (memory == NULL)
        abort();
    return memory;
}

sim_file *sim_file_new(void) {
    sim_file *file = sim_need(calloc(1, sizeof *file));
    file->unsynced_last = &file->unsynced;
    return file;
}

void sim_file_forget_writes(sim_file *file) {
    while (file->unsynced != NULL) {
        sim_write *next = file->unsynced->next;
        free(file->unsynced->data);
        free(file->unsynced);
        file->unsynced = next;
    }
    file->unsynced_last = &file->unsynced;
}

void sim_file_drop(sim_file *file) {
    if (--file->references > 0)
        return;
    sim_file_forget_writes(file);
    free(file->visible);
    free(file->durable);
    free(file);
}

void sim_buffer_resize(uint8_t **buffer, size_t *bytes, size_t wanted) {
    if (wanted > *bytes) {
        *buffer = sim_need(realloc(*buffer, wanted));
        memset(*buffer + *bytes, 0, wanted - *bytes);
    }
    *bytes = wanted;
}

sim_name *sim_names_find(sim_names *names, const char *name) {
    for (int i = 0; i < names->count; i++)
        if (strcmp(names->entries[i].name, name) == 0)
            return &names->entries[i];
    return NULL;
}

void sim_names_remove(sim_names *names, const char *name) {
    sim_name *found = sim_names_find(names, name);
    if (found == NULL)
        return;
    sim_file_drop(found->file);
    *found = names->entries[--names->count];
}

void sim_names_put(sim_names *names, const char *name, sim_file *file) {
    file->references++;
    sim_names_remove(names, name);
    if (names->count == SIM_NAMES_MAX)
        abort();
    sim_name *entry = &names->entries[names->count++];
    snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->file = file;
}

void sim_names_apply(sim_names *names, const sim_change *change) {
    if (change->from[0] != '\0' && sim_names_find(names, change->from) == NULL)
        return;
    if (change->to[0] != '\0')
        sim_names_put(names, change->to, change->file);
    if (change->from[0] != '\0')
        sim_names_remove(names, change->from);
}

void sim_directory_forget_changes(sim_directory *directory) {
    while (directory->changes != NULL) {
        sim_change *next = directory->changes->next;
        sim_file_drop(directory->changes->file);
        free(directory->changes);
        directory->changes = next;
    }
    directory->changes_last = &directory->changes;
}

void sim_directory_change(sim_directory *directory, const char *from, const char *to,
                             sim_file *file) {
    sim_change *change = sim_need(calloc(1, sizeof *change));
    snprintf(change->from, sizeof change->from, "%s", from);
    snprintf(change->to, sizeof change->to, "%s", to);
    change->file = file;
    file->references++;
    sim_names_apply(&directory->visible, change);
    *directory->changes_last = change;
    directory->changes_last = &change->next;
}

sim_directory *sim_directory_find(sim_disk *disk, const char *path) {
    for (int i = 0; i < disk->directory_count; i++)
        if (strcmp(disk->directories[i]->path, path) == 0)
            return disk->directories[i];
    return NULL;
}

sim_directory *sim_directory_add(sim_disk *disk, const char *path, int durable) {
    if (disk->directory_count == SIM_DIRECTORIES_MAX)
        abort();
    sim_directory *directory = sim_need(calloc(1, sizeof *directory));
    snprintf(directory->path, sizeof directory->path, "%s", path);
    directory->durable = durable;
    directory->changes_last = &directory->changes;
    disk->directories[disk->directory_count++] = directory;
    return directory;
}

/* --- power cuts --- */

/* What a file holds after a cut: its durable bytes, and any sectors of the writes since. */
static sim_file *file_cut(const sim_file *file, uint64_t *random) {
    sim_file *copy = sim_file_new();
    sim_buffer_resize(&copy->visible, &copy->visible_bytes, file->durable_bytes);
    if (file->durable_bytes > 0)
        memcpy(copy->visible, file->durable, file->durable_bytes);
    /* 0: nothing more arrived; 1: everything; 2, 3: any sectors. */
    unsigned mood = sim_random(random) % 4;
    for (const sim_write *w = file->unsynced; w != NULL && mood != 0; w = w->next)
        for (size_t at = 0; at < w->bytes; at += SIM_SECTOR_BYTES) {
            if (mood != 1 && sim_random(random) % 2 == 0)
                continue;
            size_t part = w->bytes - at < SIM_SECTOR_BYTES ? w->bytes - at : SIM_SECTOR_BYTES;
            if (w->offset + at + part > copy->visible_bytes)
                sim_buffer_resize(&copy->visible, &copy->visible_bytes, w->offset + at + part);
            memcpy(copy->visible + w->offset + at, w->data + at, part);
        }
    sim_buffer_resize(&copy->durable, &copy->durable_bytes, copy->visible_bytes);
    if (copy->visible_bytes > 0)
        memcpy(copy->durable, copy->visible, copy->visible_bytes);
    return copy;
}

/* The disk after a power cut: what was durable, and an arbitrary choice of the rest. */
static sim_disk *copy_after_cut(sim_disk *disk, uint64_t seed) {
    sim_disk *copy = sim_disk_new();
    for (int i = 0; i < disk->directory_count; i++) {
        sim_directory *directory = disk->directories[i];
        if (!directory->durable && sim_random(&seed) % 2 == 0)
            continue;
        sim_directory *target = sim_directory_add(copy, directory->path, 1);
        sim_names *survived = sim_need(calloc(1, sizeof *survived));
        for (int n = 0; n < directory->synced.count; n++)
            sim_names_put(survived, directory->synced.entries[n].name,
                          directory->synced.entries[n].file);
        unsigned length = 0;
        for (const sim_change *c = directory->changes; c != NULL; c = c->next)
            length++;
        unsigned kept = (unsigned)(sim_random(&seed) % (length + 1));
        for (const sim_change *c = directory->changes; c != NULL && kept > 0; c = c->next, kept--)
            sim_names_apply(survived, c);
        for (int n = 0; n < survived->count; n++) {
            sim_file *file = file_cut(survived->entries[n].file, &seed);
            sim_names_put(&target->visible, survived->entries[n].name, file);
            sim_names_put(&target->synced, survived->entries[n].name, file);
        }
        while (survived->count > 0)
            sim_names_remove(survived, survived->entries[0].name);
        free(survived);
    }
    return copy;
}

/* The copy of a file, with all that is not durable yet; made once for all the names it has. */
static sim_file *file_whole_copy(sim_file *file, sim_file *from[], sim_file *to[], int *count) {
    for (int i = 0; i < *count; i++)
        if (from[i] == file)
            return to[i];
    sim_file *copy = sim_file_new();
    sim_buffer_resize(&copy->visible, &copy->visible_bytes, file->visible_bytes);
    if (file->visible_bytes > 0)
        memcpy(copy->visible, file->visible, file->visible_bytes);
    sim_buffer_resize(&copy->durable, &copy->durable_bytes, file->durable_bytes);
    if (file->durable_bytes > 0)
        memcpy(copy->durable, file->durable, file->durable_bytes);
    for (const sim_write *w = file->unsynced; w != NULL; w = w->next) {
        sim_write *same = sim_need(calloc(1, sizeof *same));
        same->offset = w->offset;
        same->bytes = w->bytes;
        same->data = sim_need(malloc(w->bytes));
        memcpy(same->data, w->data, w->bytes);
        *copy->unsynced_last = same;
        copy->unsynced_last = &same->next;
    }
    if (*count == SIM_NAMES_MAX)
        abort();
    from[*count] = file;
    to[(*count)++] = copy;
    return copy;
}

/* The disk after a kill: everything as it is, durable or not. */
static sim_disk *copy_after_kill(sim_disk *disk) {
    static sim_file *from[SIM_NAMES_MAX], *to[SIM_NAMES_MAX];
    sim_disk *copy = sim_disk_new();
    for (int i = 0; i < disk->directory_count; i++) {
        sim_directory *directory = disk->directories[i];
        sim_directory *target = sim_directory_add(copy, directory->path, directory->durable);
        int count = 0;
        for (int n = 0; n < directory->synced.count; n++)
            sim_names_put(&target->synced, directory->synced.entries[n].name,
                          file_whole_copy(directory->synced.entries[n].file, from, to, &count));
        for (int n = 0; n < directory->visible.count; n++)
            sim_names_put(&target->visible, directory->visible.entries[n].name,
                          file_whole_copy(directory->visible.entries[n].file, from, to, &count));
        for (const sim_change *c = directory->changes; c != NULL; c = c->next) {
            sim_change *same = sim_need(calloc(1, sizeof *same));
            *same = *c;
            same->next = NULL;
            same->file = file_whole_copy(c->file, from, to, &count);
            same->file->references++;
            *target->changes_last = same;
            target->changes_last = &same->next;
        }
    }
    return copy;
}

sim_disk *sim_copy(sim_disk *disk, uint64_t seed, int power) {
    return power ? copy_after_cut(disk, seed) : copy_after_kill(disk);
}
