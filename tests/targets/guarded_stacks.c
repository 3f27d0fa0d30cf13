/* Coroutines on stacks carved out of the thread's own stack, each with a guard page below: above a stack there is the next
   one's guard page, within the thread's stack. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

BURN(guarded_work)

#define COUNT 8
#define PAGE 4096
#define PAGES 3

struct carved {
	char guard[PAGE];
	char stack[PAGES * PAGE];
};

static __thread ucontext_t hub, bodies[COUNT];

static void body(void)
{
	guarded_work(40);
}

__attribute__((noinline)) static void *carve(void *unused)
{
	(void)unused;
	char room[(COUNT + 1) * sizeof(struct carved)];
	struct carved *all = (struct carved *)(((uintptr_t)room + PAGE - 1) & -(uintptr_t)PAGE);
	for (int i = 0; i < COUNT; i++) {
		if (mprotect(all[i].guard, PAGE, PROT_NONE))
			return 0;
		getcontext(&bodies[i]);
		bodies[i].uc_stack.ss_sp = all[i].stack;
		bodies[i].uc_stack.ss_size = sizeof all[i].stack;
		bodies[i].uc_link = &hub;
		makecontext(&bodies[i], body, 0);
	}
	for (int i = 0; i < COUNT; i++)
		swapcontext(&hub, &bodies[i]);
	for (int i = 0; i < COUNT; i++)
		mprotect(all[i].guard, PAGE, PROT_READ | PROT_WRITE);
	return (void *)1;
}

int main(void)
{
	pthread_t thread;
	void *good;
	pthread_create(&thread, 0, carve, 0);
	pthread_join(thread, &good);
	printf("%ld\n", (long)carve(0) + (long)good);
	return 37;
}
