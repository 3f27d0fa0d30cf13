/* Page faults, system calls and user code in N threads, each for MS milliseconds of its CPU time. A third argument, if not
 * 0, makes a foreign SIGALRM arrive every so many microseconds. Prints `done`, or with a fourth argument the CPU time of the
 * threads in nanoseconds. */
#define _GNU_SOURCE
#include "burn.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

static unsigned budget_ms;
static volatile sig_atomic_t alarms;
static volatile unsigned long sum;
static atomic_ullong cpu_ns;

__attribute__((noinline)) void fault_work(void)
{
	char *p = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 1 << 20; i += 4096)
		p[i] = 1;
	munmap(p, 1 << 20);
}

__attribute__((noinline)) void call_work(int zero)
{
	char block[16384];
	for (int i = 0; i < 50; i++)
		sum += (unsigned long)pread(zero, block, sizeof block, 0) + (unsigned long)getppid();
}

__attribute__((noinline)) void user_work(void)
{
	for (unsigned i = 0; i < 200000; i++)
		sum += i * i;
}

static void *work(void *p)
{
	int zero = open("/dev/zero", O_RDONLY);
	while (thread_cpu_ns() < budget_ms * 1000000ull) {
		fault_work();
		call_work(zero);
		user_work();
	}
	close(zero);
	atomic_fetch_add(&cpu_ns, thread_cpu_ns());
	return p;
}

static void on_alarm(int signal)
{
	alarms += signal != 0;
	for (unsigned i = 0; i < 1000; i++)
		sum += i;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 3;
	budget_ms = argc > 2 ? (unsigned)atoi(argv[2]) : 300;
	if (argc > 3 && atoi(argv[3])) {
		struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
		sigaction(SIGALRM, &action, 0);
		struct itimerval often = { { 0, atoi(argv[3]) }, { 0, atoi(argv[3]) } };
		setitimer(ITIMER_REAL, &often, 0);
	}
	pthread_t t[64];
	for (int i = 0; i < threads; i++)
		pthread_create(&t[i], 0, work, 0);
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], 0);
	if (argc > 4)
		printf("%llu\n", atomic_load(&cpu_ns));
	else
		puts(argc > 3 && !alarms ? "no alarm" : "done");
	return 0;
}
