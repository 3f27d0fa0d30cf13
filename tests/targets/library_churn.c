/* Hazard: libraries that come and go at the same address, in an attached process. `library_churn LIBRARY...` loads each,
 * makes it work for a while, and closes it; prints "ready" first and
 * waits for a line. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	char line[16];
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 2;
	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW);
		void (*run)(void) = library ? (void (*)(void))dlsym(library, "churn_run") : 0;
		if (!run) {
			puts(dlerror());
			return 1;
		}
		run();
		printf("%p\n", (void *)run);
		if (dlclose(library))
			return 1;
	}
	puts("ok");
	return 0;
}
