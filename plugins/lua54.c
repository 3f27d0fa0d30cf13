/* Unwinder plug-in for Lua 5.4: shows the functions of Lua programs among the native frames.
 *
 *   cc -O2 -shared -fPIC -I agent/include -o lua54.so plugins/lua54.c
 *   selfwind record --plugin ./lua54.so -- lua5.4 program.lua
 *
 * Each native frame of luaV_execute runs a sequence of Lua calls: from the state's innermost one, or from where the
 * sequence of the next inner frame ended, up to the first that is CIST_FRESH. The frame's registers, or its part of
 * the stack, hold the lua_State, which needs more than pc, sp and fp. Nothing of Lua is linked, and no address is
 * trusted before it is checked: offsets are those of 5.4.0 to 5.4.7 on 64-bit machines (lstate.h, lobject.h).
 * luaV_execute is not exported; it is the largest function of the object that has lua_newstate. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#include "selfwind.h"

enum { TTHREAD = 8, LUA_CLOSURE = 0x46, SHORT_STRING = 4, LONG_STRING = 0x14 };
enum { CIST_C = 1 << 1, CIST_FRESH = 1 << 2, CIST_TAIL = 1 << 5 };
enum { OP_GETUPVAL = 9, OP_SETUPVAL = 10, OP_GETTABUP = 11, OP_GETFIELD = 14, OP_SETTABUP = 15, OP_SETFIELD = 18, OP_SELF = 20 };
enum { OP_JMP = 56, OP_CALL = 68 };
enum { CALLS = 256, SLOTS = 48, BACK = 32 };

struct state { uint64_t next; uint8_t tt, marked, status, allowhook; uint16_t nci; uint64_t top, global, ci, last, stack; };
struct call { uint64_t func, top, previous, next, saved_pc; int32_t trap, extra; uint64_t pad; uint32_t u2; int16_t results; uint16_t status; };
struct proto {
	uint64_t next; uint8_t tt, marked, parameters, vararg, registers;
	int32_t upvalues_size, k_size, code_size, lines_size, p_size, locals_size, abs_size, first_line, last_line;
	uint64_t k, code, p, upvalues, lines, abs, locals, source;
};
struct value { uint64_t value; uint8_t tt; };
struct string { uint64_t next; uint8_t tt, marked, extra, short_length; uint32_t hash; uint64_t long_length; };
#define CONTENTS 24
_Static_assert(offsetof(struct state, ci) == 32 && offsetof(struct call, status) == 62 && offsetof(struct proto, source) == 112, "lstate.h");

static uint32_t main_chunk, anonymous, of_text;

static int get(struct selfwind_walk *walk, uint64_t address, void *to, size_t bytes)
{
	return address % 4 == 0 && address >= 4096 && walk->read(walk, address, to, bytes) == 0;
}

static int is_state(struct selfwind_walk *walk, uint64_t address, struct state *state)
{
	struct state other;
	struct call call;
	return address % 8 == 0 && get(walk, address, state, sizeof *state) && state->tt == TTHREAD && state->status <= 6 &&
	       state->stack % 8 == 0 && state->stack < state->last && state->stack <= state->top && state->top <= state->last + 5 * 16 &&
	       get(walk, state->ci, &call, sizeof call) && call.func >= state->stack && call.func < state->last &&
	       get(walk, state->global, &other, 8);
}

/* The lua_State of a frame: in a callee-saved register, or on the frame's part of the stack. */
static uint64_t find_state(struct selfwind_walk *walk, struct state *state)
{
	const struct selfwind_registers *registers = &walk->registers;
	uint64_t slots[SLOTS], sp = registers->value[SELFWIND_SP];
	for (int n = 0; n < SELFWIND_COLUMNS; n++)
		if (n != SELFWIND_SP && SELFWIND_CALLEE_SAVED & registers->known & 1ull << n && is_state(walk, registers->value[n], state))
			return registers->value[n];
	if (walk->read(walk, sp, slots, sizeof slots) != 0)
		return 0;
	for (int n = 0; n < SLOTS; n++)
		if (slots[n] > 4096 && slots[n] >> 47 == 0 && (slots[n] < sp || slots[n] > sp + (8 << 20)) && is_state(walk, slots[n], state))
			return slots[n];
	return 0;
}

/* Whether a frame that has made a call holds the address of the innermost CallInfo that it runs, which it will need
 * again. */
static __attribute__((noinline)) int holds(struct selfwind_walk *walk, uint64_t call)
{
	const struct selfwind_registers *registers = &walk->registers;
	uint64_t slots[SLOTS], sp = registers->value[SELFWIND_SP];
	for (int n = 0; n < SELFWIND_COLUMNS; n++)
		if (SELFWIND_CALLEE_SAVED & registers->known & 1ull << n && registers->value[n] == call)
			return 1;
	if (walk->read(walk, sp, slots, sizeof slots) != 0)
		return 0;
	for (int n = 0; n < SLOTS; n++)
		if (slots[n] == call)
			return 1;
	return 0;
}

/* The address and length of a string's characters. */
static uint64_t text(struct selfwind_walk *walk, uint64_t address, size_t *length)
{
	struct string string;
	*length = 0;
	if (!get(walk, address, &string, sizeof string) || (string.tt != SHORT_STRING && string.tt != LONG_STRING))
		return 0;
	*length = string.tt == SHORT_STRING ? string.short_length : string.long_length;
	return address + CONTENTS;
}

/* What tells a string from others that had its memory before: its hash or, as long ones have none yet, some of its text. */
static uint64_t identity(struct selfwind_walk *walk, uint64_t address)
{
	struct string string = { 0 };
	uint64_t words[2][8] = { 0 };
	if (!get(walk, address, &string, sizeof string) || string.tt != LONG_STRING)
		return string.hash;
	uint64_t mixed = string.long_length, end = (address + CONTENTS + string.long_length) & ~7ull;
	if (string.long_length >= sizeof words && get(walk, address + CONTENTS, words[0], sizeof words[0]))
		get(walk, end - sizeof words[1], words[1], sizeof words[1]);
	for (int n = 0; n < 16; n++)
		mixed = (mixed ^ words[n / 8][n % 8]) * 0x9e3779b97f4a7c15ull, mixed ^= mixed >> 29;
	return mixed;
}

static int proto_of(struct selfwind_walk *walk, const struct call *call, uint64_t *address, struct proto *proto)
{
	struct value function;
	return get(walk, call->func, &function, sizeof function) && function.tt == LUA_CLOSURE &&
	       get(walk, function.value + 24, address, 8) && get(walk, *address, proto, sizeof *proto) &&
	       call->saved_pc >= proto->code && call->saved_pc <= proto->code + 4 * (uint64_t)proto->code_size;
}

/* Whether an instruction sets its register A: not if it stores, compares or jumps. */
static int sets_register(uint32_t op)
{
	return op < OP_JMP && op != OP_SETUPVAL && (op < OP_SETTABUP || op > OP_SETFIELD);
}

/* The name in the calling instruction: a global, a field, a method or an upvalue. Lua keeps no other name of a
 * function. */
static uint64_t name_at_call(struct selfwind_walk *walk, const struct call *caller, size_t *length)
{
	struct proto proto;
	uint64_t address;
	uint32_t code[BACK];
	*length = 0;
	if (caller->status & CIST_C || !proto_of(walk, caller, &address, &proto) || caller->saved_pc == proto.code)
		return 0;
	uint64_t count = (caller->saved_pc - proto.code) / 4;
	count = count < BACK ? count : BACK;
	if (!get(walk, caller->saved_pc - 4 * count, code, 4 * count))
		return 0;
	int at = (int)count - 1;
	if ((code[at] & 0x7f) != OP_CALL)
		return 0;
	uint32_t wanted = code[at] >> 7 & 0xff;
	while (--at >= 0 && !((code[at] >> 7 & 0xff) == wanted && sets_register(code[at] & 0x7f)))
		;
	if (at < 0)
		return 0;
	/* A jump over it arrives with another value. */
	for (int jump = 0; jump < at; jump++) {
		int target = jump + 1 + (int)(code[jump] >> 7) - 0xffffff;
		if ((code[jump] & 0x7f) == OP_JMP && target > at && target < (int)count)
			return 0;
	}
	uint32_t op = code[at] & 0x7f, b = code[at] >> 16 & 0xff, c = code[at] >> 24;
	struct value constant;
	uint64_t string;
	if (op == OP_GETUPVAL)
		return get(walk, proto.upvalues + 16 * b, &string, 8) ? text(walk, string, length) : 0;
	if (op == OP_GETTABUP || op == OP_GETFIELD || op == OP_SELF)
		return get(walk, proto.k + 16 * c, &constant, sizeof constant) ? text(walk, constant.value, length) : 0;
	return 0;
}

static uint32_t line(struct selfwind_walk *walk, const struct proto *proto, uint64_t saved_pc)
{
	int32_t pc = (int32_t)((saved_pc - proto->code) / 4) - 1, from = -1, now = proto->first_line, entry[2];
	int8_t steps[256];
	if (pc < 0)
		pc = 0;
	/* Entries are at most 128 instructions apart; less where line numbers differ a lot. */
	for (int32_t low = 0, high = proto->abs_size; low < high && high < 1 << 20;) {
		int32_t middle = (low + high) / 2;
		if (!get(walk, proto->abs + 8 * (uint64_t)middle, entry, 8))
			return 0;
		if (entry[0] <= pc)
			from = entry[0], now = entry[1], low = middle + 1;
		else
			high = middle;
	}
	if (pc >= proto->lines_size || pc - from > 256 || walk->read(walk, proto->lines + from + 1, steps, pc - from) != 0)
		return 0;
	for (int32_t at = 0; at < pc - from; at++)
		now += steps[at];
	return now > 0 ? now : 0;
}

static int emit(struct selfwind_walk *walk, const struct call *call, const struct call *caller)
{
	struct selfwind_frame frame = { .size = sizeof frame };
	struct proto proto;
	uint64_t address, from;
	size_t length;
	char first = 0;
	if (!proto_of(walk, call, &address, &proto))
		return 0;
	uint64_t source = identity(walk, proto.source), other = source ^ proto.source ^ proto.code ^ (uint64_t)proto.first_line << 48;
	frame.name = proto.first_line == 0 ? main_chunk : walk->name(walk, address, other, 0, 0);
	if (!frame.name && !(call->status & CIST_TAIL) && (from = name_at_call(walk, caller, &length)))
		frame.name = walk->name(walk, address, other, from, length);
	if (!frame.name)
		frame.name = anonymous;
	from = text(walk, proto.source, &length);
	frame.file = of_text;
	if (from && length > 1 && walk->read(walk, from, &first, 1) == 0 && (first == '@' || first == '='))
		frame.file = walk->name(walk, proto.source, source, from + 1, length - 1);
	frame.first_line = proto.first_line;
	frame.line = line(walk, &proto, call->saved_pc);
	return walk->emit(walk, &frame) == 0;
}

/* Whether a call from C is prepared whose sequence has not begun: it is not that of any frame. */
static int is_pending(struct selfwind_walk *walk, const struct call *call)
{
	struct proto proto;
	uint64_t address;
	return call->status & CIST_FRESH && proto_of(walk, call, &address, &proto) && call->saved_pc == proto.code;
}

static int unwind(struct selfwind_walk *walk)
{
	struct state state;
	struct call call, caller;
	uint64_t of = find_state(walk, &state);
	if (!of)
		return SELFWIND_NOT_MINE;
	uint64_t at = walk->state[0] == of ? walk->state[1] : state.ci;
	if (!get(walk, at, &call, sizeof call))
		return SELFWIND_NOT_MINE;
	/* After an error, CallInfos remain whose frames are gone, until Lua removes them. */
	for (int n = 0; !walk->interrupted && (call.status & CIST_C || !holds(walk, at) || is_pending(walk, &call)); n++) {
		at = call.previous;
		if (n == CALLS || !get(walk, at, &call, sizeof call))
			return SELFWIND_NOT_MINE;
	}
	for (int n = 0; n < CALLS; n++) {
		uint64_t outer = call.previous;
		if (!get(walk, outer, &caller, sizeof caller) || call.func < state.stack || call.func >= state.last)
			break;
		if (!(call.status & CIST_C)) {
			if (!emit(walk, &call, &caller))
				break;
			if (call.status & CIST_FRESH) {
				walk->state[0] = of, walk->state[1] = outer;
				break;
			}
		}
		call = caller;
	}
	return SELFWIND_BESIDE;
}

/* Finds the largest function of the object that contains an address, by its search table (.eh_frame_hdr). */
struct search { uint64_t inside, start, end; };

static int look(struct dl_phdr_info *object, size_t size, void *data)
{
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
	for (uint32_t n = 0; n + 1 < count; n++) {
		uint64_t start = (uint64_t)table + pairs[2 * n], end = (uint64_t)table + pairs[2 * n + 2];
		if (end - start > search->end - search->start)
			search->start = start, search->end = end;
	}
	return 1;
}

__attribute__((constructor)) static void begin(void)
{
	void *new_state = dlsym(RTLD_DEFAULT, "lua_newstate");
	struct search search = { (uint64_t)new_state, 0, 0 };
	struct selfwind_unwinder unwinder = { SELFWIND_INIT(unwinder), "lua", unwind, 0, SELFWIND_CALLEE_SAVED };
	if (!new_state || !selfwind_agent())
		return;
	dl_iterate_phdr(look, &search);
	main_chunk = selfwind_name("main chunk", 10);
	anonymous = selfwind_name("function", 8);
	of_text = selfwind_name("[string]", 8);
	if (search.end)
		selfwind_add_region(&unwinder, search.start, search.end);
}
