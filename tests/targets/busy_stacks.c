/* Busy threads with stacks of a given depth, whose innermost frames change all the time: the worst case for a sampler's
 * buffers. Arguments: depth, threads, milliseconds of CPU time per thread, and `clock` to print the process's CPU time in
 * nanoseconds at the end; threads then differ by up to a half. */
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { CHANGING = 10 };

static unsigned depth = 60;
static uint64_t duration_ns = 1000000000;
static __thread uint64_t own_ns;
static __thread volatile unsigned turns;

static int odd(unsigned left, unsigned path);

__attribute__((noinline)) static int even(unsigned left, unsigned path)
{
	if (left == 0) {
		for (int i = 0; i < 300; i++)
			turns += path;
		return 1;
	}
	return (path & 1 ? odd(left - 1, path >> 1) : even(left - 1, path >> 1)) + 1;
}

__attribute__((noinline)) static int odd(unsigned left, unsigned path)
{
	if (left == 0) {
		for (int i = 0; i < 300; i++)
			turns += 3 * path;
		return 2;
	}
	return (path & 1 ? even(left - 1, path >> 1) : odd(left - 1, path >> 1)) + 2;
}

__attribute__((noinline)) static long descend(unsigned left)
{
	if (left > 0)
		return descend(left - 1) + 1;
	uint64_t until = thread_cpu_ns() + own_ns;
	unsigned path = 1;
	long sum = 0;
	do {
		for (int i = 0; i < 100; i++) {
			path = path * 1664525 + 1013904223;
			sum += even(CHANGING, path >> 8);
		}
	} while (thread_cpu_ns() < until);
	return sum;
}

static void *body(void *argument)
{
	own_ns = duration_ns + (uintptr_t)argument;
	descend(depth > CHANGING ? depth - CHANGING : 0);
	return argument;
}

int main(int argc, char **argv)
{
	static pthread_t threads[1024];
	depth = argc > 1 ? atoi(argv[1]) : depth;
	int count = argc > 2 ? atoi(argv[2]) : 1;
	duration_ns = (argc > 3 ? atoll(argv[3]) : 1000) * 1000000;
	for (int i = 1; i < count; i++)
		if (pthread_create(&threads[i], 0, body, (void *)(argc > 4 ? duration_ns / 2 / count * i : 0)))
			return 1;
	body(0);
	for (int i = 1; i < count; i++)
		pthread_join(threads[i], 0);
	printf("busy %u %d\n", depth, count);
	if (argc > 4) {
		struct timespec used;
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
		printf("clock %lld\n", used.tv_sec * 1000000000LL + used.tv_nsec);
	}
	return 0;
}
