/* Hazard: a program that defines malloc itself, as one does that is linked with an allocator. Its functions come before those of
 * any library. `defines_malloc LIBRARY OTHER` allocates 1000 times itself, as often in the C library, and has the libraries, which
 * it loads then, allocate 1000 times each. The other one is to prefer the C library's functions, and is bound lazily. */
#define _GNU_SOURCE
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

static int allocate_in(const char *path, int flags)
{
	void *library = dlopen(path, flags);
	void (*allocate)(int) = library ? (void (*)(int))dlsym(library, "allocate") : 0;
	if (!allocate) {
		puts(dlerror());
		return 0;
	}
	size_t before = used;
	allocate(1000);
	return used - before >= 1000 * 700 ? 1 : 2;
}

int main(int argc, char **argv)
{
	for (int i = 0; i < 1000; i++) {
		in_the_program();
		in_the_c_library();
	}
	if (argc < 3 || allocate_in(argv[1], RTLD_NOW) != 1)
		return 1;
	return allocate_in(argv[2], RTLD_LAZY | RTLD_DEEPBIND) != 2;
}
