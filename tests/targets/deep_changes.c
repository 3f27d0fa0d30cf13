/* Deep stacks that share hardly a frame from one sample to the next: the most expensive kind. */
#include "burn.h"
#include <stdio.h>
#include <stdlib.h>

static volatile unsigned turns;

static int left(int n, unsigned path);

__attribute__((noinline)) static int right(int n, unsigned path)
{
	turns++;
	if (n == 0)
		return 1;
	return (path & 1 ? left(n - 1, path >> 1 | path << 31) : right(n - 1, path >> 1 | path << 31)) + 1;
}

__attribute__((noinline)) static int left(int n, unsigned path)
{
	turns += 3;
	if (n == 0)
		return 2;
	return (path & 1 ? right(n - 1, path >> 1 | path << 31) : left(n - 1, path >> 1 | path << 31)) + 2;
}

int main(int argc, char **argv)
{
	uint64_t until = thread_cpu_ns() + (argc > 1 ? atoi(argv[1]) : 1500) * 1000000ull;
	unsigned path = 1;
	long sum = 0;
	while (thread_cpu_ns() < until) {
		path = path * 1664525 + 1013904223;
		sum += left(450, path) > 0;
	}
	printf("deep %d\n", sum > 0);
	return 0;
}
