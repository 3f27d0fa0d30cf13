// Two threads that wait for each other at a condition variable all the time. Prints the CPU time of the process in
// nanoseconds, and the number of waits.
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static long turn, waits;

static void *take_turns(void *own) {
    for (int number = 0; number < 40000; number++) {
        pthread_mutex_lock(&mutex);
        for (; turn != (long)own; waits++)
            pthread_cond_wait(&turned, &mutex);
        turn = !turn;
        pthread_cond_signal(&turned);
        pthread_mutex_unlock(&mutex);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    for (long number = 0; number < 2; number++)
        pthread_create(&threads[number], NULL, take_turns, (void *)number);
    for (int number = 0; number < 2; number++)
        pthread_join(threads[number], NULL);
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    printf("%ld %ld\n", used.tv_sec * 1000000000L + used.tv_nsec, waits);
    return 0;
}
