/* warmer.c - the thread that touches memory ahead of the owner. */
#include "warmer.h"

#include <string.h>

/* Returns the size of a piece: a huge page, or a whole segment if that is smaller. */
static size_t warmer_piece(const segment *s) {
    return s->bytes < SEGMENT_PIECE_BYTES ? s->bytes : SEGMENT_PIECE_BYTES;
}

static void *warmer_run(void *arg) {
    warmer *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping) {
        segment *ahead = w->ahead;
        int fresh = w->fresh_wanted;
        if (ahead == NULL && !fresh) {
            pthread_cond_wait(&w->work, &w->lock);
            continue;
        }
        size_t from = w->from;
        w->ahead = NULL;
        w->fresh_wanted = 0;
        pthread_mutex_unlock(&w->lock);
        if (ahead != NULL) {
            segment_populate(ahead, from, warmer_piece(ahead));
            pin_drop(&ahead->pin);
        }
        if (fresh)
            segment_pool_prepare(w->pool);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

int warmer_start(warmer *w, segment_pool *pool) {
    memset(w, 0, sizeof *w);
    w->pool = pool;
    w->fresh_wanted = 1;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    int error = -pthread_create(&w->thread, NULL, warmer_run, w);
    w->running = error == 0;
    if (error != 0) {
        pthread_cond_destroy(&w->work);
        pthread_mutex_destroy(&w->lock);
    }
    return error;
}

void warmer_ask(warmer *w, segment *active, const uint8_t *end) {
    size_t piece = warmer_piece(active);
    size_t number = (size_t)(end - active->base) / piece;
    size_t middle = number * piece + piece / 2;
    if (end < active->base + middle) {
        w->next_ask = active->base + middle;
        return;
    }
    size_t next = (number + 1) * piece;
    w->next_ask = active->base + next + piece / 2;
    pthread_mutex_lock(&w->lock);
    if (next >= active->bytes) {
        w->fresh_wanted = 1;
    } else if (w->ahead == NULL) {
        /* While the thread is behind, the owner touches the memory itself. */
        pin_hold(&active->pin, 1);
        w->ahead = active;
        w->from = next;
    }
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
}

void warmer_close(warmer *w) {
    if (!w->running)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = 1;
    pthread_cond_signal(&w->work);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->running = 0;
    if (w->ahead != NULL)
        pin_drop(&w->ahead->pin);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->lock);
}
