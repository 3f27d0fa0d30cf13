// Forbids itself what kills it from then on: `counter`, to read the processor's time-stamp counter, by which the C library tells
// the time too; or `cpuid`, to ask the processor what it can do. Then it computes until SIGTERM.

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012

static void *volatile block;

__attribute__((noinline)) static void timeless_work(void)
{
	volatile uint64_t x = 1;
	for (int i = 0; i < 1000000; i++)
		x = x * 3 + 1;
	block = malloc(100);
	free(block);
}

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	int failed = strcmp(what, "cpuid") == 0 ? syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0) != 0
						: prctl(PR_SET_TSC, PR_TSC_SIGSEGV) != 0;
	if (failed) {
		puts("unsupported");
		return 0;
	}
	signal(SIGTERM, end);
	puts("ready");
	fflush(stdout);
	while (!ended)
		timeless_work();
	puts("done");
	return 0;
}
