/* In every 100 ms a thread sleeps 70 in one function, waits 20 for a mutex in another, and computes for the rest. Prints the
 * nanoseconds that these took by the clock. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

BURN(burning)
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static int rounds = 20;
static volatile int taken;

static uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void nap(unsigned ms)
{
	struct timespec t = { 0, ms * 1000000l };
	nanosleep(&t, 0);
}

__attribute__((noinline)) void sleeping(void)
{
	nap(70);
	taken++;
}

__attribute__((noinline)) void waiting(void)
{
	pthread_mutex_lock(&mutex);
	taken++;
	pthread_mutex_unlock(&mutex);
	taken++;
}

static void *holder(void *p)
{
	for (int i = 0; i < rounds; i++) {
		pthread_mutex_lock(&mutex);
		pthread_barrier_wait(&barrier);
		nap(20);
		pthread_mutex_unlock(&mutex);
		pthread_barrier_wait(&barrier);
	}
	return p;
}

int main(int argc, char **argv)
{
	uint64_t slept = 0, waited = 0;
	pthread_t t;
	if (argc > 1)
		rounds = atoi(argv[1]);
	pthread_barrier_init(&barrier, 0, 2);
	pthread_create(&t, 0, holder, 0);
	for (int i = 0; i < rounds; i++) {
		pthread_barrier_wait(&barrier);
		uint64_t begin = clock_ns();
		waiting();
		uint64_t between = clock_ns();
		pthread_barrier_wait(&barrier);
		uint64_t again = clock_ns();
		sleeping();
		slept += clock_ns() - again;
		waited += between - begin;
		burning(10);
	}
	pthread_join(t, 0);
	printf("%llu %llu\n", (unsigned long long)slept, (unsigned long long)waited);
	return 0;
}
