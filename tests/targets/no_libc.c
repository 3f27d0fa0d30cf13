/* A program without a C library, as Free Pascal makes them: no thread pointer, no thread-local storage. */
#include <sys/syscall.h>
#include <time.h>

__asm__(".globl _start\n"
	"_start:\n"
	".cfi_startproc\n"
	".cfi_undefined rip\n"
	"xor %ebp, %ebp\n"
	"call start\n"
	".cfi_endproc\n");

static long call(long number, long first, long second, long third)
{
	__asm__ volatile("syscall" : "+a"(number) : "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
	return number;
}

static unsigned long cpu_ns(void)
{
	struct timespec t;
	call(SYS_clock_gettime, CLOCK_PROCESS_CPUTIME_ID, (long)&t, 0);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

#define SPIN(name, factor)                                                                         \
	__attribute__((noinline)) void name(void)                                                  \
	{                                                                                          \
		volatile unsigned long x = factor;                                                 \
		for (unsigned long until = cpu_ns() + 500000000; cpu_ns() < until;)                \
			for (int i = 0; i < 20000; i++)                                            \
				x = x * factor + 1;                                                \
	}
SPIN(spin_first, 3)
SPIN(spin_second, 5)
SPIN(spin_third, 7)

__attribute__((used)) void start(void)
{
	spin_first();
	spin_second();
	spin_third();
	call(SYS_write, 1, (long)"done\n", 5);
	call(SYS_exit_group, 7, 0, 0);
}
