/* Busy threads that have all set the same alternate signal stack, as a server does for its handler of fatal signals.
 * One at a time runs a handler on it; or, with an argument, none does for a second. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE (64 << 10)
#define THREADS 4
#define ROUNDS 40

BURN(thread_work)
BURN(handler_work)
BURN(nested_work)

static char *low;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static volatile int handled, nested, left, wrong;
static sigjmp_buf back;
static volatile sig_atomic_t leave;

static int is_inside(const void *here) { return (char *)here >= low && (char *)here < low + SIZE; }

static int is_shared(const stack_t *s) { return s->ss_sp == low && s->ss_size == SIZE; }

static void on_nested(int sig, siginfo_t *info, void *context)
{
	char here;
	(void)sig, (void)info, (void)context;
	nested++;
	wrong += !is_inside(&here);
	nested_work(2);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	stack_t now, off = { .ss_flags = SS_DISABLE };
	char here;
	(void)sig, (void)info;
	handled++;
	wrong += !is_inside(&here) || !is_shared(&uc->uc_stack);
	wrong += sigaltstack(0, &now) || !is_shared(&now) || now.ss_flags != SS_ONSTACK;
	wrong += sigaltstack(&off, 0) != -1 || errno != EPERM;
	handler_work(2);
	raise(SIGUSR2);
	if (leave)
		siglongjmp(back, 1);
}

static void *work(void *p)
{
	const stack_t shared = { .ss_sp = low, .ss_size = SIZE }, off = { .ss_flags = SS_DISABLE };
	const stack_t small = { .ss_sp = low, .ss_size = 64 }, odd = { .ss_sp = low, .ss_size = SIZE, .ss_flags = 77 };
	stack_t now;
	wrong += sigaltstack(&shared, &now) || now.ss_sp || now.ss_flags != SS_DISABLE;
	for (int i = 0; i < ROUNDS; i++) {
		thread_work(5);
		pthread_mutex_lock(&turn);
		leave = i % 4 == 3;
		if (!sigsetjmp(back, 1))
			raise(SIGUSR1);
		else
			left++;
		pthread_mutex_unlock(&turn);
		wrong += sigaltstack(0, &now) || !is_shared(&now) || now.ss_flags;
		wrong += sigaltstack(&small, 0) != -1 || errno != ENOMEM;
		wrong += sigaltstack(&odd, 0) != -1 || errno != EINVAL;
		if (i % 10 == 0)
			wrong += sigaltstack(&shared, &now) || !is_shared(&now);
	}
	wrong += sigaltstack(&off, &now) || !is_shared(&now);
	wrong += sigaltstack(0, &now) || now.ss_sp || now.ss_size || now.ss_flags != SS_DISABLE;
	thread_work(5);
	return p;
}

static void *spin(void *p)
{
	const stack_t shared = { .ss_sp = low, .ss_size = SIZE };
	sigaltstack(&shared, 0);
	thread_work(1000 * 2 / THREADS);
	return p;
}

int main(int argc, char **argv)
{
	void *(*body)(void *) = argc > 1 ? spin : work;
	(void)argv;
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	pthread_t threads[THREADS - 1];
	sigaction(SIGUSR1, &action, 0);
	action.sa_sigaction = on_nested;
	sigaction(SIGUSR2, &action, 0);
	low = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < THREADS - 1; i++)
		pthread_create(&threads[i], 0, body, 0);
	if (argc > 1) {
		usleep(20000);
		puts("ready");
		fflush(stdout);
	}
	body(0);
	for (int i = 0; i < THREADS - 1; i++)
		pthread_join(threads[i], 0);
	if (argc > 1) {
		puts("ok");
		return 0;
	}
	printf("handled %d nested %d left %d wrong %d\n", handled, nested, left, wrong);
	return 27;
}
