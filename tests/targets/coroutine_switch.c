/* swapcontext between small stacks in several threads, and jumps out of a handler: stacks of a few pages that the agent
   does not know. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

BURN(tiny_stack_work)

#define COUNT 16
#define BYTES 8192

static __thread ucontext_t hub, bodies[COUNT];
static __thread int finished;

static void body(void)
{
	for (int i = 0; i < 4; i++) {
		tiny_stack_work(1);
		int self = finished;
		swapcontext(&bodies[self], &hub);
	}
}

static void *thread(void *unused)
{
	(void)unused;
	char *stacks = malloc(COUNT * BYTES);
	for (int i = 0; i < COUNT; i++) {
		getcontext(&bodies[i]);
		bodies[i].uc_stack.ss_sp = stacks + i * BYTES;
		bodies[i].uc_stack.ss_size = BYTES;
		bodies[i].uc_link = &hub;
		makecontext(&bodies[i], body, 0);
	}
	for (int round = 0; round < 4; round++)
		for (int i = 0; i < COUNT; i++) {
			finished = i;
			swapcontext(&hub, &bodies[i]);
		}
	free(stacks);
	return (void *)1;
}

int main(void)
{
	pthread_t threads[3];
	long good = 0;
	for (int i = 0; i < 3; i++)
		pthread_create(&threads[i], 0, thread, 0);
	for (int i = 0; i < 3; i++) {
		void *result;
		pthread_join(threads[i], &result);
		good += (long)result;
	}
	printf("threads %ld\n", good);
	return 31;
}
