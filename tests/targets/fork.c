/* A forked child computes as long as its parent, and its own child as well: all three are sampled. */
#include "burn.h"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(parent_work)
BURN(child_work)
BURN(grandchild_work)

int main(void)
{
	pid_t child = fork();
	if (child == 0) {
		pid_t grandchild = fork();
		if (grandchild == 0) {
			grandchild_work(300);
			_exit(4);
		}
		child_work(300);
		int status;
		waitpid(grandchild, &status, 0);
		_exit(WEXITSTATUS(status) + 1);
	}
	parent_work(300);
	int status;
	waitpid(child, &status, 0);
	printf("child exited %d\n", WEXITSTATUS(status));
	return WEXITSTATUS(status) + 1;
}
