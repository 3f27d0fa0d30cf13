/* A daemon: forks twice, leaves its session, its directory and its descriptors, and clears its environment. */
#define _GNU_SOURCE
#include "burn.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(launcher_work)
BURN(daemon_work)
BURN(helper_work)

extern char **environ;

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "helper")) {
		helper_work(60);
		return 5;
	}
	int report[2];
	launcher_work(60);
	if (pipe(report))
		return 1;
	if (fork() == 0) {
		setsid();
		if (fork())
			_exit(0);
		umask(0);
		if (chdir("/"))
			_exit(1);
		for (int fd = 0; fd < 256; fd++)
			if (fd != report[1])
				close(fd);
		char self[4096];
		ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
		self[length > 0 ? length : 0] = 0;
		clearenv();
		daemon_work(60);
		/* A program started with an empty environment has no agent, and runs all the same. */
		pid_t helper = fork();
		if (!helper) {
			char *arguments[] = { self, "helper", 0 }, *nothing[] = { 0 };
			execve(self, arguments, nothing);
			_exit(99);
		}
		int status;
		waitpid(helper, &status, 0);
		dprintf(report[1], "helper %d\n", WEXITSTATUS(status));
		_exit(0);
	}
	close(report[1]);
	char text[64] = "";
	ssize_t length = read(report[0], text, sizeof text - 1);
	printf("%.*s", (int)(length > 0 ? length : 0), text);
	return 23;
}
