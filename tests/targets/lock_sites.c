// Known waits: each kind of lock has a function that waits and one that keeps it waiting in another thread. Prints for each
// wait its kind, start and duration by the waiting thread's own clock, for how much of that the thread was runnable and had
// no processor (by the kernel; all in ns), and whether it blocked.
// usage: lock_sites ROUNDS
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

// From linux/futex.h, which musl's compiler does not find.
#define WAIT_AT 128
#define WAKE 129
#define KEEP __attribute__((noinline, noclone))

static unsigned long rounds;
// The round that the other side may begin, or has reached.
static atomic_ulong ready, begun, done;

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t recursive, around = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static sem_t semaphore;
static mtx_t c11;
static atomic_uint word;
static int flag;

static unsigned long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ul + t.tv_nsec;
}

static int schedstat;

static unsigned long unscheduled(void) {
    char text[64] = "";
    unsigned long ran, ready;
    if (pread(schedstat, text, sizeof text - 1, 0) < 0 || sscanf(text, "%lu %lu", &ran, &ready) != 2)
        abort();
    return ready;
}

static long blocked(void) {
    struct rusage use;
    getrusage(RUSAGE_THREAD, &use);
    return use.ru_nvcsw;
}

static void pause_ns(long ns) { nanosleep(&(struct timespec){0, ns}, NULL); }

static void until(atomic_ulong *what, unsigned long value) {
    while (atomic_load(what) < value)
        pause_ns(50000);
}

static struct timespec later(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += 60;
    return t;
}

#define WAIT(name, statement)                                                                                          \
    KEEP static void wait_##name(void) {                                                                               \
        statement;                                                                                                     \
        __asm__ volatile("" ::: "memory");                                                                             \
    }
// Takes the lock, and releases it some time after the other side has begun to wait.
#define HOLD(name, take, give)                                                                                         \
    KEEP static void hold_##name(unsigned long round, long ns) {                                                       \
        take;                                                                                                          \
        atomic_store(&ready, round);                                                                                   \
        until(&begun, round);                                                                                          \
        pause_ns(ns);                                                                                                  \
        give;                                                                                                          \
        __asm__ volatile("" ::: "memory");                                                                             \
    }

WAIT(first, pthread_mutex_lock(&first))
HOLD(first, pthread_mutex_lock(&first), pthread_mutex_unlock(&first))
WAIT(second, pthread_mutex_lock(&second))
HOLD(second, pthread_mutex_lock(&second), pthread_mutex_unlock(&second))
WAIT(recursive, pthread_mutex_lock(&recursive))
HOLD(recursive, pthread_mutex_lock(&recursive), pthread_mutex_unlock(&recursive))
WAIT(timed, struct timespec t = later(CLOCK_REALTIME); pthread_mutex_timedlock(&first, &t))
HOLD(timed, pthread_mutex_lock(&first), pthread_mutex_unlock(&first))
#ifdef NO_CLOCKLOCK
#define pthread_mutex_clocklock(mutex, clock, limit) pthread_mutex_lock(mutex)
#endif
WAIT(clocked, struct timespec t = later(CLOCK_MONOTONIC); pthread_mutex_clocklock(&first, CLOCK_MONOTONIC, &t))
HOLD(clocked, pthread_mutex_lock(&first), pthread_mutex_unlock(&first))
WAIT(reader, pthread_rwlock_rdlock(&rwlock))
HOLD(reader, pthread_rwlock_wrlock(&rwlock), pthread_rwlock_unlock(&rwlock))
WAIT(writer, pthread_rwlock_wrlock(&rwlock))
HOLD(writer, pthread_rwlock_rdlock(&rwlock), pthread_rwlock_unlock(&rwlock))
WAIT(late_writer, struct timespec t = later(CLOCK_REALTIME); pthread_rwlock_timedwrlock(&rwlock, &t))
HOLD(late_writer, pthread_rwlock_wrlock(&rwlock), pthread_rwlock_unlock(&rwlock))
WAIT(c11, mtx_lock(&c11))
HOLD(c11, mtx_lock(&c11), mtx_unlock(&c11))
WAIT(semaphore, sem_wait(&semaphore))
HOLD(semaphore, , sem_post(&semaphore))
WAIT(barrier, pthread_barrier_wait(&barrier))
HOLD(barrier, , pthread_barrier_wait(&barrier))
WAIT(cond, while (!flag) pthread_cond_wait(&cond, &around); flag = 0)
HOLD(cond, , pthread_mutex_lock(&around); flag = 1; pthread_mutex_unlock(&around); pthread_cond_signal(&cond))
WAIT(futex, while (!atomic_load(&word)) syscall(SYS_futex, &word, WAIT_AT, 0, NULL, NULL, 0))
HOLD(futex, , atomic_store(&word, 1); syscall(SYS_futex, &word, WAKE, 1, NULL, NULL, 0))

// What precedes and follows a wait.
static void nothing(void) {}
static void give_first(void) { pthread_mutex_unlock(&first); }
static void give_second(void) { pthread_mutex_unlock(&second); }
static void give_recursive(void) { pthread_mutex_unlock(&recursive); }
static void give_rwlock(void) { pthread_rwlock_unlock(&rwlock); }
static void give_c11(void) { mtx_unlock(&c11); }
static void take_around(void) { pthread_mutex_lock(&around); }
static void give_around(void) { pthread_mutex_unlock(&around); }
static void clear(void) { atomic_store(&word, 0); }

static const struct kind {
    const char *name;
    void (*before)(void), (*wait)(void), (*after)(void);
    void (*hold)(unsigned long, long);
} kinds[] = {
    {"first", nothing, wait_first, give_first, hold_first},
    {"second", nothing, wait_second, give_second, hold_second},
    {"recursive", nothing, wait_recursive, give_recursive, hold_recursive},
    {"timed", nothing, wait_timed, give_first, hold_timed},
    {"clocked", nothing, wait_clocked, give_first, hold_clocked},
    {"reader", nothing, wait_reader, give_rwlock, hold_reader},
    {"writer", nothing, wait_writer, give_rwlock, hold_writer},
    {"late_writer", nothing, wait_late_writer, give_rwlock, hold_late_writer},
    {"c11", nothing, wait_c11, give_c11, hold_c11},
    {"semaphore", nothing, wait_semaphore, nothing, hold_semaphore},
    {"barrier", nothing, wait_barrier, nothing, hold_barrier},
    {"cond", take_around, wait_cond, give_around, hold_cond},
    {"futex", nothing, wait_futex, clear, hold_futex},
};
#define KINDS (sizeof kinds / sizeof kinds[0])

static void *holder(void *argument) {
    (void)argument;
    unsigned long round = 0;
    for (unsigned long i = 0; i < rounds; i++)
        for (unsigned long kind = 0; kind < KINDS; kind++) {
            round++;
            // Each kind has durations of its own.
            kinds[kind].hold(round, 1000000 + 100000 * (long)kind);
            until(&done, round);
        }
    return NULL;
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 3;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attributes);
    sem_init(&semaphore, 0, 0);
    mtx_init(&c11, mtx_plain);
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_t other;
    pthread_create(&other, NULL, holder, NULL);
    struct wait {
        const char *kind;
        unsigned long start, took, unscheduled;
        int blocked;
    } *waits = calloc(rounds * KINDS, sizeof *waits);
    unsigned long round = 0;
    schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    for (unsigned long i = 0; i < rounds; i++)
        for (unsigned long kind = 0; kind < KINDS; kind++) {
            struct wait *wait = &waits[round++];
            until(&ready, round);
            kinds[kind].before();
            atomic_store(&begun, round);
            long times = blocked();
            unsigned long before = unscheduled(), start = now();
            kinds[kind].wait();
            unsigned long took = now() - start;
            // A thread that is interrupted before it waits may find the lock free.
            *wait = (struct wait){kinds[kind].name, start, took, unscheduled() - before, blocked() != times};
            kinds[kind].after();
            atomic_store(&done, round);
        }
    pthread_join(other, NULL);
    for (struct wait *wait = waits; wait < waits + round; wait++)
        printf("%s %lu %lu %lu %d\n", wait->kind, wait->start, wait->took, wait->unscheduled, wait->blocked);
    return 0;
}
