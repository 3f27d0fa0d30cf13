/* Hazard: a server that has given up its privileges cannot read all that /proc says of itself, and in a root directory of its
 * own there is no /proc. Such servers may forbid themselves to start more threads, too. usage: drops_privileges MILLISECONDS
 * [DIRECTORY] */
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
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
	if (argc > 2 && (chroot(argv[2]) || chdir("/"))) {
		perror(argv[2]);
		return 1;
	}
	if (setgroups(0, 0) || setgid(65534) || setuid(65534) || pthread_create(&other, 0, thread, &time)) {
		perror("drops_privileges");
		return 1;
	}
	struct rlimit none = { 0, 0 };
	if (argc > 2 && setrlimit(RLIMIT_NPROC, &none)) {
		perror("RLIMIT_NPROC");
		return 1;
	}
	puts("ready");
	fflush(stdout);
	serve(time);
	pthread_join(other, 0);
	return 21;
}
