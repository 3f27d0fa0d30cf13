/* Sleeps often, on a CPU that another of its threads keeps busy: after each wake-up it has to wait for its turn. Goes on until it
 * has waited long enough to compare, which takes the longer the less else runs. Prints the microseconds during which the
 * sleeping thread was runnable without a CPU, according to the kernel.
 * usage: wake_latency ROUNDS, at least so many and at most fifty times that */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

BURN(keeping_busy)
static atomic_int stop;

static void *rival(void *p)
{
	while (!atomic_load(&stop))
		keeping_busy(1);
	return p;
}

static unsigned long long run_delay_ns(void)
{
	unsigned long long ran, waited = 0;
	FILE *f = fopen("/proc/thread-self/schedstat", "r");
	if (f && fscanf(f, "%llu %llu", &ran, &waited) != 2)
		waited = 0;
	if (f)
		fclose(f);
	return waited;
}

__attribute__((noinline)) void often_woken(int rounds)
{
	for (int i = 0; i < rounds; i++) {
		struct timespec t = { 0, 2000000 };
		nanosleep(&t, 0);
	}
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 200;
	cpu_set_t all, one;
	sched_getaffinity(0, sizeof all, &all);
	CPU_ZERO(&one);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all)) {
			CPU_SET(cpu, &one);
			break;
		}
	sched_setaffinity(0, sizeof one, &one);
	pthread_t t;
	pthread_create(&t, 0, rival, 0);
	unsigned long long before = run_delay_ns();
	for (int turn = 0; turn < 50 && run_delay_ns() - before < 10000000; turn++)
		often_woken(rounds);
	printf("%llu\n", (run_delay_ns() - before) / 1000);
	atomic_store(&stop, 1);
	pthread_join(t, 0);
	return 0;
}
