/* Hazard: a process with very many threads must not be stopped while it is examined. `pause N MODE` has N threads that wait
 * (`idle`) or compute (`busy`), and one that reads the clock all the time. For each input line it prints for how many
 * microseconds that thread was stopped since the previous line: neither running nor runnable. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int over, asked, answered;
static long still;
static pthread_barrier_t all_there;

static long now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000l + t.tv_nsec / 1000;
}

/* Time that the calling thread was not stopped: on a CPU, or runnable. Called by the thread itself, because the kernel
 * updates the time that it was runnable when it runs. */
static long moving_us(void)
{
	long running = 0, ready = 0;
	FILE *file = fopen("/proc/thread-self/schedstat", "r");
	if (!file || fscanf(file, "%ld %ld", &running, &ready) != 2)
		exit(3);
	fclose(file);
	return (running + ready) / 1000;
}

static void *look(void *p)
{
	long before = 0;
	while (!over) {
		now_us();
		if (asked == answered)
			continue;
		long so_far = now_us() - moving_us();
		still = so_far - before;
		before = so_far;
		answered++;
	}
	return p;
}

static long still_us(void)
{
	asked++;
	while (answered != asked)
		usleep(200);
	return still;
}

static volatile unsigned long work;

static void *wait_or_compute(void *busy)
{
	pthread_barrier_wait(&all_there);
	while (busy && !over)
		work = work * 31 + 7;
	pthread_barrier_wait(&all_there);
	return busy;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	int busy = argc > 2 && !strcmp(argv[2], "busy");
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	pthread_barrier_init(&all_there, 0, count + 1);
	pthread_t looker, thread;
	for (int i = 0; i < count; i++)
		if (pthread_create(&thread, &attributes, wait_or_compute, busy ? (void *)&work : 0)) {
			puts("too many threads for this system");
			return 77;
		}
	pthread_barrier_wait(&all_there);
	pthread_create(&looker, 0, look, 0);
	still_us();
	puts("ready");
	fflush(stdout);
	char line[16];
	while (fgets(line, sizeof line, stdin)) {
		printf("%ld\n", still_us());
		fflush(stdout);
	}
	over = 1;
	pthread_barrier_wait(&all_there);
	pthread_join(looker, 0);
	puts("ok");
	return 0;
}
