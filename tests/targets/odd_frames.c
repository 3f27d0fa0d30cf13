/* Frames whose size is known only at run time: alloca, variable-length arrays, realigned stacks. */
#include "burn.h"
#include <alloca.h>
#include <stdio.h>
#include <string.h>

BURN(alloca_work)
BURN(vla_work)
BURN(realigned_work)

__attribute__((noinline)) static int with_alloca(int n)
{
	char *p = alloca((size_t)n * 3 + 1);
	memset(p, n, (size_t)n * 3 + 1);
	if (n > 0)
		return with_alloca(n - 1) + p[n];
	alloca_work(150);
	return p[0];
}

__attribute__((noinline)) static int with_vla(int n)
{
	int array[n + 2];
	for (int i = 0; i < n + 2; i++)
		array[i] = i;
	if (n > 0)
		return with_vla(n - 1) + array[n];
	vla_work(150);
	return array[1];
}

__attribute__((noinline)) static int with_realignment(int n)
{
	_Alignas(64) volatile char buffer[128];
	memset((void *)buffer, n, sizeof buffer);
	if (n > 0)
		return with_realignment(n - 1) + buffer[n] + (int)((uintptr_t)buffer & 63);
	realigned_work(150);
	return buffer[0];
}

int main(void)
{
	printf("%d %d %d\n", with_alloca(20), with_vla(20), with_realignment(20));
	return 34;
}
