/* Split stacks (gcc -fsplit-stack): a function may run on a new segment of stack, allocated when the previous one was full,
 * and its return goes through the compiler's library. No segment has space for a signal: the main thread has an alternate
 * stack, as gccgo's threads have, the other thread has none. */
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

BURN(split_work)

__attribute__((noinline)) static int deeper(int n)
{
	volatile char room[2000];
	room[n & 1023] = 1;
	if (n == 0) {
		split_work(60);
		return 0;
	}
	return deeper(n - 1) + room[n & 1023];
}

static void *body(void *p)
{
	for (int i = 0; i < 3; i++)
		*(int *)p += deeper(300);
	return p;
}

int main(void)
{
	int depths[2] = { 0, 0 };
	pthread_t thread;
	stack_t aside = { .ss_sp = malloc(64 * 1024), .ss_size = 64 * 1024 };
	if (sigaltstack(&aside, 0))
		return 1;
	pthread_create(&thread, 0, body, &depths[0]);
	body(&depths[1]);
	pthread_join(thread, 0);
	printf("depths %d %d\n", depths[0], depths[1]);
	return 0;
}
