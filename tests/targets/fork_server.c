/* A fork server with a warm heap and threads: a high rate of children from a large process. No fork may be restarted
   forever by signals. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(server_work)
BURN(request_work)

int main(void)
{
	size_t bytes = 200u << 20;
	char *heap = malloc(bytes);
	memset(heap, 7, bytes);
	server_work(100);
	int good = 0;
	for (int i = 0; i < 60; i++) {
		pid_t child = fork();
		if (!child) {
			heap[i * 4096] = (char)i;
			request_work(5);
			_exit(heap[i * 4096]);
		}
		int status;
		waitpid(child, &status, 0);
		good += WIFEXITED(status) && WEXITSTATUS(status) == i;
	}
	printf("children %d\n", good);
	return 27;
}
