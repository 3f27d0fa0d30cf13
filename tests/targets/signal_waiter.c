/* Hazard: threads that block all signals, one of which waits for all of them: every signal sent to it is returned there. The
 * others compute on request. Prints each signal that arrived except SIGTERM, which ends it. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

BURN(blocked_work)

static void *compute(void *p)
{
	blocked_work(3000);
	return p;
}

int main(void)
{
	pthread_t thread;
	sigset_t all;
	int sig = 0;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, 0);
	pthread_create(&thread, 0, compute, 0);
	puts("ready");
	fflush(stdout);
	while (sig != SIGTERM)
		if (!sigwait(&all, &sig) && sig != SIGTERM)
			printf("received %d\n", sig);
	pthread_join(thread, 0);
	puts("ok");
	return 0;
}
