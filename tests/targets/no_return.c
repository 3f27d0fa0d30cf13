/* A system call filter under which no signal handler can return: the kernel kills for rt_sigreturn, as in the children
 * of sshd that speak with strangers. `no_return MODE`:
 *   kill     one thread
 *   tsync    two threads, which have the filter at once
 *   mask     rt_sigprocmask is what kills
 *   second   it is the second filter that kills
 *   refused  the kernel refuses the filter, and everything goes on as before
 *   offered  the filter lets everything through, and everything goes on too */
#define _GNU_SOURCE
#include "burn.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

BURN(before_filter)
BURN(after_filter)
BURN(other_thread)

static void *other(void *p)
{
	other_thread(300);
	return p;
}

static int filter(unsigned number, unsigned flags)
{
	struct sock_filter code[] = {
		/* By way of the other register and of memory, as compilers of filters do it. */
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_STMT(BPF_ST, 2),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 2),
		BPF_STMT(BPF_MISC | BPF_TXA, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof code[0], code };
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -1;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "kill";
	pthread_t thread;
	int result = -1;
	before_filter(100);
	if (!strcmp(mode, "kill")) {
		result = filter(SYS_rt_sigreturn, 0);
	} else if (!strcmp(mode, "tsync")) {
		pthread_create(&thread, 0, other, 0);
		result = filter(SYS_rt_sigreturn, SECCOMP_FILTER_FLAG_TSYNC);
	} else if (!strcmp(mode, "mask")) {
		result = filter(SYS_rt_sigprocmask, 0);
	} else if (!strcmp(mode, "second")) {
		result = filter(SYS_reboot, 0) | filter(SYS_rt_sigreturn, 0);
	} else if (!strcmp(mode, "refused")) {
		result = filter(SYS_rt_sigreturn, ~0u) + 1;
	} else if (!strcmp(mode, "offered")) {
		result = filter(SYS_reboot, 0);
	}
	after_filter(300);
	/* Which the C library would do with signals blocked. */
	while (!strcmp(mode, "tsync") && !pthread_tryjoin_np(thread, 0) == 0)
		;
	printf("%s %d\n", mode, result);
	fflush(stdout);
	syscall(SYS_exit_group, 21);
}
