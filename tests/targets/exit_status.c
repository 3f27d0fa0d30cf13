/* Ends in every possible way: `exit_status HOW`. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

BURN(exit_work)

static volatile int *volatile nowhere;

static void *exits(void *p)
{
	exit_work(30);
	exit(45);
	return p;
}

static void *works_on(void *p)
{
	exit_work(60);
	exit(47);
	return p;
}

static void at_exit(void) { puts("at exit"); }

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "return";
	setvbuf(stdout, 0, _IOLBF, 0);
	atexit(at_exit);
	prctl(PR_SET_DUMPABLE, 0); /* no core files */
	exit_work(100);
	pthread_t t;
	if (!strcmp(how, "return"))
		return 42;
	if (!strcmp(how, "exit"))
		exit(43);
	if (!strcmp(how, "_exit"))
		_exit(44);
	if (!strcmp(how, "raw"))
		syscall(SYS_exit_group, 46);
	if (!strcmp(how, "thread")) {
		pthread_create(&t, 0, exits, 0);
		for (;;)
			exit_work(10);
	}
	if (!strcmp(how, "main-exits")) {
		pthread_create(&t, 0, works_on, 0);
		pthread_exit(0);
	}
	if (!strcmp(how, "abort"))
		abort();
	if (!strcmp(how, "term"))
		raise(SIGTERM);
	if (!strcmp(how, "kill"))
		raise(SIGKILL);
	if (!strcmp(how, "segv"))
		*nowhere = 1;
	if (!strcmp(how, "sigprof"))
		raise(SIGPROF);
	return 98;
}
