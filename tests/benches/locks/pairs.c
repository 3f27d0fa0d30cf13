// CPU time in nanoseconds of a pair of locking and unlocking an uncontended lock, the minimum of several turns.
// usage: pairs KIND [TURNS [PAIRS]]: mutex, reader, writer, semaphore, recursive
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER, recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static sem_t semaphore;
static int pairs = 2000000;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

#define TURN(name, take, give)                                                                                         \
    static double name(void) {                                                                                         \
        double begin = now();                                                                                          \
        for (int i = 0; i < pairs; i++) {                                                                              \
            take;                                                                                                      \
            give;                                                                                                      \
        }                                                                                                              \
        return (now() - begin) / pairs;                                                                                \
    }
TURN(turn_mutex, pthread_mutex_lock(&mutex), pthread_mutex_unlock(&mutex))
TURN(turn_recursive, pthread_mutex_lock(&recursive), pthread_mutex_unlock(&recursive))
TURN(turn_reader, pthread_rwlock_rdlock(&rwlock), pthread_rwlock_unlock(&rwlock))
TURN(turn_writer, pthread_rwlock_wrlock(&rwlock), pthread_rwlock_unlock(&rwlock))
TURN(turn_semaphore, sem_wait(&semaphore), sem_post(&semaphore))

static void *idle(void *argument) { return argument; }

int main(int argc, char **argv) {
    const char *kind = argc > 1 ? argv[1] : "mutex";
    int turns = argc > 2 ? atoi(argv[2]) : 25;
    pairs = argc > 3 ? atoi(argv[3]) : pairs;
    double (*turn)(void) = !strcmp(kind, "mutex")     ? turn_mutex
                           : !strcmp(kind, "reader")    ? turn_reader
                           : !strcmp(kind, "writer")    ? turn_writer
                           : !strcmp(kind, "recursive") ? turn_recursive
                                                        : turn_semaphore;
    sem_init(&semaphore, 0, 1);
    // A program with threads: glibc is faster without.
    pthread_t other;
    pthread_create(&other, NULL, idle, NULL);
    pthread_join(other, NULL);
    double least = 1e18;
    for (int i = 0; i < turns; i++) {
        double took = turn();
        least = took < least ? took : least;
    }
    printf("%.2f\n", least);
    return 0;
}
