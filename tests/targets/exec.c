/* Replaces its image while sampled. `exec MODE [STEP]`:
 *   chain    ten times itself, burning in between
 *   threads  from a process with running threads, from another thread than the first
 *   pending  with SIGPROF blocked and, under a profiler, pending; the new image unblocks it
 *   static   the same into a static image without an environment (argv[2] names it)
 *   raw      execve by raw system call, so that no wrapper sees it
 *   fails    execve of a missing file: the program goes on, still sampled */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

BURN(before_exec)
BURN(after_exec)

static char *self;

static void mask_sigprof(int how)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGPROF);
	sigprocmask(how, &set, 0);
}

static void *exec_from_thread(void *p)
{
	before_exec(100);
	char *argv[] = { self, "threads", "1", 0 };
	execve(self, argv, environ);
	return p;
}

static void *spin(void *p)
{
	for (;;)
		before_exec(10);
	return p;
}

int main(int argc, char **argv)
{
	self = argv[0];
	const char *mode = argc > 1 ? argv[1] : "chain";
	int step = argc > 2 ? atoi(argv[2]) : 0;
	setvbuf(stdout, 0, _IOLBF, 0);

	if (!strcmp(mode, "chain")) {
		before_exec(30);
		if (step == 10) {
			after_exec(100);
			puts("chain done");
			return 10;
		}
		char number[12];
		snprintf(number, sizeof number, "%d", step + 1);
		char *next[] = { self, "chain", number, 0 };
		execv(self, next);
		return 99;
	}
	if (!strcmp(mode, "threads")) {
		if (step == 1) {
			after_exec(100);
			puts("threads done");
			return 11;
		}
		pthread_t t;
		for (int i = 0; i < 3; i++)
			pthread_create(&t, 0, spin, 0);
		pthread_create(&t, 0, exec_from_thread, 0);
		pthread_join(t, 0);
		return 99;
	}
	if (!strcmp(mode, "pending")) {
		if (step == 1) {
			mask_sigprof(SIG_UNBLOCK);
			after_exec(100);
			puts("pending done");
			return 12;
		}
		mask_sigprof(SIG_BLOCK);
		before_exec(100);
		char *next[] = { self, "pending", "1", 0 };
		execv(self, next);
		return 99;
	}
	if (!strcmp(mode, "static")) {
		mask_sigprof(SIG_BLOCK);
		before_exec(100);
		char *next[] = { argv[2], "unblock", 0 }, *empty[] = { 0 };
		execve(argv[2], next, empty);
		return 99;
	}
	if (!strcmp(mode, "raw")) {
		if (step == 1) {
			after_exec(100);
			puts("raw done");
			return 13;
		}
		before_exec(100);
		char *next[] = { self, "raw", "1", 0 };
		syscall(SYS_execve, self, next, environ);
		return 99;
	}
	if (!strcmp(mode, "fails")) {
		before_exec(100);
		char *next[] = { "nothing", 0 };
		int r = execv("/nonexistent/nothing", next);
		printf("execv %d %s\n", r, strerror(errno));
		r = execvp("nonexistent-program-of-the-test", next);
		printf("execvp %d %s\n", r, strerror(errno));
		after_exec(200);
		return 14;
	}
	return 98;
}
