/*
 * disk_faults.h - a table of disk calls that can be made to fail, for tests.
 *
 * It passes everything on to the system and applies rules on the way. A rule names a call and a
 * part of a file name; it lets some calls pass, then makes some fail or write less. An observer
 * sees each call before it happens, which is how a test takes a picture of the directory at every
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
    char match[FAULT_NAME_BYTES]; /* a part of the file name; "" matches all */
    uint64_t after;               /* matching calls that pass first */
    uint64_t times;               /* matching calls that are hit then */
    int error;                    /* negative errno, 0: none */
    int64_t short_bytes;          /* pread and pwritev do at most this much; -1: all */
    uint64_t seen;
} fault_rule;

typedef struct disk_faults {
    disk_calls calls; /* hand &calls to the storage */
    pthread_mutex_t lock;
    fault_rule rules[FAULT_RULES_MAX];
    int rule_count;
    uint64_t counts[FAULT_CALLS];
    char names[FAULT_FILES_MAX][FAULT_NAME_BYTES]; /* by file descriptor */
    void (*observe)(void *arg, enum fault_call call, const char *name);
    void *observe_arg;
} disk_faults;

/* "fdatasync" and so on; -1 when there is no such call. */
int fault_call_by_name(const char *name);
const char *fault_call_name(enum fault_call call);

void disk_faults_open(disk_faults *faults);
void disk_faults_close(disk_faults *faults);

/* Returns 0, or -ENOSPC when there are too many rules. Any thread. */
int disk_faults_add(disk_faults *faults, const fault_rule *rule);
void disk_faults_clear(disk_faults *faults);
uint64_t disk_faults_count(disk_faults *faults, enum fault_call call);

#endif
