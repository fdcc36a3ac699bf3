/* id_map.c - open addressing with linear probing; removal shifts slots back, no tombstones. */
#include "id_map.h"

#include <errno.h>
#include <stdlib.h>

enum { ID_MAP_CAPACITY_MIN = 16 };

static size_t id_map_home(const id_map *map, int64_t id) {
    uint64_t mixed = (uint64_t)id * 0x9e3779b97f4a7c15u;
    return (size_t)(mixed ^ mixed >> 32) & (map->capacity - 1);
}

/* Returns the slot of the id, or the free slot for it. Requires capacity > count. */
static id_slot *id_map_slot(const id_map *map, int64_t id) {
    size_t at = id_map_home(map, id);
    while (map->slots[at].value != NULL && map->slots[at].id != id)
        at = (at + 1) & (map->capacity - 1);
    return &map->slots[at];
}

void *id_map_get(const id_map *map, int64_t id) {
    return map->count == 0 ? NULL : id_map_slot(map, id)->value;
}

static int id_map_grow(id_map *map) {
    id_map larger = {.capacity = map->capacity == 0 ? ID_MAP_CAPACITY_MIN : map->capacity * 2};
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL)
        return -ENOMEM;
    for (size_t at = 0; at < map->capacity; at++)
        if (map->slots[at].value != NULL)
            *id_map_slot(&larger, map->slots[at].id) = map->slots[at];
    larger.count = map->count;
    free(map->slots);
    *map = larger;
    return 0;
}

int id_map_put(id_map *map, int64_t id, void *value) {
    if (map->count * 4 >= map->capacity * 3) {
        int error = id_map_grow(map);
        if (error < 0)
            return error;
    }
    id_slot *slot = id_map_slot(map, id);
    map->count += slot->value == NULL;
    *slot = (id_slot){.id = id, .value = value};
    return 0;
}

void *id_map_remove(id_map *map, int64_t id) {
    if (map->count == 0)
        return NULL;
    id_slot *slot = id_map_slot(map, id);
    void *removed = slot->value;
    if (removed == NULL)
        return NULL;
    size_t hole = (size_t)(slot - map->slots);
    size_t mask = map->capacity - 1;
    for (size_t at = (hole + 1) & mask; map->slots[at].value != NULL; at = (at + 1) & mask) {
        /* Moves a slot back unless its home is between the hole (exclusive) and the slot. */
        size_t home = id_map_home(map, map->slots[at].id);
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            map->slots[hole] = map->slots[at];
            hole = at;
        }
    }
    map->slots[hole] = (id_slot){0};
    map->count--;
    return removed;
}

void id_map_free(id_map *map) {
    free(map->slots);
    *map = (id_map){0};
}
