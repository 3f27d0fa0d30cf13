/* Threads that spend their time inside malloc, free, mutexes, dl_iterate_phdr and the dynamic loader:
 * a handler that took any of their locks would soon hang. */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static long counter;

static int visit(struct dl_phdr_info *info, size_t size, void *p)
{
	(void)size;
	*(long *)p += info->dlpi_phnum;
	return 0;
}

__attribute__((noinline)) void storm_heap(uint64_t ms)
{
	uint64_t until = thread_cpu_ns() + ms * 1000000;
	void *held[64] = { 0 };
	unsigned state = 1;
	do {
		for (int i = 0; i < 500; i++) {
			state = state * 1103515245 + 12345;
			unsigned slot = (state >> 16) & 63;
			free(held[slot]);
			held[slot] = malloc((state >> 8) & 8191);
		}
	} while (thread_cpu_ns() < until);
	for (int i = 0; i < 64; i++)
		free(held[i]);
}

__attribute__((noinline)) void storm_loader(uint64_t ms)
{
	uint64_t until = thread_cpu_ns() + ms * 1000000;
	long headers = 0;
	do {
		for (int i = 0; i < 100; i++) {
			dl_iterate_phdr(visit, &headers);
			dlsym(RTLD_DEFAULT, "a symbol nobody has");
			pthread_mutex_lock(&mutex);
			counter++;
			pthread_mutex_unlock(&mutex);
		}
	} while (thread_cpu_ns() < until);
}

static void *heap(void *p)
{
	storm_heap(500);
	return p;
}

static void *loader(void *p)
{
	storm_loader(500);
	return p;
}

int main(void)
{
	void *(*run[4])(void *) = { heap, loader, heap, loader };
	pthread_t thread[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&thread[i], 0, run[i], 0);
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], 0);
	puts("storm done");
	return 49;
}
