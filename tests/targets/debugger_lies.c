/* Generated code with a false list for debuggers (GDB manual, "JIT Compilation Interface"): it points nowhere or is circular,
 * contains files that are invalid, damaged or too large, and changes all the time.
 *
 * usage: debugger_lies MILLISECONDS. Prints the number of lists published. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

#include "random.h"

struct entry {
	struct entry *next, *prev;
	const void *file;
	uint64_t size;
};

struct {
	uint32_t version, action;
	struct entry *relevant, *first;
} volatile __jit_debug_descriptor = { 1, 0, 0, 0 };

enum { PAGE = 4096, MANY = 70000, LARGE = 64 << 20 };

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* The program's own file, which has symbols. */
static uint8_t *own_file(size_t *size)
{
	struct stat facts;
	int file = open("/proc/self/exe", O_RDONLY);
	fstat(file, &facts);
	*size = (size_t)facts.st_size;
	return mmap(0, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
}

int main(int argc, char **argv)
{
	double end = now() + (argc > 1 ? strtod(argv[1], 0) : 300) / 1e3;
	/* 0 mov $100000, %eax;  5 dec %eax;  7 jne 5;  9 ret */
	uint8_t *code = mmap(0, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(code, "\xb8\xa0\x86\x01\x00\xff\xc8\x75\xfc\xc3", 10);
	size_t size;
	uint8_t *file = own_file(&size), *copy = malloc(size), *large = mmap(0, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct entry *many = calloc(MANY, sizeof *many);
	unsigned long shown = 0;
	memcpy(copy, file, size);
	memcpy(large, file, size);
	while (now() < end) {
		struct entry *first = many;
		switch (shown++ % 8) {
		case 0: first = (struct entry *)0x10; break;
		case 1: first = (struct entry *)any(); break;
		case 2: many[0] = (struct entry){ many, 0, file, size }; break;
		case 3: many[0] = (struct entry){ 0, 0, file, UINT64_MAX }; break;
		case 4: many[0] = (struct entry){ 0, 0, (void *)any(), 4096 }; break;
		case 5:
			for (int n = 0; n < MANY; n++)
				many[n] = (struct entry){ &many[(n + 1) % MANY], 0, large, LARGE - (uint64_t)n };
			break;
		case 6: /* Damaged: in the header, or anywhere. */
			for (int n = 0; n < 50; n++)
				copy[any() % (n % 2 ? size : 256)] = (uint8_t)any();
			many[0] = (struct entry){ 0, 0, copy, size };
			break;
		default:
			memcpy(copy, file, size);
			__jit_debug_descriptor.version = shown % 16 ? 1 : (uint32_t)any();
		}
		__jit_debug_descriptor.first = first;
		/* Longer than the recorder's interval. */
		for (double until = now() + 0.25; now() < until && now() < end;)
			((void (*)(void))code)();
	}
	printf("shown %lu\n", shown);
	return 0;
}
