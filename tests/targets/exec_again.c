/* `exec_again TIMES MS` executes itself as often, each time after some milliseconds of computing; meant to be linked statically,
 * so that no loader brings the agent along. */
#include "burn.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

BURN(compute)

extern char **environ;

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	int left = atoi(argv[1]);
	compute(atoi(argv[2]));
	if (!left)
		return 0;
	char number[16];
	snprintf(number, sizeof number, "%d", left - 1);
	char *arguments[] = { argv[0], number, argv[2], 0 };
	execve("/proc/self/exe", arguments, environ);
	return 1;
}
