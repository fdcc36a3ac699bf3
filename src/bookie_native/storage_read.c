/* storage_read.c - the owner's reads, and the state of ledgers. */
#include <errno.h>

#include "storage_parts.h"

enum { SLOTS_PER_LEDGER_MAX = 16 }; /* visited in one call, per requested id */

int storage_read_cached(storage *s, int64_t ledger_id, int64_t first, int64_t last, int max,
                        uint64_t bytes_max, entry_ref *out) {
    storage_check_failure(s);
    int count = 0;
    uint64_t bytes = 0;
    const generation *g;
    const cache_ledger *part;
    const cache_entry *entry = storage_find(s, ledger_id, first, &g, &part);
    while (entry != NULL && entry->data != NULL && count < max && entry->entry_id <= last &&
           (count == 0 || bytes < bytes_max)) {
        storage_pin *pin = &g->segments[entry->segment]->pin;
        pin_hold(pin, 1);
        out[count++] = (entry_ref){.entry_id = entry->entry_id,
                                   .data = entry->data,
                                   .length = entry->length,
                                   .from_disk = 0,
                                   .pin = pin};
        bytes += entry->length;
        if (entry->entry_id == INT64_MAX)
            break;
        int64_t wanted = entry->entry_id + 1;
        entry++;
        if (entry == part->entries + part->count || entry->entry_id != wanted ||
            entry->data == NULL)
            entry = storage_find(s, ledger_id, wanted, &g, &part);
    }
    s->cache_hits += (uint64_t)count;
    return count;
}

int storage_read_submit(storage *s, int64_t ledger_id, int64_t first, int64_t last, int max,
                        uint64_t bytes_max, entry_ref *out, uint64_t tag) {
    if (first < 0 || max < 1 || last < first)
        return -EINVAL;
    storage_check_failure(s);
    read_request request = {.ledger_id = ledger_id,
                            .first = first,
                            .last = last,
                            .max = max,
                            .bytes_max = bytes_max,
                            .out = out,
                            .tag = tag};
    if (storage_known_ledger(s, ledger_id) == NULL) {
        request.count = STORAGE_NO_LEDGER;
        return reader_submit(&s->reader, &request, 1);
    }
    const generation *g;
    const cache_ledger *part;
    const cache_entry *entry = storage_find(s, ledger_id, first, &g, &part);
    if (entry == NULL)
        return reader_submit(&s->reader, &request, 0);
    request.count = storage_read_cached(s, ledger_id, first, last, max, bytes_max, out);
    if (request.count == 0)
        request.count = STORAGE_DAMAGED;
    int error = reader_submit(&s->reader, &request, 1);
    if (error < 0 && request.count > 0)
        storage_unpin(out, (int)request.count);
    return error;
}

int storage_read_completions(storage *s, read_completion *out, int max) {
    return reader_completions(&s->reader, out, max);
}

int64_t storage_last_entry(storage *s, int64_t ledger_id) {
    storage_check_failure(s);
    const ledger_state *ledger = storage_known_ledger(s, ledger_id);
    return ledger == NULL ? STORAGE_NO_LEDGER : ledger->last_entry;
}

int storage_is_fenced(storage *s, int64_t ledger_id) {
    const ledger_state *ledger = storage_known_ledger(s, ledger_id);
    return ledger == NULL ? STORAGE_NO_LEDGER : ledger->fenced;
}

/* A position is the table's capacity, a power of two, plus the number of visited slots, so its
 * highest bit shows whether the table has grown. Slots are visited from last to first: a removal
 * moves other slots towards the first, so that those are visited twice rather than missed. */
int storage_ledgers(const storage *s, uint64_t *position, int64_t *out, int max) {
    uint64_t capacity = s->ledgers.capacity;
    uint64_t seen = *position >= capacity && *position < 2 * capacity ? *position - capacity : 0;
    uint64_t end = seen + (uint64_t)max * SLOTS_PER_LEDGER_MAX;
    int count = 0;
    for (; seen < capacity && seen < end && count < max; seen++) {
        const id_slot *slot = &s->ledgers.slots[capacity - 1 - seen];
        if (slot->value != NULL)
            out[count++] = slot->id;
    }
    *position = seen < capacity ? capacity + seen : 0;
    return count;
}
