/* N children each by posix_spawn, vfork and exec, fork and exec, while a thread burns CPU. Prints how many ended
 * other than with status 0. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(storm_work)
extern char **environ;
static atomic_int stop;
static char *arguments[] = { "true", 0 };

static void *burner(void *p)
{
	while (!atomic_load(&stop))
		storm_work(5);
	return p;
}

static int ended_well(pid_t pid)
{
	int status = -1;
	return pid > 0 && waitpid(pid, &status, 0) == pid && status == 0;
}

static pid_t spawned(int how)
{
	pid_t pid = -1;
	if (how == 0)
		return posix_spawn(&pid, "/bin/true", 0, 0, arguments, environ) ? -1 : pid;
	pid = how == 1 ? vfork() : fork();
	if (pid == 0) {
		execve("/bin/true", arguments, environ);
		_exit(9);
	}
	return pid;
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 30, bad = 0;
	pthread_t t;
	pthread_create(&t, 0, burner, 0);
	for (int i = 0; i < 3 * n; i++) {
		storm_work(1);
		bad += !ended_well(spawned(i % 3));
	}
	atomic_store(&stop, 1);
	pthread_join(t, 0);
	printf("%d bad\n", bad);
	return 0;
}
