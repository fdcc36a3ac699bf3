/*
 * The interposed calls that change names: open with O_CREAT, rename, unlink, mkdir, rmdir, link.
 * Included by powercut.c only.  One lock orders them, as a directory orders its own changes.
 */

/* A name inside the watched tree: its folder and its last component. */
struct place {
    ino_t folder;
    char path[PATH_MAX]; /* folder's canonical path, '/', name */
    const char *name;
    int exists;
    struct stat status; /* of the entry, when it exists */
};

/* Resolves (folder, path); false when it is not inside the watched tree. */
static int locate(int folder_fd, const char *path, struct place *place)
{
    char parent[PATH_MAX];
    struct stat status;
    int saved = errno, found = 0;
    if (log_fd < 0 || path == NULL || strlen(path) >= PATH_MAX - 2)
        return 0;
    snprintf(parent, sizeof parent, "%s", path);
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/')
        parent[--length] = 0;
    char *slash = strrchr(parent, '/');
    const char *name = path + (slash ? slash + 1 - parent : 0);
    size_t name_length = length - (size_t)(slash ? slash + 1 - parent : 0);
    if (slash == parent)
        parent[1] = 0;
    else if (slash)
        *slash = 0;
    int fd = raw_openat(folder_fd, slash ? parent : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        goto out;
    if (syscall(SYS_fstat, fd, &status) == 0 && path_of(fd, place->path)
        && inside_root(place->path)) {
        size_t at = strlen(place->path);
        if (at + name_length + 2 < PATH_MAX) {
            place->path[at] = '/';
            memcpy(place->path + at + 1, name, name_length);
            place->path[at + 1 + name_length] = 0;
            place->name = place->path + at + 1;
            place->folder = status.st_ino;
            place->exists = fstatat(fd, place->name, &place->status, AT_SYMLINK_NOFOLLOW) == 0;
            found = 1;
        }
    }
    syscall(SYS_close, fd);
out:
    errno = saved;
    return found;
}

/* Logs BEGIN of a change of names; `second` and `grave` may be NULL. */
static uint64_t begin_names(uint32_t kind, const struct place *place, ino_t entry,
                            const struct place *second, const char *grave)
{
    char tail[3 * PATH_MAX];
    int size = snprintf(tail, sizeof tail, "%s%c%s%c%s", place->name, 0,
                        second ? second->name : "", 0, grave ? grave : "");
    struct record head = {
        .magic = MAGIC, .kind = kind, .operation = next_operation(), .inode = place->folder,
        .offset = entry, .length = second ? second->folder : 0, .tail_bytes = (uint32_t)size};
    append(&head, tail);
    return head.operation;
}

/* Keeps an entry's inode alive under a new name outside the tree. */
static void bury(const struct place *place, char *grave)
{
    grave[0] = 0;
    if (!place->exists || S_ISDIR(place->status.st_mode))
        return;
    snprintf(grave, PATH_MAX, "%.*s/%d-%llu", (int)strlen(graves), graves, (int)getpid(),
             (unsigned long long)atomic_fetch_add(&counter, 1));
    if (syscall(SYS_linkat, AT_FDCWD, place->path, AT_FDCWD, grave, 0) != 0)
        uncovered("a file that cannot be kept before its unlink");
}

/* Logs DONE when the change of names succeeded; the caller holds names_lock. */
static int finish_names(uint64_t operation, ino_t folder, int result)
{
    int saved = errno;
    if (result == 0)
        mark(KIND_DONE, operation, folder);
    errno = saved;
    return result;
}

static int open_watched(int folder, const char *path, int flags, mode_t mode)
{
    struct place place;
    if (log_fd < 0)
        return raw_openat(folder, path, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE && locate(folder, path, &place))
        uncovered("open with O_TMPFILE");
    if ((flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC)))
        return raw_openat(folder, path, flags, mode);
    if (!(flags & O_CREAT) || !locate(folder, path, &place)) {
        int fd = raw_openat(folder, path, flags & ~O_TRUNC, mode);
        int elsewhere = fd >= 0 && (flags & O_TRUNC);
        if (fd >= 0)
            watch(fd);
        if (elsewhere && ftruncate64(fd, 0) != 0 && errno != EINVAL) {
            syscall(SYS_close, fd);
            return -1;
        }
        return fd;
    }
    pthread_mutex_lock(&names_lock);
    locate(folder, path, &place);
    uint64_t operation =
        place.exists ? 0 : begin_names(KIND_CREATE, &place, 0, NULL, NULL);
    int fd = raw_openat(folder, path, flags & ~O_TRUNC, mode);
    int saved = errno;
    if (fd >= 0 && !place.exists)
        mark(KIND_DONE, operation, place.folder);
    if (fd >= 0)
        watch(fd);
    pthread_mutex_unlock(&names_lock);
    errno = saved;
    if (fd >= 0 && (flags & O_TRUNC) && place.exists && ftruncate64(fd, 0) != 0) {
        syscall(SYS_close, fd);
        return -1;
    }
    return fd;
}

#define OPEN_BODY(folder, path, flags)                                                             \
    mode_t mode = 0;                                                                               \
    if (wants_mode(flags)) {                                                                       \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode = va_arg(more, mode_t);                                                               \
        va_end(more);                                                                              \
    }                                                                                              \
    return open_watched(folder, path, flags, mode)

int open64(const char *path, int flags, ...)
{
    OPEN_BODY(AT_FDCWD, path, flags);
}

int open(const char *path, int flags, ...)
{
    OPEN_BODY(AT_FDCWD, path, flags);
}

int openat64(int folder, const char *path, int flags, ...)
{
    OPEN_BODY(folder, path, flags);
}

int openat(int folder, const char *path, int flags, ...)
{
    OPEN_BODY(folder, path, flags);
}

/* What <fcntl.h> makes of an open with two arguments under _FORTIFY_SOURCE. */
int __open_2(const char *path, int flags)
{
    return open_watched(AT_FDCWD, path, flags, 0);
}

int __open64_2(const char *path, int flags)
{
    return open_watched(AT_FDCWD, path, flags, 0);
}

int __openat_2(int folder, const char *path, int flags)
{
    return open_watched(folder, path, flags, 0);
}

int __openat64_2(int folder, const char *path, int flags)
{
    return open_watched(folder, path, flags, 0);
}

int creat64(const char *path, mode_t mode)
{
    return open_watched(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat(const char *path, mode_t mode)
{
    return creat64(path, mode);
}

/* The C library's streams write past us, so a writable one inside the tree is reported. */
static FILE *stream(const char *name, const char *path, const char *mode)
{
    struct place place;
    if (mode != NULL && strpbrk(mode, "wa+") && locate(AT_FDCWD, path, &place))
        uncovered("fopen for writing");
    return ((FILE * (*)(const char *, const char *)) real_symbol(name))(path, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    return stream("fopen64", path, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return stream("fopen", path, mode);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    struct place source, target;
    char grave[PATH_MAX];
    int from_inside = locate(from_fd, from, &source), to_inside = locate(to_fd, to, &target);
    if (!from_inside && !to_inside)
        return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
    if (from_inside != to_inside || (flags & RENAME_EXCHANGE))
        uncovered("a rename across the border of the directory, or an exchange");
    pthread_mutex_lock(&names_lock);
    locate(from_fd, from, &source);
    locate(to_fd, to, &target);
    bury(&target, grave);
    ino_t entry = source.exists ? source.status.st_ino : 0;
    uint64_t operation = begin_names(KIND_RENAME, &source, entry, &target, grave);
    int result = finish_names(operation, source.folder,
                              (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags));
    pthread_mutex_unlock(&names_lock);
    return result;
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int folder, const char *path, int flags)
{
    struct place place;
    char grave[PATH_MAX];
    if (!locate(folder, path, &place) || !place.exists)
        return (int)syscall(SYS_unlinkat, folder, path, flags);
    pthread_mutex_lock(&names_lock);
    bury(&place, grave);
    uint32_t kind = flags & AT_REMOVEDIR ? KIND_RMDIR : KIND_UNLINK;
    uint64_t operation = begin_names(kind, &place, place.status.st_ino, NULL, grave);
    int result = finish_names(operation, place.folder,
                              (int)syscall(SYS_unlinkat, folder, path, flags));
    pthread_mutex_unlock(&names_lock);
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int remove(const char *path)
{
    int result = unlink(path);
    return result != 0 && errno == EISDIR ? rmdir(path) : result;
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    struct place place;
    if (!locate(folder, path, &place) || place.exists)
        return (int)syscall(SYS_mkdirat, folder, path, mode);
    pthread_mutex_lock(&names_lock);
    uint64_t operation = begin_names(KIND_MKDIR, &place, 0, NULL, NULL);
    int result = finish_names(operation, place.folder,
                              (int)syscall(SYS_mkdirat, folder, path, mode));
    pthread_mutex_unlock(&names_lock);
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    struct place place;
    if (locate(to_fd, to, &place))
        uncovered("link");
    return (int)syscall(SYS_linkat, from_fd, from, to_fd, to, flags);
}

int link(const char *from, const char *to)
{
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlinkat(const char *target, int folder, const char *path)
{
    struct place place;
    if (locate(folder, path, &place))
        uncovered("symlink");
    return (int)syscall(SYS_symlinkat, target, folder, path);
}

int symlink(const char *target, const char *path)
{
    return symlinkat(target, AT_FDCWD, path);
}
