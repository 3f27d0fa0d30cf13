/* Computes before and after loading a library, which makes the agent rescan the modules; waits for a line in between. */
#include "burn.h"
#include <dlfcn.h>
#include <stdio.h>

BURN(early_burn)
BURN(late_burn)

int main(void)
{
	early_burn(60);
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	void *library = dlopen("libm.so.6", RTLD_NOW);
	if (!library || !dlsym(library, "cos"))
		return 2;
	late_burn(100);
	return 41;
}
