/* Hazard: a thread that has asked to be traced (PTRACE_TRACEME). Its tracer sees every signal first, and takes one that it
 * does not expect for the one that it waits for. `asks_tracer MODE`:
 *   stop      the tracer waits for a SIGSTOP, which comes after some work
 *   born      threads and children of the tracee are traced from their beginning
 *   exec      the tracee executes a program, whose signals the tracer passes on
 *   parent    the tracer is whoever started this program, as for programs that so look for a debugger
 *   raw       the same by syscall(2)
 *   again     a second request fails, as the first has succeeded */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(before_request)
BURN(traced_work)
BURN(other_work)
BURN(executed_work)

static void *other(void *p)
{
	other_work(100);
	return p;
}

static void *born(void *p)
{
	traced_work(50);
	return p;
}

/* Works as a tracee, and ends with status 7. */
static void tracee(const char *mode, char *self)
{
	pthread_t thread;
	if (ptrace(PTRACE_TRACEME, 0, 0, 0))
		_exit(1);
	if (!strcmp(mode, "exec")) {
		execl(self, self, "executed", (char *)0);
		_exit(1);
	}
	if (!strcmp(mode, "born"))
		raise(SIGSTOP);
	traced_work(60);
	if (!strcmp(mode, "stop"))
		raise(SIGSTOP);
	if (!strcmp(mode, "born")) {
		pid_t child = fork();
		if (child == 0) {
			traced_work(50);
			_exit(0);
		}
		waitpid(child, 0, 0);
		pthread_create(&thread, 0, born, 0);
		pthread_join(thread, 0);
	}
	_exit(7);
}

/* Prints what it stops for. Only in a program that was executed may there be signals, which it passes on; but no traps. */
static int tracer(const char *mode, pid_t child)
{
	int status, is_new = 1, passes = !strcmp(mode, "exec");
	for (;;) {
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0)
			return 2;
		if (!WIFSTOPPED(status)) {
			if (tid != child)
				continue;
			printf("ended %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
			return 0;
		}
		int signal = WSTOPSIG(status), is_event = status >> 16;
		if (!passes || signal == SIGTRAP)
			/* A thread or child that is born stops by itself. */
			if (tid == child && !is_event)
				printf("stopped by signal %d\n", signal);
		if (tid != child && signal != SIGSTOP)
			printf("a child stopped by signal %d\n", signal);
		if (is_new && !strcmp(mode, "born"))
			ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACEFORK | PTRACE_O_TRACECLONE);
		is_new = 0;
		ptrace(PTRACE_CONT, tid, 0, passes && signal != SIGTRAP ? signal : 0);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "stop";
	setvbuf(stdout, 0, _IONBF, 0);
	if (!strcmp(mode, "executed")) {
		executed_work(100);
		return 7;
	}
	before_request(30);
	if (!strcmp(mode, "stop") || !strcmp(mode, "born") || !strcmp(mode, "exec")) {
		pid_t child = fork();
		if (child == 0)
			tracee(mode, argv[0]);
		return tracer(mode, child);
	}
	pthread_t thread;
	pthread_create(&thread, 0, other, 0);
	long first = !strcmp(mode, "raw") ? syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0) : ptrace(PTRACE_TRACEME, 0, 0, 0);
	long second = !strcmp(mode, "again") ? ptrace(PTRACE_TRACEME, 0, 0, 0) : 0;
	traced_work(100);
	pthread_join(thread, 0);
	printf("%ld %ld\n", first, second);
	return 21;
}
