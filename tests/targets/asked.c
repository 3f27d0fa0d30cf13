/* The target of dumps. Prints `ready`, continues until its standard input ends, and prints what it noticed.
 * `asked threads N`: sleeps, waits, reads and computes in N threads; `asked handler|ignore|default`: with this disposition
 * of SIGPROF; `asked blocks`: one thread has SIGPROF blocked in the kernel, one blocks everything for a limited time;
 * `asked vfork`: waits for a child of vfork; `asked exec N`: executes itself N times. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

BURN(asked_spins)

static atomic_int stop, queued, others, short_reads, begun;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over = PTHREAD_COND_INITIALIZER;
static int pipes[2];

__attribute__((noinline)) static void asked_sleeps(void)
{
	atomic_fetch_add(&begun, 1);
	while (!atomic_load(&stop)) {
		struct timespec left = {0, 200000000};
		while (nanosleep(&left, &left) && errno == EINTR)
			;
	}
}

__attribute__((noinline)) static void asked_waits(void)
{
	atomic_fetch_add(&begun, 1);
	pthread_mutex_lock(&lock);
	while (!atomic_load(&stop))
		pthread_cond_wait(&over, &lock);
	pthread_mutex_unlock(&lock);
}

__attribute__((noinline)) static void asked_reads(void)
{
	char byte;
	atomic_fetch_add(&begun, 1);
	/* Ends when the last writer closes: there must be no EINTR. */
	if (read(pipes[0], &byte, 1) != 0)
		atomic_fetch_add(&short_reads, 1);
}

static void *work(void *p)
{
	static const char *names[] = {"sleeps", "waits", "reads", "spins"};
	long kind = (long)p;
	pthread_setname_np(pthread_self(), names[kind]);
	if (kind == 0)
		asked_sleeps();
	else if (kind == 1)
		asked_waits();
	else if (kind == 2)
		asked_reads();
	else {
		atomic_fetch_add(&begun, 1);
		while (!atomic_load(&stop)) {
			asked_spins(1);
			usleep(5000);
		}
	}
	return p;
}

static void until_end_of_input(void)
{
	char byte;
	puts("ready");
	fflush(stdout);
	for (;;) {
		ssize_t got = read(0, &byte, 1);
		if (got == 0)
			return;
		if (got < 0) {
			printf("read: %s\n", strerror(errno));
			exit(1);
		}
	}
}

static int threads(int count)
{
	pthread_t *all = calloc(count, sizeof *all);
	if (pipe(pipes))
		return 1;
	for (long i = 0; i < count; i++)
		/* Few compute: leave the machine to others. */
		pthread_create(&all[i], 0, work, (void *)(i % 20 == 3 ? 3 : i % 3));
	/* A thread that is starting blocks all signals. */
	while (atomic_load(&begun) < count)
		usleep(1000);
	until_end_of_input();
	atomic_store(&stop, 1);
	pthread_mutex_lock(&lock);
	pthread_cond_broadcast(&over);
	pthread_mutex_unlock(&lock);
	close(pipes[1]);
	for (int i = 0; i < count; i++)
		pthread_join(all[i], 0);
	printf("%d threads ended, %d reads went wrong\n", count, atomic_load(&short_reads));
	return 0;
}

static void count(int signal, siginfo_t *info, void *context)
{
	atomic_fetch_add(info->si_code == SI_QUEUE ? &queued : &others, 1);
}

static int own_handler(void)
{
	struct sigaction action = {.sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART};
	sigaction(SIGPROF, &action, 0);
	until_end_of_input();
	printf("%d queued, %d others\n", atomic_load(&queued), atomic_load(&others));
	return 0;
}

/* Changes the kernel's signal mask, bypassing the C library. */
static void change_mask(int how, unsigned long set)
{
	unsigned long result;
	register long size __asm__("r10") = 8;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "0"(SYS_rt_sigprocmask), "D"(how), "S"(&set), "d"(0), "r"(size)
			 : "rcx", "r11", "memory");
}

static void *blocker(void *p)
{
	change_mask(SIG_BLOCK, 1ul << (SIGPROF - 1));
	pthread_setname_np(pthread_self(), "blocks");
	asked_sleeps();
	return p;
}

/* Computes with all signals blocked most of the time, like a thread in a signal handler. */
static void *shutter(void *p)
{
	pthread_setname_np(pthread_self(), "shuts");
	atomic_fetch_add(&begun, 1);
	while (!atomic_load(&stop)) {
		change_mask(SIG_BLOCK, ~0ul);
		asked_spins(50);
		change_mask(SIG_UNBLOCK, ~0ul);
		usleep(1000);
	}
	return p;
}

static int blocks(void)
{
	pthread_t thread, other;
	pthread_create(&thread, 0, blocker, 0);
	pthread_create(&other, 0, shutter, 0);
	while (atomic_load(&begun) < 2)
		usleep(1000);
	until_end_of_input();
	atomic_store(&stop, 1);
	pthread_join(thread, 0);
	pthread_join(other, 0);
	puts("ended");
	return 0;
}

static int child_of_vfork(void)
{
	pid_t child = vfork();
	if (child == 0) {
		char byte;
		/* The parent waits from here on. */
		if (write(1, "ready\n", 6) != 6)
			_exit(8);
		while (read(0, &byte, 1) > 0)
			;
		_exit(7);
	}
	int status;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	printf("child %d\n", WEXITSTATUS(status));
	return 0;
}

static int execs(char *self, int left)
{
	char rest[16];
	if (left <= 0) {
		puts("executed");
		return 0;
	}
	snprintf(rest, sizeof rest, "%d", left - 1);
	usleep(2000);
	execl(self, self, "exec", rest, (char *)0);
	return 1;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int number = argc > 2 ? atoi(argv[2]) : 0;
	if (!strcmp(mode, "threads"))
		return threads(number);
	if (!strcmp(mode, "handler"))
		return own_handler();
	if (!strcmp(mode, "ignore"))
		signal(SIGPROF, SIG_IGN);
	if (!strcmp(mode, "blocks"))
		return blocks();
	if (!strcmp(mode, "vfork"))
		return child_of_vfork();
	if (!strcmp(mode, "exec"))
		return execs(argv[0], number);
	until_end_of_input();
	puts("ended");
	return 0;
}
