/* Changes privileges, root directory and namespaces under the agent, which must not need anything it can no longer open. */
#define _GNU_SOURCE
#include "burn.h"
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(before_change)
BURN(after_change)
BURN(thread_after_change)

static void *thread(void *unused)
{
	(void)unused;
	thread_after_change(100);
	return 0;
}

static void must(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "";
	struct rlimit limit;
	before_change(100);
	if (!strcmp(how, "setuid")) {
		must(!setgroups(0, 0) && !setgid(65534) && !setuid(65534), "setuid");
		must(setuid(0) != 0, "root again");
		/* Threads begin with the name of the thread that starts them. */
		must(!prctl(PR_SET_NAME, "worker"), "name");
	} else if (!strcmp(how, "chroot")) {
		char place[] = "/tmp/selfwind-chroot-XXXXXX";
		must(mkdtemp(place) && !chroot(place) && !chdir("/"), "chroot");
	} else if (!strcmp(how, "userns")) {
		/* Not permitted in a process with more than one thread. */
		must(!unshare(CLONE_NEWUSER), "unshare");
	} else if (!strcmp(how, "pidns")) {
		must(!unshare(CLONE_NEWPID), "unshare");
		pid_t child = fork();
		if (!child) {
			after_change(100);
			_exit(getpid());
		}
		int status;
		must(waitpid(child, &status, 0) == child, "wait");
		printf("pid %d\n", WEXITSTATUS(status));
		/* Threads are not permitted from here on. */
		return 21;
	} else if (!strcmp(how, "nofile")) {
		limit.rlim_cur = limit.rlim_max = 16;
		must(!setrlimit(RLIMIT_NOFILE, &limit), "RLIMIT_NOFILE");
		int fds = 0;
		while (dup(1) >= 0)
			fds++;
		printf("descriptors %d\n", fds);
	} else if (!strcmp(how, "as")) {
		limit.rlim_cur = limit.rlim_max = 400 << 20;
		must(!setrlimit(RLIMIT_AS, &limit), "RLIMIT_AS");
		void *block = malloc(100 << 20);
		must(block != 0, "malloc");
		free(block);
	} else if (!strcmp(how, "sigpending")) {
		limit.rlim_cur = limit.rlim_max = 0;
		must(!setrlimit(RLIMIT_SIGPENDING, &limit), "RLIMIT_SIGPENDING");
	} else if (!strcmp(how, "fsize")) {
		limit.rlim_cur = limit.rlim_max = 4096;
		must(!setrlimit(RLIMIT_FSIZE, &limit), "RLIMIT_FSIZE");
	}
	after_change(100);
	pthread_t other;
	must(!pthread_create(&other, 0, thread, 0), "pthread_create");
	pthread_join(other, 0);
	printf("done %s\n", how);
	return 21;
}
