/* storage_flush.c - handing closed generations to the flush thread. */
#include <errno.h>

#include "storage_parts.h"

#define MEMORY_RECOVERED_NS 1000000000u /* since the last refusal, without further attempts */

int storage_is_flushing(storage *s) {
    if (s->flushing != NULL &&
        atomic_load_explicit(&s->flushing->state, memory_order_acquire) == GENERATION_CLEAN)
        s->flushing = NULL;
    return s->flushing != NULL;
}

int storage_rotate(storage *s) {
    generation *fresh = generation_open(s->active->number + 1);
    if (fresh == NULL)
        return -ENOMEM;
    generation *g = s->active;
    int error = journal_use_segment(&s->journal, NULL, &g->last_group);
    if (error < 0) {
        generation_free(fresh);
        return error;
    }
    /* The generation no longer contains what was not durable when the journal failed. */
    if (s->failure_seen)
        g->last_group = journal_durable_group(&s->journal);
    g->next = fresh;
    s->active = fresh;
    s->flushing = g;
    atomic_store_explicit(&g->state, GENERATION_FLUSHING, memory_order_release);
    flusher_flush(&s->flusher, g);
    return 0;
}

void storage_flush(storage *s) {
    /* Only one generation is flushed at a time; until it is done, the request is remembered. */
    storage_check_failure(s);
    s->flush_wanted = storage_is_flushing(s);
    if (s->flush_wanted || !generation_has_content(s->active))
        return;
    s->flush_wanted = storage_rotate(s) < 0;
    if (s->flush_wanted)
        storage_refuse_memory(s);
    else if (atomic_load_explicit(&s->no_memory, memory_order_relaxed) != 0)
        storage_memory_recovered(s);
}

int storage_begin_copy(storage *s, uint64_t *end) {
    storage_check_failure(s);
    if (storage_is_flushing(s))
        return -EAGAIN;
    /* While the flush thread has no generation, it does not change next_id. */
    *end = s->logs.next_id;
    if (!generation_has_content(s->active))
        return 0;
    int error = storage_rotate(s);
    if (error < 0)
        return error;
    *end += 1;
    return 1;
}

void storage_save_space(storage *s, int on) {
    if (journal_files_save_space(&s->files, on) && on)
        storage_flush(s);
}

void storage_do_deferred_work(storage *s) {
    storage_check_failure(s);
    generation *returned = s->failure_seen ? flusher_returned(&s->flusher) : NULL;
    if (returned != NULL) {
        returned->last_group = journal_durable_group(&s->journal);
        flusher_flush(&s->flusher, returned);
    }
    if (s->flush_wanted)
        storage_flush(s);
    if (atomic_load_explicit(&s->no_memory, memory_order_relaxed) != 0 && !s->flush_wanted &&
        s->disk->clock_ns(s->disk->ctx) - s->memory_failed_ns > MEMORY_RECOVERED_NS)
        storage_memory_recovered(s);
}
