/* Computes in a library without call frame information, before and after there is a table for it. Waits for a line twice in
 * between, and starts another program after the first.
 * usage: late_adoption LIBRARY PROGRAM */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLER(name)                                                                               \
	__attribute__((noinline)) void name(void (*bare)(void), unsigned ms)                       \
	{                                                                                          \
		uint64_t until = thread_cpu_ns() + ms * 1000000ull;                                \
		while (thread_cpu_ns() < until)                                                    \
			bare();                                                                    \
		__asm__ volatile("" : : "i"(__COUNTER__));                                         \
	}

CALLER(early_caller)
CALLER(late_caller)

int main(int argc, char **argv)
{
	/* The copy has no path by which the recorder finds it, so it makes no table for it. */
	char name[64];
	int from = open(argv[1], O_RDONLY | O_CLOEXEC), copy = memfd_create("copy", MFD_CLOEXEC);
	while (sendfile(copy, from, NULL, 1 << 20) > 0)
		;
	snprintf(name, sizeof name, "/proc/self/fd/%d", copy);
	void *library = dlopen(name, RTLD_NOW);
	void (*bare)(void) = library ? (void (*)(void))dlsym(library, "bare") : NULL;
	if (argc != 3 || !bare)
		return 1;
	early_caller(bare, 200);
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 2;
	pid_t child = fork();
	if (child == 0) {
		execl(argv[2], argv[2], "20", NULL);
		_exit(3);
	}
	if (waitpid(child, NULL, 0) != child || getchar() == EOF)
		return 4;
	late_caller(bare, 200);
	return 41;
}
