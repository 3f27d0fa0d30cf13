/* Functions with distinct names that compute for a given CPU time.
 *
 * Measured by the thread's CPU clock, never the wall clock: on a busy machine the shares stay exact. */
#ifndef BURN_H
#define BURN_H
#include <stdint.h>
#include <time.h>

static inline uint64_t thread_cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Defines `void name(unsigned ms)`: computes for `ms` milliseconds of the calling thread's CPU time. Each has its own
 * constant, so that no compiler merges two of them. */
#define BURN(name)                                                                                 \
	__attribute__((noinline)) void name(unsigned ms)                                           \
	{                                                                                          \
		uint64_t until = thread_cpu_ns() + ms * 1000000ull;                                \
		volatile uint64_t x = ms;                                                          \
		do {                                                                               \
			for (int i = 0; i < 20000; i++)                                            \
				x = x * 6364136223846793005u + (2 * __COUNTER__ + 1);              \
		} while (thread_cpu_ns() < until);                                                 \
	}
#endif
