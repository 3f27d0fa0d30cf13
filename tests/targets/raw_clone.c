/* A thread made by clone without the C library: it shares the creator's thread pointer and no wrapper saw it begin. */
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
	raw_clone_work(200);
	result = 41;
	return 0;
}

int main(void)
{
	size_t size = 256 * 1024;
	char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	tid_word = 1;
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
		    CLONE_CHILD_CLEARTID;
	if (clone(body, stack + size, flags, 0, 0, 0, (void *)&tid_word) < 0)
		return 1;
	creator_work(200);
	while (tid_word)
		syscall(SYS_futex, &tid_word, FUTEX_WAIT, 1, 0, 0, 0);
	printf("result %d\n", result);
	return 35;
}
