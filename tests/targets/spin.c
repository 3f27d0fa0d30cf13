/* Burns in three threads until killed, after saying `ready`; for tests that kill it or its recorder.
 * `spin N` ends by itself after N milliseconds of CPU time per thread. */
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

BURN(spin_first)
BURN(spin_second)
BURN(spin_third)

static int limit;

static void *second(void *p)
{
	for (int i = 0; !limit || i < limit; i += 10)
		spin_second(10);
	return p;
}

static void *third(void *p)
{
	for (int i = 0; !limit || i < limit; i += 10)
		spin_third(10);
	return p;
}

int main(int argc, char **argv)
{
	limit = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t a, b;
	pthread_create(&a, 0, second, 0);
	pthread_create(&b, 0, third, 0);
	puts("ready");
	fflush(stdout);
	for (int i = 0; !limit || i < limit; i += 10)
		spin_first(10);
	pthread_join(a, 0);
	pthread_join(b, 0);
	puts("spun");
	return 39;
}
