/* A thread that blocks every signal, burns CPU and then waits for any signal gets only the one sent to it. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

BURN(blocked_work)
BURN(open_work)

int main(void)
{
	sigset_t all, pending;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, 0);
	for (int i = 0; i < 10; i++) {
		blocked_work(20);
		kill(getpid(), SIGUSR2);
		int sig = 0;
		if (i % 2) {
			sigwait(&all, &sig);
		} else {
			siginfo_t info;
			struct timespec second = { 1, 0 };
			sig = sigtimedwait(&all, &info, &second);
		}
		if (sig != SIGUSR2)
			printf("round %d received signal %d\n", i, sig);
	}
	blocked_work(20);
	sigpending(&pending);
	printf("pending %d\n", sigismember(&pending, SIGPROF));
	pthread_sigmask(SIG_UNBLOCK, &all, 0);
	open_work(100);
	puts("sigwait done");
	return 48;
}
