/* Generated code with a frame pointer traps; the handler computes, skips the instruction, and the code
 * returns. */
#define _GNU_SOURCE
#include "burn.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

BURN(handler_work)

static volatile sig_atomic_t traps;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	(void)signal;
	(void)info;
	traps++;
	handler_work(100);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
}

__attribute__((noinline)) static int run(int (*generated)(void))
{
	return generated() + 1;
}

int main(void)
{
	/* push %rbp; mov %rsp, %rbp; sub $16, %rsp; ud2; mov $35, %eax; leave; ret */
	static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x0f,
					      0x0b, 0xb8, 35, 0, 0, 0, 0xc9, 0xc3 };
	struct sigaction action = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	sigaction(SIGILL, &action, 0);
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return 1;
	memcpy(page, code, sizeof code);
	int sum = 0;
	for (int i = 0; i < 5; i++)
		sum += run((int (*)(void))page);
	printf("traps %d sum %d\n", traps, sum);
	return 36;
}
