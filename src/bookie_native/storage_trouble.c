/*
 * storage_trouble.c - the owner's handling of failed allocations and of a failed journal.
 *
 * Without memory an add is refused as if the cache were full. The flush thread then signals the
 * owner periodically, so that waiting callers retry even if nothing else happens.
 *
 * After a failure of the journal, entries that were not durable will never be. The owner drops them
 * from the cache, so that they are not read as stored. It hands the rest to the flush thread: those
 * entries were acknowledged, and the journal's disk may fail completely.
 */
#include <errno.h>

#include "storage_parts.h"

int storage_trouble(const storage *s) {
    const _Atomic int *const causes[] = {&s->journal.trouble, &s->flusher.error, &s->files.trouble,
                                         &s->no_memory};
    int error = 0;
    for (size_t i = 0; i < sizeof causes / sizeof *causes && error == 0; i++)
        error = atomic_load_explicit(causes[i], memory_order_acquire);
    return error;
}

int storage_refuse_memory(storage *s) {
    s->memory_failed_ns = s->disk->clock_ns(s->disk->ctx);
    if (atomic_exchange(&s->no_memory, -ENOMEM) == 0) {
        flusher_remind(&s->flusher, 1);
        events_add(&s->events, EVENT_ERROR,
                   "not enough memory to store more; retrying");
    }
    return STORAGE_FULL;
}

void storage_memory_recovered(storage *s) {
    atomic_store(&s->no_memory, 0);
    flusher_remind(&s->flusher, 0);
    events_add(&s->events, EVENT_INFO, "memory is available again");
}

/* Removes entries that never became durable from one ledger's part. Returns their number. */
static size_t part_drop_lost(const generation *g, cache_ledger *part) {
    size_t kept = 0;
    for (size_t i = 0; i < part->count; i++) {
        const cache_entry *entry = &part->entries[i];
        const segment *in = entry->data == NULL ? NULL : g->segments[entry->segment];
        if (in == NULL || (size_t)(entry->data - in->base) < in->lost)
            part->entries[kept++] = *entry;
    }
    size_t dropped = part->count - kept;
    part->count = kept;
    return dropped;
}

/* Recomputes the last entry after entries were dropped. */
static void ledger_update_last_entry(storage *s, ledger_state *ledger) {
    ledger->last_entry = ledger->last_evicted;
    for (const generation *g = s->oldest; g != NULL; g = g->next) {
        const cache_ledger *part = generation_find(g, ledger->ledger_id);
        if (part != NULL && part->count > 0 &&
            part->entries[part->count - 1].entry_id > ledger->last_entry)
            ledger->last_entry = part->entries[part->count - 1].entry_id;
    }
}

void storage_drop_lost(storage *s) {
    s->failure_seen = 1;
    journal_mark_lost(&s->journal);
    uint64_t durable = journal_durable_group(&s->journal);
    for (generation *g = s->oldest; g != NULL; g = g->next) {
        /* The flush thread reads the entries of generations that are durable as a whole. */
        if (g != s->active && g->last_group <= durable)
            continue;
        for (size_t i = 0; i < g->list_count; i++) {
            size_t dropped = part_drop_lost(g, g->list[i]);
            g->entries -= dropped;
            ledger_state *ledger =
                dropped > 0 ? storage_known_ledger(s, g->list[i]->ledger_id) : NULL;
            if (ledger != NULL)
                ledger_update_last_entry(s, ledger);
        }
    }
    s->flush_wanted = 1;
}
