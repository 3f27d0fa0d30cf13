/* Generated code in the place of other code, as just-in-time compilers put it there after the other has been freed: its name is
 * appended to /tmp/perf-PID.map. Each function computes for a second. usage: replaced_generated FUNCTIONS; prints the process id. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "generated.h"

static double cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	/* mov rax, rdi; 1: dec rax; jnz 1b; ret */
	static const uint8_t code[] = { 0x48, 0x89, 0xf8, 0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3 };
	char name[64];
	uint8_t *place = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
	FILE *map = fopen(name, "w");
	if (place == MAP_FAILED || !map || argc != 2)
		return 1;
	for (int n = 0; n < atoi(argv[1]); n++) {
		put(place, code, sizeof code);
		fprintf(map, "%lx %zx function_%d\n", (unsigned long)place, sizeof code, n);
		fflush(map);
		for (double end = cpu() + 1; cpu() < end;)
			((void (*)(unsigned long))place)(1000000);
		memset(place, 0xcc, sizeof code);
	}
	fclose(map);
	printf("%d\n", getpid());
	return 0;
}
