/* Starts programs with an environment that has nothing of this one's, in every possible way. Each prints what it got,
 * without what the profiler needs, and works. */
#define _GNU_SOURCE
#include "burn.h"
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

BURN(starter_work)
BURN(started_work)

static int child(const char *how)
{
	printf("%s:", how);
	for (char **e = environ; *e; e++)
		if (strncmp(*e, "LD_PRELOAD=", 11) && strncmp(*e, "SELFWIND_", 9))
			printf(" %s", *e);
	puts("");
	fflush(stdout);
	started_work(60);
	return 3;
}

static void collect(const char *how, pid_t pid)
{
	int status;
	if (waitpid(pid, &status, 0) != pid || status != 3 << 8)
		printf("%s failed\n", how);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return child(argv[1]);
	static char *const own[] = { "A=1", "PATH=/nonexistent", 0 }, *const none[] = { 0 };
	static char *const hows[] = { "execve", "execle", "execvpe", "clearenv", "syscall", "vfork", "posix_spawn",
				      "posix_spawnp" };
	for (int i = 0; i < 8; i++) {
		char *how = hows[i], *arguments[] = { argv[0], how, 0 };
		pid_t pid;
		starter_work(10);
		if (i >= 6) {
			int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *,
				     char *const[], char *const[]) = i == 6 ? posix_spawn : posix_spawnp;
			if (spawn(&pid, argv[0], 0, 0, arguments, i == 6 ? own : none))
				return 1;
		} else if (i == 5) {
			if (!(pid = vfork())) {
				execve(argv[0], arguments, own);
				_exit(4);
			}
		} else if (!(pid = fork())) {
			switch (i) {
			case 0: execve(argv[0], arguments, none); break;
			case 1: execle(argv[0], argv[0], how, (char *)0, own); break;
			case 2: execvpe(argv[0], arguments, own); break;
			case 3: clearenv(); execv(argv[0], arguments); break;
			case 4: syscall(SYS_execve, argv[0], arguments, own); break;
			}
			_exit(5);
		}
		collect(how, pid);
	}
	return 40;
}
