/* A library that allocates. */
#include <stdlib.h>

static void *volatile sink;

__attribute__((noinline)) void site_library(void) { sink = malloc(700); }

void allocate(int count)
{
	while (count--) {
		site_library();
		free(sink);
	}
}
