/* A static program, which cannot be preloaded. With `unblock` it unblocks SIGPROF, which kills it if one is pending. */
#include "burn.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

BURN(static_work)

int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "unblock")) {
		sigset_t set;
		sigemptyset(&set);
		sigaddset(&set, SIGPROF);
		sigprocmask(SIG_UNBLOCK, &set, 0);
	}
	static_work(50);
	puts("static done");
	return 15;
}
