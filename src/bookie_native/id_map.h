/* id_map.h - a hash table from 64-bit ids to pointers. The caller provides the locking. */
#ifndef PYXBROKER_ID_MAP_H
#define PYXBROKER_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct id_slot {
    int64_t id;
    void *value; /* NULL: the slot is free */
} id_slot;

/* An all-zero map is empty. */
typedef struct id_map {
    id_slot *slots;
    size_t capacity; /* 0 or a power of two */
    size_t count;
} id_map;

/* Returns the value, or NULL when the id is not in the map. */
void *id_map_get(const id_map *map, int64_t id);

/* Adds or replaces a value, which must not be NULL. Returns 0, or -ENOMEM and no change. */
int id_map_put(id_map *map, int64_t id, void *value);

/* Returns the removed value or NULL. */
void *id_map_remove(id_map *map, int64_t id);

void id_map_free(id_map *map);

#endif
