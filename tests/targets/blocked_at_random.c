/* Hazard: events that are answered long after their functions have returned. Functions of different frame sizes call each other at
   random, and all signals are blocked and unblocked by bare system calls anywhere in between. fN calls f(3N+1), f(3N+2) and f(3N+4),
   modulo 12, and nothing else.
   usage: blocked_at_random ROUNDS */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t state = 88172645463325252;
static volatile int sum;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static inline __attribute__((always_inline)) void block(uint64_t signals)
{
	register long size __asm__("r10") = 8;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(SYS_rt_sigprocmask), "D"(SIG_SETMASK), "S"(&signals), "d"(0), "r"(size)
			 : "rcx", "r11", "memory");
}

static inline __attribute__((always_inline)) void work(void)
{
	volatile uint64_t x = 1;
	for (int i = 0; i < 300; i++)
		x = x * 3 + 1;
	long result;
	__asm__ volatile("syscall" : "=a"(result) : "a"(SYS_getppid) : "rcx", "r11", "memory");
}

#define FUNCTION(name, first, second, third, size)                  \
	__attribute__((noinline)) void name(int depth)              \
	{                                                           \
		volatile char frame[size];                          \
		frame[0] = (char)depth;                             \
		if (next() % 4 == 0)                                \
			block(~UINT64_C(0));                        \
		work();                                             \
		for (int call = 0; depth > 0 && call < 2; call++) { \
			switch (next() % 3) {                       \
			case 0:                                     \
				first(depth - 1);                   \
				break;                              \
			case 1:                                     \
				second(depth - 1);                  \
				break;                              \
			default:                                    \
				third(depth - 1);                   \
			}                                           \
			if (next() % 4 == 0)                        \
				block(0);                           \
		}                                                   \
		work();                                             \
		if (next() % 3 == 0)                                \
			block(0);                                   \
		sum += frame[0];                                    \
	}

void f0(int), f1(int), f2(int), f3(int), f4(int), f5(int), f6(int), f7(int), f8(int), f9(int), f10(int), f11(int);

FUNCTION(f0, f1, f2, f4, 16)
FUNCTION(f1, f4, f5, f7, 48)
FUNCTION(f2, f7, f8, f10, 80)
FUNCTION(f3, f10, f11, f1, 32)
FUNCTION(f4, f1, f2, f4, 64)
FUNCTION(f5, f4, f5, f7, 16)
FUNCTION(f6, f7, f8, f10, 48)
FUNCTION(f7, f10, f11, f1, 80)
FUNCTION(f8, f1, f2, f4, 32)
FUNCTION(f9, f4, f5, f7, 64)
FUNCTION(f10, f7, f8, f10, 16)
FUNCTION(f11, f10, f11, f1, 48)

int main(int argc, char **argv)
{
	for (int round = argc > 1 ? atoi(argv[1]) : 0; round > 0; round--)
		f0(7);
	block(0);
	return 0;
}
