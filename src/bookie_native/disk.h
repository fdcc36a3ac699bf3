/*
 * disk.h - every call by which the storage touches a disk, as a table of function pointers.
 *
 * The storage never calls the kernel's file functions itself: it goes through a disk_calls table,
 * so that a test can make any call fail, write less, or forget what was not synced, without a
 * special build.
 *
 * Every function returns 0 or a count on success and a negative errno on failure; none touches
 * errno's meaning. ctx is the table's own state and is handed to each call. The functions are
 * called by several threads at once.
 */
#ifndef PYXBROKER_DISK_H
#define PYXBROKER_DISK_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* What is made is for its owner alone; what is there keeps its permissions. */
enum { DISK_FILE_MODE = 0600, DISK_DIRECTORY_MODE = 0700 };

/* Called once for each name in a directory ("." and ".." excluded); a negative answer stops the
 * walk. */
typedef int (*disk_name_fn)(void *arg, const char *name);

typedef struct disk_calls {
    void *ctx;
    /* Makes one directory level; -EEXIST when it is there. Durable after sync_directory of its
     * parent. */
    int (*make_directory)(void *ctx, const char *path);
    /* Opens a directory for the calls below that take directory_fd. */
    int (*open_directory)(void *ctx, const char *path);
    /* Calls found for every name in the directory. */
    int (*list)(void *ctx, int directory_fd, disk_name_fn found, void *arg);
    /* Takes the exclusive lock of an open directory without waiting; -EWOULDBLOCK when another
     * holds it. */
    int (*lock_directory)(void *ctx, int directory_fd);
    /* Makes created, renamed and removed names of the directory durable. */
    int (*sync_directory)(void *ctx, int directory_fd);
    /* flags are open(2)'s; O_DIRECT may be refused with -EINVAL. Returns the file descriptor. */
    int (*open)(void *ctx, int directory_fd, const char *name, int flags);
    int (*close)(void *ctx, int fd);
    int (*rename)(void *ctx, int directory_fd, const char *from, const char *to);
    int (*unlink)(void *ctx, int directory_fd, const char *name);
    int64_t (*file_bytes)(void *ctx, int fd);
    ssize_t (*pread)(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset);
    /* May write less than asked, like pwritev(2). */
    ssize_t (*pwritev)(void *ctx, int fd, const struct iovec *parts, int count, int64_t offset);
    int (*fdatasync)(void *ctx, int fd);
    /* mode is fallocate(2)'s; -EOPNOTSUPP where the file system cannot. */
    int (*fallocate)(void *ctx, int fd, int mode, int64_t offset, int64_t bytes);
    /* Switches a descriptor from direct to buffered input and output. */
    int (*drop_direct)(void *ctx, int fd);
    /* Monotonic time in nanoseconds. */
    uint64_t (*clock_ns)(void *ctx);
    /* 64 unpredictable bits. */
    uint64_t (*entropy)(void *ctx);
} disk_calls;

/* The table of the running system; its ctx is NULL. */
const disk_calls *disk_system(void);

/* Opens with O_DIRECT, and without it where the file system refuses it. Returns the descriptor. */
int disk_open_direct(const disk_calls *disk, int directory_fd, const char *name, int flags);

/* Writes all bytes at offset, going on after short writes. buffer and bytes must be aligned to 4096
 * for a direct descriptor. Returns 0 or a negative errno. */
int disk_write_all(const disk_calls *disk, int fd, const void *buffer, size_t bytes,
                   int64_t offset);

/* Writes all parts at offset (the parts array is used up), falling back to buffered writing on
 * -EINVAL. */
int disk_write_parts(const disk_calls *disk, int fd, struct iovec *parts, int count,
                     int64_t offset);

/* Reads up to bytes at offset, going on after short reads; returns what there was before the end of
 * the file. */
ssize_t disk_read_all(const disk_calls *disk, int fd, void *buffer, size_t bytes, int64_t offset);

/* Whether a call failed for want of space: on the disk, or of the user's share of it. */
static inline int disk_is_full(int error) {
    return error == -ENOSPC || error == -EDQUOT;
}

/* Makes a directory and its missing parents; all of them are then durable in their own parents. */
int disk_make_directories(const disk_calls *disk, const char *path);

#endif
