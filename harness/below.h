/*
 * What the preloaded libraries share: the watched directory, and the paths of what lies below it.
 * Every call in here goes to the kernel itself, never to an interposed name.
 */
#ifndef TORTURE_BELOW_H
#define TORTURE_BELOW_H

static char root[PATH_MAX];
static size_t root_length;

/* The next library's function of that name: the C library's, or another preloaded one's. */
static void *real_symbol(const char *name)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    if (symbol == NULL)
        _exit(97);
    return symbol;
}

static int raw_openat(int folder, const char *path, int flags, mode_t mode)
{
    return (int)syscall(SYS_openat, folder, path, flags, mode);
}

static int inside_root(const char *path)
{
    return strncmp(path, root, root_length) == 0
        && (path[root_length] == '/' || path[root_length] == 0);
}

/* The canonical path of an open file; false when it is unlinked or unknown. */
static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (size <= 0)
        return 0;
    path[size] = 0;
    return path[0] == '/';
}

static int wants_mode(int flags)
{
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE;
}

#endif
