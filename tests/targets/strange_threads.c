/* Hazard: threads created without pthread_create, while the main thread only waits. `strange_threads c11` has four C11
 * threads; `notify` computes in a timer's notification; `clone` in a thread made by a bare clone. Each thread works for
 * that many milliseconds of CPU time. */
#define _GNU_SOURCE
#include "burn.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <threads.h>
#include <unistd.h>

BURN(strange_work)

static int milliseconds = 1000;
static volatile int done;

static int worker(void *p)
{
	(void)p;
	strange_work(milliseconds);
	return 7;
}

static void notified(union sigval v)
{
	(void)v;
	strange_work(milliseconds);
	done = 1;
}

/* Waits in a system call that any signal handler would end early. */
static int wait_until_done(void)
{
	struct timespec moment = {0, 20000000};
	int interrupted = 0;
	while (!done)
		interrupted += nanosleep(&moment, 0) != 0;
	return interrupted;
}

static int cloned(void *p)
{
	worker(p);
	done = 1;
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "c11";
	int interrupted = 0;
	if (argc > 2)
		milliseconds = atoi(argv[2]);
	if (!strcmp(mode, "c11")) {
		thrd_t threads[4];
		for (int i = 0; i < 4; i++)
			if (thrd_create(&threads[i], worker, 0) != thrd_success)
				return 1;
		for (int i = 0, result; i < 4; i++)
			if (thrd_join(threads[i], &result) != thrd_success || result != 7)
				return 2;
	} else if (!strcmp(mode, "notify")) {
		struct sigevent event = {0};
		struct itimerspec once = {{0, 0}, {0, 1000000}};
		timer_t timer;
		event.sigev_notify = SIGEV_THREAD;
		event.sigev_notify_function = notified;
		if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &once, 0))
			return 3;
		interrupted = wait_until_done();
	} else {
		size_t size = 256 << 10;
		char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
		if (clone(cloned, stack + size, flags, 0) < 0)
			return 4;
		interrupted = wait_until_done();
	}
	printf("done, %d interrupted\n", interrupted);
	return 0;
}
