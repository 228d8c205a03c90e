/* Preloaded: the clock of every process that has TFBENCH_TEST_CLOCK jumps by as many seconds as that file holds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    static const volatile long *jump;
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = jump ? NULL : getenv("TFBENCH_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *shared = mmap(NULL, sizeof *jump, PROT_READ, MAP_SHARED, file, 0);
        jump = shared == MAP_FAILED ? NULL : shared;
        close(file);
    }
    int result = real(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && jump)
        now->tv_sec += *jump;
    return result;
}
