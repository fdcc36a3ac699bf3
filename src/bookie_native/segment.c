/* segment.c - the pool of segments; the last one returned is reused first, its pages still warm. */
#define _GNU_SOURCE
#include "segment.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "bytes.h"

/* OR-ing 0 atomically into a byte that the owner writes is harmless, but looks like a data race. */
#if defined(__SANITIZE_THREAD__)
#define NO_RACE_CHECK __attribute__((no_sanitize("thread")))
#else
#define NO_RACE_CHECK
#endif

enum {
    HUGE_PAGE_BYTES = 2 << 20,
    SEGMENT_FIRST_BYTES = 128 << 10, /* touched ahead while pages are small */
};

struct segment_pool {
    pthread_mutex_t lock;
    segment *free;
    size_t free_count;
    size_t out_count;      /* segments in use */
    size_t segments_max;
    size_t segment_bytes;
    int refused;           /* a caller was refused since the last notification */
    int closed;
    _Atomic int huge; /* fresh segments ask for huge pages */
    void (*notify)(void *);
    void *arg;
};

static void segment_free(segment *s) {
    munmap(s->base, s->bytes);
    free(s);
}

static void segment_pool_free(segment_pool *pool) {
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* Returns a segment without holds to the pool. */
static void segment_release(storage_pin *pin) {
    segment *s = (segment *)pin;
    segment_pool *pool = s->pool;
    pthread_mutex_lock(&pool->lock);
    pool->out_count--;
    int gone = pool->closed && pool->out_count == 0;
    int notify = pool->refused && !pool->closed;
    pool->refused = 0;
    int kept = !pool->closed && s->bytes == pool->segment_bytes &&
               pool->free_count + pool->out_count < pool->segments_max;
    if (kept) {
        s->next = pool->free;
        pool->free = s;
        pool->free_count++;
    }
    /* Under the lock, so that the storage cannot be closed between the decision and the call. */
    if (notify)
        pool->notify(pool->arg);
    pthread_mutex_unlock(&pool->lock);
    if (!kept)
        segment_free(s);
    if (gone)
        segment_pool_free(pool);
}

segment_pool *segment_pool_open(size_t segment_bytes, size_t segments_max, void (*notify)(void *),
                                void *arg) {
    segment_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pool->segment_bytes = segment_bytes;
    pool->segments_max = segments_max;
    pool->notify = notify;
    pool->arg = arg;
    return pool;
}

void segment_pool_close(segment_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->closed = 1;
    segment *s = pool->free;
    pool->free = NULL;
    int gone = pool->out_count == 0;
    pthread_mutex_unlock(&pool->lock);
    while (s != NULL) {
        segment *next = s->next;
        segment_free(s);
        s = next;
    }
    if (gone)
        segment_pool_free(pool);
}

/* Returns new memory, or NULL. Large pieces are aligned to huge pages, and request them if `huge`
 * is set. */
static uint8_t *segment_memory(size_t bytes, int huge) {
    size_t slack = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : 0;
    uint8_t *memory =
        mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (slack == 0)
        return memory;
    uint8_t *base = (uint8_t *)round_up((uintptr_t)memory, HUGE_PAGE_BYTES);
    size_t before = (size_t)(base - memory);
    if (before > 0)
        munmap(memory, before);
    if (before < slack)
        munmap(base + bytes, slack - before);
    if (huge)
        (void)madvise(base, bytes, MADV_HUGEPAGE); /* a hint; some kernels do not support it */
    return base;
}

static segment *segment_allocate(segment_pool *pool, size_t bytes) {
    segment *s = calloc(1, sizeof *s);
    if (s == NULL)
        return NULL;
    s->base = segment_memory(bytes, atomic_load_explicit(&pool->huge, memory_order_relaxed));
    if (s->base == NULL) {
        free(s);
        return NULL;
    }
    s->bytes = bytes;
    s->pool = pool;
    s->pin.release = segment_release;
    return s;
}

/* Takes a segment, or returns NULL and *error. */
static segment *segment_obtain(segment_pool *pool, size_t bytes, int forced, int *error) {
    segment *s = NULL;
    *error = -ENOMEM;
    pthread_mutex_lock(&pool->lock);
    if (bytes <= pool->segment_bytes && pool->free != NULL) {
        s = pool->free;
        pool->free = s->next;
        pool->free_count--;
        pool->out_count++;
    } else if (forced || pool->out_count + pool->free_count < pool->segments_max) {
        size_t wanted = bytes <= pool->segment_bytes ? pool->segment_bytes : bytes;
        s = segment_allocate(pool, round_up(wanted, BLOCK_BYTES));
        pool->out_count += s != NULL;
    } else {
        pool->refused = 1;
        *error = STORAGE_FULL;
    }
    pthread_mutex_unlock(&pool->lock);
    if (s == NULL)
        return NULL;
    s->used = 0;
    s->lost = SIZE_MAX;
    s->next = NULL;
    atomic_store_explicit(&s->pin.count, 1, memory_order_release);
    return s;
}

segment *segment_take(segment_pool *pool, size_t bytes, int forced) {
    int error;
    return segment_obtain(pool, bytes, forced, &error);
}

segment *segment_take_or_error(segment_pool *pool, int *error) {
    return segment_obtain(pool, 0, 0, error);
}

void segment_pool_use_huge(segment_pool *pool, int on) {
    atomic_store_explicit(&pool->huge, on, memory_order_relaxed);
}

NO_RACE_CHECK void segment_populate(segment *s, size_t from, size_t bytes) {
    if (from >= s->bytes)
        return;
    if (bytes > s->bytes - from)
        bytes = s->bytes - from;
    /* Page by page: MADV_POPULATE_WRITE for the whole range would block this processor, and the
     * mapping of memory by other threads, until it ends. */
    for (size_t at = from; at < from + bytes; at += BLOCK_BYTES)
        (void)__atomic_fetch_or(s->base + at, 0, __ATOMIC_RELAXED);
}

void segment_pool_prepare(segment_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    int wanted = pool->free == NULL && pool->out_count < pool->segments_max;
    pthread_mutex_unlock(&pool->lock);
    segment *s = wanted ? segment_take(pool, 0, 0) : NULL;
    if (s == NULL)
        return;
    /* Small pages are cheap to allocate, and a storage with little traffic should stay small. */
    int huge = atomic_load_explicit(&pool->huge, memory_order_relaxed);
    segment_populate(s, 0, huge ? SEGMENT_PIECE_BYTES : SEGMENT_FIRST_BYTES);
    pin_drop(&s->pin); /* the pool returns it next */
}

size_t segment_pool_segment_bytes(const segment_pool *pool) {
    return pool->segment_bytes;
}

void storage_unpin(entry_ref *refs, int count) {
    for (int i = 0; i < count; i++) {
        pin_drop(refs[i].pin);
        refs[i].pin = NULL;
    }
}
