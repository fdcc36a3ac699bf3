/*
 * errors: an LD_PRELOAD library that makes calls on files below one directory fail, by rules that
 * another process changes while this one runs.
 *
 * Environment:  ERRORS_ROOT     the directory (absolute)
 *               ERRORS_CONTROL  the control file, made by harness/errors.py, mapped and shared
 *
 * The control file, little-endian, this machine only; harness/errors.py has the same layout:
 *
 *   offset  size  field
 *        0     4  magic "ERR1"
 *        4     4  calls: those that a rule in force names, as bits (enum call); 0: nothing to do
 *        8     8  generation, grows with each change of the rules
 *       16    48  zero
 *       64   256  each of RULES_MAX rules (struct rule)
 *     8256   128  each of PLACES_MAX places that were hit (struct place)
 *
 * A call pays one load while no rule names it.  Otherwise its file is looked up by its descriptor,
 * so nothing has to be remembered about open files; only maps are, because madvise has no
 * descriptor.  The first rule that matches decides.  A directory's path ends with '/'.
 *
 * Reading through a map fails by madvise(MADV_POPULATE_READ), by which the broker brings pages in
 * before it touches them; a touch itself cannot be made to fail.
 *
 * To be preloaded before powercut.so when both are: what is let through goes to the next library.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "below.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum call {
    CALL_OPEN = 1,
    CALL_READ = 2,
    CALL_WRITE = 4,
    CALL_SYNC = 8,
    CALL_RENAME = 16,
    CALL_UNLINK = 32,
    CALL_TRUNCATE = 64,
    CALL_ALLOCATE = 128,
    CALL_PUNCH = 256,
    CALL_MMAP = 512,
    CALL_MKDIR = 1024
};

enum { MAGIC = 0x31525245, RULES_MAX = 32, PLACES_MAX = 256, MAPS_MAX = 4096 };

struct rule {
    _Atomic uint32_t active; /* 0, or the generation in which it was made */
    uint32_t calls;
    int32_t error;    /* errno of a hit; 0: the call is made */
    uint32_t delay_ms; /* a hit waits so long before anything else */
    int64_t bytes_max; /* a hit reads or writes no more than this; -1: all */
    uint64_t skip;     /* so many matching calls are let through first */
    uint64_t hits_max; /* then so many are hit; 0: all of them */
    uint64_t until_ns; /* CLOCK_MONOTONIC; 0: no end */
    _Atomic uint64_t seen;
    _Atomic uint64_t hits;
    char pattern[192]; /* fnmatch(3) of the path below the root; several with '|', '!' excludes */
};

struct place {
    uint32_t call;
    uint32_t hits;
    char path[120];
};

struct control {
    uint32_t magic;
    _Atomic uint32_t calls;
    _Atomic uint64_t generation;
    uint8_t zero[48];
    struct rule rules[RULES_MAX];
    struct place places[PLACES_MAX];
};

_Static_assert(sizeof(struct rule) == 256, "the layout that harness/errors.py writes");
_Static_assert(sizeof(struct place) == 128, "the layout that harness/errors.py reads");

/* What a call that was hit has to do. */
struct effect {
    int error;
    int64_t bytes_max;
};

static struct control *control;
static pthread_mutex_t places_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    uintptr_t address;
    size_t bytes;
    char path[120];
} maps[MAPS_MAX];
/* Set while a call is being made: what other libraries call in turn is not hit a second time. */
static _Thread_local int inside __attribute__((tls_model("initial-exec")));

__attribute__((constructor)) static void errors_start(void)
{
    const char *directory = getenv("ERRORS_ROOT"), *path = getenv("ERRORS_CONTROL");
    if (directory == NULL || path == NULL)
        return;
    snprintf(root, sizeof root, "%s", directory);
    root_length = strlen(root);
    int fd = raw_openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    void *mapped = fd < 0 ? MAP_FAILED
                          : (void *)syscall(SYS_mmap, NULL, sizeof *control,
                                            PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* Without its rules this library would let a test pass that tested nothing. */
    if (mapped == MAP_FAILED || ((struct control *)mapped)->magic != MAGIC)
        _exit(96);
    syscall(SYS_close, fd);
    control = mapped;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int wanted(enum call call)
{
    return control != NULL && !inside
        && (atomic_load_explicit(&control->calls, memory_order_relaxed) & (uint32_t)call);
}

/* The path below the root, with '/' at the end for a directory; NULL when it is elsewhere. */
static const char *below(char *path, int is_directory)
{
    if (!inside_root(path))
        return NULL;
    size_t length = strlen(path);
    const char *deleted = " (deleted)";
    size_t tail = strlen(deleted);
    if (length > tail && strcmp(path + length - tail, deleted) == 0)
        path[length -= tail] = 0;
    if (is_directory && length + 1 < PATH_MAX && path[length - 1] != '/')
        strcpy(path + length, "/");
    const char *found = path + root_length;
    return found[0] == '/' && found[1] != 0 ? found + 1 : found;
}

static const char *below_of_fd(int fd, char *path)
{
    struct stat status;
    if (syscall(SYS_fstat, fd, &status) != 0
        || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) || !path_of(fd, path))
        return NULL;
    return below(path, S_ISDIR(status.st_mode));
}

/* The same of a name that may not exist yet. */
static const char *below_of_name(int folder, const char *name, char *path)
{
    struct stat status;
    char parent[PATH_MAX];
    const char *found = NULL;
    if (name == NULL || strlen(name) >= PATH_MAX - 2)
        return NULL;
    int fd = raw_openat(folder, name, O_PATH | O_NOFOLLOW | O_CLOEXEC, 0);
    if (fd >= 0) {
        if (syscall(SYS_fstat, fd, &status) == 0 && path_of(fd, path))
            found = below(path, S_ISDIR(status.st_mode));
        syscall(SYS_close, fd);
        return found;
    }
    snprintf(parent, sizeof parent, "%s", name);
    char *slash = strrchr(parent, '/');
    const char *last = slash ? name + (slash - parent) + 1 : name;
    if (slash)
        slash[slash == parent] = 0;
    fd = raw_openat(folder, slash ? parent : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    if (path_of(fd, path) && strlen(path) + strlen(last) + 2 < PATH_MAX) {
        strcat(strcat(path, "/"), last);
        found = below(path, 0);
    }
    syscall(SYS_close, fd);
    return found;
}

static int matches(const char *pattern, const char *path)
{
    char one[sizeof((struct rule *)0)->pattern];
    int matched = 0;
    while (*pattern) {
        size_t length = strcspn(pattern, "|");
        int excludes = pattern[0] == '!';
        snprintf(one, sizeof one, "%.*s", (int)length - excludes, pattern + excludes);
        if (fnmatch(one, path, 0) == 0)
            matched = !excludes;
        pattern += length + (pattern[length] == '|');
    }
    return matched;
}

static void remember(enum call call, const char *path)
{
    pthread_mutex_lock(&places_lock);
    for (int at = 0; at < PLACES_MAX; at++) {
        struct place *place = &control->places[at];
        if (place->call == 0) {
            snprintf(place->path, sizeof place->path, "%s", path);
            place->call = (uint32_t)call;
        }
        if (place->call == (uint32_t)call
            && strncmp(place->path, path, sizeof place->path - 1) == 0) {
            place->hits++;
            break;
        }
    }
    pthread_mutex_unlock(&places_lock);
}

static void wait_ms(uint32_t delay_ms)
{
    struct timespec rest = {delay_ms / 1000, (long)(delay_ms % 1000) * 1000000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
}

/* Does a rule hit this call?  Either path may be NULL; waits when the rule says so. */
static int hit(enum call call, const char *path, const char *other, struct effect *effect)
{
    if (path == NULL && other == NULL)
        return 0;
    for (int at = 0; at < RULES_MAX; at++) {
        struct rule *rule = &control->rules[at];
        uint32_t active = atomic_load_explicit(&rule->active, memory_order_acquire);
        if (active == 0 || !(rule->calls & (uint32_t)call))
            continue;
        if (rule->until_ns != 0 && now_ns() >= rule->until_ns)
            continue;
        int first = path != NULL && matches(rule->pattern, path);
        if (!first && !(other != NULL && matches(rule->pattern, other)))
            continue;
        uint64_t seen = atomic_fetch_add(&rule->seen, 1);
        if (seen < rule->skip || (rule->hits_max != 0 && seen >= rule->skip + rule->hits_max))
            continue;
        uint32_t delay_ms = rule->delay_ms;
        *effect = (struct effect){rule->error, rule->bytes_max};
        if (atomic_load_explicit(&rule->active, memory_order_acquire) != active)
            continue; /* changed under our eyes */
        atomic_fetch_add(&rule->hits, 1);
        remember(call, first ? path : other);
        if (delay_ms != 0)
            wait_ms(delay_ms);
        return 1;
    }
    return 0;
}

/* Both return 1 when the call must fail now (errno is set), and leave errno alone otherwise. */
static int fails_fd(enum call call, int fd, int64_t *bytes_max)
{
    char path[PATH_MAX];
    struct effect effect = {0, -1};
    int saved = errno;
    int was_hit = hit(call, below_of_fd(fd, path), NULL, &effect);
    errno = saved;
    if (was_hit && effect.error != 0) {
        errno = effect.error;
        return 1;
    }
    *bytes_max = effect.bytes_max;
    return 0;
}

static int fails_name(enum call call, int folder, const char *name)
{
    char path[PATH_MAX];
    struct effect effect = {0, -1};
    int saved = errno;
    int was_hit = hit(call, below_of_name(folder, name, path), NULL, &effect);
    errno = was_hit && effect.error != 0 ? effect.error : saved;
    return was_hit && effect.error != 0;
}

/* The next library's function, looked up once. */
#define NEXT(name)                                                                                 \
    ({                                                                                             \
        static void *_Atomic found_;                                                               \
        void *symbol_ = atomic_load_explicit(&found_, memory_order_relaxed);                       \
        if (symbol_ == NULL)                                                                       \
            atomic_store(&found_, symbol_ = real_symbol(#name));                                   \
        (__typeof__(&name))symbol_;                                                                \
    })

/* Makes the call with whatever it calls in turn left alone. */
#define THROUGH(call)                                                                              \
    ({                                                                                             \
        inside++;                                                                                  \
        __typeof__(call) result_ = (call);                                                         \
        inside--;                                                                                  \
        result_;                                                                                   \
    })

#include "errors_calls.h"
