/*
 * The interposed calls.  Included by errors.c only.
 *
 * Each asks for a rule, and goes to the next library's function of the same name otherwise: of the
 * same name, because another preloaded library may call one of ours to do its own.  A short read or
 * write asks for fewer bytes; on a direct descriptor for a multiple of 512, as a disk could do.
 */

static size_t shorter(int fd, size_t size, int64_t bytes_max)
{
    if (bytes_max < 0 || (uint64_t)bytes_max >= size)
        return size;
    size_t less = (size_t)bytes_max;
    if ((int)syscall(SYS_fcntl, fd, F_GETFL) & O_DIRECT)
        less = less < 512 ? 512 : less / 512 * 512;
    return less < size ? less : size;
}

/* The same for vectors: copies into `parts` those that are left; returns their number. */
static int shorter_parts(int fd, const struct iovec *all, int count, int64_t bytes_max,
                         struct iovec *parts)
{
    size_t total = 0;
    for (int at = 0; at < count; at++)
        total += all[at].iov_len;
    size_t rest = shorter(fd, total, bytes_max);
    int used = 0;
    for (; used < count && (rest > 0 || used == 0); used++) {
        parts[used] = all[used];
        if (parts[used].iov_len > rest)
            parts[used].iov_len = rest;
        rest -= parts[used].iov_len;
    }
    return used;
}

#define SIZED(kind, name, fd, size, ...)                                                           \
    do {                                                                                           \
        int64_t bytes_max = -1;                                                                    \
        if (wanted(kind)) {                                                                        \
            if (fails_fd(kind, fd, &bytes_max))                                                    \
                return -1;                                                                         \
            size = shorter(fd, size, bytes_max);                                                   \
        }                                                                                          \
        return THROUGH(NEXT(name)(fd, __VA_ARGS__));                                               \
    } while (0)

#define VECTOR(kind, name, fd, parts, count, ...)                                                  \
    do {                                                                                           \
        int64_t bytes_max = -1;                                                                    \
        struct iovec less_[IOV_MAX];                                                               \
        if (wanted(kind)) {                                                                        \
            if (fails_fd(kind, fd, &bytes_max))                                                    \
                return -1;                                                                         \
            if (bytes_max >= 0 && count > 0 && count <= IOV_MAX) {                                 \
                count = shorter_parts(fd, parts, count, bytes_max, less_);                         \
                parts = less_;                                                                     \
            }                                                                                      \
        }                                                                                          \
        return THROUGH(NEXT(name)(fd, parts, count __VA_OPT__(, ) __VA_ARGS__));                   \
    } while (0)

#define PLAIN_FD(kind, name, fd, ...)                                                              \
    do {                                                                                           \
        int64_t bytes_max;                                                                         \
        if (wanted(kind) && fails_fd(kind, fd, &bytes_max))                                        \
            return -1;                                                                             \
        return THROUGH(NEXT(name)(fd __VA_OPT__(, ) __VA_ARGS__));                                 \
    } while (0)

/* --- bytes ---------------------------------------------------------------------------------- */

ssize_t read(int fd, void *data, size_t size)
{
    SIZED(CALL_READ, read, fd, size, data, size);
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    SIZED(CALL_READ, pread, fd, size, data, size, offset);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    SIZED(CALL_READ, pread64, fd, size, data, size, offset);
}

ssize_t readv(int fd, const struct iovec *parts, int count)
{
    VECTOR(CALL_READ, readv, fd, parts, count);
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t offset)
{
    VECTOR(CALL_READ, preadv, fd, parts, count, offset);
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    VECTOR(CALL_READ, preadv64, fd, parts, count, offset);
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    VECTOR(CALL_READ, preadv2, fd, parts, count, offset, flags);
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    VECTOR(CALL_READ, preadv64v2, fd, parts, count, offset, flags);
}

ssize_t write(int fd, const void *data, size_t size)
{
    SIZED(CALL_WRITE, write, fd, size, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    SIZED(CALL_WRITE, pwrite, fd, size, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    SIZED(CALL_WRITE, pwrite64, fd, size, data, size, offset);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    VECTOR(CALL_WRITE, writev, fd, parts, count);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    VECTOR(CALL_WRITE, pwritev, fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    VECTOR(CALL_WRITE, pwritev64, fd, parts, count, offset);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    VECTOR(CALL_WRITE, pwritev2, fd, parts, count, offset, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    VECTOR(CALL_WRITE, pwritev64v2, fd, parts, count, offset, flags);
}

/* Whoever copies inside the kernel falls back to read and write, which are followed. */
ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t length,
                        unsigned flags)
{
    if (wanted(CALL_READ) || wanted(CALL_WRITE)) {
        errno = EXDEV;
        return -1;
    }
    return THROUGH(NEXT(copy_file_range)(in, in_at, out, out_at, length, flags));
}

#define SENDFILE(name)                                                                             \
    do {                                                                                           \
        char path[PATH_MAX];                                                                       \
        if ((wanted(CALL_READ) || wanted(CALL_WRITE)) && below_of_fd(in, path) != NULL) {          \
            errno = EINVAL;                                                                        \
            return -1;                                                                             \
        }                                                                                          \
        return THROUGH(NEXT(name)(out, in, offset, count));                                        \
    } while (0)

ssize_t sendfile(int out, int in, off_t *offset, size_t count)
{
    SENDFILE(sendfile);
}

ssize_t sendfile64(int out, int in, off64_t *offset, size_t count)
{
    SENDFILE(sendfile64);
}

/* --- syncs and sizes ------------------------------------------------------------------------ */

int fsync(int fd)
{
    PLAIN_FD(CALL_SYNC, fsync, fd);
}

int fdatasync(int fd)
{
    PLAIN_FD(CALL_SYNC, fdatasync, fd);
}

int syncfs(int fd)
{
    PLAIN_FD(CALL_SYNC, syncfs, fd);
}

int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags)
{
    PLAIN_FD(CALL_SYNC, sync_file_range, fd, offset, length, flags);
}

int ftruncate(int fd, off_t size)
{
    PLAIN_FD(CALL_TRUNCATE, ftruncate, fd, size);
}

int ftruncate64(int fd, off64_t size)
{
    PLAIN_FD(CALL_TRUNCATE, ftruncate64, fd, size);
}

int truncate(const char *path, off_t size)
{
    if (wanted(CALL_TRUNCATE) && fails_name(CALL_TRUNCATE, AT_FDCWD, path))
        return -1;
    return THROUGH(NEXT(truncate)(path, size));
}

int truncate64(const char *path, off64_t size)
{
    if (wanted(CALL_TRUNCATE) && fails_name(CALL_TRUNCATE, AT_FDCWD, path))
        return -1;
    return THROUGH(NEXT(truncate64)(path, size));
}

static enum call call_of_mode(int mode)
{
    return mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE) ? CALL_PUNCH : CALL_ALLOCATE;
}

int fallocate(int fd, int mode, off_t offset, off_t length)
{
    PLAIN_FD(call_of_mode(mode), fallocate, fd, mode, offset, length);
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length)
{
    PLAIN_FD(call_of_mode(mode), fallocate64, fd, mode, offset, length);
}

#define POSIX_FALLOCATE(name)                                                                      \
    do {                                                                                           \
        int64_t bytes_max;                                                                         \
        int saved = errno;                                                                         \
        if (wanted(CALL_ALLOCATE) && fails_fd(CALL_ALLOCATE, fd, &bytes_max)) {                    \
            int error = errno;                                                                     \
            errno = saved;                                                                         \
            return error;                                                                          \
        }                                                                                          \
        return THROUGH(NEXT(name)(fd, offset, length));                                            \
    } while (0)

int posix_fallocate(int fd, off_t offset, off_t length)
{
    POSIX_FALLOCATE(posix_fallocate);
}

int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
    POSIX_FALLOCATE(posix_fallocate64);
}

/* --- names ---------------------------------------------------------------------------------- */

#define OPENING(folder, path, flags, call)                                                         \
    do {                                                                                           \
        mode_t mode = 0;                                                                           \
        if (wants_mode(flags)) {                                                                   \
            va_list more;                                                                          \
            va_start(more, flags);                                                                 \
            mode = va_arg(more, mode_t);                                                           \
            va_end(more);                                                                          \
        }                                                                                          \
        if (wanted(CALL_OPEN) && fails_name(CALL_OPEN, folder, path))                              \
            return -1;                                                                             \
        return THROUGH(call);                                                                      \
    } while (0)

int open(const char *path, int flags, ...)
{
    OPENING(AT_FDCWD, path, flags, NEXT(open)(path, flags, mode));
}

int open64(const char *path, int flags, ...)
{
    OPENING(AT_FDCWD, path, flags, NEXT(open64)(path, flags, mode));
}

int openat(int folder, const char *path, int flags, ...)
{
    OPENING(folder, path, flags, NEXT(openat)(folder, path, flags, mode));
}

int openat64(int folder, const char *path, int flags, ...)
{
    OPENING(folder, path, flags, NEXT(openat64)(folder, path, flags, mode));
}

/* What <fcntl.h> makes of an open with two arguments under _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags)
{
    return open(path, flags);
}

int __open64_2(const char *path, int flags)
{
    return open64(path, flags);
}

int __openat_2(int folder, const char *path, int flags)
{
    return openat(folder, path, flags);
}

int __openat64_2(int folder, const char *path, int flags)
{
    return openat64(folder, path, flags);
}

int creat(const char *path, mode_t mode)
{
    return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode)
{
    return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    if (wanted(CALL_OPEN) && fails_name(CALL_OPEN, AT_FDCWD, path))
        return NULL;
    return THROUGH(NEXT(fopen)(path, mode));
}

FILE *fopen64(const char *path, const char *mode)
{
    if (wanted(CALL_OPEN) && fails_name(CALL_OPEN, AT_FDCWD, path))
        return NULL;
    return THROUGH(NEXT(fopen64)(path, mode));
}

DIR *opendir(const char *path)
{
    if (wanted(CALL_OPEN) && fails_name(CALL_OPEN, AT_FDCWD, path))
        return NULL;
    return THROUGH(NEXT(opendir)(path));
}

struct dirent *readdir(DIR *directory)
{
    int64_t bytes_max;
    if (wanted(CALL_READ) && fails_fd(CALL_READ, dirfd(directory), &bytes_max))
        return NULL;
    return THROUGH(NEXT(readdir)(directory));
}

struct dirent64 *readdir64(DIR *directory)
{
    int64_t bytes_max;
    if (wanted(CALL_READ) && fails_fd(CALL_READ, dirfd(directory), &bytes_max))
        return NULL;
    return THROUGH(NEXT(readdir64)(directory));
}

static int renaming_fails(int from_fd, const char *from, int to_fd, const char *to)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct effect effect = {0, -1};
    int saved = errno;
    if (!wanted(CALL_RENAME))
        return 0;
    int was_hit = hit(CALL_RENAME, below_of_name(from_fd, from, source),
                      below_of_name(to_fd, to, target), &effect);
    errno = was_hit && effect.error != 0 ? effect.error : saved;
    return was_hit && effect.error != 0;
}

int rename(const char *from, const char *to)
{
    if (renaming_fails(AT_FDCWD, from, AT_FDCWD, to))
        return -1;
    return THROUGH(NEXT(rename)(from, to));
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    if (renaming_fails(from_fd, from, to_fd, to))
        return -1;
    return THROUGH(NEXT(renameat)(from_fd, from, to_fd, to));
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    if (renaming_fails(from_fd, from, to_fd, to))
        return -1;
    return THROUGH(NEXT(renameat2)(from_fd, from, to_fd, to, flags));
}

int unlink(const char *path)
{
    if (wanted(CALL_UNLINK) && fails_name(CALL_UNLINK, AT_FDCWD, path))
        return -1;
    return THROUGH(NEXT(unlink)(path));
}

int unlinkat(int folder, const char *path, int flags)
{
    if (wanted(CALL_UNLINK) && fails_name(CALL_UNLINK, folder, path))
        return -1;
    return THROUGH(NEXT(unlinkat)(folder, path, flags));
}

int remove(const char *path)
{
    if (wanted(CALL_UNLINK) && fails_name(CALL_UNLINK, AT_FDCWD, path))
        return -1;
    return THROUGH(NEXT(remove)(path));
}

/* A directory's path ends with '/', also before it is there. */
static int making_fails(int folder, const char *name)
{
    char path[PATH_MAX];
    struct effect effect = {0, -1};
    int saved = errno;
    const char *found = below_of_name(folder, name, path);
    if (found != NULL && path[strlen(path) - 1] != '/' && strlen(path) + 1 < sizeof path)
        strcat(path, "/");
    int was_hit = hit(CALL_MKDIR, found, NULL, &effect);
    errno = was_hit && effect.error != 0 ? effect.error : saved;
    return was_hit && effect.error != 0;
}

int mkdir(const char *path, mode_t mode)
{
    if (wanted(CALL_MKDIR) && making_fails(AT_FDCWD, path))
        return -1;
    return THROUGH(NEXT(mkdir)(path, mode));
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    if (wanted(CALL_MKDIR) && making_fails(folder, path))
        return -1;
    return THROUGH(NEXT(mkdirat)(folder, path, mode));
}

/* --- maps ----------------------------------------------------------------------------------- */

static void remember_map(void *address, size_t bytes, int fd)
{
    char path[PATH_MAX];
    int saved = errno;
    const char *found = below_of_fd(fd, path);
    if (found != NULL) {
        pthread_mutex_lock(&maps_lock);
        for (int at = 0; at < MAPS_MAX; at++)
            if (maps[at].bytes == 0) {
                maps[at].address = (uintptr_t)address;
                maps[at].bytes = bytes;
                snprintf(maps[at].path, sizeof maps[at].path, "%s", found);
                break;
            }
        pthread_mutex_unlock(&maps_lock);
    }
    errno = saved;
}

#define MAPPING(name)                                                                              \
    do {                                                                                           \
        int64_t bytes_max;                                                                         \
        if (fd >= 0 && wanted(CALL_MMAP) && fails_fd(CALL_MMAP, fd, &bytes_max))                   \
            return MAP_FAILED;                                                                     \
        void *mapped = THROUGH(NEXT(name)(address, length, protection, flags, fd, offset));        \
        if (fd >= 0 && mapped != MAP_FAILED && control != NULL && !inside)                         \
            remember_map(mapped, length, fd);                                                      \
        return mapped;                                                                             \
    } while (0)

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    MAPPING(mmap);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset)
{
    MAPPING(mmap64);
}

int munmap(void *address, size_t length)
{
    if (control != NULL) {
        pthread_mutex_lock(&maps_lock);
        for (int at = 0; at < MAPS_MAX; at++)
            if (maps[at].bytes != 0 && maps[at].address == (uintptr_t)address)
                maps[at].bytes = 0;
        pthread_mutex_unlock(&maps_lock);
    }
    return THROUGH(NEXT(munmap)(address, length));
}

/* What a disk's error on a mapped page is to whoever populates it: EFAULT. */
int madvise(void *address, size_t length, int advice)
{
    struct effect effect = {0, -1};
    char path[sizeof maps[0].path] = "";
    if (advice == MADV_POPULATE_READ && wanted(CALL_READ)) {
        pthread_mutex_lock(&maps_lock);
        for (int at = 0; at < MAPS_MAX; at++)
            if ((uintptr_t)address - maps[at].address < maps[at].bytes)
                memcpy(path, maps[at].path, sizeof path);
        pthread_mutex_unlock(&maps_lock);
        if (path[0] != 0 && hit(CALL_READ, path, NULL, &effect) && effect.error != 0) {
            errno = effect.error == EIO ? EFAULT : effect.error;
            return -1;
        }
    }
    return THROUGH(NEXT(madvise)(address, length, advice));
}
