/* Handlers on alternate stacks, of the smallest size too, burn CPU while sampled; a stack overflow is survived. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

BURN(altstack_work)
BURN(normal_work)

static volatile sig_atomic_t hits, off_stack;
static char *low, *high;
static sigjmp_buf back;

static void on_usr1(int sig)
{
	char here;
	(void)sig;
	hits++;
	if (&here < low || &here >= high)
		off_stack++;
	altstack_work(20);
}

static void on_segv(int sig)
{
	(void)sig;
	siglongjmp(back, 1);
}

__attribute__((noinline)) static int overflow(int n)
{
	volatile char frame[4096];
	frame[0] = (char)n;
	return n < 0 ? frame[0] : overflow(n + 1) + frame[0];
}

static void install(size_t size)
{
	low = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	high = low + size;
	stack_t stack = { .ss_sp = low, .ss_size = size };
	if (sigaltstack(&stack, 0)) {
		perror("sigaltstack");
		exit(1);
	}
}

static void *small_stack(void *p)
{
	install(16384);
	for (int i = 0; i < 10; i++) {
		raise(SIGUSR1);
		normal_work(5);
	}
	stack_t now;
	sigaltstack(0, &now);
	printf("stack kept %d\n", now.ss_sp == low && now.ss_size == 16384);
	return p;
}

int main(void)
{
	struct sigaction action = { .sa_handler = on_usr1, .sa_flags = SA_ONSTACK };
	sigaction(SIGUSR1, &action, 0);
	action.sa_handler = on_segv;
	sigaction(SIGSEGV, &action, 0);
	install(65536);
	for (int i = 0; i < 10; i++) {
		raise(SIGUSR1);
		normal_work(5);
	}
	int overflows = 0;
	for (int i = 0; i < 3; i++) {
		if (!sigsetjmp(back, 1))
			overflow(0);
		else
			overflows++;
	}
	pthread_t t;
	pthread_create(&t, 0, small_stack, 0);
	pthread_join(t, 0);
	printf("hits %d off-stack %d overflows %d\n", hits, off_stack, overflows);
	return 26;
}
