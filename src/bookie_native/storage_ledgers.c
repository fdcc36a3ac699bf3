/* storage_ledgers.c - the owner's look-ups of ledgers and cached entries. */
#include <stdlib.h>

#include "storage_parts.h"

ledger_state *storage_known_ledger(storage *s, int64_t ledger_id) {
    if (s->recent != NULL && s->recent->ledger_id == ledger_id)
        return s->recent;
    ledger_state *ledger = id_map_get(&s->ledgers, ledger_id);
    if (ledger != NULL)
        s->recent = ledger;
    return ledger;
}

ledger_state *storage_ledger(storage *s, int64_t ledger_id) {
    ledger_state *ledger = storage_known_ledger(s, ledger_id);
    if (ledger != NULL)
        return ledger;
    ledger = calloc(1, sizeof *ledger);
    if (ledger == NULL)
        return NULL;
    ledger->ledger_id = ledger_id;
    ledger->last_entry = ledger->last_evicted = -1;
    if (id_map_put(&s->ledgers, ledger_id, ledger) < 0) {
        free(ledger);
        return NULL;
    }
    s->recent = ledger;
    return ledger;
}

const cache_entry *storage_find(storage *s, int64_t ledger_id, int64_t entry_id,
                                const generation **in, const cache_ledger **part) {
    const cache_entry *newest = NULL;
    for (const generation *g = s->oldest; g != NULL; g = g->next) {
        const cache_ledger *ledger = generation_find(g, ledger_id);
        const cache_entry *entry = ledger == NULL ? NULL : cache_find(ledger, entry_id);
        if (entry == NULL)
            continue;
        newest = entry;
        *in = g;
        *part = ledger;
    }
    return newest;
}
