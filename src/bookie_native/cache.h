/*
 * cache.h - the write cache: generations of entries, each with its own index and segments.
 *
 * A generation is ACTIVE while the owner adds to it, FLUSHING from the moment it is closed until
 * the flush thread has sealed its entry log, and CLEAN from then until it is evicted. The owner
 * changes only the active generation; a closed one is frozen, except for the deleted mark of a
 * ledger. The index points at payloads inside the segments; nothing is copied.
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
    const uint8_t *data; /* the payload, right behind its record header; NULL: known but damaged */
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
    uint64_t number;         /* from 1 on, one more for each generation of a storage */
    _Atomic int state;
    uint64_t last_group; /* journal groups up to this one are in this or an older generation */
    uint64_t entries;
    id_map ledgers; /* of cache_ledger; without those deleted while the generation was active */
    cache_ledger **list; /* all of them */
    size_t list_count, list_capacity;
    segment **segments;
    size_t segment_count, segment_capacity;
} generation;

/* Returns NULL without memory. */
generation *generation_open(uint64_t number);

/* Gives back the segments. */
void generation_free(generation *g);

/* Takes over the caller's hold on a segment. Returns 0 or -ENOMEM. */
int generation_add_segment(generation *g, segment *s);

/* The ledger's part of the generation, made when missing; NULL without memory. */
cache_ledger *generation_ledger(generation *g, int64_t ledger_id);

/* The ledger's part, or NULL when there is none or it was deleted. */
cache_ledger *generation_find(const generation *g, int64_t ledger_id);

/* Marks a ledger deleted; its entries are not flushed and not found any more. */
void generation_delete(generation *g, int64_t ledger_id);

/* Makes room for one more entry, so that the insert after the append cannot fail. 0 or -ENOMEM. */
int cache_reserve(cache_ledger *ledger);

/* Inserts an entry that is not there yet; room was reserved. */
void cache_insert(cache_ledger *ledger, const cache_entry *entry);

/* The entry or NULL. */
cache_entry *cache_find(const cache_ledger *ledger, int64_t entry_id);

#endif
