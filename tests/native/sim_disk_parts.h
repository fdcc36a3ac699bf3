/* sim_disk_parts.h - what the files of the simulated disk share: its state and how it changes. */
#ifndef PYXBROKER_TESTS_SIM_DISK_PARTS_H
#define PYXBROKER_TESTS_SIM_DISK_PARTS_H

#include "sim_disk.h"

enum {
    SIM_SECTOR_BYTES = 512,
    SIM_NAMES_MAX = 512,
    SIM_NAME_BYTES = 64,
    SIM_PATH_BYTES = 256,
    SIM_DIRECTORIES_MAX = 8,
    SIM_DESCRIPTORS_MAX = 512,
    SIM_FIRST_DESCRIPTOR = 100000 /* far from the real ones, which go through the same table */
};

typedef struct sim_write {
    uint64_t offset;
    size_t bytes;
    uint8_t *data;
    struct sim_write *next;
} sim_write;

typedef struct sim_file {
    int references;
    uint8_t *visible, *durable;
    size_t visible_bytes, durable_bytes;
    sim_write *unsynced, **unsynced_last;
} sim_file;

typedef struct sim_name {
    char name[SIM_NAME_BYTES];
    sim_file *file;
} sim_name;

typedef struct sim_names {
    sim_name entries[SIM_NAMES_MAX];
    int count;
} sim_names;

/* A change of names that no sync covers: from "" creates, to "" removes. */
typedef struct sim_change {
    char from[SIM_NAME_BYTES], to[SIM_NAME_BYTES];
    sim_file *file;
    struct sim_change *next;
} sim_change;

typedef struct sim_directory {
    char path[SIM_PATH_BYTES];
    int durable;
    int locked;
    sim_names visible, synced;
    sim_change *changes, **changes_last;
} sim_directory;

typedef struct sim_descriptor {
    sim_file *file;
    sim_directory *directory;
    int open, direct;
} sim_descriptor;

struct sim_disk {
    disk_calls calls;
    pthread_mutex_t lock;
    sim_directory *directories[SIM_DIRECTORIES_MAX];
    int directory_count;
    sim_descriptor descriptors[SIM_DESCRIPTORS_MAX];
    uint64_t changes, cut_at, cut_seed;
    void (*note)(void *);
    void *note_arg;
    sim_disk *taken;
    int unaligned;
};

/* memory, or the end of the test program. */
void *sim_need(void *memory);

sim_file *sim_file_new(void);
void sim_file_drop(sim_file *file);
void sim_file_forget_writes(sim_file *file);

/* Grows with zeros, or shrinks. */
void sim_buffer_resize(uint8_t **buffer, size_t *bytes, size_t wanted);

sim_name *sim_names_find(sim_names *names, const char *name);
void sim_names_remove(sim_names *names, const char *name);
void sim_names_put(sim_names *names, const char *name, sim_file *file);
void sim_names_apply(sim_names *names, const sim_change *change);

/* Changes the visible names and remembers the change. */
void sim_directory_change(sim_directory *directory, const char *from, const char *to,
                          sim_file *file);
void sim_directory_forget_changes(sim_directory *directory);
sim_directory *sim_directory_find(sim_disk *disk, const char *path);
sim_directory *sim_directory_add(sim_disk *disk, const char *path, int durable);

/* A copy of the disk after a power cut or, with power 0, after a kill. Under the lock. */
sim_disk *sim_copy(sim_disk *disk, uint64_t seed, int power);

#endif
