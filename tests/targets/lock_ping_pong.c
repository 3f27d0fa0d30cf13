// Two threads that wait for each other at a condition variable all the time, on one processor, each 40,000 times or as
// often as told. Prints the CPU time of the process in nanoseconds, the number of waits, and their time in nanoseconds.
#define _GNU_SOURCE

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static long turns = 40000, turn, waits, waited;

static long ns(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

__attribute__((noinline)) static void wait_for_turn(void) {
    long begun = ns(CLOCK_MONOTONIC);
    pthread_cond_wait(&turned, &mutex);
    waited += ns(CLOCK_MONOTONIC) - begun;
    waits++;
}

static void *take_turns(void *own) {
    for (long number = 0; number < turns; number++) {
        pthread_mutex_lock(&mutex);
        while (turn != (long)own)
            wait_for_turn();
        turn = !turn;
        pthread_cond_signal(&turned);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc > 1)
        turns = atol(argv[1]);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0)
        return 1;
    pthread_t threads[2];
    for (long number = 0; number < 2; number++)
        pthread_create(&threads[number], NULL, take_turns, (void *)number);
    for (int number = 0; number < 2; number++)
        pthread_join(threads[number], NULL);
    printf("%ld %ld %ld\n", ns(CLOCK_PROCESS_CPUTIME_ID), waits, waited);
    return 0;
}
