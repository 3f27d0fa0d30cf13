/* A second C library: dlmopen loads a plug-in into its own namespace, with its own allocator and loader list. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	int (*run)(unsigned);
	if (argc < 2)
		return 1;
	for (int i = 0; i < 4; i++) {
		void *handle = dlmopen(LM_ID_NEWLM, argv[1], RTLD_NOW | RTLD_LOCAL);
		if (!handle) {
			printf("%s\n", dlerror());
			return 1;
		}
		*(void **)&run = dlsym(handle, "plugin_run");
		printf("depth %d\n", run(60));
		dlclose(handle);
	}
	return 17;
}
