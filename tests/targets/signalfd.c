/* All signals are blocked and read from a descriptor, as in event loops: no signal must appear that nobody sent. */
#define _GNU_SOURCE
#include "burn.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

BURN(loop_work)

int main(void)
{
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, 0);
	int fd = signalfd(-1, &all, SFD_CLOEXEC);
	unsigned expected = 0, foreign = 0;
	for (int i = 0; i < 50; i++) {
		loop_work(4);
		kill(getpid(), SIGUSR1);
		struct pollfd ready = { fd, POLLIN, 0 };
		while (poll(&ready, 1, 0) == 1) {
			struct signalfd_siginfo info;
			if (read(fd, &info, sizeof info) != sizeof info)
				return 1;
			if (info.ssi_signo == SIGUSR1)
				expected++;
			else
				foreign++;
		}
	}
	printf("expected %u foreign %u\n", expected, foreign);
	return 13;
}
