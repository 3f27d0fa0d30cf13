// Compiled with -pg: collects gprof's profile of itself, with a handler of SIGPROF that the C library installs by itself.

#include "burn.h"
#include <stdio.h>

BURN(profiled_work)

int main(void)
{
	profiled_work(500);
	puts("done");
	return 0;
}
