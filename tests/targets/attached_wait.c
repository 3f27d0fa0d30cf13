/* Hazard: an agent is injected while threads wait. A timer on a thread's CPU time must then leave it time to resume its
   wait: an earlier tick would end the wait with EINTR. Four threads wait; once there are timers, their times to the first
   expiry are printed, in microseconds. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WAITING = 4, TIMERS = 64 };

static sem_t over;

static void *wait_for_it(void *unused) {
  while (sem_wait(&over)) continue;
  return unused;
}

int main(void) {
  pthread_t threads[WAITING];
  struct timespec moment = {0, 20000000};
  struct itimerspec left;
  sem_init(&over, 0, 0);
  for (int i = 0; i < WAITING; i++) pthread_create(&threads[i], NULL, wait_for_it, NULL);
  nanosleep(&moment, NULL);
  printf("ready\n");
  fflush(stdout);
  for (int look = 0, found = 0; look < 1500 && !found; look++) {
    nanosleep(&moment, NULL);
    for (int id = 0; id < TIMERS; id++) {
      if (syscall(SYS_timer_gettime, id, &left)) continue;
      printf("%ld ", left.it_value.tv_sec * 1000000 + left.it_value.tv_nsec / 1000);
      found = 1;
    }
  }
  // The attach may not be finished yet.
  moment.tv_nsec = 500000000;
  nanosleep(&moment, NULL);
  for (int i = 0; i < WAITING; i++) sem_post(&over);
  for (int i = 0; i < WAITING; i++) pthread_join(threads[i], NULL);
  printf("ok\n");
  return 0;
}
