/* posix_spawn and posix_spawnp with file actions, a signal mask and default signals; children are sampled too. */
#define _GNU_SOURCE
#include "burn.h"
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

BURN(spawner_work)
BURN(spawned_work)

static int child(const char *kind)
{
	sigset_t mask;
	sigprocmask(SIG_SETMASK, 0, &mask);
	printf("%s usr1 %s\n", kind, sigismember(&mask, SIGUSR1) ? "blocked" : "open");
	fflush(stdout);
	spawned_work(150);
	return 5;
}

static int collect(pid_t pid)
{
	int status;
	if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return child(argv[1]);
	setvbuf(stdout, 0, _IOLBF, 0);
	pid_t pid;
	char *plain[] = { argv[0], "plain", 0 };
	int r = posix_spawn(&pid, argv[0], 0, 0, plain, environ);
	printf("plain %d %d\n", r, collect(pid));
	spawner_work(100);

	posix_spawnattr_t attr;
	posix_spawnattr_init(&attr);
	sigset_t mask, dfl;
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	sigfillset(&dfl);
	posix_spawnattr_setsigmask(&attr, &mask);
	posix_spawnattr_setsigdefault(&attr, &dfl);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, 1, 9);
	posix_spawn_file_actions_addclose(&actions, 9);
	char *masked[] = { argv[0], "masked", 0 };
	r = posix_spawn(&pid, argv[0], &actions, &attr, masked, environ);
	printf("masked %d %d\n", r, collect(pid));

	char *sh[] = { "sh", "-c", "exit 9", 0 };
	r = posix_spawnp(&pid, "sh", 0, 0, sh, environ);
	printf("sh %d %d\n", r, collect(pid));
	char *missing[] = { "nothing", 0 };
	r = posix_spawn(&pid, "/nonexistent/nothing", 0, 0, missing, environ);
	printf("missing %s\n", strerror(r));
	spawner_work(100);
	return 22;
}
