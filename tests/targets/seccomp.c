/* Installs a seccomp filter after its start. `seccomp MODE`:
 *   kill     the process dies on any timer_*, setitimer, openat, mmap of files, memfd_create, futex is allowed
 *   errno    the same calls fail with EPERM
 *   tsync    as kill, for all threads that run already
 *   strict   SECCOMP_MODE_STRICT in a child: only read, write, exit and sigreturn are left
 *   exec     as errno, and then executes argv[2]
 * What a filter forbids to the program is forbidden to whatever lives in it. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(unfiltered_work)
BURN(filtered_work)

#define CALL(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, action)

static void filter(unsigned action, unsigned flags)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		CALL(SYS_timer_create),	 CALL(SYS_timer_settime), CALL(SYS_timer_delete), CALL(SYS_setitimer),
		CALL(SYS_openat),	 CALL(SYS_open),	  CALL(SYS_memfd_create), CALL(SYS_ftruncate),
		CALL(SYS_fallocate),	 CALL(SYS_getpid),	  CALL(SYS_perf_event_open), CALL(SYS_readlink),
		CALL(SYS_process_vm_readv),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof code[0], code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program)) {
		printf("seccomp: %s\n", strerror(errno));
		exit(1);
	}
}

static void *thread_work(void *p)
{
	filtered_work(100);
	return p;
}

static void *existing(void *p)
{
	filtered_work(300);
	return p;
}

static int strict(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		volatile uint64_t x = 1;
		for (long i = 0; i < 200000000; i++)
			x = x * 3 + 1;
		(void)!write(1, "strict\n", 7);
		syscall(SYS_exit, 8);
	}
	int status;
	waitpid(child, &status, 0);
	printf("strict child %s %d\n", WIFEXITED(status) ? "exited" : "killed",
	       WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return 30;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "kill";
	pthread_t t, e;
	unfiltered_work(100);
	if (!strcmp(mode, "strict"))
		return strict();
	if (!strcmp(mode, "exec") && argc > 2) {
		filter(SECCOMP_RET_ERRNO | EPERM, 0);
		filtered_work(50);
		execl(argv[2], argv[2], (char *)0);
		return 97;
	}
	pthread_create(&e, 0, existing, 0);
	if (!strcmp(mode, "kill"))
		filter(SECCOMP_RET_KILL_PROCESS, 0);
	else if (!strcmp(mode, "errno"))
		filter(SECCOMP_RET_ERRNO | EPERM, 0);
	else if (!strcmp(mode, "tsync"))
		filter(SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
	else
		return 98;
	filtered_work(200);
	for (int i = 0; i < 5; i++) {
		pthread_create(&t, 0, thread_work, 0);
		pthread_join(t, 0);
	}
	pthread_join(e, 0);
	void *big = malloc(64 << 20);
	memset(big, 1, 64 << 20);
	free(big);
	puts("filtered done");
	return 30;
}
