/* disk_faults.c - the system's disk calls, with faults. */
#include "disk_faults.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const call_names[FAULT_CALLS] = {
    [FAULT_MAKE_DIRECTORY] = "make_directory",
    [FAULT_OPEN_DIRECTORY] = "open_directory",
    [FAULT_LIST] = "list",
    [FAULT_LOCK_DIRECTORY] = "lock_directory",
    [FAULT_SYNC_DIRECTORY] = "sync_directory",
    [FAULT_OPEN] = "open",
    [FAULT_RENAME] = "rename",
    [FAULT_UNLINK] = "unlink",
    [FAULT_FILE_BYTES] = "file_bytes",
    [FAULT_PREAD] = "pread",
    [FAULT_PWRITEV] = "pwritev",
    [FAULT_FDATASYNC] = "fdatasync",
    [FAULT_FALLOCATE] = "fallocate",
};

int fault_call_by_name(const char *name) {
    for (int call = 0; call < FAULT_CALLS; call++)
        if (strcmp(call_names[call], name) == 0)
            return call;
    return -1;
}

const char *fault_call_name(enum fault_call call) {
    return call_names[call];
}

/* Counts one call and applies the rules. Returns the error to inject, or 0. If bytes is not NULL,
 * *bytes is reduced to what the call may transfer. */
static int fault(disk_faults *faults, enum fault_call call, const char *name, size_t *bytes) {
    int error = 0;
    pthread_mutex_lock(&faults->lock);
    faults->counts[call]++;
    if (faults->observe != NULL)
        faults->observe(faults->observe_arg, call, name);
    for (int i = 0; i < faults->rule_count; i++) {
        fault_rule *rule = &faults->rules[i];
        if (rule->call != call || strstr(name, rule->match) == NULL)
            continue;
        uint64_t seen = rule->seen++;
        if (seen < rule->after || seen - rule->after >= rule->times)
            continue;
        if (rule->error < 0)
            error = rule->error;
        if (rule->short_bytes >= 0 && bytes != NULL && *bytes > (size_t)rule->short_bytes)
            *bytes = (size_t)rule->short_bytes;
    }
    pthread_mutex_unlock(&faults->lock);
    return error;
}

static const char *fault_name(disk_faults *faults, int fd) {
    return fd >= 0 && fd < FAULT_FILES_MAX ? faults->names[fd] : "";
}

static void fault_remember(disk_faults *faults, int fd, const char *name) {
    if (fd < 0 || fd >= FAULT_FILES_MAX)
        return;
    pthread_mutex_lock(&faults->lock);
    snprintf(faults->names[fd], FAULT_NAME_BYTES, "%s", name);
    pthread_mutex_unlock(&faults->lock);
}

static int fault_make_directory(void *ctx, const char *path) {
    int error = fault(ctx, FAULT_MAKE_DIRECTORY, path, NULL);
    return error < 0 ? error : disk_system()->make_directory(NULL, path);
}

static int fault_open_directory(void *ctx, const char *path) {
    int error = fault(ctx, FAULT_OPEN_DIRECTORY, path, NULL);
    if (error < 0)
        return error;
    int fd = disk_system()->open_directory(NULL, path);
    const char *slash = strrchr(path, '/');
    fault_remember(ctx, fd, slash == NULL ? path : slash + 1);
    return fd;
}

static int fault_list(void *ctx, int fd, disk_name_fn found, void *arg) {
    int error = fault(ctx, FAULT_LIST, fault_name(ctx, fd), NULL);
    return error < 0 ? error : disk_system()->list(NULL, fd, found, arg);
}

static int fault_lock_directory(void *ctx, int fd) {
    int error = fault(ctx, FAULT_LOCK_DIRECTORY, fault_name(ctx, fd), NULL);
    return error < 0 ? error : disk_system()->lock_directory(NULL, fd);
}

static int fault_sync_directory(void *ctx, int fd) {
    int error = fault(ctx, FAULT_SYNC_DIRECTORY, fault_name(ctx, fd), NULL);
    return error < 0 ? error : disk_system()->sync_directory(NULL, fd);
}

static int fault_open(void *ctx, int directory_fd, const char *name, int flags) {
    int error = fault(ctx, FAULT_OPEN, name, NULL);
    if (error < 0)
        return error;
    int fd = disk_system()->open(NULL, directory_fd, name, flags);
    fault_remember(ctx, fd, name);
    return fd;
}

static int fault_close(void *ctx, int fd) {
    (void)ctx;
    return disk_system()->close(NULL, fd);
}

static int fault_rename(void *ctx, int directory_fd, const char *from, const char *to) {
    disk_faults *faults = ctx;
    int error = fault(faults, FAULT_RENAME, from, NULL);
    if (error == 0)
        error = disk_system()->rename(NULL, directory_fd, from, to);
    pthread_mutex_lock(&faults->lock);
    for (int fd = 0; fd < FAULT_FILES_MAX && error == 0; fd++)
        if (strcmp(faults->names[fd], from) == 0)
            snprintf(faults->names[fd], FAULT_NAME_BYTES, "%s", to);
    pthread_mutex_unlock(&faults->lock);
    return error;
}

static int fault_unlink(void *ctx, int directory_fd, const char *name) {
    int error = fault(ctx, FAULT_UNLINK, name, NULL);
    return error < 0 ? error : disk_system()->unlink(NULL, directory_fd, name);
}

static int64_t fault_file_bytes(void *ctx, int fd) {
    int error = fault(ctx, FAULT_FILE_BYTES, fault_name(ctx, fd), NULL);
    return error < 0 ? error : disk_system()->file_bytes(NULL, fd);
}

static ssize_t fault_pread(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    int error = fault(ctx, FAULT_PREAD, fault_name(ctx, fd), &bytes);
    return error < 0 ? error : disk_system()->pread(NULL, fd, buffer, bytes, offset);
}

static ssize_t fault_pwritev(void *ctx, int fd, const struct iovec *parts, int count,
                             int64_t offset) {
    size_t asked = 0;
    for (int i = 0; i < count; i++)
        asked += parts[i].iov_len;
    size_t bytes = asked;
    int error = fault(ctx, FAULT_PWRITEV, fault_name(ctx, fd), &bytes);
    if (error < 0)
        return error;
    if (bytes == asked)
        return disk_system()->pwritev(NULL, fd, parts, count, offset);
    /* A short write: at most the first part. */
    struct iovec first = parts[0];
    if (first.iov_len > bytes)
        first.iov_len = bytes;
    return disk_system()->pwritev(NULL, fd, &first, 1, offset);
}

static int fault_fdatasync(void *ctx, int fd) {
    int error = fault(ctx, FAULT_FDATASYNC, fault_name(ctx, fd), NULL);
    return error < 0 ? error : disk_system()->fdatasync(NULL, fd);
}

static int fault_fallocate(void *ctx, int fd, int mode, int64_t offset, int64_t bytes) {
    int error = fault(ctx, FAULT_FALLOCATE, fault_name(ctx, fd), NULL);
    return error < 0 ? error : disk_system()->fallocate(NULL, fd, mode, offset, bytes);
}

static int fault_drop_direct(void *ctx, int fd) {
    (void)ctx;
    return disk_system()->drop_direct(NULL, fd);
}

void disk_faults_open(disk_faults *faults) {
    memset(faults, 0, sizeof *faults);
    pthread_mutex_init(&faults->lock, NULL);
    faults->calls = *disk_system();
    faults->calls.ctx = faults;
    faults->calls.make_directory = fault_make_directory;
    faults->calls.open_directory = fault_open_directory;
    faults->calls.list = fault_list;
    faults->calls.lock_directory = fault_lock_directory;
    faults->calls.sync_directory = fault_sync_directory;
    faults->calls.open = fault_open;
    faults->calls.close = fault_close;
    faults->calls.rename = fault_rename;
    faults->calls.unlink = fault_unlink;
    faults->calls.file_bytes = fault_file_bytes;
    faults->calls.pread = fault_pread;
    faults->calls.pwritev = fault_pwritev;
    faults->calls.fdatasync = fault_fdatasync;
    faults->calls.fallocate = fault_fallocate;
    faults->calls.drop_direct = fault_drop_direct;
}

void disk_faults_close(disk_faults *faults) {
    pthread_mutex_destroy(&faults->lock);
}

int disk_faults_add(disk_faults *faults, const fault_rule *rule) {
    int error = 0;
    pthread_mutex_lock(&faults->lock);
    if (faults->rule_count == FAULT_RULES_MAX) {
        error = -ENOSPC;
    } else {
        faults->rules[faults->rule_count] = *rule;
        faults->rules[faults->rule_count++].seen = 0;
    }
    pthread_mutex_unlock(&faults->lock);
    return error;
}

void disk_faults_clear(disk_faults *faults) {
    pthread_mutex_lock(&faults->lock);
    faults->rule_count = 0;
    pthread_mutex_unlock(&faults->lock);
}

uint64_t disk_faults_count(disk_faults *faults, enum fault_call call) {
    pthread_mutex_lock(&faults->lock);
    uint64_t count = faults->counts[call];
    pthread_mutex_unlock(&faults->lock);
    return count;
}
