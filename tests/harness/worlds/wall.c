/* Wall clocks of one process, ahead by the double (seconds) at the beginning of the file that WALL_CLOCK names; all other clocks are the machine's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *ahead;
static char of[4096];
static int (*machines)(clockid_t, struct timespec *);

static double ahead_s(void) {
    /* A forked process may be given another clock than its parent. */
    const char *path = getenv("WALL_CLOCK");
    if (path == NULL) return 0.0;
    if (ahead == NULL || strcmp(path, of) != 0) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) return 0.0;
        void *found = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (found == MAP_FAILED) return 0.0;
        strncpy(of, path, sizeof of - 1);
        ahead = found;
    }
    return *ahead;
}

int clock_gettime(clockid_t clock, struct timespec *into) {
    if (machines == NULL) machines = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = machines(clock, into);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        double by = ahead_s();
        long whole = (long)by;
        into->tv_sec += whole;
        into->tv_nsec += (long)((by - (double)whole) * 1e9);
        if (into->tv_nsec >= 1000000000L) { into->tv_sec++; into->tv_nsec -= 1000000000L; }
        if (into->tv_nsec < 0) { into->tv_sec--; into->tv_nsec += 1000000000L; }
    }
    return status;
}

int gettimeofday(struct timeval *restrict into, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    into->tv_sec = now.tv_sec;
    into->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into != NULL) *into = now.tv_sec;
    return now.tv_sec;
}
