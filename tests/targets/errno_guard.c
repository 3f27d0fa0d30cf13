/* errno belongs to the program: no sample may change it. Two threads watch it for half a second of CPU each. */
#include "burn.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>

static long watch_errno(uint64_t ms)
{
	long changed = 0;
	uint64_t until = thread_cpu_ns() + ms * 1000000;
	do {
		for (int value = 1; value < 200; value++) {
			errno = value;
			for (volatile int i = 0; i < 100; i++)
				;
			changed += errno != value;
		}
	} while (thread_cpu_ns() < until);
	return changed;
}

static void *watch(void *p)
{
	*(long *)p = watch_errno(500);
	return p;
}

int main(void)
{
	long here, there;
	pthread_t thread;
	pthread_create(&thread, 0, watch, &there);
	here = watch_errno(500);
	pthread_join(thread, 0);
	printf("errno changed %ld %ld\n", here, there);
	return 36;
}
