/* Hazard: libraries that allocate, come and go at the same address within a moment. `heap_unloaded LIBRARY...` has each
 * allocate 1000 times. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_NOW);
		void (*allocate)(int) = library ? (void (*)(int))dlsym(library, "allocate") : 0;
		if (!allocate) {
			puts(dlerror());
			return 1;
		}
		allocate(1000);
		printf("%p\n", (void *)allocate);
		if (dlclose(library))
			return 1;
	}
	return 0;
}
