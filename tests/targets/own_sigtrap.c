/* The program uses SIGTRAP: its handler gets its own breakpoints and signals only, sigaction returns what it set, and a
 * breakpoint kills a child without a handler, even if blocked or ignored. */
#define _GNU_SOURCE
#include "burn.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(trap_work)
static volatile sig_atomic_t breakpoints, sent, others;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	if (info->si_code == SI_KERNEL)
		breakpoints++;
	else if (info->si_code == SI_TKILL)
		sent++;
	else
		others++;
}

/* How a child ends that hits a breakpoint after `prepare`. */
static int end_of_child(void (*prepare)(void))
{
	pid_t pid = fork();
	if (pid == 0) {
		signal(SIGTRAP, SIG_DFL);
		prepare();
		trap_work(5);
		__asm__ volatile("int3");
		_exit(0);
	}
	int status = 0;
	waitpid(pid, &status, 0);
	return WIFSIGNALED(status) ? WTERMSIG(status) : -WEXITSTATUS(status);
}

static void nothing(void)
{
}

static void ignored(void)
{
	signal(SIGTRAP, SIG_IGN);
}

static void blocked(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTRAP);
	sigprocmask(SIG_BLOCK, &set, 0);
}

int main(void)
{
	struct sigaction before, action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO }, now;
	sigaction(SIGTRAP, 0, &before);
	sigaction(SIGTRAP, &action, 0);
	sigaction(SIGTRAP, 0, &now);
	for (int i = 0; i < 20; i++) {
		trap_work(5);
		__asm__ volatile("int3");
		raise(SIGTRAP);
	}
	printf("default %d own %d\n", before.sa_handler == SIG_DFL, now.sa_sigaction == on_trap);
	printf("breakpoints %d sent %d others %d\n", (int)breakpoints, (int)sent, (int)others);
	printf("children %d %d %d\n", end_of_child(nothing), end_of_child(ignored), end_of_child(blocked));
	return 0;
}
