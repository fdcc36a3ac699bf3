/*
 * disk.h - every disk call of the storage, as a table of function pointers.
 *
 * The storage never calls the kernel's file functions directly. It goes through a disk_calls
 * table, so that a test can make any call fail, write less, or forget unsynced data, without a
 * special build.
 *
 * Every function returns 0 or a count on success and a negative errno on failure; errno itself
 * has no meaning. ctx is the table's own state and is passed to each call. Several threads call
 * the functions concurrently.
 */
#ifndef PYXBROKER_DISK_H
#define PYXBROKER_DISK_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Permissions of created files and directories: the owner only. Existing ones are not changed. */
enum { DISK_FILE_MODE = 0600, DISK_DIRECTORY_MODE = 0700 };

/* Called once for each name in a directory, except "." and "..". A negative result ends the
 * listing. */
typedef int (*disk_name_fn)(void *arg, const char *name);

typedef struct disk_calls {
    void *ctx;
    /* Creates one directory level; -EEXIST when it exists. Durable after sync_directory of the
     * parent. */
    int (*make_directory)(void *ctx, const char *path);
    /* Opens a directory for the calls below that take directory_fd. */
    int (*open_directory)(void *ctx, const char *path);
    /* Calls `found` for every name in the directory. */
    int (*list)(void *ctx, int directory_fd, disk_name_fn found, void *arg);
    /* Takes the exclusive lock of an open directory without waiting; -EWOULDBLOCK when another
     * process holds it. */
    int (*lock_directory)(void *ctx, int directory_fd);
    /* Makes created, renamed and removed names of the directory durable. */
    int (*sync_directory)(void *ctx, int directory_fd);
    /* flags are those of open(2); O_DIRECT may fail with -EINVAL. Returns the file descriptor. */
    int (*open)(void *ctx, int directory_fd, const char *name, int flags);
    int (*close)(void *ctx, int fd);
    int (*rename)(void *ctx, int directory_fd, const char *from, const char *to);
    int (*unlink)(void *ctx, int directory_fd, const char *name);
    int64_t (*file_bytes)(void *ctx, int fd);
    ssize_t (*pread)(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset);
    /* May write less than requested, like pwritev(2). */
    ssize_t (*pwritev)(void *ctx, int fd, const struct iovec *parts, int count, int64_t offset);
    int (*fdatasync)(void *ctx, int fd);
    /* mode is that of fallocate(2); -EOPNOTSUPP when the file system does not support it. */
    int (*fallocate)(void *ctx, int fd, int mode, int64_t offset, int64_t bytes);
    /* Switches a descriptor from direct to buffered input and output. */
    int (*drop_direct)(void *ctx, int fd);
    /* Monotonic time in nanoseconds. */
    uint64_t (*clock_ns)(void *ctx);
    /* 64 unpredictable bits. */
    uint64_t (*entropy)(void *ctx);
} disk_calls;

/* Returns the table of the running system; its ctx is NULL. */
const disk_calls *disk_system(void);

/* Opens with O_DIRECT, or without it when the file system refuses it. Returns the descriptor. */
int disk_open_direct(const disk_calls *disk, int directory_fd, const char *name, int flags);

/* Writes all bytes at offset and continues after short writes. A direct descriptor requires buffer
 * and bytes aligned to 4096. Returns 0 or a negative errno. */
int disk_write_all(const disk_calls *disk, int fd, const void *buffer, size_t bytes,
                   int64_t offset);

/* Writes all parts at offset, and falls back to buffered writes on -EINVAL. Modifies the parts
 * array. */
int disk_write_parts(const disk_calls *disk, int fd, struct iovec *parts, int count,
                     int64_t offset);

/* Reads up to `bytes` at offset and continues after short reads. Returns the number of bytes before
 * the end of the file. */
ssize_t disk_read_all(const disk_calls *disk, int fd, void *buffer, size_t bytes, int64_t offset);

/* Returns 1 when a call failed because the disk or the user's quota is full. */
static inline int disk_is_full(int error) {
    return error == -ENOSPC || error == -EDQUOT;
}

/* Creates a directory and its missing parents, and syncs the parent of each. */
int disk_make_directories(const disk_calls *disk, const char *path);

#endif
