/* disk.c - the disk calls of the running system, and the loops around short reads and writes. */
#define _GNU_SOURCE
#include "disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { DISK_PARTS_MAX = 1024 };

static int system_make_directory(void *ctx, const char *path) {
    (void)ctx;
    return mkdir(path, DISK_DIRECTORY_MODE) == 0 ? 0 : -errno;
}

static int system_open_directory(void *ctx, const char *path) {
    (void)ctx;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

static int system_list(void *ctx, int directory_fd, disk_name_fn found, void *arg) {
    (void)ctx;
    /* closedir closes the descriptor and readdir moves its offset, so directory_fd is not used. */
    int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    DIR *directory = fdopendir(fd);
    if (directory == NULL) {
        int error = -errno;
        close(fd);
        return error;
    }
    int result = 0;
    while (result >= 0) {
        errno = 0;
        struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            result = -errno;
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = found(arg, entry->d_name);
    }
    closedir(directory);
    return result < 0 ? result : 0;
}

static int system_lock_directory(void *ctx, int directory_fd) {
    (void)ctx;
    return flock(directory_fd, LOCK_EX | LOCK_NB) == 0 ? 0 : -errno;
}

static int system_sync_directory(void *ctx, int directory_fd) {
    (void)ctx;
    return fsync(directory_fd) == 0 ? 0 : -errno;
}

static int system_open(void *ctx, int directory_fd, const char *name, int flags) {
    (void)ctx;
    int fd = openat(directory_fd, name, flags | O_CLOEXEC, DISK_FILE_MODE);
    return fd >= 0 ? fd : -errno;
}

static int system_close(void *ctx, int fd) {
    (void)ctx;
    return close(fd) == 0 ? 0 : -errno;
}

static int system_rename(void *ctx, int directory_fd, const char *from, const char *to) {
    (void)ctx;
    return renameat(directory_fd, from, directory_fd, to) == 0 ? 0 : -errno;
}

static int system_unlink(void *ctx, int directory_fd, const char *name) {
    (void)ctx;
    return unlinkat(directory_fd, name, 0) == 0 ? 0 : -errno;
}

static int64_t system_file_bytes(void *ctx, int fd) {
    (void)ctx;
    struct stat about;
    return fstat(fd, &about) == 0 ? (int64_t)about.st_size : -errno;
}

static ssize_t system_pread(void *ctx, int fd, void *buffer, size_t bytes, int64_t offset) {
    (void)ctx;
    ssize_t count = pread(fd, buffer, bytes, offset);
    return count >= 0 ? count : -errno;
}

static ssize_t system_pwritev(void *ctx, int fd, const struct iovec *parts, int count,
                              int64_t offset) {
    (void)ctx;
    ssize_t written = pwritev(fd, parts, count, offset);
    return written >= 0 ? written : -errno;
}

static int system_fdatasync(void *ctx, int fd) {
    (void)ctx;
    return fdatasync(fd) == 0 ? 0 : -errno;
}

static int system_fallocate(void *ctx, int fd, int mode, int64_t offset, int64_t bytes) {
    (void)ctx;
    return fallocate(fd, mode, offset, bytes) == 0 ? 0 : -errno;
}

static int system_drop_direct(void *ctx, int fd) {
    (void)ctx;
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0)
        return -errno;
    return fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0 ? 0 : -errno;
}

static uint64_t system_clock_ns(void *ctx) {
    (void)ctx;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t system_entropy(void *ctx) {
    uint64_t bits = 0;
    if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) != (ssize_t)sizeof bits)
        bits = system_clock_ns(ctx) * 0x9e3779b97f4a7c15u + (uint64_t)getpid();
    return bits;
}

static const disk_calls system_calls = {
    .make_directory = system_make_directory,
    .open_directory = system_open_directory,
    .list = system_list,
    .lock_directory = system_lock_directory,
    .sync_directory = system_sync_directory,
    .open = system_open,
    .close = system_close,
    .rename = system_rename,
    .unlink = system_unlink,
    .file_bytes = system_file_bytes,
    .pread = system_pread,
    .pwritev = system_pwritev,
    .fdatasync = system_fdatasync,
    .fallocate = system_fallocate,
    .drop_direct = system_drop_direct,
    .clock_ns = system_clock_ns,
    .entropy = system_entropy,
};

const disk_calls *disk_system(void) {
    return &system_calls;
}

int disk_open_direct(const disk_calls *disk, int directory_fd, const char *name, int flags) {
    int fd = disk->open(disk->ctx, directory_fd, name, flags | O_DIRECT);
    if (fd == -EINVAL) /* tmpfs and some network file systems: use the page cache */
        fd = disk->open(disk->ctx, directory_fd, name, flags);
    return fd;
}

int disk_write_parts(const disk_calls *disk, int fd, struct iovec *parts, int count,
                     int64_t offset) {
    int direct = 1;
    while (count > 0) {
        int batch = count < DISK_PARTS_MAX ? count : DISK_PARTS_MAX;
        ssize_t written = disk->pwritev(disk->ctx, fd, parts, batch, offset);
        if (written == -EINTR)
            continue;
        if (written == -EINVAL && direct) {
            /* Direct writes are not supported, or a short write left an unaligned remainder. */
            direct = 0;
            int error = disk->drop_direct(disk->ctx, fd);
            if (error < 0)
                return error;
            continue;
        }
        if (written < 0)
            return (int)written;
        if (written == 0)
            return -EIO;
        offset += written;
        size_t rest = (size_t)written;
        while (count > 0 && rest >= parts->iov_len) {
            rest -= parts->iov_len;
            parts++;
            count--;
        }
        if (rest > 0) {
            if (count == 0)
                return -EIO; /* pwritev reported more bytes than it was given */
            parts->iov_base = (uint8_t *)parts->iov_base + rest;
            parts->iov_len -= rest;
        }
    }
    return 0;
}

int disk_write_all(const disk_calls *disk, int fd, const void *buffer, size_t bytes,
                   int64_t offset) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)buffer, .iov_len = bytes};
    return disk_write_parts(disk, fd, &part, 1, offset);
}

ssize_t disk_read_all(const disk_calls *disk, int fd, void *buffer, size_t bytes,
                      int64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t count = disk->pread(disk->ctx, fd, (uint8_t *)buffer + done, bytes - done,
                                    offset + (int64_t)done);
        if (count == -EINTR)
            continue;
        if (count == -EINVAL && done > 0) {
            /* The remainder after a short direct read is not aligned. */
            int error = disk->drop_direct(disk->ctx, fd);
            if (error < 0)
                return error;
            count = disk->pread(disk->ctx, fd, (uint8_t *)buffer + done, bytes - done,
                                offset + (int64_t)done);
        }
        if (count < 0)
            return count;
        if (count == 0)
            break;
        done += (size_t)count;
    }
    return (ssize_t)done;
}

/* Creates one level if it is missing, and syncs its parent. An existing level is synced too,
 * because its creator may have been killed before the sync. path is modified and restored. */
static int disk_make_level(const disk_calls *disk, char *path) {
    int error = disk->make_directory(disk->ctx, path);
    int made = error == 0;
    if (error < 0 && error != -EEXIST)
        return error;
    char *slash = strrchr(path, '/');
    const char *parent = ".";
    if (slash == path)
        parent = "/";
    else if (slash != NULL) {
        *slash = '\0';
        parent = path;
    }
    int fd = disk->open_directory(disk->ctx, parent);
    if (slash != NULL && slash != path)
        *slash = '/';
    error = fd < 0 ? fd : disk->sync_directory(disk->ctx, fd);
    if (fd >= 0)
        disk->close(disk->ctx, fd);
    /* Existing directories that we cannot open or sync are the responsibility of their owners. */
    return made || error == -EIO ? error : 0;
}

int disk_make_directories(const disk_calls *disk, const char *path) {
    char level[PATH_MAX];
    size_t length = strlen(path);
    if (length == 0)
        return -ENOENT;
    if (length >= sizeof level)
        return -ENAMETOOLONG;
    memcpy(level, path, length + 1);
    while (length > 1 && level[length - 1] == '/')
        level[--length] = '\0';
    for (size_t at = 1; at <= length; at++) {
        if (level[at] != '/' && level[at] != '\0')
            continue;
        char kept = level[at];
        level[at] = '\0';
        int error = disk_make_level(disk, level);
        level[at] = kept;
        /* An existing parent that is not writable answers EACCES or EROFS instead of EEXIST. */
        if (error < 0 && !(kept == '/' && (error == -EACCES || error == -EROFS)))
            return error;
    }
    return 0;
}
