/* Children of vfork burn CPU in the parent's memory, then exit or exec. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(vfork_parent_work)
BURN(vfork_child_work)

int main(void)
{
	for (volatile int i = 0; i < 20; i++) {
		vfork_parent_work(10);
		pid_t child = vfork();
		if (child == 0) {
			vfork_child_work(10);
			if (i % 2)
				_exit(i);
			execlp("sh", "sh", "-c", "exit 40", (char *)0);
			_exit(127);
		}
		int status;
		if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
			printf("child %d status %x\n", i, status);
			return 1;
		}
		if (WEXITSTATUS(status) != (i % 2 ? i : 40)) {
			printf("child %d exited %d\n", i, WEXITSTATUS(status));
			return 2;
		}
	}
	pid_t child = vfork();
	if (child == 0) {
		execl("/nonexistent/nothing", "nothing", (char *)0);
		_exit(errno == ENOENT ? 77 : 78);
	}
	int status;
	waitpid(child, &status, 0);
	printf("missing program %d\n", WEXITSTATUS(status));
	vfork_parent_work(100);
	return 21;
}
