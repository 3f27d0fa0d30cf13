// Points the thread pointer elsewhere while it computes, as emulators do that run foreign code: to nothing, to a page that
// may not be accessed, or to memory of its own, which must stay as it is.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "burn.h"

#define ARCH_SET_FS 0x1002
#define BYTES 65536

static void point_to(uint64_t where)
{
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"((long)SYS_arch_prctl), "D"((long)ARCH_SET_FS), "S"(where)
			 : "rcx", "r11", "memory");
}

// Calls nothing, since the C library uses the thread pointer.
__attribute__((noinline)) void foreign_work(uint64_t own, uint64_t foreign)
{
	point_to(foreign);
	volatile uint64_t x = own;
	for (int i = 0; i < 10000000; i++)
		x = x * 6364136223846793005u + 1;
	point_to(own);
}

BURN(own_work)

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	uint64_t own;
	__asm__("mov %%fs:0, %0" : "=r"(own));
	unsigned char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memset(memory, 0xaa, BYTES);
	uint64_t foreign = (uint64_t)memory + BYTES / 2;
	if (strcmp(mode, "nothing") == 0)
		foreign = 0;
	else if (strcmp(mode, "forbidden") == 0)
		mprotect(memory, BYTES, PROT_NONE);
	for (int i = 0; i < 20; i++) {
		foreign_work(own, foreign);
		own_work(5);
	}
	mprotect(memory, BYTES, PROT_READ);
	size_t changed = 0;
	for (size_t i = 0; i < BYTES; i++)
		changed += memory[i] != 0xaa;
	printf("%zu bytes changed\n", changed);
	return 0;
}
