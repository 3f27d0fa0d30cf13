// Does nothing but allocate and free, in its main thread or in another one. Ends with status 3 if its handler of SIGTRAP has been
// reset.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_trap(int signal) { (void)signal; }

static void *allocate(void *unused) {
  for (;;) {
    for (int i = 0; i < 100000; i++) {
      void *volatile block = malloc(64);
      free(block);
    }
    struct sigaction now;
    if (sigaction(SIGTRAP, NULL, &now) || now.sa_handler != on_trap) _exit(3);
  }
  return unused;
}

int main(int argc, char **argv) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_trap;
  if (sigaction(SIGTRAP, &action, NULL)) return 2;
  alarm(120);
  pthread_t thread;
  if (argc > 1 && !strcmp(argv[1], "thread") && !pthread_create(&thread, NULL, allocate, NULL)) pthread_join(thread, NULL);
  allocate(NULL);
}
