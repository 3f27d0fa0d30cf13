/* Computes for 600 ms, and every 2 ms tries to execute a program that is not there, as shells do with PATH. At the end a bad
 * address is tried as well. Exits with 3 if the errors are not those of the kernel. */
#include "burn.h"
#include <errno.h>
#include <unistd.h>

BURN(compute)

extern char **environ;

int main(void)
{
	char *arguments[] = { "missing", 0 };
	for (int i = 0; i < 300; i++) {
		compute(2);
		if (execve("/nonexistent/missing", arguments, environ) != -1 || errno != ENOENT)
			return 3;
	}
	return execve((char *)1, arguments, environ) == -1 && errno == EFAULT ? 0 : 3;
}
