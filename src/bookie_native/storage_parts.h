/* storage_parts.h - the internals of storage.h, for the files that implement it. */
#ifndef PYXBROKER_STORAGE_PARTS_H
#define PYXBROKER_STORAGE_PARTS_H

#include "cache.h"
#include "events.h"
#include "flush.h"
#include "id_map.h"
#include "index.h"
#include "journal.h"
#include "journal_files.h"
#include "reader.h"
#include "storage.h"
#include "warmer.h"

/* The owner's state of a ledger. */
typedef struct ledger_state {
    int64_t ledger_id;
    int64_t last_entry;   /* -1: none */
    int64_t last_evicted; /* the highest id in an entry log or in an evicted generation, or -1 */
    uint8_t fenced, has_key;
    uint8_t key[MASTER_KEY_BYTES];
    cache_ledger *active; /* its part of the generation with the number active_in */
    uint64_t active_in;   /* 0: none; a number, because addresses are reused */
} ledger_state;

struct storage {
    const disk_calls *disk;
    uint64_t dirty_bytes_max;
    uint32_t entry_bytes_max;
    int accept_loss;
    int event_fd, journal_fd, ledger_fd;
    events events;
    log_list logs;
    journal_files files;
    journal journal;
    flusher flusher;
    reader reader;
    segment_pool *pool;
    warmer warmer;
    int opened; /* journal, flusher and reader are set up */

    /* The fields below belong to the owner. */
    generation *oldest, *active;
    generation *flushing; /* handed to the flush thread and not yet seen as clean */
    id_map ledgers;       /* of ledger_state */
    ledger_state *recent; /* the ledger of the last look-up */
    int flush_wanted;
    int failure_seen; /* entries lost by the journal's failure have been dropped */
    uint64_t memory_failed_ns;
    _Atomic int no_memory; /* -ENOMEM while adds or a flush fail for it; read by any thread */
    uint64_t segment_ns; /* when the active segment was taken */
    uint64_t adds, add_bytes, cache_hits, replayed;
};

/* Returns the ledger, creating it if needed; NULL when out of memory. */
ledger_state *storage_ledger(storage *s, int64_t ledger_id);

/* Returns the ledger or NULL. */
ledger_state *storage_known_ledger(storage *s, int64_t ledger_id);

/* Returns the newest cached copy of an entry (its data is NULL when it is known to be damaged), its
 * generation and its ledger's part of that generation; NULL when it is not cached. */
const cache_entry *storage_find(storage *s, int64_t ledger_id, int64_t entry_id,
                                const generation **in, const cache_ledger **part);

/* Closes the active generation and hands it to the flush thread, which must be idle. Returns 0 or
 * -ENOMEM. */
int storage_rotate(storage *s);

/* Records a failed allocation. Returns STORAGE_FULL: the caller retries after the next event. */
int storage_refuse_memory(storage *s);

/* Records that an allocation succeeded after a failed one. */
void storage_memory_recovered(storage *s);

/* Drops the entries that were not durable when the journal failed. */
void storage_drop_lost(storage *s);

/* Must be called before every look-up. */
static inline void storage_check_failure(storage *s) {
    if (atomic_load_explicit(&s->journal.failure, memory_order_acquire) != 0 && !s->failure_seen)
        storage_drop_lost(s);
}

/* Does deferred work: a flush that had to wait or had no memory. */
void storage_do_deferred_work(storage *s);

/* Returns 1 when the generation has content for an entry log. */
static inline int generation_has_content(const generation *g) {
    return g->list_count > 0;
}

/* Returns the memory that the generation holds, in bytes. */
static inline uint64_t generation_bytes(const generation *g) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < g->segment_count; i++)
        bytes += g->segments[i]->bytes;
    return bytes;
}

/* Returns 1 while the flush thread has a generation. */
int storage_is_flushing(storage *s);

#endif
