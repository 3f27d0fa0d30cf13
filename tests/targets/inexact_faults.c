// Has the processor fault (SIGFPE) at each inexact result of floating-point arithmetic, and allocates. Then it masks these
// faults, and looks whether its allocations have left the flags alone that tell of such results.

#include <stdio.h>
#include <stdlib.h>
#include <xmmintrin.h>

static void *volatile block;

static void allocate(int times)
{
	for (int i = 0; i < times; i++) {
		block = malloc(64 + (size_t)(i & 1023));
		free(block);
	}
}

int main(void)
{
	unsigned masked = _mm_getcsr() & ~_MM_EXCEPT_MASK;
	_mm_setcsr(masked & ~_MM_MASK_INEXACT);
	allocate(500000);
	_mm_setcsr(masked);
	allocate(500000);
	printf("exceptions: %x\n", _mm_getcsr() & _MM_EXCEPT_MASK);
	return 0;
}
