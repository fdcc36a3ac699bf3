/* id_map.h - a hash table from 64-bit ids to pointers, for one thread or under its owner's lock. */
#ifndef PYXBROKER_ID_MAP_H
#define PYXBROKER_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct id_slot {
    int64_t id;
    void *value; /* NULL: the slot is free */
} id_slot;

/* All zero is an empty map. */
typedef struct id_map {
    id_slot *slots;
    size_t capacity; /* 0 or a power of two */
    size_t count;
} id_map;

/* NULL when the id is not there. */
void *id_map_get(const id_map *map, int64_t id);

/* value is not NULL. Returns 0 or -ENOMEM, which leaves the map as it was. */
int id_map_put(id_map *map, int64_t id, void *value);

/* Returns the removed value or NULL. */
void *id_map_remove(id_map *map, int64_t id);

void id_map_free(id_map *map);

#endif
