/* Random numbers, the same in each run. */
#ifndef RANDOM_H
#define RANDOM_H
#include <stdint.h>

static uint64_t random_state = 88172645463325252;

static inline uint64_t any(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	return random_state ^= random_state << 17;
}
#endif
