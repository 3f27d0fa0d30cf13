/* The program uses SIGPROF itself. `own_sigprof MODE`:
 *   itimer   handler and ITIMER_PROF of its own: its ticks arrive, its clock reads back
 *   timer    timer_create on its CPU clock with SIGPROF
 *   query    sigaction, signal, sigset, getitimer tell what the program set, never the profiler's handler
 *   reset    signal(SIGPROF, SIG_DFL), SIG_IGN, sigset, siginterrupt: harmless
 *   raw      the same by raw rt_sigaction
 *   raise    SIGPROF sent by kill and pthread_kill reaches the handler with its siginfo */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

BURN(own_work)

static volatile sig_atomic_t ticks, users, values, kernels;

static void on_prof(int sig) { ticks += sig == SIGPROF; }

static void on_prof_info(int sig, siginfo_t *info, void *context)
{
	(void)context;
	ticks += sig == SIGPROF;
	users += info->si_code == SI_USER || info->si_code == SI_TKILL;
	values += info->si_code == SI_TIMER && info->si_value.sival_int == 4711;
	kernels += info->si_code == SI_KERNEL;
}

static void itimer(void)
{
	struct sigaction action = { .sa_sigaction = on_prof_info, .sa_flags = SA_SIGINFO | SA_RESTART }, old;
	printf("before %d\n", sigaction(SIGPROF, &action, &old) == 0 && old.sa_handler == SIG_DFL);
	struct itimerval timer = { { 0, 50000 }, { 0, 50000 } }, now;
	setitimer(ITIMER_PROF, &timer, 0);
	own_work(500);
	getitimer(ITIMER_PROF, &now);
	printf("interval %ld\n", (long)now.it_interval.tv_usec);
	memset(&timer, 0, sizeof timer);
	setitimer(ITIMER_PROF, &timer, &now);
	printf("old interval %ld\n", (long)now.it_interval.tv_usec);
	/* 10 are due; this clock counts scheduler ticks, and on a busy machine half or twice as many arrive. The profiler's ticks
	 * would be 50 more. */
	printf("ticks %s\n", ticks < 1 ? "too few" : ticks > 25 ? "too many" : ticks != kernels ? "of others" : "right");
	int before = ticks;
	own_work(100);
	printf("after stop %s\n", ticks - before > 1 ? "still ticking" : "quiet");
}

static void posix_timer(void)
{
	struct sigaction action = { .sa_sigaction = on_prof_info, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGPROF, &action, 0);
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF };
	event.sigev_value.sival_int = 4711;
	timer_t timer;
	printf("create %d\n", timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer));
	struct itimerspec spec = { { 0, 10000000 }, { 0, 10000000 } };
	timer_settime(timer, 0, &spec, 0);
	own_work(500);
	timer_delete(timer);
	printf("values %s\n", values < 10 ? "too few" : values > 60 ? "too many" : "right");
	printf("only ours %d\n", values == ticks);
}

static void query(void)
{
	struct sigaction old;
	sigaction(SIGPROF, 0, &old);
	printf("default %d flags %x\n", old.sa_handler == SIG_DFL, (unsigned)old.sa_flags);
	printf("signal first %d\n", signal(SIGPROF, on_prof) == SIG_DFL);
	printf("signal second %d\n", signal(SIGPROF, SIG_IGN) == on_prof);
	sigaction(SIGPROF, 0, &old);
	printf("ignored %d\n", old.sa_handler == SIG_IGN);
	struct sigaction action = { .sa_sigaction = on_prof_info, .sa_flags = SA_SIGINFO | SA_NODEFER };
	sigaddset(&action.sa_mask, SIGUSR2);
	sigaction(SIGPROF, &action, &old);
	sigaction(SIGPROF, 0, &old);
	printf("set %d flags %x usr2 %d usr1 %d\n", old.sa_sigaction == on_prof_info,
	       (unsigned)old.sa_flags & ~0x04000000u, sigismember(&old.sa_mask, SIGUSR2),
	       sigismember(&old.sa_mask, SIGUSR1));
	struct itimerval timer;
	getitimer(ITIMER_PROF, &timer);
	printf("timer %ld %ld\n", (long)timer.it_interval.tv_usec, (long)timer.it_value.tv_usec);
	own_work(100);
	printf("untouched %d\n", ticks == 0);
}

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void reset(void)
{
	own_work(30);
	signal(SIGPROF, SIG_DFL);
	own_work(30);
	signal(SIGPROF, SIG_IGN);
	own_work(30);
	sigset(SIGPROF, SIG_DFL);
	own_work(30);
	printf("sigset %d\n", sigset(SIGPROF, on_prof) == SIG_DFL);
	own_work(30);
	siginterrupt(SIGPROF, 0);
	own_work(30);
	signal(SIGPROF, SIG_DFL);
	own_work(100);
	puts("alive");
}

struct kernel_sigaction {
	void *handler;
	unsigned long flags;
	void *restorer;
	unsigned long mask;
};

static void raw(void)
{
	struct kernel_sigaction dfl = { 0 };
	own_work(50);
	printf("raw %ld\n", syscall(SYS_rt_sigaction, SIGPROF, &dfl, (void *)0, 8L));
	own_work(200);
	puts("alive");
}

static void sent(void)
{
	struct sigaction action = { .sa_sigaction = on_prof_info, .sa_flags = SA_SIGINFO | SA_RESTART };
	sigaction(SIGPROF, &action, 0);
	for (int i = 0; i < 50; i++) {
		own_work(2);
		kill(getpid(), SIGPROF);
		pthread_kill(pthread_self(), SIGPROF);
	}
	printf("sent 100, ours %s\n", users == 100 && ticks == 100 ? "all" : users == ticks ? "merged" : "mixed");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "itimer";
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!strcmp(mode, "itimer"))
		itimer();
	else if (!strcmp(mode, "timer"))
		posix_timer();
	else if (!strcmp(mode, "query"))
		query();
	else if (!strcmp(mode, "reset"))
		reset();
	else if (!strcmp(mode, "raw"))
		raw();
	else if (!strcmp(mode, "raise"))
		sent();
	else
		return 98;
	return 28;
}
