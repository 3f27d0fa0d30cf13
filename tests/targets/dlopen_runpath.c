/* dlopen by bare name, found only through the caller's RUNPATH: once the program's, once a library's.
 * No function in between may change who the caller is. */
#include <dlfcn.h>
#include <stdio.h>

int ask(const char *name);

int main(void)
{
	void *handle = dlopen("libhidden_program.so", RTLD_NOW);
	if (!handle) {
		printf("program: %s\n", dlerror());
		return 1;
	}
	int (*hidden)(void) = (int (*)(void))dlsym(handle, "hidden");
	printf("program %d\n", hidden());
	printf("library %d\n", ask("libhidden_library.so"));
	/* The program's RUNPATH does not reach the library's directory. */
	printf("unreachable %d\n", dlopen("libhidden_unreachable.so", RTLD_NOW) != 0);
	return 24;
}
