/* Switches 150 times at its start, as a program does that reads many files, and then computes for 300 ms. */
#include "burn.h"

BURN(compute)

int main(void)
{
	for (int i = 0; i < 150; i++)
		nanosleep(&(struct timespec){ .tv_nsec = 1 }, 0);
	compute(300);
	return 0;
}
