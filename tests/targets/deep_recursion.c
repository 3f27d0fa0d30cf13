/* Recursion far beyond any limit on frames: ten, then five thousand, then a hundred thousand frames; or of a given depth.
 * usage: deep_recursion [DEPTH] */
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

BURN(deep_leaf)

__attribute__((noinline)) static int descend(int n, unsigned ms)
{
	volatile int here = n;
	if (n == 0) {
		deep_leaf(ms);
		return 0;
	}
	return descend(n - 1, ms) + (here == n);
}

static void *body(void *p)
{
	*(int *)p = descend(100000, 300);
	return p;
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		printf("depth %d\n", descend(atoi(argv[1]), 300));
		return 38;
	}
	int shallow = descend(10, 100), deep = descend(5000, 300), deepest = 0;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 20);
	pthread_t thread;
	pthread_create(&thread, &attr, body, &deepest);
	pthread_join(thread, 0);
	printf("depths %d %d %d\n", shallow, deep, deepest);
	return 38;
}
