/* Hazard: a server that has given up its privileges cannot read all that /proc says of itself. usage: drops_privileges
 * MILLISECONDS */
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "burn.h"

BURN(serve)

static void *thread(void *time)
{
	serve(*(unsigned *)time);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned time = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
	pthread_t other;
	if (setgroups(0, 0) || setgid(65534) || setuid(65534) || pthread_create(&other, 0, thread, &time)) {
		perror("drops_privileges");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	serve(time);
	pthread_join(other, 0);
	return 21;
}
