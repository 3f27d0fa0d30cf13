/* Four threads that use 40, 30, 20 and 10 percent of the CPU time, each in a function of its own. */
#include "burn.h"
#include <pthread.h>
#include <stdio.h>

BURN(share_40)
BURN(share_30)
BURN(share_20)
BURN(share_10)

static void *run_40(void *p) { share_40(600); return p; }
static void *run_30(void *p) { share_30(450); return p; }
static void *run_20(void *p) { share_20(300); return p; }
static void *run_10(void *p) { share_10(150); return p; }

int main(void)
{
	void *(*run[4])(void *) = { run_40, run_30, run_20, run_10 };
	pthread_t thread[4];
	for (int i = 0; i < 4; i++)
		if (pthread_create(&thread[i], 0, run[i], 0))
			return 1;
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], 0);
	puts("shares done");
	return 0;
}
