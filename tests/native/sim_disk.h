/*
 * sim_disk.h - a disk in memory that can lose its power.
 *
 * It keeps what is visible apart from what is durable: a write is durable after fdatasync of its
 * file, a name after a sync of its directory, a directory after a sync of its parent. A power cut
 * makes a new disk out of what was durable and an arbitrary choice of the rest: of each write any
 * of its 512-byte sectors, of the changes of names a prefix. It also checks that direct writes are
 * aligned, and remembers what broke that rule.
 */
#ifndef PYXBROKER_TESTS_SIM_DISK_H
#define PYXBROKER_TESTS_SIM_DISK_H

#include <pthread.h>

#include "disk.h"

typedef struct sim_disk sim_disk;

sim_disk *sim_disk_new(void);
void sim_disk_free(sim_disk *disk);
const disk_calls *sim_disk_calls(sim_disk *disk);

/* Calls that change the disk, so far. */
uint64_t sim_disk_changes(sim_disk *disk);

/* Right before the change with this number: calls note(arg), then takes the power away from a copy
 * of the disk, which sim_disk_taken hands out. seed chooses what survives; with seed 0 it is a
 * kill, which everything survives. change 0: never. */
void sim_disk_cut_at(sim_disk *disk, uint64_t change, uint64_t seed, void (*note)(void *arg),
                     void *arg);

/* The copy, owned by the caller; NULL when the moment has not come. */
sim_disk *sim_disk_taken(sim_disk *disk);

/* The same now. */
sim_disk *sim_disk_cut(sim_disk *disk, uint64_t seed);

/* A copy with everything that is visible, durable or not: what kill -9 leaves. */
sim_disk *sim_disk_killed(sim_disk *disk);

/* The visible content of a file, for changing it while no storage is open; NULL: no such file. */
uint8_t *sim_disk_file(sim_disk *disk, const char *directory, const char *name, size_t *bytes);

/* The number-th of the sorted visible names with the suffix; 1, or 0 when there is none. */
int sim_disk_name(sim_disk *disk, const char *directory, const char *suffix, int number,
                  char *name, size_t name_bytes);

/* 1 when these visible bytes of the file are there and zero; also while a storage is open. */
int sim_disk_zero(sim_disk *disk, const char *directory, const char *name, size_t at,
                  size_t bytes);

/* Puts a file there, durable. */
void sim_disk_put(sim_disk *disk, const char *directory, const char *name, const uint8_t *data,
                  size_t bytes);

/* Makes a directory and its parents, durable. */
void sim_disk_put_directory(sim_disk *disk, const char *path);

/* 1 when every direct write was aligned and no descriptor is left open. */
int sim_disk_clean(sim_disk *disk);

/* A small generator with good bits. */
uint64_t sim_random(uint64_t *state);

#endif
