/* Hazard: a program that has its system calls delivered as signals (Syscall User Dispatch), as Wine does. It sees every call that
 * it does not make itself, even the return from a signal handler.
 * usage: dispatched_calls [raw]   prints "ready", then how many calls it has seen, and the status of its child */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "burn.h"

#define SET_DISPATCH 59
#define PERMIT 0
#define DELIVER 1

static volatile char selector = PERMIT;
static volatile int own, foreign;

BURN(before_work)
BURN(child_work)

static void on_call(int signal, siginfo_t *information, void *context)
{
	(void)signal, (void)context;
	selector = PERMIT;
	if (information->si_syscall == SYS_getppid)
		own++;
	else
		foreign++;
}

__attribute__((noinline)) static void delivered_work(void)
{
	volatile unsigned long x = 1;
	for (int i = 0; i < 50; i++) {
		selector = DELIVER;
		for (int step = 0; step < 10000000; step++)
			x = x * 6364136223846793005ul + 1;
		selector = DELIVER;
		getppid();
	}
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	before_work(200);
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_call;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGSYS, &action, NULL);
	int failed = argc > 1 && strcmp(argv[1], "raw") == 0
			     ? syscall(SYS_prctl, SET_DISPATCH, 1, 0, 0, &selector)
			     : prctl(SET_DISPATCH, 1, 0, 0, &selector);
	if (failed) {
		puts("unsupported");
		return 0;
	}
	puts("ready");
	delivered_work();
	pid_t child = fork();
	if (child == 0) {
		child_work(200);
		_exit(0);
	}
	int status = -1;
	waitpid(child, &status, 0);
	printf("%d own, %d other; %d\n", own, foreign, status);
	return 0;
}
