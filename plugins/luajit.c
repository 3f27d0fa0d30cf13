/* Unwinder plug-in for LuaJIT 2.1: shows the functions of Lua programs among the native frames, interpreted and
 * compiled.
 *
 *   cc -O2 -shared -fPIC -I agent/include -o luajit.so plugins/luajit.c
 *   selfwind record --plugin ./luajit.so -- luajit program.lua
 *
 * For x86-64 with 64-bit references (GC64, the default), 2.1 from June 2021 on (lj_obj.h, lj_frame.h, lj_jit.h).
 *
 * All Lua code runs in frames of the interpreter, `C frames`: 80 bytes that contain the lua_State, which points back
 * to the newest of them. Traces and the interpreter's own subroutines are deeper on the same stack, by an amount that
 * no table gives; so that pair is searched for from the stack pointer on. Once it is found, the caller's registers
 * are where the interpreter saved them.
 *
 * The base of the Lua stack is less certain. The interpreter has it in a register and stores it only before calls
 * that may read it. A candidate (`find_base`) is accepted only if there is a function whose bytecode contains the
 * current instruction, and behind it a call that leads to it. Otherwise a marker replaces the innermost functions. In
 * a trace the base is that of the trace's start, and the newest snapshot before the instruction tells which calls
 * were inlined.
 *
 * Traces are registered whenever LuaJIT registers its areas of machine code with libgcc (__register_frame). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <string.h>

#include "luajit_objects.h"

static uint32_t main_chunk, anonymous, of_text, unreadable;

static int emit_mark(const struct lua *lua, uint32_t name)
{
	struct selfwind_frame frame = { sizeof frame, name, 0, 0, 0 };
	return lua->walk->emit(lua->walk, &frame) == 0;
}

/* Emits a function at `pc`, if it is a Lua function. 0 if there is no space. */
static int emit(const struct lua *lua, uint64_t value, uint64_t pc, const struct caller *caller)
{
	struct selfwind_frame frame = { .size = sizeof frame };
	struct function function;
	struct proto proto;
	struct name name;
	char first = 0;
	uint64_t at = proto_of(lua, value, &function, &proto);
	if (!at)
		return function.kind == GC_FUNCTION;
	uint64_t source = identity(lua, proto.source), other = source ^ proto.source ^ proto.line_info << 20 ^ (uint64_t)proto.first_line << 44 ^ proto.code_size;
	frame.name = proto.first_line == 0 ? main_chunk : lua->walk->name(lua->walk, at, other, 0, 0);
	if (!frame.name && caller && (name = name_at_call(lua, value, caller)).length)
		frame.name = lua->walk->name(lua->walk, at, other, name.at, name.length);
	if (!frame.name)
		frame.name = anonymous;
	name = text(lua, proto.source);
	frame.file = of_text;
	if (name.length > 1 && lua->walk->read(lua->walk, name.at, &first, 1) == 0 && (first == '@' || first == '='))
		frame.file = lua->walk->name(lua->walk, proto.source, source, name.at + 1, name.length - 1);
	frame.first_line = (int32_t)proto.first_line > 0 ? proto.first_line : 0;
	frame.line = line(lua, &proto, position(&function, &proto, pc));
	return lua->walk->emit(lua->walk, &frame) == 0;
}

/* A frame of the Lua stack: its function, its link to the calling frame, and where that is. */
struct frame { uint64_t value, link, outer, outer_pc; int ends; };

static int frame_at(const struct lua *lua, uint64_t base, struct frame *frame)
{
	uint64_t slots[4];
	uint32_t code = 0;
	if (base % 8 || base < lua->state.stack + 16 || base > lua->state.last + 512 || !get(lua, base - 32, slots, sizeof slots))
		return 0;
	*frame = (struct frame){ slots[2], slots[3], 0, 0, 0 };
	if ((frame->link & 3) == 0) {
		if (!get(lua, frame->link - 4, &code, 4))
			return 0;
		frame->outer = base - 8 * (2 + (code >> 8 & 0xff));
		frame->outer_pc = frame->link;
	} else {
		frame->outer = base - (frame->link & ~7ull);
		if ((frame->link & 7) == LINK_CONT)
			frame->outer_pc = slots[1];
		frame->ends = (frame->link & 3) == LINK_C || ((frame->link & 7) == LINK_CONT && slots[0] == 1);
	}
	return frame->outer >= lua->state.stack + 8 && frame->outer < base;
}

/* Whether the link of a frame refers to a function that made the call. */
static int is_linked(const struct lua *lua, const struct frame *frame)
{
	struct function function;
	struct proto proto;
	uint64_t outer;
	if (frame->link & 3)
		return 1;
	return get(lua, frame->outer - 16, &outer, 8) && proto_of(lua, outer, &function, &proto) &&
	       position(&function, &proto, frame->link) > 0;
}

/* Whether `base` can be that of a function at `pc`. */
static int is_base(const struct lua *lua, uint64_t base, uint64_t pc)
{
	struct frame frame;
	struct function function;
	struct proto proto;
	if (!frame_at(lua, base, &frame) || !is_linked(lua, &frame))
		return 0;
	if (proto_of(lua, frame.value, &function, &proto))
		/* When about to return, it has loaded the caller's already. */
		return position(&function, &proto, pc) >= 0 || pc == frame.link;
	return function.kind == GC_FUNCTION && (pc == frame.link || pc - lua->state.global < GLOBAL);
}

/* Emits the functions from `base` on that this C frame runs; the innermost one is at `pc`. Returns the base after
 * them, 0 if something is inconsistent. */
static uint64_t emit_section(const struct lua *lua, uint64_t base, uint64_t pc, int silent)
{
	struct frame frame, outer;
	int is_copy = silent;
	if (!frame_at(lua, base, &frame))
		return 0;
	for (int n = 0; n < CALLS; n++) {
		struct caller caller = { 0, frame.outer, frame.outer_pc };
		int has_outer = !frame.ends && frame_at(lua, frame.outer, &outer);
		if (has_outer)
			caller.value = outer.value;
		if (!is_copy && !emit(lua, frame.value, pc, has_outer && (frame.link & 3) == 0 ? &caller : 0))
			return 0;
		if (frame.ends)
			return frame.outer;
		if (!has_outer)
			return 0;
		/* A vararg function has two frames. */
		is_copy = silent || (frame.link & 7) == LINK_VARG;
		pc = frame.outer_pc;
		base = frame.outer, frame = outer;
	}
	return 0;
}

/* ------------------------------------------------- Traces */

static int is_trace(const struct lua *lua, uint64_t list, uint32_t number, uint64_t pc, struct trace *trace)
{
	uint64_t at;
	return get(lua, list + 8ull * number, &at, 8) && at && get(lua, at, trace, sizeof *trace) && trace->kind == GC_TRACE &&
	       trace->number == (uint16_t)number && pc - trace->code < trace->code_size;
}

/* The trace whose code contains `pc`. Its number is the VM state, except while the garbage collector runs. */
static int find_trace(struct lua *lua, uint64_t pc, struct trace *trace)
{
	static _Atomic uint16_t seen[256];
	_Atomic uint16_t *place = &seen[(pc >> 2 ^ pc >> 10) % 256];
	int32_t now;
	uint64_t list;
	uint32_t count;
	if (!get(lua, lua->state.global + VM_STATE, &now, 4))
		return 0;
	for (; lua->layout < (int)(sizeof layouts / sizeof *layouts); lua->layout++) {
		uint64_t at = lua->state.global + layouts[lua->layout].traces, current;
		if (!get(lua, lua->state.global + layouts[lua->layout].current, &current, 8) || current != lua->at ||
		    !get(lua, at, &list, 8) || !get(lua, at + SIZE_BEHIND, &count, 4) || list % 8 || count > 65536)
			continue;
		if (now > 0 && (uint32_t)now < count && is_trace(lua, list, now, pc, trace))
			return 1;
		uint16_t number = atomic_load_explicit(place, memory_order_relaxed);
		if (number && number < count && is_trace(lua, list, number, pc, trace))
			return 1;
		for (uint32_t n = 1; n < count && n < TRACES; n++)
			if (is_trace(lua, list, n, pc, trace)) {
				atomic_store_explicit(place, n, memory_order_relaxed);
				return 1;
			}
	}
	lua->layout = 0;
	return 0;
}

/* A constant of a trace; 0 if `ref` is none. */
static uint64_t constant(const struct lua *lua, const struct trace *trace, uint32_t ref)
{
	uint8_t words[16];
	uint64_t value;
	if (ref >= REF_BIAS || ref < trace->first_constant || !get(lua, trace->ir + 8ull * ref, words, sizeof words))
		return 0;
	memcpy(&value, words + 8, 8);
	return words[5] == IR_KGC ? value | (uint64_t)FUNCTION << 47 : words[5] == IR_KNUM || words[5] == IR_KINT64 ? value : 0;
}

/* Frames that a trace has not stored to the Lua stack, as its snapshot would restore them. */
struct inlined { uint64_t map, value, link; int entry; };

/* The next outer frame, below slot `most`; its function is 0 if that is no constant. 0 if it is the trace's own
 * frame. */
static int next_inlined(const struct lua *lua, const struct trace *trace, struct inlined *frame, uint32_t most)
{
	uint32_t entry, below;
	while (--frame->entry >= 0 && get(lua, frame->map + 4ull * frame->entry, &entry, 4)) {
		uint32_t slot = entry >> 24;
		if (!(entry & SNAP_FRAME) || slot > most || slot < 2)
			continue;
		frame->link = constant(lua, trace, entry & 0xffff);
		frame->value = 0;
		if (frame->entry > 0 && get(lua, frame->map + 4ull * (frame->entry - 1), &below, 4) && below >> 24 == slot - 1)
			frame->value = constant(lua, trace, below & 0xffff);
		return 1;
	}
	return 0;
}

/* Emits what a trace has inlined at `pc`, unless `silent`; then gives the instruction and the function of the trace's
 * own frame, if they differ. */
APART static int emit_inlined(struct lua *lua, uint64_t pc, uint64_t own, uint64_t *own_pc, uint64_t *own_value, int silent)
{
	struct trace trace;
	struct snap snap;
	struct inlined frame, outer;
	uint64_t behind;
	uint32_t first;
	if (!find_trace(lua, pc, &trace))
		return 1;
	uint32_t low = 0, high = trace.snaps, into = pc - trace.code;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (!get(lua, trace.snap + 12ull * middle, &snap, sizeof snap))
			return 1;
		if (into < snap.code)
			high = middle;
		else
			low = middle + 1;
	}
	if (!low || !get(lua, trace.snap + 12ull * (low - 1), &snap, sizeof snap))
		return 1;
	frame = (struct inlined){ trace.map + 4ull * snap.map, 0, 0, snap.entries };
	if (!get(lua, frame.map + 4ull * snap.entries, &behind, 8))
		return 1;
	/* The next instruction, and the slots up to the innermost base. */
	uint64_t at = (behind >> 8) + 4;
	uint32_t most = (behind & 0xff) + 1;
	if (get(lua, frame.map, &first, 4) && snap.entries && first >> 24 == 0)
		*own_value = constant(lua, &trace, first & 0xffff);
	uint64_t base_value = *own_value ? *own_value : own;
	int is_copy = 0, has = next_inlined(lua, &trace, &frame, most);
	for (int n = 0; has && n < CALLS; n++, frame = outer) {
		outer = frame;
		has = next_inlined(lua, &trace, &outer, most);
		struct caller caller = { has ? outer.value : base_value, 0, frame.link };
		int by_lua = (frame.link & 3) == 0;
		if (!silent && !is_copy && !(frame.value ? emit(lua, frame.value, at, by_lua ? &caller : 0) : emit_mark(lua, anonymous)))
			return 0;
		is_copy = (frame.link & 7) == LINK_VARG;
		at = by_lua ? frame.link : is_copy ? at : 0;
	}
	*own_pc = at;
	return 1;
}

/* ------------------------------------------------- The frame */

/* Searches for the C frame: at the stack pointer, or above what a trace or a subroutine has pushed. It is the newest
 * of its lua_State, or the one that follows the last one found. */
static int find_cframe(struct lua *lua, uint64_t sp)
{
	uint64_t slots[8];
	for (int n = 0; n < SLOTS; n++) {
		if (n % 8 == 0 && lua->walk->read(lua->walk, sp + 16 + 8 * n, slots, sizeof slots) != 0)
			return 0;
		uint64_t at = slots[n % 8], cframe = sp + 8 * n;
		if (at % 8 || at < 4096 || at >> 47 || (at >= sp && at < sp + (8 << 20)) || !get(lua, at, &lua->state, sizeof lua->state))
			continue;
		if (lua->state.kind != GC_THREAD || lua->state.stack % 8 || lua->state.stack >= lua->state.last)
			continue;
		if ((lua->state.cframe & ~3ull) == cframe || (at == lua->walk->state[0] && cframe == lua->walk->state[2])) {
			lua->at = at, lua->cframe = cframe;
			return 1;
		}
	}
	return 0;
}

/* The interpreter's base in its newest C frame, and the instruction after the current one. 0 if no candidate is
 * plausible. */
static uint64_t find_base(const struct lua *lua, uint64_t *pc)
{
	const struct selfwind_registers *registers = &lua->walk->registers;
	uint64_t base = registers->value[RDX], saved = registers->value[RBP];
	struct frame frame;
	uint32_t code;
	/* It has resumed the coroutine found last: everything has been stored. */
	if (lua->walk->state[0] && lua->walk->state[0] != lua->at) {
		*pc = frame_at(lua, lua->state.base, &frame) ? frame.link : 0;
		return is_base(lua, lua->state.base, *pc) ? lua->state.base : 0;
	}
	if (!(registers->known >> RBX & 1))
		return 0;
	*pc = registers->value[RBX] & ~3ull;
	if (lua->walk->interrupted) {
		if (is_base(lua, base, *pc))
			return base;
		/* A return to C: its link has been decoded, and no result is where the function was. */
		if (frame_at(lua, base, &frame) && (frame.link & 7) == LINK_C) {
			uint64_t link = registers->value[RBX], delta = frame.link ^ LINK_C;
			if (link == delta || link == delta - base || (link == frame.outer && registers->value[R11] != frame.value)) {
				*pc = 0;
				return base;
			}
		}
		/* A call is beginning: the base is the new one, the instruction still the call. */
		if (get(lua, *pc - 4, &code, 4) && is_base(lua, base - 8 * (2 + (code >> 8 & 0xff)), *pc))
			return base - 8 * (2 + (code >> 8 & 0xff));
	}
	/* Around calls that do not need it, the base is here. */
	if (registers->known >> RBP & 1 && is_base(lua, saved, *pc))
		return saved;
	return !lua->walk->interrupted && is_base(lua, lua->state.base, *pc) ? lua->state.base : 0;
}

/* Whether an instruction belongs to a Lua function. */
static int holds(const struct lua *lua, uint64_t value, uint64_t pc)
{
	struct function function;
	struct proto proto;
	return proto_of(lua, value, &function, &proto) && position(&function, &proto, pc) >= 0;
}

/* Emits what the newest C frame runs; returns the base after it. */
APART static uint64_t emit_newest(struct lua *lua, int in_trace)
{
	struct frame frame;
	uint64_t pc = 0, value = 0, base = 0;
	for (lua->layout = 0; lua->layout < (int)(sizeof layouts / sizeof *layouts); lua->layout++) {
		uint64_t at = lua->state.global + layouts[lua->layout].current, words[2];
		if (get(lua, at, words, sizeof words) && words[0] == lua->at) {
			base = words[1];
			break;
		}
	}
	if (lua->cframe - lua->walk->registers.value[SELFWIND_SP] >= 16) {
		/* At the end of a trace its base has been stored again. */
		base = base ? base : lua->state.base;
		if (frame_at(lua, base, &frame) && is_linked(lua, &frame)) {
			uint64_t at = lua->walk->registers.pc - !lua->walk->interrupted;
			if (!in_trace)
				return emit_section(lua, base, 0, 0);
			/* Where one trace continues in another, the base may still be the other's; after a tail call the two
			 * cannot be told apart. */
			if (emit_inlined(lua, at, frame.value, &pc, &value, 1) && (!value || value == frame.value) &&
			    (!pc || holds(lua, frame.value, pc)))
				return emit_inlined(lua, at, frame.value, &pc, &value, 0) ? emit_section(lua, base, pc, 0) : 0;
		}
	} else if ((base = find_base(lua, &pc))) {
		return emit_section(lua, base, pc, 0);
	}
	emit_mark(lua, unreadable);
	base = lua->state.base;
	return frame_at(lua, base, &frame) && is_linked(lua, &frame) ? emit_section(lua, base, 0, 1) : 0;
}

/* Replaces the registers by those of the interpreter's caller. */
static int go_to_caller(const struct lua *lua, const uint64_t *saved)
{
	struct selfwind_registers *registers = &lua->walk->registers;
	uint64_t *value = registers->value;
	/* Traces save two more registers at their start. */
	if (lua->cframe - value[SELFWIND_SP] >= 16) {
		if (!get(lua, lua->cframe - 8, &value[R13], 8))
			return SELFWIND_UNREADABLE;
		value[R12] = saved[0];
		registers->known |= 1 << R12 | 1 << R13;
	}
	value[R14] = saved[5], value[R15] = saved[6], value[RBX] = saved[7], value[RBP] = saved[8];
	registers->pc = saved[9];
	value[SELFWIND_SP] = lua->cframe + CFRAME;
	registers->known &= SELFWIND_CALLEE_SAVED | 1 << SELFWIND_SP;
	registers->known |= 1 << R14 | 1 << R15 | 1 << RBX | 1 << RBP;
	return SELFWIND_CALLER;
}

static int unwind(struct selfwind_walk *walk)
{
	struct lua lua = { .walk = walk };
	uint64_t sp = walk->registers.value[SELFWIND_SP], saved[CFRAME / 8], behind = 0;
	if (!find_cframe(&lua, sp) || !get(&lua, lua.cframe, saved, sizeof saved))
		return SELFWIND_NOT_MINE;
	int is_newest = (lua.state.cframe & ~3ull) == lua.cframe;
	uint64_t base = is_newest ? lua.state.base : walk->state[1];
	/* A protected call of a C function has a C frame that runs no Lua. */
	int32_t results = (int32_t)saved[1];
	if (results < 0 && base - 8 < lua.state.stack - (int64_t)results)
		behind = base;
	else if (is_newest)
		behind = emit_newest(&lua, walk->data != 0);
	else if (base)
		behind = emit_section(&lua, base, saved[3], 0);
	walk->state[0] = lua.at, walk->state[1] = behind, walk->state[2] = saved[4] & ~3ull;
	return lua.cframe == sp ? SELFWIND_BESIDE : go_to_caller(&lua, saved);
}

/* ------------------------------------------------- Locating the interpreter */

static int add(uint64_t start, uint64_t end, void *is_trace)
{
	struct selfwind_unwinder unwinder = { SELFWIND_INIT(unwinder), "lua", unwind, is_trace, SELFWIND_CALLEE_SAVED | 1 << RDX };
	return selfwind_add_region(&unwinder, start, end);
}

/* Finds the interpreter in the object that contains an address, by the CFI of its frame (vm_x64.dasc). */
struct search { uint64_t inside, start, end; };

static int look(struct dl_phdr_info *object, size_t size, void *data)
{
	static const uint8_t rules[] = { 0, 0x0e, CFRAME, 0x86, 2, 0x83, 3, 0x8f, 4, 0x8e, 5 };
	struct search *search = data;
	const uint8_t *table = 0;
	int holds = 0;
	(void)size;
	for (int n = 0; n < object->dlpi_phnum; n++) {
		const ElfW(Phdr) *header = &object->dlpi_phdr[n];
		holds |= header->p_type == PT_LOAD && search->inside - object->dlpi_addr - header->p_vaddr < header->p_memsz;
		if (header->p_type == PT_GNU_EH_FRAME)
			table = (const uint8_t *)object->dlpi_addr + header->p_vaddr;
	}
	/* Version 1, a count, and pairs of 32-bit values relative to the table: what every linker emits. */
	if (!holds || !table || table[0] != 1 || table[2] != 3 || table[3] != 0x3b)
		return holds;
	const int32_t *pairs = (const int32_t *)(table + 12);
	uint32_t count = *(const uint32_t *)(table + 8);
	for (uint32_t n = 0; n < count; n++) {
		const uint8_t *entry = table + pairs[2 * n + 1];
		if (memcmp(entry + 16, rules, sizeof rules) == 0) {
			search->start = (uint64_t)table + pairs[2 * n];
			search->end = search->start + *(const uint32_t *)(entry + 12);
		}
	}
	return 1;
}

/* LuaJIT's registration of an area of machine code: only its address range (lj_err.c). */
static uint64_t area(const uint8_t *frames, uint64_t *end)
{
	static const uint8_t begin[] = { 0x1c, 0, 0, 0, 0, 0, 0, 0, 1, 'z', 'P', 'R', 0, 1, 0x78, 16, 10, 0 };
	static const uint8_t second[] = { 0x1b, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x24, 0, 0, 0, 0x14, 0, 0, 0 };
	if (memcmp(frames, begin, sizeof begin) != 0 || memcmp(frames + 26, second, sizeof second) != 0)
		return 0;
	uint64_t start = (uint64_t)frames + 0x3c;
	*end = start + *(const uint32_t *)(frames + 0x2c);
	return start;
}

enum { AREAS = 512 };
static struct { _Atomic uint64_t start; int region; } areas[AREAS];

typedef void (*frames_function)(const void *);

__attribute__((visibility("default"))) void __register_frame(const void *frames)
{
	frames_function next = (frames_function)dlsym(RTLD_NEXT, "__register_frame");
	uint64_t end, start = main_chunk ? area(frames, &end) : 0;
	if (next)
		next(frames);
	for (int n = 0; start && n < AREAS; n++) {
		uint64_t none = 0;
		if (atomic_compare_exchange_strong(&areas[n].start, &none, start)) {
			areas[n].region = add(start, end, areas);
			break;
		}
	}
}

__attribute__((visibility("default"))) void __deregister_frame(const void *frames)
{
	frames_function next = (frames_function)dlsym(RTLD_NEXT, "__deregister_frame");
	uint64_t end, start = main_chunk ? area(frames, &end) : 0;
	for (int n = 0; start && n < AREAS; n++)
		if (atomic_load(&areas[n].start) == start) {
			selfwind_remove(areas[n].region);
			atomic_store(&areas[n].start, 0);
		}
	if (next)
		next(frames);
}

__attribute__((constructor)) static void begin(void)
{
	void *set_mode = dlsym(RTLD_DEFAULT, "luaJIT_setmode");
	struct search search = { (uint64_t)set_mode, 0, 0 };
	if (!set_mode || !selfwind_agent())
		return;
	dl_iterate_phdr(look, &search);
	if (!search.end)
		return;
	anonymous = selfwind_name("function", 8);
	of_text = selfwind_name("[string]", 8);
	unreadable = selfwind_name("[lua: unreadable frames]", 24);
	main_chunk = selfwind_name("main chunk", 10);
	add(search.start, search.end, 0);
}
