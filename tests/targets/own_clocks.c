/* Three threads that use N, 2N and 3N milliseconds of CPU time, and print their own clocks at their ends:
 * `clock TID NANOSECONDS`, to be compared with what a profiler counted. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

BURN(clock_first)
BURN(clock_second)
BURN(clock_third)

static int unit;

static void tell(void)
{
	struct timespec used;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	printf("clock %d %lld\n", gettid(), used.tv_sec * 1000000000LL + used.tv_nsec);
}

static void *second(void *p)
{
	clock_second(2 * unit);
	tell();
	return p;
}

static void *third(void *p)
{
	clock_third(3 * unit);
	tell();
	return p;
}

int main(int argc, char **argv)
{
	pthread_t a, b;
	unit = argc > 1 ? atoi(argv[1]) : 100;
	pthread_create(&a, 0, second, 0);
	pthread_create(&b, 0, third, 0);
	clock_first(unit);
	pthread_join(a, 0);
	pthread_join(b, 0);
	tell();
	return 0;
}
