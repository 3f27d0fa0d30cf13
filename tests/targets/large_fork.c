/* Forks a process with so many pages that a fork takes longer than a tick: restarted at each signal, it would never
 * end. */
#include "burn.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(large_work)

int main(void)
{
	size_t size = (size_t)192 << 20;
	char *memory = malloc(size);
	if (!memory)
		return 1;
	/* Touching one byte per page suffices to create the page tables. */
	for (size_t i = 0; i < size; i += 4096)
		memory[i] = (char)(i >> 12);
	int sum = 0;
	for (int i = 0; i < 12; i++) {
		large_work(20);
		pid_t child = fork();
		if (child == 0)
			_exit(memory[(size_t)i << 20] == (char)(i << 8) ? i : 99);
		int status;
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
			return 2;
		sum += WEXITSTATUS(status);
	}
	printf("sum %d\n", sum);
	return 0;
}
