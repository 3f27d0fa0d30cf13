// The guarantees of lock functions in corner cases: prints the results, which must be the same with the agent.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SAY(what) printf("%s: %d\n", #what, (int)(what))
// A result of -1 with its errno.
#define SAY_ERRNO(what) (errno = 0, said = (int)(what), printf("%s: %d %d\n", #what, said, errno))

static int said;

static void pause_ms(long ms) { nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL); }
static struct timespec in_ms(clockid_t clock, long ms) {
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ms * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    if (t.tv_nsec < 0) {
        t.tv_nsec += 1000000000;
        t.tv_sec--;
    }
    return t;
}

static pthread_mutex_t made(int kind, int protocol, int robust) {
    pthread_mutexattr_t attributes;
    pthread_mutex_t mutex;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, kind);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    pthread_mutexattr_setrobust(&attributes, robust);
    pthread_mutex_init(&mutex, &attributes);
    return mutex;
}

// In a constructor, before main.
static pthread_mutex_t early = PTHREAD_MUTEX_INITIALIZER;
static int early_result = -1;
static void *try_early(void *argument) {
    (void)argument;
    return (void *)(long)pthread_mutex_lock(&early);
}
__attribute__((constructor)) static void begin(void) {
    pthread_t other;
    void *result = NULL;
    pthread_mutex_lock(&early);
    pthread_create(&other, NULL, try_early, NULL);
    pause_ms(2);
    pthread_mutex_unlock(&early);
    pthread_join(other, &result);
    early_result = (int)(long)result;
}

static pthread_mutex_t shared;
static void *die_holding(void *argument) {
    pthread_mutex_lock(argument);
    return NULL;
}
static void *lock_it(void *argument) { return (void *)(long)pthread_mutex_lock(argument); }
static long from_thread(void *(*run)(void *), void *argument) {
    pthread_t other;
    void *result;
    pthread_create(&other, NULL, run, argument);
    pthread_join(other, &result);
    return (long)result;
}

static void kinds_of_mutexes(void) {
    pthread_mutex_t checking = made(PTHREAD_MUTEX_ERRORCHECK, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED);
    SAY(pthread_mutex_lock(&checking));
    SAY(pthread_mutex_lock(&checking));
    SAY(pthread_mutex_trylock(&checking));
    SAY(pthread_mutex_unlock(&checking));
    SAY(pthread_mutex_unlock(&checking));
    pthread_mutex_t recursive = made(PTHREAD_MUTEX_RECURSIVE, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_STALLED);
    SAY(pthread_mutex_lock(&recursive) + pthread_mutex_lock(&recursive) + pthread_mutex_lock(&recursive));
    SAY(pthread_mutex_unlock(&recursive) + pthread_mutex_unlock(&recursive) + pthread_mutex_unlock(&recursive));
    SAY(pthread_mutex_unlock(&recursive));
    pthread_mutex_t inheriting = made(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_INHERIT, PTHREAD_MUTEX_STALLED);
    SAY(pthread_mutex_lock(&inheriting));
    struct timespec soon = in_ms(CLOCK_REALTIME, 5);
    SAY(pthread_mutex_timedlock(&inheriting, &soon));
    SAY(pthread_mutex_unlock(&inheriting));
    shared = made(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);
    from_thread(die_holding, &shared);
    SAY(pthread_mutex_lock(&shared));
    SAY(pthread_mutex_consistent(&shared));
    SAY(pthread_mutex_unlock(&shared));
    from_thread(die_holding, &shared);
    SAY(pthread_mutex_lock(&shared));
    SAY(pthread_mutex_unlock(&shared));
    SAY(pthread_mutex_lock(&shared));
    SAY(from_thread(lock_it, &shared));
    errno = 4711;
    pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&plain);
    pthread_mutex_unlock(&plain);
    SAY(errno);
}

static pthread_mutex_t robust_while_waiting;
static void *die_later(void *argument) {
    pthread_mutex_lock(&robust_while_waiting);
    atomic_store((atomic_int *)argument, 1);
    pause_ms(5);
    return NULL;
}
static void owner_dies_while_waited_for(void) {
    robust_while_waiting = made(PTHREAD_MUTEX_NORMAL, PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);
    atomic_int has_it = 0;
    pthread_t other;
    pthread_create(&other, NULL, die_later, &has_it);
    while (!atomic_load(&has_it))
        pause_ms(1);
    SAY(pthread_mutex_lock(&robust_while_waiting));
    pthread_join(other, NULL);
}

static void limits(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    struct timespec past = in_ms(CLOCK_REALTIME, -1000), soon = in_ms(CLOCK_MONOTONIC, 5), bad = {0, 2000000000};
    SAY(pthread_mutex_timedlock(&mutex, &past));
    SAY(pthread_mutex_timedlock(&mutex, &past));
    SAY(pthread_mutex_timedlock(&mutex, &bad));
    SAY(pthread_mutex_clocklock(&mutex, CLOCK_MONOTONIC, &soon));
    SAY(pthread_mutex_clocklock(&mutex, CLOCK_PROCESS_CPUTIME_ID, &soon));
    SAY(pthread_mutex_unlock(&mutex));
    SAY(pthread_mutex_clocklock(&mutex, CLOCK_PROCESS_CPUTIME_ID, &soon));
    SAY(pthread_mutex_timedlock(&mutex, &bad));
    pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
    SAY(pthread_rwlock_timedrdlock(&rwlock, &bad));
    SAY(pthread_rwlock_timedwrlock(&rwlock, &bad));
    SAY(pthread_rwlock_clockrdlock(&rwlock, CLOCK_PROCESS_CPUTIME_ID, &soon));
    SAY(pthread_rwlock_timedrdlock(&rwlock, &past));
    SAY(pthread_rwlock_rdlock(&rwlock));
    SAY(pthread_rwlock_timedwrlock(&rwlock, &past));
    SAY(pthread_rwlock_unlock(&rwlock));
    SAY(pthread_rwlock_unlock(&rwlock));
    SAY(pthread_rwlock_wrlock(&rwlock));
    SAY(pthread_rwlock_wrlock(&rwlock));
    SAY(pthread_rwlock_rdlock(&rwlock));
    SAY(pthread_rwlock_unlock(&rwlock));
    sem_t semaphore;
    sem_init(&semaphore, 0, 1);
    SAY_ERRNO(sem_timedwait(&semaphore, &bad));
    SAY_ERRNO(sem_timedwait(&semaphore, &past));
    SAY_ERRNO(sem_timedwait(&semaphore, &past));
    SAY_ERRNO(sem_timedwait(&semaphore, &bad));
    mtx_t c11;
    SAY(mtx_init(&c11, mtx_timed | mtx_recursive));
    SAY(mtx_lock(&c11) + mtx_timedlock(&c11, &past) + mtx_unlock(&c11) + mtx_unlock(&c11));
}

static void conditions(void) {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_condattr_t attributes;
    pthread_cond_t cond;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&cond, &attributes);
    pthread_mutex_lock(&mutex);
    struct timespec soon = in_ms(CLOCK_MONOTONIC, 20), begun = in_ms(CLOCK_MONOTONIC, 0);
    SAY(pthread_cond_timedwait(&cond, &mutex, &soon));
    struct timespec ended = in_ms(CLOCK_MONOTONIC, 0);
    long ns = (ended.tv_sec - begun.tv_sec) * 1000000000l + ended.tv_nsec - begun.tv_nsec;
    printf("waited by the right clock: %d\n", ns >= 19000000 && ns < 5000000000l);
    soon = in_ms(CLOCK_REALTIME, 5);
    SAY(pthread_cond_clockwait(&cond, &mutex, CLOCK_REALTIME, &soon));
    pthread_mutex_unlock(&mutex);
}

// Cancellation.
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static sem_t empty, full;
static atomic_int cleaned, waiting;
static void clean(void *argument) {
    atomic_fetch_add(&cleaned, 1);
    if (argument)
        pthread_mutex_unlock(argument);
}
static void *wait_condition(void *argument) {
    (void)argument;
    pthread_mutex_lock(&held);
    pthread_cleanup_push(clean, &held);
    atomic_store(&waiting, 1);
    for (;;)
        pthread_cond_wait(&never, &held);
    pthread_cleanup_pop(0);
    return NULL;
}
static void *wait_semaphore(void *argument) {
    (void)argument;
    pthread_cleanup_push(clean, NULL);
    atomic_store(&waiting, 1);
    sem_wait(&empty);
    pthread_cleanup_pop(0);
    return NULL;
}
// A semaphore is a cancellation point even if it is available.
static void *pass_semaphore(void *argument) {
    (void)argument;
    pthread_cleanup_push(clean, NULL);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    atomic_store(&waiting, 1);
    pause_ms(20);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    sem_wait(&full);
    pthread_cleanup_pop(0);
    return NULL;
}
// A mutex is not.
static void *pass_mutex(void *argument) {
    (void)argument;
    pthread_cleanup_push(clean, NULL);
    atomic_store(&waiting, 1);
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cleanup_pop(0);
    return (void *)1;
}
static void cancelled(void *(*run)(void *), int holds) {
    pthread_t other;
    void *result;
    atomic_store(&cleaned, 0);
    atomic_store(&waiting, 0);
    if (holds)
        pthread_mutex_lock(&held);
    pthread_create(&other, NULL, run, NULL);
    while (!atomic_load(&waiting))
        pause_ms(1);
    pause_ms(5);
    pthread_cancel(other);
    if (holds) {
        pause_ms(5);
        pthread_mutex_unlock(&held);
    }
    pthread_join(other, &result);
    printf("cancelled: %d, cleaned %d, free %d\n", result == PTHREAD_CANCELED, cleaned, pthread_mutex_trylock(&held));
    pthread_mutex_unlock(&held);
}

// Signals.
static sigjmp_buf away;
static sem_t posted, nobody_posts;
static void handle(int signal) {
    (void)signal;
    sem_post(&posted);
}
static void leave(int signal) {
    (void)signal;
    siglongjmp(away, 1);
}
static void on_stack(int signal) {
    (void)signal;
    static pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&own);
    sem_post(&posted);
    pthread_mutex_unlock(&own);
}
static pthread_t main_thread;
static void *send_signal(void *argument) {
    pause_ms(10);
    pthread_kill(main_thread, (int)(long)argument);
    return NULL;
}
static void signals(void) {
    main_thread = pthread_self();
    sem_init(&posted, 0, 0);
    sem_init(&nobody_posts, 0, 0);
    pthread_t other;
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&other, NULL, send_signal, (void *)SIGUSR1);
    SAY_ERRNO(sem_wait(&nobody_posts));
    pthread_join(other, NULL);
    action.sa_handler = leave;
    sigaction(SIGUSR2, &action, NULL);
    for (int i = 0; i < 3; i++) {
        pthread_create(&other, NULL, send_signal, (void *)SIGUSR2);
        if (sigsetjmp(away, 1) == 0)
            sem_wait(&nobody_posts);
        pthread_join(other, NULL);
    }
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, NULL);
    action.sa_handler = on_stack;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    pthread_create(&other, NULL, send_signal, (void *)SIGUSR1);
    SAY_ERRNO(sem_wait(&nobody_posts));
    pthread_join(other, NULL);
    int value;
    sem_getvalue(&posted, &value);
    SAY(value);
}

// A fork while locks are held and waited for.
static void *wait_through(void *argument) {
    (void)argument;
    pthread_mutex_lock(&held);
    pthread_mutex_unlock(&held);
    return NULL;
}
static void forks(void) {
    pthread_t other;
    pthread_mutex_lock(&held);
    pthread_create(&other, NULL, wait_through, NULL);
    pause_ms(5);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        // The child owns the lock; nobody waits for it here.
        pthread_mutex_unlock(&held);
        pthread_mutex_lock(&held);
        pthread_mutex_unlock(&held);
        pthread_mutex_lock(&early);
        pthread_t own;
        pthread_create(&own, NULL, try_early, NULL);
        pause_ms(5);
        pthread_mutex_unlock(&early);
        pthread_join(own, NULL);
        exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    pthread_mutex_unlock(&held);
    pthread_join(other, NULL);
    SAY(WEXITSTATUS(status));
}

int main(void) {
    SAY(early_result);
    pthread_mutex_unlock(&early);
    kinds_of_mutexes();
    owner_dies_while_waited_for();
    limits();
    conditions();
    sem_init(&empty, 0, 0);
    sem_init(&full, 0, 1);
    cancelled(wait_condition, 0);
    cancelled(wait_semaphore, 0);
    cancelled(pass_semaphore, 0);
    cancelled(pass_mutex, 1);
    signals();
    forks();
    return 0;
}
