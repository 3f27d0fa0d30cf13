/* Events whose number and fields are known: what ran is printed at the end.
 * Arguments: MODE and its numbers, see main. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../agent/include/selfwind.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const names[] = {"zero", "one", "two", "three"};

/* N events with a field of each type. */
static void count(long events)
{
	char text[300];
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = 0;
	for (long i = 0; i < events; i++)
		SELFWIND_TRACEPOINT(app, tick, SELFWIND_I64_AS(minus, -i), SELFWIND_U64_AS(square, (uint64_t)i * (uint64_t)i),
				    SELFWIND_F64_AS(half, (double)i / 2), SELFWIND_STR_AS(name, names[i & 3]));
	SELFWIND_TRACEPOINT(app, texts, SELFWIND_STR(text), SELFWIND_STR_AS(none, (const char *)0), SELFWIND_STR_AS(empty, ""));
	SELFWIND_TRACEPOINT(app, bare);
	SELFWIND_TRACEPOINT(other, tick, SELFWIND_I64(events));
	printf("tick %ld\n", events);
}

static long per_thread;

static void *work(void *number)
{
	uint64_t thread = (uint64_t)(uintptr_t)number;
	for (long n = 0; n < per_thread; n++)
		SELFWIND_TRACEPOINT(app, work, SELFWIND_U64(thread), SELFWIND_I64(n));
	return 0;
}

/* So many events in each of so many threads. */
static void threads(long count, long events)
{
	pthread_t all[64];
	per_thread = events;
	for (long i = 0; i < count; i++)
		pthread_create(&all[i], 0, work, (void *)(uintptr_t)i);
	for (long i = 0; i < count; i++)
		pthread_join(all[i], 0);
	printf("work %ld\n", count * events);
}

static volatile long inner;
static volatile int is_over;
static pthread_t interrupted;

/* Interrupts a thread again and again, each time once the previous signal has been handled. */
static void *interrupt(void *unused)
{
	while (!is_over) {
		long seen = inner;
		pthread_kill(interrupted, SIGALRM);
		while (inner == seen && !is_over)
			sched_yield();
	}
	return unused;
}

static void begin_interrupts(pthread_t *sender, void (*handler)(int))
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = handler;
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, 0);
	interrupted = pthread_self();
	pthread_create(sender, 0, interrupt, 0);
}

static void end_interrupts(pthread_t sender)
{
	signal(SIGALRM, SIG_IGN);
	is_over = 1;
	pthread_join(sender, 0);
}

static void on_alarm(int signal)
{
	(void)signal;
	long n = inner++;
	SELFWIND_TRACEPOINT(app, inner, SELFWIND_I64(n));
}

static volatile int sink;

/* A microsecond or so, so that there are not too many events. */
static void pause_a_little(void)
{
	for (int i = 0; i < 1000; i++)
		sink = i;
}

/* Events all the time, until a number of them have been hit in a signal handler that interrupts them. */
static void signals(long wanted)
{
	pthread_t sender;
	long outer = 0;
	begin_interrupts(&sender, on_alarm);
	while (inner < wanted) {
		SELFWIND_TRACEPOINT(app, outer, SELFWIND_I64(outer));
		outer++;
		pause_a_little();
	}
	end_interrupts(sender);
	printf("outer %ld\ninner %ld\n", outer, inner);
}

static sigjmp_buf away;

static void on_jump(int signal)
{
	(void)signal;
	inner++;
	siglongjmp(away, 1);
}

/* A handler that leaves by a jump, whatever it interrupted. */
static void jumps(long wanted)
{
	static pthread_t sender;
	static volatile long begun, ended;
	sigsetjmp(away, 1);
	if (!interrupted)
		begin_interrupts(&sender, on_jump);
	while (inner < wanted) {
		begun++;
		SELFWIND_TRACEPOINT(app, cut, SELFWIND_I64_AS(n, begun));
		ended++;
		pause_a_little();
	}
	end_interrupts(sender);
	for (int i = 0; i < 10; i++)
		SELFWIND_TRACEPOINT(app, after, SELFWIND_I64(i));
	printf("begun %ld\nended %ld\nafter 10\n", begun, ended);
}

/* Libraries with tracepoints come and go. */
static int libraries(int count, char **files, long rounds)
{
	long events = 0;
	for (long i = 0; i < rounds; i++) {
		void *library = dlopen(files[i % count], RTLD_NOW);
		long (*run)(long);
		if (!library) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		*(void **)&run = dlsym(library, "run");
		events += run(i);
		dlclose(library);
	}
	printf("library %ld\nconstructor %ld\n", events, rounds);
	return 0;
}

static void forks(long events)
{
	SELFWIND_TRACEPOINT(app, parent, SELFWIND_I64(events));
	for (int i = 0; i < 3; i++) {
		pid_t child = fork();
		if (child == 0) {
			for (long n = 0; n < events; n++)
				SELFWIND_TRACEPOINT(app, child, SELFWIND_I64(n));
			exit(0);
		}
		waitpid(child, 0, 0);
	}
	for (long n = 0; n < events; n++)
		SELFWIND_TRACEPOINT(app, parent, SELFWIND_I64(n));
	printf("child %ld\nparent %ld\n", 3 * events, events + 1);
}

#define FRAME __attribute__((noinline, noclone))

FRAME static void innermost(int n)
{
	SELFWIND_TRACEPOINT(app, deep, SELFWIND_I64(n));
	sink++;
}

FRAME static void deeper(int levels, int n)
{
	if (levels > 0)
		deeper(levels - 1, n);
	else
		innermost(n);
	sink++;
}

FRAME static void on_stack_of_its_own(int signal)
{
	(void)signal;
	innermost(99);
	sink++;
}

FRAME static void stacks(void)
{
	static char alternate[65536];
	stack_t stack;
	struct sigaction action;
	memset(&stack, 0, sizeof stack);
	stack.ss_sp = alternate;
	stack.ss_size = sizeof alternate;
	for (int n = 0; n < 40; n++)
		deeper(n, n);
	sigaltstack(&stack, 0);
	memset(&action, 0, sizeof action);
	action.sa_handler = on_stack_of_its_own;
	action.sa_flags = SA_ONSTACK;
	sigaction(SIGUSR1, &action, 0);
	raise(SIGUSR1);
	printf("deep 41\n");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "count";
	long first = argc > 2 ? atol(argv[2]) : 1000, second = argc > 3 ? atol(argv[3]) : 1000;
	if (!strcmp(mode, "count"))
		count(first);
	else if (!strcmp(mode, "threads"))
		threads(first, second);
	else if (!strcmp(mode, "signals"))
		signals(first);
	else if (!strcmp(mode, "jumps"))
		jumps(first);
	else if (!strcmp(mode, "libraries"))
		return libraries(argc - 3, argv + 3, first);
	else if (!strcmp(mode, "forks"))
		forks(first);
	else if (!strcmp(mode, "stacks"))
		stacks();
	else
		return 2;
	return 0;
}
