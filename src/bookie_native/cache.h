/*
 * cache.h - the write cache: generations of entries, each with its own index and segments.
 *
 * A generation is ACTIVE while the owner adds to it, FLUSHING from the moment it is closed until
 * the flush thread has sealed its entry log, and CLEAN from then until it is evicted. The owner
 * changes only the active generation. A closed generation is frozen, except that a ledger in it
 * may be marked as deleted. The index points at payloads inside the segments; nothing is copied.
 */
#ifndef PYXBROKER_CACHE_H
#define PYXBROKER_CACHE_H

#include <stdatomic.h>

#include "id_map.h"
#include "record.h"
#include "segment.h"

enum generation_state { GENERATION_ACTIVE, GENERATION_FLUSHING, GENERATION_CLEAN };

typedef struct cache_entry {
    int64_t entry_id;
    const uint8_t *data; /* the payload, right after its record header; NULL: known but damaged */
    uint32_t length;     /* bytes */
    uint32_t segment;    /* its number in the generation */
} cache_entry;

typedef struct cache_ledger {
    int64_t ledger_id;
    cache_entry *entries; /* ascending by entry id */
    size_t count, capacity;
    _Atomic int deleted; /* set by the owner, read by the flush thread */
    uint8_t fenced, has_key;
    uint8_t key[MASTER_KEY_BYTES];
} cache_ledger;

typedef struct generation {
    struct generation *next; /* the next newer one */
    uint64_t number;         /* from 1, incremented for each generation of a storage */
    _Atomic int state;
    uint64_t last_group; /* journal groups up to this one are in this or an older generation */
    uint64_t entries;
    id_map ledgers; /* of cache_ledger; excludes those deleted while the generation was active */
    cache_ledger **list; /* all ledgers, deleted ones too */
    size_t list_count, list_capacity;
    segment **segments;
    size_t segment_count, segment_capacity;
} generation;

/* Returns NULL when out of memory. */
generation *generation_open(uint64_t number);

/* Frees the generation and drops its hold on each segment. */
void generation_free(generation *g);

/* Takes over the caller's hold on the segment. Returns 0 or -ENOMEM. */
int generation_add_segment(generation *g, segment *s);

/* Returns the ledger's part of the generation, creating it if needed; NULL when out of memory. */
cache_ledger *generation_ledger(generation *g, int64_t ledger_id);

/* Returns the ledger's part, or NULL when it does not exist or the ledger was deleted. */
cache_ledger *generation_find(const generation *g, int64_t ledger_id);

/* Marks the ledger as deleted: its entries are no longer flushed or found. */
void generation_delete(generation *g, int64_t ledger_id);

/* Reserves room for one more entry, so that cache_insert cannot fail. Returns 0 or -ENOMEM. */
int cache_reserve(cache_ledger *ledger);

/* Inserts an entry that is not present yet. cache_reserve must have been called before. */
void cache_insert(cache_ledger *ledger, const cache_entry *entry);

/* Returns the entry or NULL. */
cache_entry *cache_find(const cache_ledger *ledger, int64_t entry_id);

#endif
