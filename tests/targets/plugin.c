/* The plugin that dlopen_churn loads and unloads. */
#include "burn.h"

BURN(plugin_work)

__attribute__((noinline)) static int plugin_depth(int n, unsigned ms)
{
	volatile char frame[64];
	frame[n & 63] = (char)n;
	if (n > 0)
		return plugin_depth(n - 1, ms) + frame[n & 63] - frame[n & 63] + 1;
	plugin_work(ms);
	return 0;
}

int plugin_run(unsigned ms) { return plugin_depth(10, ms); }
