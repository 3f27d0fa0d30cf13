/* Forbids itself the time-stamp counter, by which the C library tells the time too, and goes on without it: more
 * threads, a child, a library, another image. `no_counter enabled` has it back in between. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Without a look at the clock. */
__attribute__((noinline)) static uint64_t timeless_work(void)
{
	volatile uint64_t x = 1;
	for (long i = 0; i < 100000000; i++)
		x = x * 3 + 1;
	return x;
}

static void *body(void *p)
{
	timeless_work();
	free(malloc(1000));
	return p;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int status;
	timeless_work();
	/* The second time it is forbidden already. */
	for (int i = 0; i < 2; i++)
		if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV))
			return 1;
	pthread_create(&thread, 0, body, 0);
	pthread_join(thread, 0);
	if (argc > 1 && !strcmp(argv[1], "enabled")) {
		prctl(PR_SET_TSC, PR_TSC_ENABLE);
		timeless_work();
		prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
	}
	void *library = dlopen("libm.so.6", RTLD_NOW);
	if (library)
		dlclose(library);
	pid_t child = fork();
	if (!child) {
		timeless_work();
		exit(3);
	}
	if (waitpid(child, &status, 0) != child || status != 3 << 8)
		return 2;
	puts("without a counter");
	return 27;
}
