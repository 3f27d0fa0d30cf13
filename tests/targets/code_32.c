// Executes 32-bit code in a 64-bit process, as emulators do: for some rounds, or with an argument until SIGTERM.

#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "burn.h"

#define BYTES 65536
#define USER32_CODE 0x23

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

BURN(code_64)

// A far pointer: where to go, and in which segment.
struct __attribute__((packed)) far {
	uint32_t offset;
	uint16_t segment;
};

static void *low_memory(int protection)
{
	void *memory = mmap(NULL, BYTES, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	return memory == MAP_FAILED ? NULL : memory;
}

int main(int argc, char **argv)
{
	(void)argv;
	// mov ecx, 20000000; 1: dec ecx; jnz 1b; retf
	static const unsigned char loop[] = {0xb9, 0x00, 0x2d, 0x31, 0x01, 0x49, 0x75, 0xfd, 0xcb};
	// lcall [rdi]; ret
	static const unsigned char call[] = {0xff, 0x1f, 0xc3};
	unsigned char *code = low_memory(PROT_READ | PROT_WRITE | PROT_EXEC);
	unsigned char *stack = low_memory(PROT_READ | PROT_WRITE);
	struct far *target = low_memory(PROT_READ | PROT_WRITE);
	if (!code || !stack || !target)
		return 1;
	memcpy(code, loop, sizeof loop);
	memcpy(code + 256, call, sizeof call);
	*target = (struct far){(uint32_t)(uintptr_t)code, USER32_CODE};
	signal(SIGTERM, end);
	puts("ready");
	fflush(stdout);
	for (int i = 0; argc > 1 ? !ended : i < 30; i++) {
		// Code in that mode keeps the lower halves of eight registers only.
		__asm__ volatile("mov %%rsp, %%rbx\n\t"
				 "mov %[stack], %%rsp\n\t"
				 "push %%rbx\n\t"
				 "push %%rbp\n\t"
				 "call *%[call]\n\t"
				 "pop %%rbp\n\t"
				 "pop %%rsp"
				 :
				 : [stack] "a"(stack + BYTES), "D"(target), [call] "d"(code + 256)
				 : "rbx", "rcx", "rsi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory",
				   "cc");
		code_64(2);
	}
	puts("done");
	return 0;
}
