/* Coroutines on small stacks of their own (makecontext, swapcontext), in two threads, each yielding often. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#define COROUTINES 4
#define STACK (32 * 1024)

BURN(coroutine_work)
BURN(scheduler_work)

struct scheduler {
	ucontext_t own, coroutine[COROUTINES];
	int current, done;
	long sum;
};

static __thread struct scheduler *scheduler;

__attribute__((noinline)) static long coroutine_depth(int n)
{
	if (n == 0) {
		coroutine_work(3);
		swapcontext(&scheduler->coroutine[scheduler->current], &scheduler->own);
		return 1;
	}
	return coroutine_depth(n - 1) + 1;
}

static void coroutine_body(void)
{
	for (int i = 0; i < 20; i++)
		scheduler->sum += coroutine_depth(5);
	scheduler->done++;
}

static void *run(void *p)
{
	struct scheduler s = { .sum = 0 };
	scheduler = &s;
	char *stack = mmap(0, COROUTINES * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < COROUTINES; i++) {
		getcontext(&s.coroutine[i]);
		s.coroutine[i].uc_stack.ss_sp = stack + i * STACK;
		s.coroutine[i].uc_stack.ss_size = STACK;
		s.coroutine[i].uc_link = &s.own;
		makecontext(&s.coroutine[i], coroutine_body, 0);
	}
	int ended[COROUTINES] = { 0 };
	while (s.done < COROUTINES)
		for (s.current = 0; s.current < COROUTINES; s.current++) {
			if (ended[s.current])
				continue;
			int before = s.done;
			swapcontext(&s.own, &s.coroutine[s.current]);
			ended[s.current] = s.done != before;
		}
	scheduler_work(50);
	*(long *)p = s.sum;
	return p;
}

int main(void)
{
	pthread_t thread;
	long other = 0, mine = 0;
	pthread_create(&thread, 0, run, &other);
	run(&mine);
	pthread_join(thread, 0);
	printf("sums %ld %ld\n", mine, other);
	return 33;
}
