/* A thread created by clone, bypassing the C library and the agent. It shares the creator's thread pointer, or with `own` has
 * one to memory of its own, in which nobody else may write. */
#define _GNU_SOURCE
#include "burn.h"
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FUTEX_WAIT 0 /* musl-gcc has no kernel headers */

BURN(raw_clone_work)
BURN(creator_work)

static volatile int result;
static volatile int tid_word;

static int body(void *p)
{
	(void)p;
	raw_clone_work(600);
	result = 41;
	return 0;
}

int main(int argc, char **argv)
{
	(void)argv;
	size_t size = 256 * 1024, own = 64 * 1024;
	char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *local = mmap(0, own, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	tid_word = 1;
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
		    CLONE_CHILD_CLEARTID | (argc > 1 ? CLONE_SETTLS : 0);
	if (clone(body, stack + size, flags, 0, 0, local + own / 2, (void *)&tid_word) < 0)
		return 1;
	creator_work(600);
	while (tid_word)
		syscall(SYS_futex, &tid_word, FUTEX_WAIT, 1, 0, 0, 0);
	int written = 0;
	for (size_t i = 0; i < own; i++)
		written += local[i] != 0;
	printf("result %d, %d bytes written\n", result, written);
	return 35;
}
