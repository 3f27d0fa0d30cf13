/* Hazard: allocations are redirected while the program runs and allocates. Each line on standard input is a round: known sites
 * allocate a known amount, in threads too; blocks from before are freed; a child is forked that allocates; a library is loaded,
 * and unloaded in every fourth round. The answer is 1 if the program's own calls of malloc are redirected, else 0.
 * usage: heap_attached LIBRARY | fork | crowded
 * With `fork`, a line lets a child allocate for two seconds. With `crowded`, the 3 GiB below the loader are taken, as in Erlang. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BLOCKS = 100, OLD = 4000 };

extern char **environ;
static void *old[OLD];
static unsigned olds;

static void *filled(void *block, size_t size)
{
	if (!block)
		abort();
	return memset(block, 0x5a, size);
}

static void check(const unsigned char *block, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (block[i] != 0x5a)
			abort();
}

__attribute__((noinline)) static void *site_old(void) { return filled(malloc(1000), 1000); }
__attribute__((noinline)) static void *site_kept(void) { return filled(malloc(3000), 3000); }
__attribute__((noinline)) static void *site_freed(void) { return filled(calloc(5, 700), 3500); }
__attribute__((noinline)) static void *site_thread(void) { return filled(realloc(0, 500), 500); }
__attribute__((noinline)) static void *site_child(void) { return filled(malloc(900), 900); }

static void wait_for(pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child || status)
		abort();
}

__attribute__((noinline)) static void *site_forked(void) { return filled(malloc(1100), 1100); }

/* A child that lives long enough to be recorded itself. */
static void fork_and_wait(void)
{
	pid_t child = fork();
	if (!child) {
		struct timespec time;
		do {
			for (int i = 0; i < BLOCKS; i++) {
				void *block = site_forked();
				check(block, 1100);
				free(block);
			}
			clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
		} while (time.tv_sec < 2);
		_exit(0);
	}
	wait_for(child);
}

static void *thread(void *blocks)
{
	for (int i = 0; i < BLOCKS; i++)
		((void **)blocks)[i] = site_thread();
	return 0;
}

static int is_redirected(void)
{
	void *entry;
	__asm__("movq malloc@GOTPCREL(%%rip), %0" : "=r"(entry));
	return entry != dlsym(RTLD_DEFAULT, "malloc");
}

int main(int argc, char **argv)
{
	char line[16];
	void *blocks[4 * BLOCKS], *library = 0;
	pthread_t threads[4];
	if (argc > 1 && !strcmp(argv[1], "crowded")) {
		for (int i = 0; i < 3; i++)
			if (mmap(0, 1 << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
				abort();
		argc = 1;
	}
	for (olds = 0; olds < OLD; olds++)
		old[olds] = site_old();
	puts("ready");
	fflush(stdout);
	for (int round = 0; fgets(line, sizeof line, stdin); round++) {
		if (argc > 1 && !strcmp(argv[1], "fork")) {
			fork_and_wait();
			printf("%d\n", is_redirected());
			fflush(stdout);
			continue;
		}
		for (int i = 0; i < BLOCKS; i++) {
			site_kept();
			void *block = site_freed();
			check(block, 3500);
			free(block);
		}
		for (int i = 0; i < 4; i++)
			pthread_create(&threads[i], 0, thread, blocks + i * BLOCKS);
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], 0);
		for (int i = 0; i < 4 * BLOCKS; i++) {
			check(blocks[i], 500);
			free(blocks[i]);
		}
		for (int i = 0; i < 10 && olds; i++) {
			check(old[--olds], 1000);
			free(old[olds]);
		}
		pid_t child = fork();
		if (!child) {
			for (int i = 0; i < BLOCKS; i++)
				free(site_child());
			free(old[0]);
			_exit(0);
		}
		wait_for(child);
		char *command[] = { "true", 0 };
		if (posix_spawnp(&child, "true", 0, 0, command, environ))
			abort();
		wait_for(child);
		if (argc > 1) {
			if (!library)
				library = dlopen(argv[1], RTLD_NOW);
			void (*allocate)(int) = (void (*)(int))dlsym(library, "allocate");
			allocate(BLOCKS);
			if (round % 4 == 3) {
				dlclose(library);
				library = 0;
			}
		}
		printf("%d\n", is_redirected());
		fflush(stdout);
	}
	puts("done");
	return 0;
}
