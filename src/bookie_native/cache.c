/* cache.c - generations and their index. */
#include "cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Doubles the capacity of an array, which starts at `first`. Returns 0 or -ENOMEM. */
static int array_grow(void **array, size_t *capacity, size_t element_bytes, size_t first) {
    size_t larger = *capacity == 0 ? first : *capacity * 2;
    void *grown = realloc(*array, larger * element_bytes);
    if (grown == NULL)
        return -ENOMEM;
    *array = grown;
    *capacity = larger;
    return 0;
}

generation *generation_open(uint64_t number) {
    generation *g = calloc(1, sizeof *g);
    if (g != NULL)
        g->number = number;
    return g;
}

void generation_free(generation *g) {
    for (size_t i = 0; i < g->list_count; i++) {
        free(g->list[i]->entries);
        free(g->list[i]);
    }
    for (size_t i = 0; i < g->segment_count; i++)
        pin_drop(&g->segments[i]->pin);
    free(g->list);
    free(g->segments);
    id_map_free(&g->ledgers);
    free(g);
}

int generation_add_segment(generation *g, segment *s) {
    if (g->segment_count == g->segment_capacity) {
        void *array = g->segments;
        if (array_grow(&array, &g->segment_capacity, sizeof *g->segments, 8) < 0)
            return -ENOMEM;
        g->segments = array;
    }
    g->segments[g->segment_count++] = s;
    return 0;
}

cache_ledger *generation_ledger(generation *g, int64_t ledger_id) {
    cache_ledger *ledger = id_map_get(&g->ledgers, ledger_id);
    if (ledger != NULL)
        return ledger;
    if (g->list_count == g->list_capacity) {
        void *array = g->list;
        if (array_grow(&array, &g->list_capacity, sizeof *g->list, 16) < 0)
            return NULL;
        g->list = array;
    }
    ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL)
        return NULL;
    ledger->ledger_id = ledger_id;
    if (id_map_put(&g->ledgers, ledger_id, ledger) < 0) {
        free(ledger);
        return NULL;
    }
    g->list[g->list_count++] = ledger;
    return ledger;
}

cache_ledger *generation_find(const generation *g, int64_t ledger_id) {
    cache_ledger *ledger = id_map_get(&g->ledgers, ledger_id);
    if (ledger == NULL || atomic_load_explicit(&ledger->deleted, memory_order_relaxed))
        return NULL;
    return ledger;
}

void generation_delete(generation *g, int64_t ledger_id) {
    cache_ledger *ledger = id_map_get(&g->ledgers, ledger_id);
    if (ledger == NULL)
        return;
    atomic_store_explicit(&ledger->deleted, 1, memory_order_release);
    /* A frozen generation keeps the ledger in its map, so that a ledger that is added again later
     * cannot be inserted into that generation by mistake. */
    if (atomic_load_explicit(&g->state, memory_order_relaxed) == GENERATION_ACTIVE)
        id_map_remove(&g->ledgers, ledger_id);
}

int cache_reserve(cache_ledger *ledger) {
    if (ledger->count < ledger->capacity)
        return 0;
    void *array = ledger->entries;
    if (array_grow(&array, &ledger->capacity, sizeof *ledger->entries, 16) < 0)
        return -ENOMEM;
    ledger->entries = array;
    return 0;
}

/* Returns the index of the first entry whose id is not less than entry_id. */
static size_t cache_position(const cache_ledger *ledger, int64_t entry_id) {
    size_t low = 0, high = ledger->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ledger->entries[middle].entry_id < entry_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void cache_insert(cache_ledger *ledger, const cache_entry *entry) {
    size_t at = ledger->count;
    if (at > 0 && ledger->entries[at - 1].entry_id >= entry->entry_id) {
        at = cache_position(ledger, entry->entry_id);
        memmove(ledger->entries + at + 1, ledger->entries + at,
                (ledger->count - at) * sizeof *ledger->entries);
    }
    ledger->entries[at] = *entry;
    ledger->count++;
}

cache_entry *cache_find(const cache_ledger *ledger, int64_t entry_id) {
    if (ledger->count == 0 || entry_id < ledger->entries[0].entry_id)
        return NULL;
    /* Ids rarely have gaps, so the distance from the first id is usually the position. */
    uint64_t guess = (uint64_t)entry_id - (uint64_t)ledger->entries[0].entry_id;
    if (guess < ledger->count && ledger->entries[guess].entry_id == entry_id)
        return &ledger->entries[guess];
    size_t at = cache_position(ledger, entry_id);
    if (at < ledger->count && ledger->entries[at].entry_id == entry_id)
        return &ledger->entries[at];
    return NULL;
}
