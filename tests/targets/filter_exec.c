/* A forked child computes, installs a filter that permits everything, computes and executes: `filter_exec N prctl|seccomp`.
 * A perf event inside the exec would kill the next image. Prints how many children failed. */
#define _GNU_SOURCE
#include "burn.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(before_filter)
BURN(behind_filter)

static void filter(int bare)
{
	struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 1, code };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	long failed = bare ? syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)
			   : prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	if (failed)
		_exit(99);
}

int main(int argc, char **argv)
{
	int rounds = atoi(argv[1]), bad = 0;
	for (int i = 0; i < rounds; i++) {
		pid_t child = fork();
		if (child == 0) {
			before_filter(2);
			filter(!strcmp(argv[2], "seccomp"));
			behind_filter(2);
			execl("/bin/true", "true", (char *)0);
			_exit(98);
		}
		int status;
		waitpid(child, &status, 0);
		bad += status != 0;
	}
	printf("%d bad\n", bad);
}
