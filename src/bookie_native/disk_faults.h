/*
 * disk_faults.h - a table of disk calls with injected faults, for tests.
 *
 * The table passes each call to the system and applies rules. A rule names a call and a substring
 * of the file name; it lets a number of calls pass, then makes a number of calls fail or write
 * less. An observer is called before each call, so that a test can copy the directory at every
 * step.
 */
#ifndef PYXBROKER_DISK_FAULTS_H
#define PYXBROKER_DISK_FAULTS_H

#include <pthread.h>

#include "disk.h"

enum { FAULT_RULES_MAX = 32, FAULT_NAME_BYTES = 64, FAULT_FILES_MAX = 1024 };

enum fault_call {
    FAULT_MAKE_DIRECTORY,
    FAULT_OPEN_DIRECTORY,
    FAULT_LIST,
    FAULT_LOCK_DIRECTORY,
    FAULT_SYNC_DIRECTORY,
    FAULT_OPEN,
    FAULT_RENAME,
    FAULT_UNLINK,
    FAULT_FILE_BYTES,
    FAULT_PREAD,
    FAULT_PWRITEV,
    FAULT_FDATASYNC,
    FAULT_FALLOCATE,
    FAULT_CALLS
};

typedef struct fault_rule {
    enum fault_call call;
    char match[FAULT_NAME_BYTES]; /* substring of the file name; "" matches all */
    uint64_t after;               /* matching calls that pass first */
    uint64_t times;               /* matching calls that the rule then applies to */
    int error;                    /* negative errno, 0: none */
    int64_t short_bytes;          /* limit of pread and pwritev in bytes; -1: none */
    uint64_t seen;
} fault_rule;

typedef struct disk_faults {
    disk_calls calls; /* pass &calls to the storage */
    pthread_mutex_t lock;
    fault_rule rules[FAULT_RULES_MAX];
    int rule_count;
    uint64_t counts[FAULT_CALLS];
    char names[FAULT_FILES_MAX][FAULT_NAME_BYTES]; /* by file descriptor */
    void (*observe)(void *arg, enum fault_call call, const char *name);
    void *observe_arg;
} disk_faults;

/* Returns the call named "fdatasync" and so on, or -1 for an unknown name. */
int fault_call_by_name(const char *name);
const char *fault_call_name(enum fault_call call);

void disk_faults_open(disk_faults *faults);
void disk_faults_close(disk_faults *faults);

/* Returns 0, or -ENOSPC when there are FAULT_RULES_MAX rules already. Any thread. */
int disk_faults_add(disk_faults *faults, const fault_rule *rule);
void disk_faults_clear(disk_faults *faults);
uint64_t disk_faults_count(disk_faults *faults, enum fault_call call);

#endif
