/* Code without call frame information that runs as compiled Haskell does: a C function reserves 16 KiB of the stack and jumps to
 * it; it keeps its own stack in the heap, in rbp, jumps from function to function, and calls C functions on the C stack. In the
 * reserved space are return addresses of calls that ended before. */
#include <stdio.h>
#include <time.h>

#include "generated.h"

static uint8_t heap[1 << 16];

/* Calls code that keeps its stack at `stack`, and calls `function`. The first instructions are those of GHC's StgRun. */
long run_compiled(void *code, void *stack, void (*function)(void));
void compiled(void);

__asm__(".text\n"
	".globl run_compiled, compiled\n"
	".type run_compiled, @function\n"
	".type compiled, @function\n"
	".type compiled_next, @function\n"
	"run_compiled:\n"
	"	.byte 0x48, 0x83, 0xec, 0x30\n"                   /* sub $0x30, %rsp */
	"	.byte 0x48, 0x89, 0xe0\n"                         /* mov %rsp, %rax */
	"	.byte 0x48, 0x81, 0xec, 0x00, 0x40, 0x00, 0x00\n" /* sub $0x4000, %rsp */
	"	mov %rbx, 0(%rax)\n"
	"	mov %rbp, 8(%rax)\n"
	"	mov %r12, 16(%rax)\n"
	"	mov %r13, 24(%rax)\n"
	"	mov %r14, 32(%rax)\n"
	"	mov %r15, 40(%rax)\n"
	"	mov %rsi, %rbp\n"
	"	mov %rdx, %r13\n"
	"	mov $1000, %r12d\n"
	"	jmp *%rdi\n"
	"run_end:\n"
	"	add $0x4000, %rsp\n"
	"	mov 0(%rsp), %rbx\n"
	"	mov 8(%rsp), %rbp\n"
	"	mov 16(%rsp), %r12\n"
	"	mov 24(%rsp), %r13\n"
	"	mov 32(%rsp), %r14\n"
	"	mov 40(%rsp), %r15\n"
	"	add $0x30, %rsp\n"
	"	ret\n"
	".size run_compiled, . - run_compiled\n"
	"compiled:\n"
	"	mov $1000, %ecx\n"
	"1:	dec %ecx\n"
	"	jne 1b\n"
	"	jmp compiled_next\n"
	".size compiled, . - compiled\n"
	"compiled_next:\n"
	"	sub $8, %rsp\n"
	"	call *%r13\n"
	"	add $8, %rsp\n"
	"	dec %r12\n"
	"	jne compiled\n"
	"	jmp run_end\n"
	".size compiled_next, . - compiled_next\n");

__attribute__((noinline)) static long leave_addresses(int depth)
{
	volatile long room[8] = {depth};
	return depth == 0 ? room[0] : leave_addresses(depth - 1) + room[0];
}

__attribute__((noinline)) static long schedule(void)
{
	leave_addresses(100);
	long result = run_compiled((void *)compiled, heap + sizeof heap / 2, burn);
	return result + 1;
}

static double cpu_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(void)
{
	long sum = 0;
	while (cpu_seconds() < 1)
		sum += schedule();
	return sum == 0;
}
