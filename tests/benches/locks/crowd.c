// Threads that contend for the same locks: elapsed seconds for a fixed amount of work.
// usage: crowd THREADS ROUNDS WORK: WORK is the length of what is done inside and outside of a lock
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOCKS 4

static pthread_mutex_t locks[LOCKS];
static volatile unsigned long counters[LOCKS];
static int rounds, work;

static void busy(unsigned long *state) {
    for (int i = 0; i < work; i++)
        *state = *state * 6364136223846793005ul + 1442695040888963407ul;
}

static void *run(void *argument) {
    unsigned long state = (unsigned long)argument;
    for (int i = 0; i < rounds; i++) {
        unsigned long which = state >> 40 & (LOCKS - 1);
        pthread_mutex_lock(&locks[which]);
        busy(&state);
        counters[which]++;
        pthread_mutex_unlock(&locks[which]);
        busy(&state);
    }
    return (void *)state;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 4;
    rounds = argc > 2 ? atoi(argv[2]) : 200000;
    work = argc > 3 ? atoi(argv[3]) : 500;
    pthread_t ids[64];
    struct timespec begin, end;
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&locks[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < threads && i < 64; i++)
        pthread_create(&ids[i], NULL, run, (void *)(i + 1));
    for (int i = 0; i < threads && i < 64; i++)
        pthread_join(ids[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.3f\n", end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) * 1e-9);
    return 0;
}
