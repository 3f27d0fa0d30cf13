/* Hazard: a process that computes is stopped, by a signal, for 600 of 1000 milliseconds. */
#include "burn.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static BURN(stopped_work)

int main(void)
{
	pid_t parent = getpid();
	if (!fork()) {
		usleep(150000);
		kill(parent, SIGSTOP);
		usleep(600000);
		kill(parent, SIGCONT);
		_exit(0);
	}
	stopped_work(400);
	wait(0);
	return 0;
}
