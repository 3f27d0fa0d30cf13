/* Leaves its own SIGALRM and SIGSEGV handlers by siglongjmp, thousands of times, while sampled. */
#define _GNU_SOURCE
#include "burn.h"
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

BURN(between_jumps)
BURN(after_jumps)

static volatile int *volatile nowhere;

static sigjmp_buf back;
static volatile sig_atomic_t alarms, faults, armed;

static void on_alarm(int sig)
{
	(void)sig;
	alarms++;
	if (armed) {
		armed = 0;
		siglongjmp(back, 1);
	}
}

static void on_segv(int sig)
{
	(void)sig;
	faults++;
	siglongjmp(back, 2);
}

int main(void)
{
	signal(SIGALRM, on_alarm);
	struct sigaction action = { .sa_handler = on_segv, .sa_flags = SA_NODEFER };
	sigaction(SIGSEGV, &action, 0);
	struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };
	setitimer(ITIMER_REAL, &timer, 0);
	volatile int jumps = 0, wild = 0;
	while (jumps < 300) {
		if (sigsetjmp(back, 1) == 0) {
			armed = 1;
			for (;;)
				between_jumps(1);
		} else
			jumps++;
	}
	armed = 0;
	timer.it_value.tv_usec = timer.it_interval.tv_usec = 0;
	setitimer(ITIMER_REAL, &timer, 0);
	while (wild < 3000) {
		if (sigsetjmp(back, 1) == 0)
			*nowhere = 1;
		else
			wild++;
	}
	after_jumps(200);
	printf("jumps %d faults %d alarms %s\n", jumps, faults, alarms >= jumps ? "enough" : "too few");
	return 27;
}
