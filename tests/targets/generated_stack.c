/* Generated code that keeps frame pointers on a stack of its own, in the heap, and calls a C function on the thread's stack, as
 * Erlang's does. The return address of its first function follows no call, and the frame pointer saved there is 0. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "generated.h"

/* generated_begin(own stack, C function, how often) */
__asm__(".pushsection .rodata\n"
	"generated_begin:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	push %rbx\n"
	"	push %r12\n"
	"	push %r13\n"
	"	push %r14\n"
	"	mov %rsp, %r12\n"
	"	mov %rsi, %r13\n"
	"	mov %rdx, %r14\n"
	"	mov %rdi, %rsp\n"
	"	lea generated_exit(%rip), %rax\n"
	"	push %rax\n"
	"	xor %ebp, %ebp\n"
	"	jmp generated_first\n"
	"	.skip 16, 0x90\n"
	"generated_exit:\n"
	"	mov %r12, %rsp\n"
	"	pop %r14\n"
	"	pop %r13\n"
	"	pop %r12\n"
	"	pop %rbx\n"
	"	pop %rbp\n"
	"	ret\n"
	"generated_first:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"1:	call generated_inner\n"
	"	dec %r14\n"
	"	jne 1b\n"
	"	pop %rbp\n"
	"	ret\n"
	"generated_inner:\n"
	"	push %rbp\n"
	"	mov %rsp, %rbp\n"
	"	sub $32, %rsp\n"
	"	mov $1000, %ecx\n"
	"1:	dec %ecx\n"
	"	jne 1b\n"
	"	mov %rsp, %rbx\n"
	"	mov %r12, %rsp\n"
	"	call *%r13\n"
	"	mov %rbx, %rsp\n"
	"	add $32, %rsp\n"
	"	pop %rbp\n"
	"	ret\n"
	"generated_end:\n"
	".popsection\n");

extern const uint8_t generated_begin[], generated_first[], generated_inner[], generated_end[];

static double cpu_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static uint8_t far[1 << 16] __attribute__((aligned(4096)));

/* usage: generated_stack near|far: whether the stack is close to the code */
int main(int argc, char **argv)
{
	size_t size = sizeof far;
	int protection = PROT_READ | PROT_WRITE | PROT_EXEC;
	uint8_t *page = mmap(0, 4096 + size, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *own = argc > 1 && strcmp(argv[1], "near") == 0 ? page + 4096 : far;
	char name[64];
	snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
	FILE *map = fopen(name, "w");
	if (page == MAP_FAILED || !map)
		return 1;
	put(page, generated_begin, (size_t)(generated_end - generated_begin));
	size_t first = (size_t)(generated_first - generated_begin);
	size_t inner = (size_t)(generated_inner - generated_begin);
	fprintf(map, "%lx %zx first\n%lx 40 inner\n", (unsigned long)page + first, inner - first,
		(unsigned long)page + inner);
	fclose(map);
	while (cpu_seconds() < 1)
		((void (*)(uint8_t *, void (*)(void), long))page)(own + size, burn, 1000);
	puts(name);
	return 0;
}
