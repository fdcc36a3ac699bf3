/*
 * The interposed calls that change bytes and sizes, and those that make them durable.
 * Included by powercut.c only.
 */

static size_t total_bytes(const struct iovec *parts, int count)
{
    size_t total = 0;
    for (int at = 0; at < count; at++)
        total += parts[at].iov_len;
    return total;
}

/* Where a write() without an offset lands. */
static uint64_t cursor_of(int fd, const struct stat *status)
{
    if ((int)syscall(SYS_fcntl, fd, F_GETFL) & O_APPEND)
        return (uint64_t)status->st_size;
    return (uint64_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
}

/* One change of [offset, offset + length): BEGIN, the call, DONE. */
#define AROUND(fd, slot, status, offset, length, flags, call)                                      \
    do {                                                                                           \
        uint64_t operation = save_range(slot, &(status), offset, length, flags);                   \
        __typeof__(call) result_ = (call);                                                         \
        int saved_ = errno;                                                                        \
        if (result_ >= 0)                                                                          \
            mark(KIND_DONE, operation, (status).st_ino);                                           \
        errno = saved_;                                                                            \
        return result_;                                                                            \
    } while (0)

ssize_t write(int fd, const void *data, size_t size)
{
    struct stat status;
    int slot = slot_of(fd, &status);
    if (slot < 0)
        return syscall(SYS_write, fd, data, size);
    AROUND(fd, slot, status, cursor_of(fd, &status), size, durable_flag(fd, 0),
           (ssize_t)syscall(SYS_write, fd, data, size));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    struct stat status;
    int slot = slot_of(fd, &status);
    if (slot < 0)
        return syscall(SYS_pwrite64, fd, data, size, offset);
    AROUND(fd, slot, status, (uint64_t)offset, size, durable_flag(fd, 0),
           (ssize_t)syscall(SYS_pwrite64, fd, data, size, offset));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return pwrite64(fd, data, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct stat status;
    int slot = slot_of(fd, &status);
    if (slot < 0)
        return syscall(SYS_writev, fd, parts, count);
    AROUND(fd, slot, status, cursor_of(fd, &status), total_bytes(parts, count),
           durable_flag(fd, 0), (ssize_t)syscall(SYS_writev, fd, parts, count));
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    struct stat status;
    int slot = slot_of(fd, &status);
    unsigned long low = (unsigned long)offset, high = 0;
    if (slot < 0)
        return syscall(SYS_pwritev2, fd, parts, count, low, high, flags);
    uint64_t at = offset == -1 ? cursor_of(fd, &status) : (uint64_t)offset;
    AROUND(fd, slot, status, at, total_bytes(parts, count), durable_flag(fd, flags),
           (ssize_t)syscall(SYS_pwritev2, fd, parts, count, low, high, flags));
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    return pwritev64v2(fd, parts, count, offset, flags);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    return pwritev64v2(fd, parts, count, offset, 0);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return pwritev64v2(fd, parts, count, offset, 0);
}

/* Programs fall back to read and write when the kernel refuses; that road is watched. */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t count)
{
    struct stat status;
    if (slot_of(out, &status) >= 0) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_sendfile, out, in, offset, count);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t count)
{
    return sendfile64(out, in, offset, count);
}

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length,
                        unsigned flags)
{
    struct stat status;
    if (slot_of(out, &status) >= 0) {
        errno = EXDEV;
        return -1;
    }
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, length, flags);
}

int ftruncate64(int fd, off64_t size)
{
    struct stat status;
    int slot = slot_of(fd, &status);
    if (slot < 0)
        return (int)syscall(SYS_ftruncate, fd, size);
    uint64_t lost = status.st_size > size ? (uint64_t)(status.st_size - size) : 0;
    AROUND(fd, slot, status, (uint64_t)size, lost, durable_flag(fd, 0) | FLAG_RESIZE,
           (int)syscall(SYS_ftruncate, fd, size));
}

int ftruncate(int fd, off_t size)
{
    return ftruncate64(fd, size);
}

int truncate64(const char *path, off64_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    int result = ftruncate64(fd, size);
    close(fd);
    return result;
}

int truncate(const char *path, off_t size)
{
    return truncate64(path, size);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length)
{
    struct stat status;
    int slot = slot_of(fd, &status);
    if (slot < 0)
        return (int)syscall(SYS_fallocate, fd, mode, offset, length);
    if (mode & (FALLOC_FL_COLLAPSE_RANGE | FALLOC_FL_INSERT_RANGE))
        uncovered("fallocate with collapse or insert range");
    /* Plain preallocation changes no byte, only the size; punching and zeroing change bytes. */
    uint64_t changed = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) ? (uint64_t)length : 0;
    AROUND(fd, slot, status, (uint64_t)offset, changed, FLAG_RESIZE,
           (int)syscall(SYS_fallocate, fd, mode, offset, length));
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    return fallocate64(fd, mode, offset, length);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
    int saved = errno;
    int result = fallocate64(fd, 0, offset, length) == 0 ? 0 : errno;
    errno = saved;
    return result;
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    return posix_fallocate64(fd, offset, length);
}

static int sync_call(int fd, long number)
{
    struct stat status;
    int known = log_fd >= 0 && syscall(SYS_fstat, fd, &status) == 0
        && status.st_dev == root_device;
    uint64_t operation = 0;
    if (known) {
        operation = next_operation();
        mark(KIND_SYNC_BEGIN, operation, number == SYS_syncfs ? 0 : status.st_ino);
    }
    int result = (int)syscall(number, fd);
    if (known && result == 0)
        mark(KIND_SYNC_END, operation, number == SYS_syncfs ? 0 : status.st_ino);
    return result;
}

int fsync(int fd)
{
    return sync_call(fd, SYS_fsync);
}

int fdatasync(int fd)
{
    return sync_call(fd, SYS_fdatasync);
}

int syncfs(int fd)
{
    return sync_call(fd, SYS_syncfs);
}

void sync(void)
{
    uint64_t operation = next_operation();
    if (log_fd >= 0)
        mark(KIND_SYNC_BEGIN, operation, 0);
    syscall(SYS_sync);
    if (log_fd >= 0)
        mark(KIND_SYNC_END, operation, 0);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
    struct stat status;
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && slot_of(fd, &status) >= 0)
        mark(KIND_VOLATILE, next_operation(), status.st_ino);
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    return mmap64(address, length, protection, flags, fd, offset);
}
