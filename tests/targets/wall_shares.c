// Threads with known shares of computing, sleeping and waiting, by their own clocks and the kernel's account of their
// run-queue delay. Each prints its name, and microseconds: of its lifetime, of CPU time, runnable, blocked in its first
// and in its second place; and its voluntary context switches.
// usage: wall_shares SECONDS
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double seconds;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, output = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static int is_over, ends[2];

static long us(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

struct time {
    long wall, cpu, ready;
};

static struct time now(void) {
    struct time now = {us(CLOCK_MONOTONIC), us(CLOCK_THREAD_CPUTIME_ID), 0};
    unsigned long cpu_ns, ready_ns;
    FILE *file = fopen("/proc/thread-self/schedstat", "r");
    if (!file || fscanf(file, "%lu %lu", &cpu_ns, &ready_ns) != 2)
        abort();
    fclose(file);
    now.ready = ready_ns / 1000;
    return now;
}

static long blocked(struct time from, struct time until) {
    return until.wall - from.wall - (until.cpu - from.cpu) - (until.ready - from.ready);
}

static __attribute__((noinline)) void compute(long until_us) {
    volatile unsigned long sum = 0;
    while (us(CLOCK_MONOTONIC) < until_us)
        for (int i = 0; i < 1000; i++)
            sum += i;
}

static __attribute__((noinline)) void sleep_shortly(long time) {
    poll(NULL, 0, time / 1000);
    __asm__ volatile("");
}

static __attribute__((noinline)) void sleep_longer(long time) {
    struct timespec left = {0, time * 1000};
    nanosleep(&left, NULL);
    __asm__ volatile("");
}

static __attribute__((noinline)) void wait_for_the_end(void) {
    pthread_mutex_lock(&mutex);
    while (!is_over)
        pthread_cond_wait(&over, &mutex);
    pthread_mutex_unlock(&mutex);
}

static __attribute__((noinline)) void read_to_the_end(void) {
    char byte;
    // Ends when the other end is closed.
    if (read(ends[0], &byte, 1) != 0)
        abort();
    __asm__ volatile("");
}

static void tell(const char *name, struct time begun, long first, long second) {
    struct rusage usage;
    struct time end = now();
    getrusage(RUSAGE_THREAD, &usage);
    pthread_mutex_lock(&output);
    printf("%s %ld %ld %ld %ld %ld %ld\n", name, end.wall - begun.wall, end.cpu, end.ready, first, second, usage.ru_nvcsw);
    fflush(stdout);
    pthread_mutex_unlock(&output);
}

static void *computes(void *argument) {
    (void)argument;
    struct time begun = now();
    pthread_setname_np(pthread_self(), "computes");
    compute(begun.wall + seconds * 1e6);
    tell("computes", begun, 0, 0);
    return NULL;
}

static void *mixes(void *argument) {
    (void)argument;
    struct time begun = now(), before, between;
    long until = begun.wall + seconds * 1e6, shortly = 0, longer = 0;
    pthread_setname_np(pthread_self(), "mixes");
    while (us(CLOCK_MONOTONIC) < until) {
        compute(us(CLOCK_MONOTONIC) + 12000);
        before = now();
        sleep_shortly(6000);
        between = now();
        sleep_longer(12000);
        shortly += blocked(before, between);
        longer += blocked(between, now());
    }
    tell("mixes", begun, shortly, longer);
    return NULL;
}

static void *waits(void *argument) {
    (void)argument;
    struct time begun = now();
    pthread_setname_np(pthread_self(), "waits");
    wait_for_the_end();
    tell("waits", begun, blocked(begun, now()), 0);
    return NULL;
}

static void *reads(void *argument) {
    (void)argument;
    struct time begun = now();
    pthread_setname_np(pthread_self(), "reads");
    read_to_the_end();
    tell("reads", begun, blocked(begun, now()), 0);
    return NULL;
}

int main(int argc, char **argv) {
    void *(*const kinds[])(void *) = {computes, mixes, waits, reads};
    pthread_t threads[4];
    seconds = argc > 1 ? atof(argv[1]) : 1;
    if (pipe(ends))
        return 1;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, kinds[i], NULL))
            return 1;
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    pthread_mutex_lock(&mutex);
    is_over = 1;
    pthread_cond_signal(&over);
    pthread_mutex_unlock(&mutex);
    close(ends[1]);
    pthread_join(threads[2], NULL);
    pthread_join(threads[3], NULL);
    return 0;
}
