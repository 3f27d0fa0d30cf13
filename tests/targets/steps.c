/* The single-step workload: every kind of frame a compiler or the C library makes, each reached a few times.
 * SIGUSR1 comes from outside at any instruction; SIGUSR2 it raises itself. `steps PARTS ROUNDS`, where PARTS
 * are letters: see main. */
#define _GNU_SOURCE
#include <alloca.h>
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <ucontext.h>
#endif

#define NOINLINE __attribute__((noinline))

static volatile long sink;
static volatile sig_atomic_t outside, inside;

/* Signals */
NOINLINE static void handler_leaf(int n)
{
	char text[32];
	snprintf(text, sizeof text, "%d", n);
	sink += text[0];
}

static void on_outside(int sig)
{
	outside++;
	handler_leaf(sig);
}

static void on_inside(int sig, siginfo_t *info, void *context)
{
	(void)context;
	inside++;
	handler_leaf(sig + info->si_code);
}

static sigjmp_buf from_handler;

static void on_jump(int sig)
{
	handler_leaf(sig);
	siglongjmp(from_handler, 1);
}

NOINLINE static void signals(void)
{
	raise(SIGUSR2);
	kill(getpid(), SIGUSR2);
	if (!sigsetjmp(from_handler, 1))
		raise(SIGALRM);
	sink++;
}

/* Frames of every size */
struct big {
	long word[40];
};

NOINLINE static struct big by_value(struct big b, int n)
{
	b.word[n % 40] += n;
	return b;
}

NOINLINE static long many_arguments(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
	return a + b * c - d * e + f * g - h * i + strlen("pushes its arguments");
}

NOINLINE static long variadic(int n, ...)
{
	va_list list;
	va_start(list, n);
	long sum = 0;
	for (int i = 0; i < n; i++)
		sum += va_arg(list, long);
	va_end(list);
	return sum;
}

NOINLINE static double floating(double x, int n)
{
	double y[8];
	for (int i = 0; i < 8; i++)
		y[i] = x * i + sin(x + n);
	return y[n & 7] + (n ? floating(x / 2, n - 1) : 0);
}

NOINLINE static long early_return(long n)
{
	if (n < 3)
		return n;
	long kept[6] = { n, n + 1, n + 2, n + 3, n + 4, n + 5 };
	sink += kept[n % 6];
	if (n % 3 == 0)
		return early_return(n - 1) + kept[0];
	return early_return(n - 2) + early_return(n / 3) + kept[n % 6];
}

NOINLINE static long with_alloca(long n)
{
	char *p = alloca((size_t)n * 5 + 1);
	memset(p, (int)n, (size_t)n * 5 + 1);
	return n > 0 ? with_alloca(n - 1) + p[n] : p[0];
}

NOINLINE static long with_vla(long n)
{
	long sum = 0;
	for (long k = 1; k < n; k++) {
		long array[k];
		memset(array, 1, sizeof array);
		sum += array[k / 2] & 0xff;
		if (k == n - 1)
			sum += with_vla(n - 2);
	}
	return sum;
}

NOINLINE static long realigned(long n, long a, long b, long c, long d, long e, long f, long on_stack)
{
	_Alignas(64) volatile char buffer[192];
	memset((void *)buffer, (int)n, sizeof buffer);
	if (n == 0)
		return (long)((uintptr_t)buffer & 63) + on_stack;
	return realigned(n - 1, a, b, c, d, e, f, on_stack + 1) + buffer[n];
}

NOINLINE static long realigned_alloca(long n)
{
	_Alignas(32) volatile char buffer[64];
	char *p = alloca((size_t)n + 16);
	memset(p, 1, (size_t)n + 16);
	memset((void *)buffer, 2, sizeof buffer);
	return n ? realigned_alloca(n - 1) + p[n] + buffer[n & 63] : 0;
}

NOINLINE static long tail_b(long n);
NOINLINE static long tail_a(long n) { return n <= 0 ? sink : tail_b(n - 1); }
NOINLINE static long tail_b(long n)
{
	sink += n;
	return tail_a(n - 1);
}

NOINLINE static long tail_to_library(const char *text) { return (long)strlen(text); }

NOINLINE static void frames(void)
{
	struct big b = { { 1 } };
	b = by_value(by_value(b, 3), 7);
	sink += b.word[3] + many_arguments(1, 2, 3, 4, 5, 6, 7, 8, 9) + variadic(9, 1L, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L);
	sink += (long)floating(1.5, 5) + early_return(14) + with_alloca(8) + with_vla(9) + tail_a(9);
	sink += realigned(5, 1, 2, 3, 4, 5, 6, 7) + realigned_alloca(4) + tail_to_library("tail");
}

/* The library: procedure linkage, callbacks out of it, indirect functions */
NOINLINE static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

NOINLINE static int compare_long(const void *a, const void *b)
{
	long x = *(const long *)a, y = *(const long *)b;
	return (x > y) - (x < y);
}

NOINLINE static void library(void)
{
	char *words[] = { "pear", "apple", "fig", "cherry", "banana", "quince", "date", "elder" };
	qsort(words, 8, sizeof *words, compare);
	long numbers[] = { 5, 3, 8, 1, 9, 2, 7 }, key = 7;
	qsort(numbers, 7, sizeof *numbers, compare_long);
	sink += bsearch(&key, numbers, 7, sizeof key, compare_long) != 0;
	char text[256];
	snprintf(text, sizeof text, "%s %d %5.3f %-10s %lx", words[0], 42, 3.14159, words[7], (long)sink);
	sink += strtol("12345", 0, 10) + atoi("77") + (long)strtod("2.5e3", 0) + toupper(text[0]);
	sink += strchr(text, ' ') - text + (long)strcspn(text, "0123456789") + memcmp(text, "apple", 5);
	char *copy = strdup(text), *save;
	for (char *token = strtok_r(copy, " ", &save); token; token = strtok_r(0, " ", &save))
		sink += token[0];
	free(copy);
	void *blocks[16];
	for (int i = 0; i < 16; i++)
		blocks[i] = malloc((size_t)(i * 177 + 1));
	for (int i = 0; i < 16; i++)
		free(blocks[(i * 5) & 15]);
	struct tm tm;
	time_t zero = 86400 * 365;
	sink += gmtime_r(&zero, &tm)->tm_year;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	sink += getenv("NOBODY_SET_THIS") != 0;
}

/* Jumps */
static jmp_buf jump;

NOINLINE static void jump_from(int n)
{
	volatile char here[48];
	here[n] = (char)n;
	if (n == 0)
		longjmp(jump, 7);
	jump_from(n - 1);
	sink += here[n];
}

NOINLINE static void jumps(void)
{
	for (volatile int i = 1; i < 4; i++) {
		int r = setjmp(jump);
		if (r == 0)
			jump_from(i * 3);
		sink += r;
	}
}

/* Threads */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

NOINLINE static void *thread_body(void *p)
{
	pthread_mutex_lock(&mutex);
	sink += early_return(9);
	pthread_mutex_unlock(&mutex);
	if (p)
		pthread_exit(p);
	return p;
}

NOINLINE static void threads(void)
{
	pthread_t a, b;
	pthread_create(&a, 0, thread_body, 0);
	pthread_create(&b, 0, thread_body, &a);
	pthread_join(a, 0);
	pthread_join(b, 0);
}

/* Coroutines */
#ifdef __GLIBC__
static ucontext_t scheduler, coroutine;

NOINLINE static void yield_from(int n)
{
	if (n)
		yield_from(n - 1);
	else
		swapcontext(&coroutine, &scheduler);
	sink++;
}

static void coroutine_body(void)
{
	for (int i = 0; i < 3; i++)
		yield_from(i);
}

NOINLINE static void coroutines(void)
{
	static char stack[65536];
	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = stack;
	coroutine.uc_stack.ss_size = sizeof stack;
	coroutine.uc_link = &scheduler;
	makecontext(&coroutine, coroutine_body, 0);
	for (int i = 0; i < 4; i++)
		swapcontext(&scheduler, &coroutine);
}
#else
NOINLINE static void coroutines(void) {}
#endif

NOINLINE static void alternate(void)
{
	static char area[65536];
	stack_t stack = { .ss_sp = area, .ss_size = sizeof area }, none = { .ss_flags = SS_DISABLE };
	sigaltstack(&stack, 0);
	signals();
	sigaltstack(&none, 0);
}

int main(int argc, char **argv)
{
	const char *parts = argc > 1 ? argv[1] : "fljsa";
	int rounds = argc > 2 ? atoi(argv[2]) : 2;
	struct sigaction action = { .sa_handler = on_outside, .sa_flags = SA_RESTART | SA_ONSTACK };
	sigaction(SIGUSR1, &action, 0);
	action.sa_handler = on_jump;
	sigaction(SIGALRM, &action, 0);
	action.sa_sigaction = on_inside;
	action.sa_flags |= SA_SIGINFO;
	sigaction(SIGUSR2, &action, 0);
	for (int i = 0; i < rounds; i++)
		for (const char *part = parts; *part; part++)
			switch (*part) {
			case 'f': frames(); break;
			case 'l': library(); break;
			case 'j': jumps(); break;
			case 's': signals(); break;
			case 'a': alternate(); break;
			case 't': threads(); break;
			case 'c': coroutines(); break;
			}
	printf("inside %d\n", (int)inside);
	return 61;
}
