/* Hundreds of forks out of a process whose other threads burn CPU; every child uses the heap and exits at once. */
#include "burn.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(background_work)
BURN(storm_child_work)

static atomic_int stop;

static void *background(void *p)
{
	while (!atomic_load(&stop))
		background_work(5);
	return p;
}

int main(void)
{
	pthread_t thread[2];
	for (int i = 0; i < 2; i++)
		pthread_create(&thread[i], 0, background, 0);
	int sum = 0;
	for (int i = 0; i < 200; i++) {
		pid_t child = fork();
		if (child < 0)
			return 1;
		if (child == 0) {
			char *p = malloc(10000);
			memset(p, i, 10000);
			if (i % 20 == 0)
				storm_child_work(20);
			_exit(p[9999] == (char)i ? i % 7 : 99);
		}
		int status;
		if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
			return 2;
		sum += WEXITSTATUS(status);
	}
	atomic_store(&stop, 1);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], 0);
	printf("sum %d\n", sum);
	return 0;
}
