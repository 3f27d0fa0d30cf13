/* A preloaded library that keeps a program from starting for a while: those preloaded before it start only then. */
#include "burn.h"

BURN(slow_work)

__attribute__((constructor)) static void begin(void)
{
	slow_work(300);
}
