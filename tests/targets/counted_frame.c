/* A function in assembly, as in libcrypto: its caller's stack pointer is stored after an array on the stack, whose length
 * in words is in a register. */
#include "burn.h"
#include <stdio.h>

void counted_work(unsigned long turns);
__asm__(".text\n"
	".type counted_work,@function\n"
	"counted_work:\n"
	".cfi_startproc\n"
	"	mov %rsp, %rax\n"
	"	.cfi_def_cfa_register %rax\n"
	"	mov $17, %r9\n"
	"	sub $256, %rsp\n"
	"	mov %rax, 8(%rsp,%r9,8)\n"
	/* CFA = *(rsp + 8 * r9 + 8) + 8. */
	"	.cfi_escape 0x0f,0x0a,0x77,0x08,0x79,0x00,0x38,0x1e,0x22,0x06,0x23,0x08\n"
	"1:	dec %rdi\n"
	"	jnz 1b\n"
	"	mov 8(%rsp,%r9,8), %rsp\n"
	"	.cfi_def_cfa %rsp, 8\n"
	"	ret\n"
	".cfi_endproc\n"
	".size counted_work, . - counted_work\n");

int main(void)
{
	uint64_t until = thread_cpu_ns() + 300 * 1000000ull;
	unsigned calls = 0;
	for (; thread_cpu_ns() < until; calls++)
		counted_work(1000000);
	printf("counted %d\n", calls > 0);
	return 37;
}
