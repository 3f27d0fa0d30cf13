/* Threads load, run and unload plug-ins while their code is sampled: no handler may read an unmapped table.
 * Arguments: the plug-ins, copies of one file under several names. */
#include "burn.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

BURN(host_work)

static char **plugins;
static int plugin_count;

static void *churn(void *p)
{
	long id = (long)p;
	long bad = 0;
	for (int i = 0; i < 120; i++) {
		void *handle = dlopen(plugins[(id + i) % plugin_count], (i & 1) ? RTLD_NOW : RTLD_LAZY);
		if (!handle) {
			fprintf(stderr, "%s\n", dlerror());
			return (void *)1000;
		}
		int (*run)(unsigned) = (int (*)(unsigned))dlsym(handle, "plugin_run");
		if (!run || run(2) != 10)
			bad++;
		if (dlclose(handle))
			bad++;
	}
	return (void *)bad;
}

int main(int argc, char **argv)
{
	plugins = argv + 1;
	plugin_count = argc - 1;
	pthread_t thread[4];
	long bad = 0;
	for (long i = 0; i < 4; i++)
		pthread_create(&thread[i], 0, churn, (void *)i);
	host_work(200);
	for (int i = 0; i < 4; i++) {
		void *result;
		pthread_join(thread[i], &result);
		bad += (long)result;
	}
	void *handle = dlopen("/nonexistent/nothing.so", RTLD_NOW);
	printf("missing %d, error %d\n", handle != 0, dlerror() != 0);
	printf("bad %ld\n", bad);
	return bad != 0;
}
