/* A function of a module with a false unwinder. usage: region_hostile HOW MILLISECONDS */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "selfwind.h"

static volatile unsigned long sink;
static uint32_t name_id;
static unsigned long refused;

__attribute__((noinline)) void watched(void)
{
	for (int i = 0; i < 100000; i++)
		sink += (unsigned long)i * sink;
	__asm__ volatile("");
}

__attribute__((noinline)) void watched_end(void)
{
	__asm__ volatile("nop");
}

static int caller(struct selfwind_walk *walk, uint64_t pc, uint64_t sp)
{
	walk->registers.pc = pc;
	walk->registers.value[SELFWIND_SP] = sp;
	return SELFWIND_CALLER;
}

static int nonsense(struct selfwind_walk *walk)
{
	for (int n = 0; n < SELFWIND_COLUMNS; n++)
		walk->registers.value[n] = 0xdeadbeefdeadbeef;
	return caller(walk, 0xdeadbeefdeadbee0, walk->registers.value[SELFWIND_SP]);
}

static int no_stack(struct selfwind_walk *walk)
{
	walk->registers.known = 0;
	return SELFWIND_CALLER;
}

static int wild_stack(struct selfwind_walk *walk) { return caller(walk, (uint64_t)watched_end + 1, 0x7ffffffff000); }
static int backwards(struct selfwind_walk *walk) { return caller(walk, walk->registers.pc, walk->registers.value[SELFWIND_SP] - 64); }
static int itself(struct selfwind_walk *walk) { return caller(walk, walk->registers.pc + 1, walk->registers.value[SELFWIND_SP]); }
static int endless(struct selfwind_walk *walk) { return caller(walk, walk->registers.pc + (walk->frame == 0), walk->registers.value[SELFWIND_SP] + 8); }
static int interrupted(struct selfwind_walk *walk) { caller(walk, walk->registers.pc, walk->registers.value[SELFWIND_SP]); return SELFWIND_CALLER | SELFWIND_INTERRUPTED; }
static int elsewhere(struct selfwind_walk *walk) { caller(walk, walk->registers.pc + (walk->frame == 0), walk->registers.value[SELFWIND_SP] ^ 64); return SELFWIND_CALLER | SELFWIND_OTHER_STACK; }
static int no_result(struct selfwind_walk *walk) { (void)walk; return 12345; }

static int frames_for_ever(struct selfwind_walk *walk)
{
	struct selfwind_frame frame = { sizeof frame, name_id, 0, 0, 0 };
	while (walk->emit(walk, &frame) == 0)
		;
	return SELFWIND_BESIDE;
}

static int strange_frames(struct selfwind_walk *walk)
{
	struct selfwind_frame frames[] = { { sizeof frames[0], 0xffffffff, 0, 0, 0 }, { sizeof frames[0], name_id, 0x12345678, 0, 0 },
	                                   { 4, name_id, 0, 0, 0 }, { sizeof frames[0], 0, 0, 0, 0 } };
	int taken = walk->emit(walk, 0) == 0;
	for (int n = 0; n < 4; n++)
		taken |= walk->emit(walk, &frames[n]) == 0;
	refused += !taken;
	return taken ? SELFWIND_ROOT : SELFWIND_BESIDE;
}

static int wild_reads(struct selfwind_walk *walk)
{
	static const uint64_t wild[] = { 0, 1, 4095, 0x7ffffffff000, 0x7ffffffffff9, 0xdeadbeef00000000, 0xffffffff80000000, UINT64_MAX - 3, UINT64_MAX };
	char to[64];
	int read = 0;
	for (unsigned n = 0; n < sizeof wild / sizeof *wild; n++)
		read |= walk->read(walk, wild[n], to, sizeof to) == 0 || walk->name(walk, n, 1, wild[n], 40) != 0;
	read |= walk->read(walk, (uint64_t)to, to, SIZE_MAX) == 0 || walk->read(walk, (uint64_t)to, 0, 8) == 0;
	refused += !read;
	return read ? SELFWIND_ROOT : SELFWIND_UNREADABLE;
}

/* Until the budget is used up. */
static int reads_for_ever(struct selfwind_walk *walk)
{
	char to[8];
	while (walk->read(walk, (uint64_t)to, to, sizeof to) == 0)
		;
	return SELFWIND_UNREADABLE;
}

static const struct {
	const char *name;
	int (*unwind)(struct selfwind_walk *);
} ways[] = {
	{ "nonsense", nonsense }, { "no-stack", no_stack }, { "backwards", backwards }, { "itself", itself },
	{ "endless", endless }, { "interrupted", interrupted }, { "elsewhere", elsewhere }, { "no-result", no_result },
	{ "frames-for-ever", frames_for_ever }, { "strange-frames", strange_frames }, { "wild-reads", wild_reads },
	{ "reads-for-ever", reads_for_ever }, { "wild-stack", wild_stack },
};

int main(int argc, char **argv)
{
	struct selfwind_unwinder unwinder = { SELFWIND_INIT(unwinder), "odd", 0, 0, SELFWIND_CALLEE_SAVED };
	struct timespec time;
	double end;
	for (unsigned n = 0; argc > 2 && n < sizeof ways / sizeof *ways; n++)
		if (strcmp(ways[n].name, argv[1]) == 0)
			unwinder.unwind = ways[n].unwind;
	if (!unwinder.unwind)
		return 2;
	name_id = selfwind_name("odd", 3);
	int region = selfwind_add_region(&unwinder, (uint64_t)watched, (uint64_t)watched_end);
	end = strtod(argv[2], 0) / 1e3;
	do {
		for (int n = 0; n < 20; n++)
			watched();
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	} while ((double)time.tv_sec + (double)time.tv_nsec / 1e9 < end);
	if (region > 0)
		selfwind_remove(region);
	puts("done");
	if (getenv("REGION_COUNTS"))
		printf("refused %d\n", refused > 0);
	return 0;
}
