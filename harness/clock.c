/* A wall clock that a test can set: adds the nanoseconds of a file to the time of the kernel.
 *
 * Loaded before a program's own libraries. PYXBROKER_CLOCK names the file, which has one int64_t.
 */

#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL

static _Atomic int64_t none;
static _Atomic int64_t *ahead = &none;

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("PYXBROKER_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped != MAP_FAILED)
        ahead = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*of_libc)(clockid_t, struct timespec *);
    if (!of_libc)
        of_libc = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = of_libc(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t shown = now->tv_sec * SECOND + now->tv_nsec + atomic_load(ahead);
        now->tv_sec = shown / SECOND;
        now->tv_nsec = shown % SECOND;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    (void)zone;
    struct timespec shown;
    if (clock_gettime(CLOCK_REALTIME, &shown))
        return -1;
    now->tv_sec = shown.tv_sec;
    now->tv_usec = shown.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec shown;
    if (clock_gettime(CLOCK_REALTIME, &shown))
        return -1;
    if (result)
        *result = shown.tv_sec;
    return shown.tv_sec;
}
