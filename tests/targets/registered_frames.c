/* Generated code that registers its call frame information as JIT compilers do, with __register_frame. It keeps no frame
 * pointer: in some functions rbp contains garbage, in the others the CFA depends on rbx.
 *
 * The functions call each other in a fixed order, and back into C, so that every stack is a part, starting at the root, of
 * one known stack: main work gen0 ... gen9 middle gen0 ... gen9 middle burn. Their names are in /tmp/perf-PID.map, or in the
 * list for debuggers (GDB manual, "JIT Compilation Interface").
 *
 * usage: registered_frames MILLISECONDS [THREADS CHURN DEBUGGER]: with CHURN 1 each thread replaces the code by other code
 * again and again, a thousand times before each call; with DEBUGGER 1 there is no map. Prints the process id and the number
 * of replacements. */
#include <elf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "burn.h"
#include "generated.h"

extern void __register_frame(void *), __deregister_frame(void *);

enum { FUNCTIONS = 10, SIZE = 64, CODE = FUNCTIONS * SIZE, PAGE = 4096 };

/* The interface that debuggers look at. */
struct entry {
	struct entry *next, *prev;
	const void *file;
	uint64_t size;
};

struct {
	uint32_t version, action;
	struct entry *relevant, *first;
} __jit_debug_descriptor = { 1, 0, 0, 0 };

__attribute__((noinline)) void __jit_debug_register_code(void) { __asm__ volatile(""); }

/* A relocatable object file that says where its code is. */
struct image {
	Elf64_Ehdr header;
	Elf64_Shdr sections[4];
	Elf64_Sym symbols[FUNCTIONS + 1];
	char names[8 * (FUNCTIONS + 1)];
};

struct code {
	uint8_t *start;
	uint8_t *frames, far[2048];
	struct entry entry;
	struct image image;
};

static atomic_ulong churned;
static int churns, debugs;
static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
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

/* What two layouts of the code have at the same place. */
static int on_rbx(int n, int layout) { return n % 3 == 1 + layout; }
static unsigned frame(int n, int layout) { return 16 * ((unsigned)(n * 7 + layout * 3) % 10 + 1); }

static void generate(uint8_t *code, int layout)
{
	for (int n = 0; n < FUNCTIONS; n++) {
		uint8_t *at = code + n * SIZE;
		uint64_t next = n + 1 < FUNCTIONS ? (uint64_t)(code + (n + 1) * SIZE) : (uint64_t)middle;
		if (on_rbx(n, layout)) {
			at = put(at, "\x53\x48\x89\xe3\x48\x81\xec", 7); /*  0 push %rbx;  1 mov %rsp, %rbx;  4 sub $size, %rsp */
			at = put_int(at, frame(n, layout), 4);
			at = put(at, "\x48\xb8", 2);                     /* 11 movabs $next, %rax */
			at = put_int(at, next, 8);
			put(at, "\xff\xd0\x48\x89\xdc\x5b\xc3", 7);      /* 21 call *%rax;  23 mov %rbx, %rsp;  26 pop %rbx;  27 ret */
		} else {
			at = put(at, "\x55\x48\xbd", 3);                 /*  0 push %rbp;  1 movabs $nonsense, %rbp */
			at = put_int(at, 0x5a5a5a5a00 + (uint64_t)n, 8);
			at = put(at, "\x48\x81\xec", 3);                 /* 11 sub $size, %rsp */
			at = put_int(at, frame(n, layout), 4);
			at = put(at, "\x48\xb8", 2);                     /* 18 movabs $next, %rax */
			at = put_int(at, next, 8);
			at = put(at, "\xff\xd0\x48\x81\xc4", 5);         /* 28 call *%rax;  30 add $size, %rsp */
			at = put_int(at, frame(n, layout), 4);
			put(at, "\x5d\xc3", 2);                          /* 37 pop %rbp;  38 ret */
		}
	}
}

/* Stores the length of an entry that was written from `start` on. */
static uint8_t *end_entry(uint8_t *start, uint8_t *end)
{
	while ((end - start) % 8 != 4)
		*end++ = 0; /* DW_CFA_nop */
	put_int(start, (uint64_t)(end - start - 4), 4);
	return end;
}

/* .eh_frame for the code: addresses relative to themselves if it is near, else whole. */
static void describe(uint8_t *to, uint8_t *code, int layout, int near)
{
	uint8_t *cie = to, *at = to + 4;
	at = put_int(at, 0, 4);
	at = put(at, "\x01zR\0\x01\x78\x10\x01", 8);             /* Version 1, code 1, data -8, return address 16. */
	*at++ = near ? 0x1b : 0;
	at = end_entry(cie, put(at, "\x0c\x07\x08\x90\x01", 5)); /* CFA = rsp + 8; return address at CFA - 8. */
	for (int n = 0; n < FUNCTIONS; n++) {
		uint8_t *fde = at, *start = code + n * SIZE;
		int whole = 16 + (int)frame(n, layout);
		at = put_int(at + 4, (uint64_t)(at + 4 - cie), 4);
		at = put_int(at, near ? (uint64_t)(start - at) : (uint64_t)start, near ? 4 : 8);
		at = put_int(at, on_rbx(n, layout) ? 28 : 39, near ? 4 : 8);
		*at++ = 0;
		if (on_rbx(n, layout)) {
			at = put(at, "\x41\x0e\x10\x83\x02\x43\x0d\x03", 8); /* 1: CFA = rsp + 16, rbx there; 4: CFA = rbx + 16 */
			at = put(at, "\x56\x0d\x07\x41\x0e\x08\xc3", 7);     /* 26: CFA = rsp + 16; 27: rsp + 8, rbx as before */
		} else {
			at = put(at, "\x41\x0e\x10\x86\x02\x51\x0e", 7);     /* 1: CFA = rsp + 16, rbp there; 18: rsp + whole */
			if (whole > 127)
				*at++ = (uint8_t)(whole | 128);
			*at++ = (uint8_t)(whole > 127 ? whole >> 7 : whole);
			at = put(at, "\x53\x0e\x10\x41\x0e\x08\xc6", 7);     /* 37: CFA = rsp + 16; 38: rsp + 8, rbp as before */
		}
		at = end_entry(fde, at);
	}
	put_int(at, 0, 4);
}

static void add(struct code *code, int layout)
{
	code->frames = layout ? code->start + PAGE / 2 : code->far;
	generate(code->start, layout);
	describe(code->frames, code->start, layout, layout);
	__register_frame(code->frames);
}

/* A thousand pages of other code, which nobody calls; every second one is deregistered again. */
static void register_others(void)
{
	enum { OTHERS = 1000, ROOM = 2048 };
	uint8_t *code = mmap(0, OTHERS * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t *frames = malloc(OTHERS * ROOM);
	for (int n = 0; n < OTHERS; n++) {
		describe(frames + n * ROOM, code + n * PAGE, n % 2, 0);
		__register_frame(frames + n * ROOM);
	}
	for (int n = 0; n < OTHERS; n += 2)
		__deregister_frame(frames + n * ROOM);
}

static void tell_names(struct code *code)
{
	char name[64];
	snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
	pthread_mutex_lock(&alone);
	FILE *map = fopen(name, "a");
	for (int n = 0; n < FUNCTIONS; n++)
		fprintf(map, "%lx %x gen%d\n", (unsigned long)code->start + (unsigned long)n * SIZE, SIZE, n);
	fclose(map);
	pthread_mutex_unlock(&alone);
}

static void tell_debugger(struct code *code)
{
	enum { NONE, TEXT, SYMBOLS, NAMES };
	struct image *image = &code->image;
	memcpy(image->header.e_ident, ELFMAG "\2\1\1", 7);
	image->header.e_type = ET_REL;
	image->header.e_machine = EM_X86_64;
	image->header.e_version = EV_CURRENT;
	image->header.e_shoff = offsetof(struct image, sections);
	image->header.e_ehsize = sizeof image->header;
	image->header.e_shentsize = sizeof image->sections[0];
	image->header.e_shnum = 4;
	image->header.e_shstrndx = NAMES;
	image->sections[TEXT] = (Elf64_Shdr){ .sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
		.sh_addr = (Elf64_Addr)code->start, .sh_size = CODE };
	image->sections[SYMBOLS] = (Elf64_Shdr){ .sh_type = SHT_SYMTAB, .sh_offset = offsetof(struct image, symbols),
		.sh_size = sizeof image->symbols, .sh_entsize = sizeof image->symbols[0], .sh_link = NAMES, .sh_info = 1 };
	image->sections[NAMES] = (Elf64_Shdr){ .sh_type = SHT_STRTAB, .sh_offset = offsetof(struct image, names),
		.sh_size = sizeof image->names };
	for (int n = 0; n < FUNCTIONS; n++) {
		snprintf(image->names + 8 * (n + 1), 8, "gen%d", n);
		image->symbols[n + 1] = (Elf64_Sym){ .st_name = 8 * (unsigned)(n + 1), .st_shndx = TEXT,
			.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), .st_value = (Elf64_Addr)n * SIZE, .st_size = SIZE };
	}
	pthread_mutex_lock(&alone);
	code->entry = (struct entry){ __jit_debug_descriptor.first, 0, image, sizeof *image };
	if (code->entry.next)
		code->entry.next->prev = &code->entry;
	__jit_debug_descriptor.first = __jit_debug_descriptor.relevant = &code->entry;
	__jit_debug_descriptor.action = 1;
	__jit_debug_register_code();
	pthread_mutex_unlock(&alone);
}

static void forget_debugger(struct code *code)
{
	pthread_mutex_lock(&alone);
	struct entry *next = code->entry.next, *prev = code->entry.prev;
	*(prev ? &prev->next : &__jit_debug_descriptor.first) = next;
	if (next)
		next->prev = prev;
	__jit_debug_descriptor.relevant = &code->entry;
	__jit_debug_descriptor.action = 2;
	__jit_debug_register_code();
	pthread_mutex_unlock(&alone);
}

__attribute__((noinline)) void work(struct code *code)
{
	for (int i = 0; i < 2000; i++)
		((void (*)(void))code->start)();
	__asm__ volatile("");
}

static void *run(void *nothing)
{
	struct code *code = calloc(1, sizeof *code);
	code->start = mmap(0, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	(debugs ? tell_debugger : tell_names)(code);
	own = code;
	uint64_t end = thread_cpu_ns() + milliseconds * 1000000;
	int layout = 0;
	add(code, layout);
	while (thread_cpu_ns() < end) {
		work(code);
		for (int n = 0; n < (churns ? 1001 : 1); n++) {
			__deregister_frame(code->frames);
			add(code, layout ^= 1);
			atomic_fetch_add(&churned, 1);
		}
	}
	__deregister_frame(code->frames);
	if (debugs)
		forget_debugger(code);
	munmap(code->start, PAGE);
	free(code);
	return nothing;
}

int main(int argc, char **argv)
{
	milliseconds = argc > 1 ? strtoul(argv[1], 0, 10) : 300;
	int threads = argc > 2 ? atoi(argv[2]) : 0;
	pthread_t thread[16];
	churns = argc > 3 && atoi(argv[3]);
	debugs = argc > 4 && atoi(argv[4]);
	register_others();
	for (int n = 0; n < threads && n < 16; n++)
		pthread_create(&thread[n], 0, run, 0);
	if (threads == 0)
		run(0);
	for (int n = 0; n < threads && n < 16; n++)
		pthread_join(thread[n], 0);
	printf("process %d churned %lu\n", getpid(), atomic_load(&churned));
	return 0;
}
