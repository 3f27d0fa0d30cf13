/* Computes in user mode, hardly ever twice at the same place: where a timer and an event of the kernel expire at once, the stack of
   the next event does not fit. */
#include "burn.h"
#include <stdio.h>
#include <stdlib.h>

static volatile unsigned turns;

__attribute__((noinline)) static unsigned descend(unsigned depth)
{
	turns++;
	return depth ? descend(depth - 1) + 1 : turns & 1;
}

int main(int argc, char **argv)
{
	uint64_t until = thread_cpu_ns() + (argc > 1 ? atoi(argv[1]) : 2000) * 1000000ull;
	unsigned sum = 0;
	while (thread_cpu_ns() < until)
		for (int i = 0; i < 10000; i++)
			sum += descend(i % 400);
	printf("descended %d\n", sum > 0);
	return 0;
}
