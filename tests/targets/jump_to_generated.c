/* Generated code jumps to a function of its own with a return address that follows no call, as interpreters do. Below the
 * stack pointer a stale word looks like a saved frame pointer. Most samples are at the function's push %rbp, because the
 * instruction before it takes longest. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

__attribute__((noinline)) static int run(int (*generated)(long), long times)
{
	return generated(times) + 1;
}

static double cpu_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(void)
{
	static const unsigned char code[] = {
		0x55,                                     /*       push %rbp            */
		0x48, 0x89, 0xe5,                         /*       mov %rsp, %rbp       */
		0x53,                                     /*       push %rbx            */
		0x41, 0x54,                               /*       push %r12            */
		0x49, 0x89, 0xfc,                         /*       mov %rdi, %r12       */
		0x48, 0x8d, 0x05, 0x13, 0x00, 0x00, 0x00, /* 10:   lea 36f, %rax        */
		0x50,                                     /*       push %rax            */
		0x54,                                     /*       push %rsp            */
		0x48, 0x8d, 0x64, 0x24, 0x08,             /*       lea 8(%rsp), %rsp    */
		0x31, 0xc0,                               /* 24:   xor %eax, %eax       */
		0x0f, 0xa2,                               /*       cpuid                */
		0x55,                                     /*       push %rbp            */
		0x48, 0x89, 0xe5,                         /*       mov %rsp, %rbp       */
		0x5d,                                     /*       pop %rbp             */
		0x58,                                     /*       pop %rax             */
		0xff, 0xe0,                               /*       jmp *%rax            */
		0x90,                                     /* 36:   nop                  */
		0x49, 0xff, 0xcc,                         /*       dec %r12             */
		0x75, 0xe0,                               /*       jne 10               */
		0x31, 0xc0,                               /*       xor %eax, %eax       */
		0x41, 0x5c,                               /*       pop %r12             */
		0x5b,                                     /*       pop %rbx             */
		0x5d,                                     /*       pop %rbp             */
		0xc3,                                     /*       ret                  */
	};
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page == MAP_FAILED)
		return 1;
	memcpy(page, code, sizeof code);
	int sum = 0;
	while (cpu_seconds() < 1)
		sum += run((int (*)(long))page, 1000) - 1;
	printf("sum %d\n", sum);
	return 37;
}
