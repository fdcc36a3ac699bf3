/*
 * no_memory: an LD_PRELOAD library that makes allocations of one loaded object fail on demand, so
 * that Python itself, and every other library, goes on.
 *
 *   no_memory_begin(part, after, times)  lets so many allocations of the object pass whose path has
 *                                        this part, then fails so many; -1 when there is none
 *   no_memory_end()                      all succeed again; how many failed
 *
 * Whose an allocation is says its return address. One thread calls the two; any may allocate.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Atomic int failing;
static _Atomic uint64_t seen, failed;
static uint64_t pass, until;
static uintptr_t low, high;

static int find(struct dl_phdr_info *info, size_t size, void *part) {
    (void)size;
    if (strstr(info->dlpi_name, part) == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && (header->p_flags & PF_X)) {
            low = info->dlpi_addr + header->p_vaddr;
            high = low + header->p_memsz;
            return 1;
        }
    }
    return 0;
}

int no_memory_begin(const char *part, uint64_t after, uint64_t times) {
    if (!dl_iterate_phdr(find, (void *)part))
        return -1;
    seen = failed = 0;
    pass = after;
    until = after + times;
    failing = 1;
    return 0;
}

uint64_t no_memory_end(void) {
    failing = 0;
    return failed;
}

/* 1 when an allocation that returns there is to fail. */
static int refused(const void *caller) {
    if (!failing || (uintptr_t)caller < low || (uintptr_t)caller >= high)
        return 0;
    uint64_t number = atomic_fetch_add(&seen, 1);
    if (number < pass || number >= until)
        return 0;
    atomic_fetch_add(&failed, 1);
    errno = ENOMEM;
    return 1;
}

/* That of the next library, which is ASan's when that is loaded. glibc's dlsym allocates only when
 * it does not find what it is asked for. */
#define NEXT(name)                                                                               \
    static __typeof__(&name) next;                                                               \
    if (next == NULL)                                                                            \
    next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

void *malloc(size_t bytes) {
    NEXT(malloc);
    return refused(__builtin_return_address(0)) ? NULL : next(bytes);
}

void *calloc(size_t count, size_t bytes) {
    NEXT(calloc);
    return refused(__builtin_return_address(0)) ? NULL : next(count, bytes);
}

void *realloc(void *memory, size_t bytes) {
    NEXT(realloc);
    return refused(__builtin_return_address(0)) ? NULL : next(memory, bytes);
}
