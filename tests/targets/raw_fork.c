/* Children made by a bare `clone` system call, without the C library, as sandboxes and runtimes do: one that computes, and one
 * that forks again through the C library and whose child executes a program. */
#include "burn.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(parent_work)
BURN(child_work)
BURN(executed_work)

static pid_t bare_fork(void)
{
	return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

int main(int argc, char **argv)
{
	int first, second;
	if (argc > 1 && !strcmp(argv[1], "executed")) {
		executed_work(300);
		return 5;
	}
	pid_t child = bare_fork();
	if (!child) {
		child_work(1000);
		_exit(3);
	}
	parent_work(300);
	pid_t other = bare_fork();
	if (!other) {
		int status;
		child_work(600);
		pid_t grandchild = fork();
		if (!grandchild) {
			execl(argv[0], argv[0], "executed", (char *)0);
			_exit(1);
		}
		waitpid(grandchild, &status, 0);
		_exit(WEXITSTATUS(status));
	}
	waitpid(child, &first, 0);
	waitpid(other, &second, 0);
	printf("%d %d\n", WEXITSTATUS(first), WEXITSTATUS(second));
	return 43;
}
