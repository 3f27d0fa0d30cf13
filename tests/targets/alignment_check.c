// Runs with the flag that makes the processor fault (SIGBUS) at each access that is not aligned (EFLAGS.AC), as Java's
// virtual machine does for a moment while it looks at the processor, and programs do that look for such accesses. The
// compiler's code for this file makes none. AMD's processors also check vector instructions, Intel's do not.

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "burn.h"

#define AC 0x40000ul

static volatile sig_atomic_t handled;
static void *volatile block;

static void change_flag(unsigned long flag)
{
	__asm__ volatile("pushfq\n\t"
			 "andq %[rest], (%%rsp)\n\t"
			 "orq %[flag], (%%rsp)\n\t"
			 "popfq"
			 :
			 : [rest] "r"(~AC), [flag] "r"(flag)
			 : "memory", "cc");
}

static int flag_is_set(void)
{
	unsigned long flags;
	__asm__ volatile("pushfq\n\tpopq %0" : "=r"(flags));
	return (flags & AC) != 0;
}

static void note(int signal)
{
	(void)signal;
	handled++;
}

BURN(checked)

int main(void)
{
	signal(SIGUSR1, note);
	// The loader, which binds a function at its first call, makes such accesses.
	checked(1);
	raise(SIGUSR1);
	block = malloc(16);
	free(block);
	void *mapped = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(mapped, 4096);
	int lost = 0;
	change_flag(AC);
	for (int i = 0; i < 30; i++) {
		checked(10);
		raise(SIGUSR1);
		block = malloc(64 + 16 * (size_t)i);
		free(block);
		mapped = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		munmap(mapped, 4096);
		lost += !flag_is_set();
	}
	change_flag(0);
	printf("%d signals, flag lost %d times\n", (int)handled, lost);
	return 0;
}
