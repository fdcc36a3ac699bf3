/* storage_write.c - the owner's writes: add, fence, master key, commit, delete. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "crc32c.h"
#include "storage_parts.h"

enum { PACKAGED_HEADER_BYTES_MIN = 16 };

#define SEGMENT_FAST_NS 250000000u /* time to fill a segment; with 8 MiB: 32 MiB/s */

/* Drops the oldest generation if it is clean. Returns 1 if it was. */
static int storage_evict(storage *s) {
    generation *g = s->oldest;
    if (g == s->active ||
        atomic_load_explicit(&g->state, memory_order_acquire) != GENERATION_CLEAN)
        return 0;
    if (g == s->flushing)
        s->flushing = NULL;
    for (size_t i = 0; i < g->list_count; i++) {
        const cache_ledger *part = g->list[i];
        ledger_state *ledger =
            part->count == 0 ? NULL : id_map_get(&s->ledgers, part->ledger_id);
        if (ledger != NULL && part->entries[part->count - 1].entry_id > ledger->last_evicted)
            ledger->last_evicted = part->entries[part->count - 1].entry_id;
    }
    s->oldest = g->next;
    generation_free(g);
    return 1;
}

/* Takes a segment, evicting clean generations if needed; NULL and *error on failure. */
static segment *storage_take_segment(storage *s, int *error) {
    segment *fresh = segment_take_or_error(s->pool, error);
    while (fresh == NULL && storage_evict(s))
        fresh = segment_take_or_error(s->pool, error);
    if (fresh != NULL)
        return fresh;
    /* Flushes even a small generation, so that it can be evicted. */
    if (!storage_is_flushing(s) && generation_has_content(s->active) && storage_rotate(s) < 0)
        *error = -ENOMEM;
    return NULL;
}

/* Adds a segment to the active generation, or starts a new generation. Returns 0 or an error. */
static int storage_next_segment(storage *s) {
    generation *g = s->active;
    uint64_t segment_bytes = segment_pool_segment_bytes(s->pool);
    int error;
    if (g->segment_count * segment_bytes >= s->dirty_bytes_max) {
        if (storage_is_flushing(s))
            return STORAGE_FULL;
        error = storage_rotate(s);
    } else {
        /* Sealed before the new segment is taken, because sealing afterwards could fail. */
        error = journal_use_segment(&s->journal, NULL, NULL);
    }
    if (error < 0)
        return error;
    segment *fresh = storage_take_segment(s, &error);
    if (fresh == NULL)
        return error;
    if (generation_add_segment(s->active, fresh) < 0) {
        pin_drop(&fresh->pin);
        return -ENOMEM;
    }
    /* Huge pages pay off when memory is filled fast. Otherwise waiting for them is not worth it. */
    uint64_t now = s->disk->clock_ns(s->disk->ctx);
    segment_pool_use_huge(s->pool, now - s->segment_ns < SEGMENT_FAST_NS);
    s->segment_ns = now;
    warmer_ask(&s->warmer, fresh, fresh->base);
    return journal_use_segment(&s->journal, fresh, NULL);
}

/* Returns the ledger's part of the active generation, with room for one more entry, or NULL. */
static cache_ledger *storage_active_part(storage *s, ledger_state *ledger) {
    if (ledger->active_in != s->active->number) {
        cache_ledger *part = generation_ledger(s->active, ledger->ledger_id);
        if (part == NULL)
            return NULL;
        ledger->active = part;
        ledger->active_in = s->active->number;
    }
    return cache_reserve(ledger->active) < 0 ? NULL : ledger->active;
}

/* Appends a record, taking a new segment or generation if needed. Returns 0, *payload and the
 * ledger's *part of the active generation, or an error after which nothing has changed. */
static int storage_append(storage *s, ledger_state *ledger, const record *r, const uint8_t *header,
                          uint32_t header_length, const uint8_t *data, uint32_t data_length,
                          const uint8_t **payload, cache_ledger **part) {
    if (atomic_load_explicit(&s->journal.failure, memory_order_acquire) != 0)
        return STORAGE_FAILED;
    if (atomic_load_explicit(&s->files.starved, memory_order_relaxed))
        return STORAGE_FULL;
    for (int attempt = 0; attempt < 2; attempt++) {
        *part = storage_active_part(s, ledger);
        if (*part == NULL)
            return storage_refuse_memory(s);
        *payload = journal_append(&s->journal, r, header, header_length, data, data_length);
        if (*payload != NULL) {
            const uint8_t *end = *payload + r->length;
            if (warmer_is_due(&s->warmer, end))
                warmer_ask(&s->warmer, s->active->segments[s->active->segment_count - 1], end);
            if (atomic_load_explicit(&s->no_memory, memory_order_relaxed) != 0)
                storage_memory_recovered(s);
            return 0;
        }
        int error = storage_next_segment(s);
        if (error < 0)
            return error == -ENOMEM ? storage_refuse_memory(s) : error;
    }
    return -EMSGSIZE; /* larger than an empty segment; entry_bytes_max prevents this */
}

/* Returns 1 when the cache has an intact copy of the entry. */
static int storage_has_cached(storage *s, int64_t ledger_id, int64_t entry_id) {
    const generation *g;
    const cache_ledger *part;
    const cache_entry *entry = storage_find(s, ledger_id, entry_id, &g, &part);
    return entry != NULL && entry->data != NULL;
}

int64_t storage_add(storage *s, const uint8_t *header, uint32_t header_length, const uint8_t *data,
                    uint32_t data_length, uint32_t data_crc, uint32_t flags) {
    if (header_length < PACKAGED_HEADER_BYTES_MIN)
        return -EINVAL;
    if ((uint64_t)header_length + data_length > s->entry_bytes_max)
        return -EMSGSIZE;
    record r = {.type = RECORD_ENTRY,
                .ledger_id = load_be64(header),
                .entry_id = load_be64(header + 8),
                .length = header_length + data_length};
    if (r.ledger_id < 0 || r.entry_id < 0)
        return -EINVAL;
    ledger_state *ledger = storage_ledger(s, r.ledger_id);
    if (ledger == NULL)
        return storage_refuse_memory(s);
    if (ledger->fenced && !(flags & STORAGE_ADD_RECOVERY))
        return STORAGE_FENCED;
    if (r.entry_id <= ledger->last_entry && storage_has_cached(s, r.ledger_id, r.entry_id))
        return atomic_load(&s->journal.failure) != 0 ? STORAGE_FAILED
                                                     : (int64_t)journal_next_sequence(&s->journal);
    r.payload_crc = crc32c(0, header, header_length);
    if (flags & STORAGE_ADD_HAS_CRC)
        r.payload_crc = crc32c_combine(r.payload_crc, data_crc, data_length);
    else
        r.payload_crc = crc32c(r.payload_crc, data, data_length);
    const uint8_t *payload;
    cache_ledger *part;
    int error = storage_append(s, ledger, &r, header, header_length, data, data_length, &payload,
                               &part);
    if (error < 0)
        return error;
    cache_insert(part, &(cache_entry){.entry_id = r.entry_id,
                                      .data = payload,
                                      .length = r.length,
                                      .segment = (uint32_t)s->active->segment_count - 1});
    s->active->entries++;
    if (r.entry_id > ledger->last_entry)
        ledger->last_entry = r.entry_id;
    s->adds++;
    s->add_bytes += r.length;
    return (int64_t)journal_last_add(&s->journal);
}

int64_t storage_fence(storage *s, int64_t ledger_id) {
    if (ledger_id < 0)
        return -EINVAL;
    ledger_state *ledger = storage_ledger(s, ledger_id);
    if (ledger == NULL)
        return storage_refuse_memory(s);
    if (ledger->fenced)
        return atomic_load(&s->journal.failure) != 0 ? STORAGE_FAILED
                                                     : (int64_t)journal_next_sequence(&s->journal);
    record r = {.type = RECORD_FENCE, .ledger_id = ledger_id, .entry_id = -1};
    const uint8_t *payload;
    cache_ledger *part;
    static const uint8_t nothing[1];
    int error = storage_append(s, ledger, &r, nothing, 0, NULL, 0, &payload, &part);
    if (error < 0)
        return error;
    part->fenced = 1;
    ledger->fenced = 1;
    return (int64_t)journal_last_add(&s->journal);
}

int64_t storage_master_key(storage *s, int64_t ledger_id, const uint8_t key[20]) {
    if (ledger_id < 0)
        return -EINVAL;
    ledger_state *ledger = storage_ledger(s, ledger_id);
    if (ledger == NULL)
        return storage_refuse_memory(s);
    if (ledger->has_key)
        return memcmp(ledger->key, key, MASTER_KEY_BYTES) == 0 ? 0 : -EACCES;
    record r = {.type = RECORD_MASTER_KEY,
                .ledger_id = ledger_id,
                .entry_id = -1,
                .length = MASTER_KEY_BYTES,
                .payload_crc = crc32c(0, key, MASTER_KEY_BYTES)};
    const uint8_t *payload;
    cache_ledger *part;
    int error = storage_append(s, ledger, &r, key, MASTER_KEY_BYTES, NULL, 0, &payload, &part);
    if (error < 0)
        return error;
    part->has_key = 1;
    memcpy(part->key, key, MASTER_KEY_BYTES);
    ledger->has_key = 1;
    memcpy(ledger->key, key, MASTER_KEY_BYTES);
    return (int64_t)journal_last_add(&s->journal);
}

void storage_commit(storage *s) {
    journal_commit(&s->journal);
    if (s->flush_wanted)
        storage_do_deferred_work(s);
}

int storage_delete_ledger(storage *s, int64_t ledger_id) {
    ledger_state *ledger = id_map_remove(&s->ledgers, ledger_id);
    if (ledger == NULL)
        return STORAGE_NO_LEDGER;
    if (s->recent == ledger)
        s->recent = NULL;
    free(ledger);
    /* Generations before logs: log_list_publish relies on this order. */
    for (generation *g = s->oldest; g != NULL; g = g->next)
        generation_delete(g, ledger_id);
    log_list_delete(&s->logs, ledger_id);
    flusher_sweep(&s->flusher);
    return 0;
}
