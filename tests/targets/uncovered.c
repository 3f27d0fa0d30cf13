/* Functions that walkers find hard to leave without call frame information: the stack pointer is in another register, or in the
 * frame, while they run; return addresses of earlier calls are all over the stack. Meant to be compiled without such information.
 * usage: uncovered [LIBRARY]: runs the same functions in a library, if there is one */
#define _GNU_SOURCE
#include "burn.h"
#include <dlfcn.h>
#include <string.h>

#define NAMED __attribute__((noinline, noclone))

/* Like a matrix multiplication in assembly: an aligned buffer of several pages, the frame in rbx, rbp overwritten. */
NAMED void held_in_register(uint64_t turns);
/* Like a video codec: the stack pointer in the aligned frame. */
NAMED void held_in_frame(uint64_t turns);
__asm__(".text\n.type held_in_register, @function\n"
	"held_in_register: sub $96, %rsp\n"
	"mov %rbx, (%rsp)\nmov %rbp, 8(%rsp)\nmov %rsp, %rbx\n"
	"sub $28800, %rsp\nand $-4096, %rsp\nmov %rdi, %rbp\n"
	"1: imul $3, %rax, %rax\nadd %rbp, %rax\nmov %rax, 128(%rsp)\ndec %rbp\njnz 1b\n"
	"mov %rbx, %rsp\nmov (%rsp), %rbx\nmov 8(%rsp), %rbp\nadd $96, %rsp\nret\n"
	".size held_in_register, . - held_in_register\n"
	".type held_in_frame, @function\n"
	"held_in_frame: mov %rsp, %rax\nsub $512, %rsp\nand $-64, %rsp\nmov %rax, 448(%rsp)\n"
	"1: imul $3, %rax, %rax\nadd %rdi, %rax\nmov %rax, 128(%rsp)\ndec %rdi\njnz 1b\n"
	"mov 448(%rsp), %rsp\nret\n"
	".size held_in_frame, . - held_in_frame\n");

/* Leaves return addresses behind. */
NAMED void litter(unsigned depth, volatile char *to)
{
	volatile char room[200];
	for (unsigned i = 0; i < sizeof room; i += 8)
		room[i] = to ? to[0] : 1;
	if (depth)
		litter(depth - 1, room);
	room[0] = 2;
}

NAMED uint64_t with_stale_frame(uint64_t turns, unsigned size)
{
	char room[4000];
	uint64_t sum = 0;
	__asm__ volatile("" : : "r"(room) : "memory");
	for (uint64_t i = 0; i < turns; i++)
		sum = sum * 3 + i + size;
	__asm__ volatile("" : : "r"(room) : "memory");
	return sum;
}

/* The sum depends on the stack's size at the time of the call. */
NAMED uint64_t outer(int which, uint64_t turns, unsigned size)
{
	volatile char room[size];
	room[0] = 1;
	litter(30, NULL);
	if (which == 0)
		held_in_register(turns);
	else if (which == 1)
		held_in_frame(turns);
	else
		return with_stale_frame(turns, size);
	return room[0];
}

/* Code enough that it counts beside what the compiler adds. */
#define FILLER(n) NAMED uint64_t filler##n(uint64_t *v) { for (int i = 0; i < 64; i++) v[i] = v[i] * n + v[63 - i]; return v[n]; }
FILLER(1) FILLER(2) FILLER(3) FILLER(4) FILLER(5) FILLER(6) FILLER(7) FILLER(8) FILLER(9) FILLER(10) FILLER(11) FILLER(12)
FILLER(13) FILLER(14) FILLER(15) FILLER(16) FILLER(17) FILLER(18) FILLER(19) FILLER(20) FILLER(21) FILLER(22) FILLER(23)
FILLER(24) FILLER(25) FILLER(26) FILLER(27) FILLER(28) FILLER(29) FILLER(30) FILLER(31) FILLER(32) FILLER(33) FILLER(34)

int run(void)
{
	uint64_t sum = 0;
	uint64_t until = thread_cpu_ns() + 1800 * 1000000ull;
	/* Not in step with the scheduler's ticks. */
	for (unsigned i = 0; thread_cpu_ns() < until; i++)
		sum += outer(i % 3, 1000000 + i % 17 * 100000, 100 + i % 100 * 8);
	return sum == 1 ? 2 : 44;
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return run();
	void *library = dlopen(argv[1], RTLD_NOW);
	int (*of_library)(void) = library ? (int (*)(void))dlsym(library, "run") : NULL;
	return of_library ? of_library() : 1;
}
