/* Computes in code without call frame information, with invalid frame pointers and with a stack that ends where it
 * begins: a walk from there ends early, and touches nothing that could fault. */
#define _GNU_SOURCE
#include "burn.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

BURN(tame_work)

/* push %rbp; mov %rdi,%rbp; 1: dec %rsi; jnz 1b; pop %rbp; ret */
static const unsigned char spin_with_rbp[] = { 0x55, 0x48, 0x89, 0xfd, 0x48, 0xff, 0xce, 0x75, 0xfb, 0x5d, 0xc3 };
/* mov %rsp,%rax; mov %rdi,%rsp; xor %ebp,%ebp, kept in rdx; 1: dec %rsi; jnz 1b; mov %rdx,%rbp; mov %rax,%rsp; ret */
static const unsigned char spin_on_stack[] = { 0x48, 0x89, 0xe0, 0x48, 0x89, 0xea, 0x48, 0x89, 0xfc, 0x48, 0x89,
					       0xfd, 0x48, 0xff, 0xce, 0x75, 0xfb, 0x48, 0x89, 0xd5, 0x48, 0x89,
					       0xc4, 0xc3 };

static void spin(void (*code)(uint64_t, uint64_t), uint64_t wild)
{
	uint64_t until = thread_cpu_ns() + 20000000;
	while (thread_cpu_ns() < until)
		code(wild, 2000000);
}

/* A function whose CFI says that the return address is directly above the stack pointer. */
__attribute__((noinline, used)) static uint64_t described(uint64_t x) { return x * 31 + 7; }

int main(void)
{
	unsigned char *code = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(code, spin_with_rbp, sizeof spin_with_rbp);
	memcpy(code + 4096, spin_on_stack, sizeof spin_on_stack);
	char *area = mmap(0, 0x40000, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* The upper half is mapped but not readable. */
	mprotect(area + 0x20000, 0x20000, PROT_NONE);
	uint64_t end = (uint64_t)area + 0x20000;
	uint64_t here = (uint64_t)__builtin_frame_address(0);

	const uint64_t wild[] = { 0, 1, 7, 8, 0xff8, 0xfff, 0x1000, 0x10000, ~0ull, ~7ull, 1ull << 47, (1ull << 47) - 8,
				  1ull << 63, 0xffffffffff600000, end, end - 1, end - 7, end - 8, end - 9, end - 16, end + 8,
				  here | 1, here + 4, (uint64_t)code, 0x4141414141414141 };
	for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++)
		spin((void (*)(uint64_t, uint64_t))code, wild[i]);
	/* Various words on the new stack: small numbers, its own address, code. */
	uint64_t *top = (uint64_t *)end;
	const uint64_t words[] = { 0, 7, end - 8, (uint64_t)code + 5, (uint64_t)described + 1, ~0ull };
	for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
		for (int at = 1; at <= 64; at++)
			top[-at] = words[i];
		spin((void (*)(uint64_t, uint64_t))(code + 4096), end - 8);
		spin((void (*)(uint64_t, uint64_t))(code + 4096), end - 256);
	}
	/* A return address into described code, whose frame then contains garbage: the walk follows it. */
	for (unsigned i = 0; i < sizeof wild / sizeof *wild; i++) {
		for (int at = 1; at <= 512; at++)
			top[-at] = wild[i];
		top[-512] = (uint64_t)described + 1;
		spin((void (*)(uint64_t, uint64_t))(code + 4096), end - 4096);
	}
	tame_work(100);
	puts("wild done");
	return 53;
}
