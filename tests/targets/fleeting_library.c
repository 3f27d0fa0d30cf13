/* Hazard: a library whose file is gone before the program has ended.
 * usage: fleeting_library LIBRARY COPY HOW [MS]: loads the copy of a library, and computes there. HOW the copy goes:
 *   end      removed at the end
 *   once     removed once it is loaded
 *   memory   it never has a name
 *   linked   COPY is a symbolic link to LIBRARY, and both are removed at the end
 * With -DLIBRARY it is the library. */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef LIBRARY
/* No symbol of the dynamic symbol table. */
static BURN(fleeting_work)

void run(unsigned ms)
{
	fleeting_work(ms);
}
#else
static int copy(int from, int to)
{
	char block[4096];
	for (ssize_t bytes; (bytes = read(from, block, sizeof block)) > 0;)
		if (write(to, block, bytes) != bytes)
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	char name[64];
	const char *path = argv[2], *how = argv[3];
	int is_memory = !strcmp(how, "memory");
	int is_linked = !strcmp(how, "linked");
	int from = open(argv[1], O_RDONLY);
	int to = is_memory ? memfd_create("fleeting", 0) : open(path, O_CREAT | O_EXCL | O_WRONLY, 0700);
	if (is_linked ? unlink(path) || symlink(argv[1], path) : copy(from, to))
		return 1;
	snprintf(name, sizeof name, "/proc/self/fd/%d", to);
	void *library = dlopen(is_memory ? name : path, RTLD_NOW);
	if (!library)
		return puts(dlerror()), 2;
	close(to);
	if (!strcmp(how, "once"))
		unlink(path);
	((void (*)(unsigned))dlsym(library, "run"))(argc > 4 ? atoi(argv[4]) : 500);
	if (!strcmp(how, "end") || is_linked)
		unlink(path);
	if (is_linked)
		unlink(argv[1]);
	return 0;
}
#endif
