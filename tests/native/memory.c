/* memory.c - see memory.h. */
#include "memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

static _Atomic int failing;
static _Atomic uint64_t seen, pass, until, failed;

void memory_fail(uint64_t after, uint64_t times) {
    seen = failed = 0;
    pass = after;
    until = times > UINT64_MAX - after ? UINT64_MAX : after + times;
    failing = 1;
}

uint64_t memory_is_back(void) {
    failing = 0;
    return failed;
}

/* 1 when this allocation is to fail. */
static int refused(void) {
    if (!failing)
        return 0;
    uint64_t number = atomic_fetch_add(&seen, 1);
    if (number < pass || number >= until)
        return 0;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t bytes) {
    return refused() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return refused() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
    return refused() ? NULL : __real_realloc(memory, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return refused() ? NULL : __real_aligned_alloc(alignment, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return refused() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);
}
