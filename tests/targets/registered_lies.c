/* False call frame information, given to __register_frame while the code that it claims to describe runs.
 *
 * The function is looked up by name: without it nothing happens, and only the agent evaluates what was registered. `plain` is
 * ordinary code that the false entries also claim to cover; its stacks are main plain burn.
 *
 * usage: registered_lies MILLISECONDS. Prints the number of false registrations. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "burn.h"
#include "generated.h"
#include "random.h"

enum { PAGE = 4096, ROOM = 256 };

static void (*enter)(const void *), (*leave)(const void *);
static uint8_t *code;
__attribute__((noinline)) void plain(void)
{
	for (int i = 0; i < 20; i++)
		burn();
	__asm__ volatile("");
}

__attribute__((noinline)) void lied_about(void)
{
	for (int i = 0; i < 20; i++)
		((void (*)(void))code)();
	__asm__ volatile("");
}

/* push %rbp; movabs $nonsense, %rbp; movabs $burn, %rax; call *%rax; pop %rbp; ret */
static void generate(void)
{
	uint64_t nonsense = 0x5a5a5a5a5a, function = (uint64_t)burn;
	uint8_t *at = put_int(put(code, "\x55\x48\xbd", 3), nonsense, 8);
	put(put_int(put(at, "\x48\xb8", 2), function, 8), "\xff\xd0\x5d\xc3", 4);
}

static uint8_t *entry(uint8_t *at, const void *body, uint32_t bytes)
{
	memcpy(at, &bytes, 4);
	memcpy(at + 4, body, bytes);
	return at + 4 + bytes;
}

/* A CIE, and an FDE with these instructions for code in [start, start + size). */
static size_t describe(uint8_t *to, uint64_t start, uint64_t size, const void *instructions, size_t bytes)
{
	uint8_t fde[128] = { 0 }, *at = entry(to, "\0\0\0\0\x01\0\x01\x78\x10\x0c\x07\x08\x90\x01\0\0", 16);
	uint32_t back = (uint32_t)(at + 4 - to);
	memcpy(fde, &back, 4);
	memcpy(fde + 4, &start, 8);
	memcpy(fde + 12, &size, 8);
	memcpy(fde + 20, instructions, bytes);
	at = entry(at, fde, (uint32_t)(20 + bytes));
	memset(at, 0, 4);
	return (size_t)(at + 4 - to);
}

static unsigned long tell(const void *lies)
{
	enter(lies);
	lied_about();
	plain();
	leave(lies);
	return 1;
}

static const struct {
	const char *instructions;
	size_t bytes;
} wrong[] = {
	{ "\x0e\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", 11 }, /* CFA = rsp + 2^63 */
	{ "\x0e\x08", 2 },                                     /* A frame that is too small. */
	{ "\x0c\x06\x08", 3 },                                 /* CFA by the nonsense in rbp. */
	{ "\x0f\x03\x2f\xfd\xff", 5 },                         /* An expression that jumps to itself. */
	{ "\x0f\x02\x08\x01", 4 },                             /* CFA = 1 */
	{ "\x0f\x03\x30\x06\x06", 5 },                         /* CFA = what is at what is at 0 */
	{ "\x10\x10\x7f", 3 },                                 /* An expression that is longer than its entry. */
	{ "\x0a\x0b\x0b\x0b", 4 },                             /* Restores what was never remembered. */
	{ "\x3f\x3f\x3f", 3 },                                 /* Nobody's instructions. */
};

int main(int argc, char **argv)
{
	uint64_t end = thread_cpu_ns() + (argc > 1 ? strtoul(argv[1], 0, 10) : 300) * 1000000;
	unsigned long told = 0;
	enter = dlsym(RTLD_DEFAULT, "__register_frame");
	leave = dlsym(RTLD_DEFAULT, "__deregister_frame");
	code = mmap(0, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	generate();
	/* The page after the first is unmapped. */
	uint8_t *page = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(page + PAGE, PAGE);
	while (enter && leave && thread_cpu_ns() < end) {
		for (size_t n = 0; n < sizeof wrong / sizeof wrong[0]; n++) {
			describe(page, (uint64_t)code, 25, wrong[n].instructions, wrong[n].bytes);
			told += tell(page);
		}
		/* Entries for everything, for the program's own code, for nothing, for more than exists. */
		const uint64_t ranges[][2] = { { 0, UINT64_MAX }, { (uint64_t)plain & -PAGE, PAGE }, { (uint64_t)code, 0 }, { UINT64_MAX - 8, 100 } };
		for (size_t n = 0; n < sizeof ranges / sizeof ranges[0]; n++) {
			describe(page, ranges[n][0], ranges[n][1], "\x0e\x40", 2);
			told += tell(page);
		}
		/* No entries, entries without an end, no memory at all. */
		memset(page, 0, PAGE);
		told += tell(page);
		memset(page, 1, PAGE);
		told += tell(page);
		memset(page, 0xff, PAGE);
		told += tell(page) + tell(page + PAGE) + tell(page + PAGE - 2) + tell(0) + tell((void *)-4);
		/* Valid entries with some bytes changed. */
		for (int n = 0; n < 50; n++) {
			size_t bytes = describe(page, (uint64_t)code, 25, "\x41\x0e\x10\x86\x02\x57\x0e\x08", 8);
			for (uint64_t k = 0; k <= any() % 4; k++)
				page[any() % bytes] = (uint8_t)any();
			told += tell(page);
		}
		/* Many at the same address, never deregistered. */
		for (int n = 0; n < PAGE / ROOM; n++) {
			describe(page + n * ROOM, (uint64_t)code + (uint64_t)(n % 25), 25, "\x0e\x10", 2);
			enter(page + n * ROOM);
		}
		plain();
	}
	printf("told %lu\n", told);
	return 0;
}
