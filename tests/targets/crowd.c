/* `crowd threads N` and `crowd children N` have N alive at the same time, each of which works a little once all exist.
 * `crowd stranger` becomes another user, forks, and executes itself. */
#define _GNU_SOURCE
#include "burn.h"
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(crowd_work)
BURN(crowd_main_work)

static pthread_barrier_t all_there;
static int milliseconds = 20;

static void *one(void *p)
{
	pthread_barrier_wait(&all_there);
	crowd_work(milliseconds);
	pthread_barrier_wait(&all_there);
	return p;
}

static int threads(int count)
{
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 64 << 10);
	pthread_barrier_init(&all_there, 0, count + 1);
	pthread_t *thread = calloc(count, sizeof *thread);
	for (int i = 0; i < count; i++)
		if (pthread_create(&thread[i], &attributes, one, 0)) {
			puts("too many threads for this system");
			return 77;
		}
	pthread_barrier_wait(&all_there);
	pthread_barrier_wait(&all_there);
	for (int i = 0; i < count; i++)
		pthread_join(thread[i], 0);
	return 0;
}

static int children(int count)
{
	int go[2], status, failed = 0;
	char c;
	if (pipe(go))
		return 1;
	for (int i = 0; i < count; i++) {
		pid_t child = fork();
		if (child < 0)
			return 77;
		if (!child) {
			close(go[1]);
			if (read(go[0], &c, 1))
				_exit(1);
			crowd_work(milliseconds);
			exit(0);
		}
	}
	close(go[0]);
	close(go[1]);
	while (wait(&status) > 0)
		failed += status != 0;
	return failed ? 2 : 0;
}

static int stranger(char *self)
{
	int status;
	if (setgroups(0, 0) || setgid(65534) || setuid(65534))
		return 1;
	pid_t child = fork();
	if (!child) {
		crowd_work(100);
		exit(3);
	}
	if (waitpid(child, &status, 0) != child || status != 3 << 8)
		return 2;
	puts("child done");
	fflush(stdout);
	execl(self, self, "threads", "1", (char *)0);
	return 4;
}

int main(int argc, char **argv)
{
	int count = argc > 2 ? atoi(argv[2]) : 1, result = 1;
	if (argc > 3)
		milliseconds = atoi(argv[3]);
	crowd_main_work(50);
	if (argc > 1 && !strcmp(argv[1], "threads"))
		result = threads(count);
	else if (argc > 1 && !strcmp(argv[1], "children"))
		result = children(count);
	else if (argc > 1 && !strcmp(argv[1], "stranger"))
		result = stranger(argv[0]);
	printf("crowd %d\n", result);
	return result;
}
