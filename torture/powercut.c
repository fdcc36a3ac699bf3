/*
 * powercut: an LD_PRELOAD library that remembers how to undo every write no sync has covered.
 *
 * A power cut is worse than kill -9: the kernel's memory is gone too.  This library watches the
 * calls of one process tree that change files below one directory and writes an undo log outside
 * of it.  After kill -9 the program torture/cut.py reads the log and takes back what a disk could
 * have lost.  The operating system itself lives on, so plain write() makes the log safe.
 *
 * Environment:  POWERCUT_ROOT  the watched directory (absolute, no symbolic links)
 *               POWERCUT_LOG   the undo log (created, appended)
 *               POWERCUT_GRAVES  a directory on the same file system that keeps unlinked files
 *
 * The log is a sequence of records, each appended by one write(), little-endian, this machine only:
 *
 *   offset size  field
 *        0    4  magic "PCU1"
 *        4    4  kind (enum record_kind)
 *        8    8  operation id: process id << 32 | counter; BEGIN and DONE of one call share it
 *       16    8  inode of the file, or of the directory for changes of names
 *       24    8  offset of the old bytes; for names: inode of the entry
 *       32    8  length of the range that the call changes; for RENAME: inode of the target folder
 *       40    8  size of the file before the call
 *       48    4  flags (enum record_flags)
 *       52    4  number of bytes that follow
 *       56       old bytes, or names separated by NUL
 *
 * What counts as durable, on purpose stricter than ext4: bytes and size of a file by fsync,
 * fdatasync, or a write with O_SYNC, O_DSYNC, RWF_SYNC or RWF_DSYNC; a name only by fsync of its
 * directory.  O_DIRECT, sync_file_range and close make nothing durable.  A sync covers the calls
 * that were done before it began, so every call logs BEGIN before and DONE after it runs.
 *
 * Thread-safe: the only shared state is the list of watched inodes and the counter.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "below.h"

enum record_kind {
    KIND_OLD_BYTES = 1, /* BEGIN of a change of data or size; may repeat with the same id */
    KIND_DONE = 2,
    KIND_SYNC_BEGIN = 3, /* inode 0 means every file */
    KIND_SYNC_END = 4,
    KIND_CREATE = 5, /* name */
    KIND_MKDIR = 6,  /* name */
    KIND_UNLINK = 7, /* name, grave */
    KIND_RMDIR = 8,  /* name */
    KIND_RENAME = 9, /* name, new name, grave of the replaced file (may be empty) */
    KIND_VOLATILE = 10, /* the file is written through a shared mapping */
    KIND_UNCOVERED = 11 /* a call that the simulator cannot follow; text says which */
};

enum record_flags { FLAG_ZEROS = 1, FLAG_DURABLE = 2, FLAG_RESIZE = 4 };

struct record {
    uint32_t magic, kind;
    uint64_t operation, inode, offset, length, old_size;
    uint32_t flags, tail_bytes;
};

enum { MAGIC = 0x31554350, INODES_MAX = 4096, CHUNK_BYTES = 1 << 20 };

static char graves[PATH_MAX];
static int log_fd = -1;
static dev_t root_device;
static atomic_uint_fast64_t counter;
static struct {
    _Atomic ino_t inode;
    int shadow_fd; /* read-only, without O_DIRECT */
} watched[INODES_MAX];
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local unsigned char *chunk;

__attribute__((constructor)) static void powercut_start(void)
{
    const char *directory = getenv("POWERCUT_ROOT"), *log = getenv("POWERCUT_LOG");
    const char *grave = getenv("POWERCUT_GRAVES");
    struct stat status;
    if (directory == NULL || log == NULL || grave == NULL)
        return;
    if (stat(directory, &status) != 0 || realpath(directory, root) == NULL)
        return;
    snprintf(graves, sizeof graves, "%s", grave);
    root_device = status.st_dev;
    root_length = strlen(root);
    log_fd = raw_openat(AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    /* Each watched file costs one descriptor more, which the program must not run out of. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    /* A high number keeps clear of programs that close or count the low ones. */
    int high = (int)syscall(SYS_fcntl, log_fd, F_DUPFD_CLOEXEC, 900);
    if (high >= 0) {
        syscall(SYS_close, log_fd);
        log_fd = high;
    }
}

static uint64_t next_operation(void)
{
    return (uint64_t)getpid() << 32 | (uint32_t)atomic_fetch_add(&counter, 1);
}

/* Appends one record.  The log not being written would make the judge blind, so that ends us. */
static void append(const struct record *head, const void *tail)
{
    struct iovec parts[2] = {
        {(void *)head, sizeof *head}, {(void *)tail, head->tail_bytes}};
    ssize_t wanted = (ssize_t)(sizeof *head + head->tail_bytes);
    int saved = errno;
    if (syscall(SYS_writev, log_fd, parts, head->tail_bytes ? 2 : 1) != wanted)
        _exit(98);
    errno = saved;
}

static void mark(uint32_t kind, uint64_t operation, ino_t inode)
{
    struct record head = {.magic = MAGIC, .kind = kind, .operation = operation, .inode = inode};
    append(&head, NULL);
}

static void uncovered(const char *what)
{
    struct record head = {
        .magic = MAGIC, .kind = KIND_UNCOVERED, .tail_bytes = (uint32_t)strlen(what)};
    append(&head, what);
}

static int find_watched(ino_t inode)
{
    unsigned at = (unsigned)inode % INODES_MAX;
    for (unsigned step = 0; step < INODES_MAX; step++, at = (at + 1) % INODES_MAX) {
        ino_t seen = atomic_load_explicit(&watched[at].inode, memory_order_acquire);
        if (seen == inode)
            return (int)at;
        if (seen == 0)
            return -1;
    }
    return -1;
}

/* Is the open file one of ours?  Fills `status` when it is; returns its slot or -1. */
static int slot_of(int fd, struct stat *status)
{
    if (log_fd < 0 || fd == log_fd)
        return -1;
    int saved = errno;
    int known = syscall(SYS_fstat, fd, status);
    errno = saved;
    if (known != 0 || status->st_dev != root_device || !S_ISREG(status->st_mode))
        return -1;
    return find_watched(status->st_ino);
}

/* From now on writes to this open regular file are logged.  Does nothing for files elsewhere. */
static void watch(int fd)
{
    char path[PATH_MAX], link[64];
    struct stat status;
    int saved = errno;
    if (log_fd < 0 || syscall(SYS_fstat, fd, &status) != 0 || status.st_dev != root_device
        || !S_ISREG(status.st_mode) || !path_of(fd, path) || !inside_root(path))
        goto out;
    pthread_mutex_lock(&watch_lock);
    if (find_watched(status.st_ino) < 0) {
        unsigned at = (unsigned)status.st_ino % INODES_MAX;
        while (atomic_load(&watched[at].inode) != 0)
            at = (at + 1) % INODES_MAX;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        int shadow = raw_openat(AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
        watched[at].shadow_fd = (int)syscall(SYS_fcntl, shadow, F_DUPFD_CLOEXEC, 1000);
        syscall(SYS_close, shadow);
        if (watched[at].shadow_fd < 0)
            _exit(96);
        atomic_store_explicit(&watched[at].inode, status.st_ino, memory_order_release);
    }
    pthread_mutex_unlock(&watch_lock);
out:
    errno = saved;
}

static int all_zero(const unsigned char *bytes, size_t length)
{
    return length == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, length - 1) == 0);
}

/* Logs the old bytes of [offset, offset + length) and the old size; returns the operation id. */
static uint64_t save_range(int slot, const struct stat *status, uint64_t offset, uint64_t length,
                           uint32_t flags)
{
    int saved = errno;
    uint64_t operation = next_operation(), size = (uint64_t)status->st_size;
    uint64_t end = offset + length, old_end = end < size ? end : size, at = offset;
    if (chunk == NULL)
        chunk = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    do {
        size_t want = at < old_end ? (size_t)(old_end - at) : 0, have = 0;
        if (want > CHUNK_BYTES)
            want = CHUNK_BYTES;
        while (have < want) {
            ssize_t part = syscall(SYS_pread64, watched[slot].shadow_fd, chunk + have, want - have,
                                   (off_t)(at + have));
            if (part <= 0)
                break;
            have += (size_t)part;
        }
        /* Behind the old end there is nothing to keep, so the last record names all of the rest. */
        int last = at + want >= old_end;
        struct record head = {
            .magic = MAGIC, .kind = KIND_OLD_BYTES, .operation = operation,
            .inode = status->st_ino, .offset = at, .length = last ? end - at : want,
            .old_size = size, .flags = flags, .tail_bytes = (uint32_t)have};
        if (all_zero(chunk, have)) {
            head.flags |= FLAG_ZEROS;
            head.tail_bytes = 0;
        }
        append(&head, chunk);
        at += want;
        if (last)
            break;
    } while (1);
    errno = saved;
    return operation;
}

static uint32_t durable_flag(int fd, int call_flags)
{
    int flags = (int)syscall(SYS_fcntl, fd, F_GETFL);
    return (flags & (O_SYNC | O_DSYNC)) || (call_flags & (RWF_SYNC | RWF_DSYNC)) ? FLAG_DURABLE : 0;
}

#include "powercut_data.h"
#include "powercut_names.h"
