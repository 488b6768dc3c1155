/* Put before the C library with LD_PRELOAD: every sync takes a millisecond longer. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static void wait_a_millisecond(void) {
    struct timespec left = {0, 1000000};
    while (nanosleep(&left, &left) != 0) {
    }
}

int fsync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_a_millisecond();
    return real(fd);
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_a_millisecond();
    return real(fd);
}
