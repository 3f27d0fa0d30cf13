/* Computes in a library without call frame information. Between two rounds of some samples it puts the library's table in place
 * and tells its own agent, as a recorder does.
 * usage: adopts LIBRARY TABLE PLACE */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* Words of the control page (shm-format/FORMAT.md): fired, tables. */
enum { FIRED = 4608, TABLES = 6432 };

static char *own_region(void)
{
	char line[4096], path[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof line, maps)) {
		if (!strstr(line, ".region") || sscanf(line, "%*s %*s %*s %*s %*s %4095s", path) != 1)
			continue;
		fclose(maps);
		int file = open(path, O_RDWR | O_CLOEXEC);
		char *region = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		return region == MAP_FAILED ? NULL : region;
	}
	return NULL;
}

static void compute(void (*bare)(void), char *region, uint64_t samples)
{
	while (__atomic_load_n((uint64_t *)(region + FIRED), __ATOMIC_RELAXED) < samples)
		bare();
}

int main(int argc, char **argv)
{
	void *library = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
	void (*bare)(void) = library ? (void (*)(void))dlsym(library, "bare") : NULL;
	char *region = own_region();
	if (!bare || !region)
		return 1;
	compute(bare, region, 13);
	if (rename(argv[2], argv[3]))
		return 2;
	__atomic_fetch_add((uint64_t *)(region + TABLES), 1, __ATOMIC_RELAXED);
	compute(bare, region, 25);
	return 0;
}
