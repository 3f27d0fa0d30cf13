/* Hazard: a thread that waits for any signal, in an attached process: the signal of a request would be returned there, too.
 * Prints the number of signals received, for each input line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_int taken;

static void *take(void *all)
{
	int signal;
	while (!sigwait(all, &signal))
		taken++;
	return 0;
}

int main(void)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, 0);
	pthread_t thread;
	pthread_create(&thread, 0, take, &all);
	usleep(50000);
	puts("ready");
	fflush(stdout);
	char line[16];
	while (fgets(line, sizeof line, stdin)) {
		printf("%d\n", taken);
		fflush(stdout);
	}
	puts("ok");
	return 0;
}
