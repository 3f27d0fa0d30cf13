/* A sandbox as bubblewrap makes one: a child of a bare `clone` cannot see the directory any more in which what is
 * preloaded lies, and executes something. `out_of_reach filter`: under a system call filter. What loaders complain of
 * goes to standard output. */
#define _GNU_SOURCE
#include "burn.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(outside_work)

static void hide(void)
{
	char *files = getenv("LD_PRELOAD"), *end;
	if (!files || *files != '/')
		return;
	char *directory = strndup(files, strcspn(files, " :"));
	if ((end = strrchr(directory, '/')))
		*end = 0;
	mount("none", "/", 0, MS_REC | MS_PRIVATE, 0);
	mount("tmpfs", directory, "tmpfs", 0, 0);
}

static void filter(void)
{
	struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { 1, &all };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
	int status, flags = CLONE_NEWNS | (geteuid() ? CLONE_NEWUSER : 0) | SIGCHLD;
	outside_work(200);
	fflush(stdout);
	pid_t child = syscall(SYS_clone, flags, 0, 0, 0, 0);
	if (child < 0) {
		puts("no name spaces here");
		return 77;
	}
	if (!child) {
		dup2(1, 2);
		hide();
		if (argc > 1 && !strcmp(argv[1], "filter"))
			filter();
		execl("/bin/echo", "echo", "inside", (char *)0);
		_exit(1);
	}
	if (waitpid(child, &status, 0) != child || status)
		return 1;
	return 23;
}
