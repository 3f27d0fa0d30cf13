/* What a program does after the agent was injected: `thread` starts a thread, `library PATH` loads a library, `clone` starts
 * a thread that not even the C library knows. */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

BURN(early_work)
BURN(later_work)

static volatile int done;

static void *body(void *p)
{
	later_work(2500);
	done = 1;
	return p;
}

static int bare(void *p)
{
	body(p);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	puts("ready");
	fflush(stdout);
	early_work(800);
	if (!strcmp(argv[1], "thread")) {
		pthread_t thread;
		pthread_create(&thread, 0, body, 0);
		early_work(1500);
		pthread_join(thread, 0);
	} else if (!strcmp(argv[1], "clone")) {
		size_t size = 256 * 1024;
		char *stack = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
		if (clone(bare, stack + size, flags, 0) < 0)
			return 1;
		early_work(1500);
		while (!done)
			usleep(1000);
	} else {
		void *library = argc > 2 ? dlopen(argv[2], RTLD_NOW) : 0;
		int (*run)(unsigned) = library ? dlsym(library, "plugin_run") : 0;
		if (!run) {
			puts(dlerror());
			return 1;
		}
		uint64_t until = thread_cpu_ns() + 3000000000ull;
		while (thread_cpu_ns() < until)
			run(50);
	}
	puts("ok");
	return 0;
}
