/* Computes in a library without call frame information. Between two rounds it puts the library's table in place and tells its
 * own agent, as a recorder does.
 * usage: adopts LIBRARY TABLE PLACE */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* The word `tables` of the control page (shm-format/FORMAT.md). */
#define TABLES 6432

static int tell(void)
{
	char line[4096], path[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps)) {
		if (!strstr(line, ".region") || sscanf(line, "%*s %*s %*s %*s %*s %4095s", path) != 1)
			continue;
		char *region =
			mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, open(path, O_RDWR | O_CLOEXEC), 0);
		if (region == MAP_FAILED)
			return 0;
		__atomic_fetch_add((uint64_t *)(region + TABLES), 1, __ATOMIC_RELAXED);
		return fclose(maps) == 0;
	}
	return 0;
}

static void burn(void (*bare)(void), unsigned ms)
{
	uint64_t until = thread_cpu_ns() + ms * 1000000ull;
	while (thread_cpu_ns() < until)
		bare();
}

int main(int argc, char **argv)
{
	void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
	void (*bare)(void) = library ? (void (*)(void))dlsym(library, "bare") : NULL;
	if (!bare)
		return 1;
	burn(bare, 40);
	if (rename(argv[2], argv[3]) || !tell())
		return 2;
	burn(bare, 400);
	return 0;
}
