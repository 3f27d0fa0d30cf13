/* Hazard: very many idle threads. `idle_threads N` creates N and prints the cost of each: bytes of resident memory, bytes of
 * address space, nanoseconds at its start. `idle_threads N locked` locks all its memory first. `idle_threads N wait` prints
 * `ready` and waits for the end of its input. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static pthread_barrier_t all_there;

static void *idle(void *p)
{
	pthread_barrier_wait(&all_there);
	for (;;)
		pause();
	return p;
}

static long nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

static long kilobytes(const char *key)
{
	char line[256];
	long value = -1;
	FILE *file = fopen("/proc/self/status", "r");
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, key, strlen(key)))
			value = atol(line + strlen(key));
	fclose(file);
	return value;
}

int main(int argc, char **argv)
{
	int count = atoi(argv[1]);
	pthread_attr_t attributes;
	pthread_t thread;
	if (argc > 2 && !strcmp(argv[2], "locked") && mlockall(MCL_CURRENT | MCL_FUTURE)) {
		puts("may not lock memory");
		return 77;
	}
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	pthread_barrier_init(&all_there, 0, count + 1);
	long resident = kilobytes("RssAnon:"), mapped = kilobytes("VmSize:"), begun = nanoseconds();
	for (int i = 0; i < count; i++)
		if (pthread_create(&thread, &attributes, idle, 0))
			return 1;
	long born = nanoseconds() - begun;
	pthread_barrier_wait(&all_there);
	resident = kilobytes("RssAnon:") - resident;
	mapped = kilobytes("VmSize:") - mapped;
	if (argc > 2 && !strcmp(argv[2], "wait")) {
		puts("ready");
		fflush(stdout);
		while (getchar() != EOF)
			continue;
		puts("ok");
	} else {
		printf("resident %ld mapped %ld born %ld\n", resident * 1024 / count, mapped * 1024 / count, born / count);
	}
	return 0;
}
