/* Generated code whose frames no CFI describes, and its unwinder: the size of a frame is in rbx, which every function saves,
 * so the caller is found by three words of the stack and one register.
 *
 * The functions call each other in a fixed order, and back into C, so that every stack is a part, starting at the root, of
 * one known stack: main work gen0 ... gen9 middle gen0 ... gen9 middle burn.
 *
 * usage: region_code MILLISECONDS [THREADS CHURN]: each thread registers its own unwinder; with CHURN 1 it does so again for
 * every call, and registers another region a thousand times. Prints whether an unwinder ran after its removal. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "burn.h"
#include "generated.h"
#include "selfwind.h"

enum { FUNCTIONS = 10, SIZE = 32 };
#define ALIVE 0x616c697665u

struct code {
	_Atomic uint32_t alive;
	uint8_t *start;
	uint32_t names[FUNCTIONS], file;
};

static atomic_ulong violations, asked, churned;
static int churns;
static unsigned long milliseconds;
static __thread int depth;
static __thread struct code *own;

/* Called by the last of the generated functions. */
__attribute__((noinline)) void middle(void)
{
	if (depth++ == 0)
		((void (*)(void))own->start)();
	else
		burn();
	depth--;
	__asm__ volatile("");
}

static void generate(uint8_t *code)
{
	for (int n = 0; n < FUNCTIONS; n++) {
		uint8_t *at = code + n * SIZE;
		uint64_t next = n + 1 < FUNCTIONS ? (uint64_t)(code + (n + 1) * SIZE) : (uint64_t)middle;
		at = put(at, "\x53\x48\xbb", 3);             /*  0 push %rbx;  1 movabs $size, %rbx */
		at = put_int(at, 16 * (uint64_t)(n * 7 % 10 + 1), 8);
		at = put(at, "\x48\x29\xdc\x48\xb8", 5);     /* 11 sub %rbx, %rsp;  14 movabs $next, %rax */
		at = put_int(at, next, 8);
		put(at, "\xff\xd0\x48\x01\xdc\x5b\xc3", 7);  /* 24 call *%rax;  26 add %rbx, %rsp;  29 pop %rbx;  30 ret */
	}
}

static int unwind(struct selfwind_walk *walk)
{
	enum { RBX = 3 };
	struct code *code = walk->data;
	struct selfwind_registers *registers = &walk->registers;
	uint64_t words[2], sp = registers->value[SELFWIND_SP], rbx = registers->value[RBX];
	atomic_fetch_add_explicit(&asked, 1, memory_order_relaxed);
	if (atomic_load(&code->alive) != (uint32_t)ALIVE)
		atomic_fetch_add(&violations, 1);
	uint64_t offset = registers->pc - !walk->interrupted - (uint64_t)code->start;
	struct selfwind_frame frame = { sizeof frame, code->names[offset / SIZE], code->file, offset / SIZE + 1, offset % SIZE };
	if (walk->emit(walk, &frame) != 0)
		return SELFWIND_NO_RULE;
	offset %= SIZE;
	if (!(registers->known >> RBX & 1))
		return SELFWIND_LOST_REGISTER;
	if (offset == 0 || offset >= 30) { /* Nothing is pushed. */
		if (walk->read(walk, sp, words + 1, 8) != 0)
			return SELFWIND_UNREADABLE;
		registers->value[SELFWIND_SP] = sp + 8;
	} else {
		sp += offset >= 14 && offset < 29 ? rbx : 0;
		if (walk->read(walk, sp, words, sizeof words) != 0)
			return SELFWIND_UNREADABLE;
		registers->value[RBX] = words[0];
		registers->value[SELFWIND_SP] = sp + 16;
	}
	registers->pc = words[1];
	return SELFWIND_CALLER;
}

static int add(struct code *code)
{
	struct selfwind_unwinder unwinder = { SELFWIND_INIT(unwinder), "made", unwind, code, SELFWIND_CALLEE_SAVED };
	atomic_store(&code->alive, (uint32_t)ALIVE);
	return selfwind_add_region(&unwinder, (uint64_t)code->start, (uint64_t)code->start + FUNCTIONS * SIZE);
}

static void drop(struct code *code, int region)
{
	if (selfwind_remove(region) == 0)
		atomic_store(&code->alive, 0);
}

__attribute__((noinline)) void work(struct code *code)
{
	for (int i = 0; i < 2000; i++)
		((void (*)(void))code->start)();
	__asm__ volatile("");
}

static void *run(void *nothing)
{
	struct code code = { .file = selfwind_name("made.code", 9) };
	code.start = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	generate(code.start);
	own = &code;
	for (int n = 0; n < FUNCTIONS; n++) {
		char name[8];
		code.names[n] = selfwind_name(name, (size_t)snprintf(name, sizeof name, "gen%d", n));
	}
	uint64_t end = thread_cpu_ns() + milliseconds * 1000000;
	int region = add(&code);
	while (thread_cpu_ns() < end) {
		if (churns) {
			drop(&code, region);
			for (int n = 0; n < 1000; n++)
				drop(&code, add(&code));
			atomic_fetch_add(&churned, 1001);
			region = add(&code);
		}
		work(&code);
	}
	drop(&code, region);
	munmap(code.start, 4096);
	return nothing;
}

int main(int argc, char **argv)
{
	milliseconds = argc > 1 ? strtoul(argv[1], 0, 10) : 300;
	int threads = argc > 2 ? atoi(argv[2]) : 0;
	pthread_t thread[16];
	churns = argc > 3 && atoi(argv[3]);
	for (int n = 0; n < threads && n < 16; n++)
		pthread_create(&thread[n], 0, run, 0);
	if (threads == 0)
		run(0);
	for (int n = 0; n < threads && n < 16; n++)
		pthread_join(thread[n], 0);
	printf("violations %lu\n", atomic_load(&violations));
	if (getenv("REGION_COUNTS"))
		printf("asked %lu churned %lu\n", atomic_load(&asked), atomic_load(&churned));
	return 0;
}
