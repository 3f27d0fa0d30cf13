/* Hazard: an agent is injected at an arbitrary moment. Each mode is busy with one kind of work for ARGV[2] milliseconds,
   or until SIGUSR2, checks its results, and reports at the end: a lock taken twice hangs it; a changed register, signal mask or piece of
   heap is noticed, and so is a system call that ends early. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;
static volatile double deadline;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static int more(void) { return now() < deadline; }
static void stop(int signal) { (void)signal, deadline = 0; }

static void check(int good, const char *what) {
  if (good) return;
  printf("damaged: %s (errno %d)\n", what, errno);
  fflush(stdout);
  _exit(1);
}

/* Blocks of all sizes, each filled with its own number. */
__attribute__((noinline)) static void *heap_work(void *seed) {
  unsigned random = (unsigned)(size_t)seed * 2654435761u + 1;
  unsigned char *blocks[256] = {0};
  size_t sizes[256] = {0};
  while (more())
    for (int i = 0; i < 1000; i++) {
      random = random * 1664525 + 1013904223;
      int k = random >> 24;
      for (size_t b = 0; b < sizes[k]; b++) check(blocks[k][b] == k, "heap");
      free(blocks[k]);
      sizes[k] = (random >> 8) % (i % 50 ? 300 : 200000);
      blocks[k] = malloc(sizes[k] + 1);
      memset(blocks[k], k, sizes[k]);
    }
  return NULL;
}

static void with_threads(void *(*work)(void *), int count) {
  pthread_t threads[8];
  for (int i = 0; i < count; i++) check(!pthread_create(&threads[i], NULL, work, (void *)(size_t)(i + 1)), "thread");
  for (int i = 0; i < count; i++) check(!pthread_join(threads[i], NULL), "join");
}

static const char *library;
static void *loader_work(void *unused) {
  (void)unused;
  while (more()) {
    void *handle = dlopen(library, RTLD_NOW);
    check(handle != NULL, "dlopen");
    check(dlsym(handle, "plugin_run") != NULL, "dlsym");
    check(dlclose(handle) == 0, "dlclose");
  }
  return NULL;
}

static void fork_work(void) {
  while (more()) {
    pid_t child = fork();
    if (child == 0) {
      free(malloc(1000));
      _exit(7);
    }
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7, "fork");
  }
}

static void spawn_work(void) {
  char *arguments[] = {"true", NULL};
  while (more()) {
    pid_t child;
    int status;
    check(!posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ), "spawn");
    check(waitpid(child, &status, 0) == child && status == 0, "spawned");
  }
}

/* Uses every vector register that the compiler has, and compares with the same sum computed before. */
__attribute__((noinline)) static double vector_sum(const double *values, int count) {
  double sums[8] = {0};
  for (int i = 0; i < count; i += 8)
    for (int k = 0; k < 8; k++) sums[k] += values[i + k] * 1.0000001 + sums[(k + 1) % 8] * 1e-9;
  double total = 0;
  for (int k = 0; k < 8; k++) total += sums[k];
  return total;
}

static void vector_work(void) {
  static double values[4096];
  for (int i = 0; i < 4096; i++) values[i] = i * 0.001 + 1;
  double expected = vector_sum(values, 4096);
  while (more())
    for (int i = 0; i < 200; i++) check(vector_sum(values, 4096) == expected, "floating point");
}

static volatile sig_atomic_t alarms;
static void on_alarm(int signal) {
  (void)signal;
  int saved = errno;
  alarms = alarms + 1;
  errno = saved;
}

static void signal_work(void) {
  struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &action, NULL);
  struct itimerval often = {{0, 500}, {0, 500}};
  setitimer(ITIMER_REAL, &often, NULL);
  vector_work();
  memset(&often, 0, sizeof often);
  setitimer(ITIMER_REAL, &often, NULL);
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  for (int i = 1; i < 32; i++) check(sigismember(&mask, i) == 0, "signal mask");
  check(alarms > 0, "alarms");
}

/* Each wait must last as long as it should and end as it should. */
static void *waiting_work(void *kind) {
  while (more()) {
    double begin = now(), wanted = 0.03;
    struct timespec wait = {0, 30000000}, until;
    struct pollfd nothing = {-1, 0, 0};
    struct epoll_event event;
    sigset_t usr1, none;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    int pair[2], epoll = epoll_create1(0);
    check(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
    struct timeval patience = {0, 60000};
    setsockopt(pair[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 30000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    char byte;
    errno = 0;
    switch ((size_t)kind) {
      case 1: check(nanosleep(&wait, NULL) == 0, "nanosleep"); break;
      case 2: check(poll(&nothing, 1, 30) == 0, "poll"); break;
      case 3: check(epoll_wait(epoll, &event, 1, 30) == 0, "epoll_wait"); break;
      case 4: check(sem_timedwait(&semaphore, &until) == -1 && errno == ETIMEDOUT, "sem_timedwait"); break;
      case 5: check(recv(pair[0], &byte, 1, 0) == -1 && errno == EAGAIN, "recv"); break;
      case 6: check(sigtimedwait(&usr1, NULL, &wait) == -1 && errno == EAGAIN, "sigtimedwait"); break;
      case 7: check(ppoll(&nothing, 1, &wait, &none) == 0, "ppoll"); break;
    }
    /* sem_timedwait uses another clock. A socket's timeout counts ticks: a virtual machine on a busy host catches up on several
       at once; the kernel waits for five of four milliseconds. */
    double took = now() - begin, least = (size_t)kind == 5 ? 0.03 : wanted * 0.9;
    char early[80];
    snprintf(early, sizeof early, "wait %zu ended after %.1f ms", (size_t)kind, took * 1e3);
    check(took > least, early);
    close(pair[0]);
    close(pair[1]);
    close(epoll);
  }
  return NULL;
}

int main(int argc, char **argv) {
  const char *mode = argv[1];
  if (argc > 3) library = argv[3];
  printf("ready\n");
  fflush(stdout);
  deadline = now() + atoi(argv[2]) / 1000.0;
  signal(SIGUSR2, stop);
  if (!strcmp(mode, "heap")) with_threads(heap_work, 3);
  if (!strcmp(mode, "loader")) with_threads(loader_work, 2);
  if (!strcmp(mode, "fork")) fork_work();
  if (!strcmp(mode, "spawn")) spawn_work();
  if (!strcmp(mode, "vectors")) vector_work();
  if (!strcmp(mode, "signals")) signal_work();
  if (!strcmp(mode, "waiting")) with_threads(waiting_work, 7);
  printf("ok\n");
  return 0;
}
