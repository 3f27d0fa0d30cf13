/* A library with a RUNPATH of its own that asks for a library by bare name. */
#include <dlfcn.h>
#include <stdio.h>

int ask(const char *name)
{
	void *handle = dlopen(name, RTLD_NOW);
	if (!handle) {
		printf("asker: %s\n", dlerror());
		return -1;
	}
	int (*hidden)(void) = (int (*)(void))dlsym(handle, "hidden");
	return hidden();
}
