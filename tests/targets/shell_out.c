/* system and popen: the C library starts the shell by internal calls that cannot be interposed. */
#include "burn.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

BURN(shell_out_work)

int main(void)
{
	setvbuf(stdout, 0, _IOLBF, 0);
	shell_out_work(100);
	int status = system("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo counted $i; exit 6");
	printf("system %d\n", WEXITSTATUS(status));
	FILE *pipe = popen("echo one; echo two; exit 7", "r");
	char line[64];
	while (fgets(line, sizeof line, pipe))
		printf("read %s", line);
	printf("pclose %d\n", WEXITSTATUS(pclose(pipe)));
	FILE *sink = popen("cat", "w");
	fputs("written through cat\n", sink);
	printf("pclose %d\n", WEXITSTATUS(pclose(sink)));
	shell_out_work(100);
	return 23;
}
