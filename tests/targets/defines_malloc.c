/* Hazard: a program that defines malloc itself, as one does that is linked with an allocator. Its functions come before those of
 * any library. `defines_malloc LIBRARY` allocates 1000 times itself, as often in the C library, and has the library, which it loads
 * then, allocate 1000 times. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static _Alignas(16) char memory[1 << 24];
static size_t used;
static void *volatile sink;

void *malloc(size_t size)
{
	char *block = memory + used;
	used += (size + 31) & ~(size_t)15;
	*(size_t *)block = size;
	return block + 16;
}

void free(void *block)
{
	(void)block;
}

void *calloc(size_t count, size_t size)
{
	return malloc(count * size);
}

void *realloc(void *block, size_t size)
{
	void *new = malloc(size);
	size_t before = block ? ((size_t *)block)[-2] : 0;
	return before ? memcpy(new, block, before < size ? before : size) : new;
}

__attribute__((noinline)) void in_the_program(void)
{
	sink = malloc(16);
}

__attribute__((noinline)) void in_the_c_library(void)
{
	sink = strdup("a block");
}

int main(int argc, char **argv)
{
	void *library = 0;
	for (int i = 0; i < 1000; i++) {
		in_the_program();
		in_the_c_library();
	}
	if (argc > 1)
		library = dlopen(argv[1], RTLD_NOW);
	void (*allocate)(int) = library ? (void (*)(int))dlsym(library, "allocate") : 0;
	if (!allocate) {
		puts(dlerror());
		return 1;
	}
	allocate(1000);
	return used < 3000 * 32;
}
