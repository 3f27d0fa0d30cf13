// Two threads that pass a byte back and forth on one processor for 0.8 s. Prints the CPU time of the process in
// nanoseconds.
#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static int there[2], back[2];

static long ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *answer(void *unused) {
    char byte;
    while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1) {
    }
    return unused;
}

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    pthread_t other;
    if (sched_setaffinity(0, sizeof one, &one) != 0 || pipe(there) != 0 || pipe(back) != 0
        || pthread_create(&other, NULL, answer, NULL) != 0)
        return 1;
    char byte = 0;
    long end = ns(CLOCK_MONOTONIC) + 800000000;
    while (ns(CLOCK_MONOTONIC) < end)
        if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
            return 1;
    close(there[1]);
    pthread_join(other, NULL);
    printf("%ld\n", ns(CLOCK_PROCESS_CPUTIME_ID));
    return 0;
}
