/* memory.h - allocations that fail on demand: build.sh wraps the functions that allocate. */
#ifndef PYXBROKER_TESTS_MEMORY_H
#define PYXBROKER_TESTS_MEMORY_H

#include <stdint.h>

/* Lets some allocations of all threads pass, then fails so many. */
void memory_fail(uint64_t after, uint64_t times);

/* All succeed again. Returns how many failed since memory_fail. */
uint64_t memory_is_back(void);

#endif
