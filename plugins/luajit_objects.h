/* LuaJIT's objects and line tables, and the names by which functions are called, for luajit.c. Offsets are those of
 * lj_obj.h and lj_jit.h from June 2021 on; no address is trusted before it is checked. */
#include <stddef.h>
#include <stdint.h>

#include "selfwind.h"

enum { STRING = ~4, FUNCTION = ~8, TABLE = ~11 };			 /* Tags of values. */
enum { GC_THREAD = 6, GC_PROTO = 7, GC_FUNCTION = 8, GC_TRACE = 9 };	 /* Kinds of objects. */
enum { LINK_C = 1, LINK_CONT = 2, LINK_VARG = 3 };			 /* Low bits of a frame link. */
enum { OP_MOV = 18, OP_UGET = 45, OP_GGET = 54, OP_TGETS = 57, OP_CALLM = 65, OP_CALL = 66, OP_ITERC = 69 };
enum { IR_KGC = 24, IR_KNUM = 28, IR_KINT64 = 29 };
/* By DWARF number. */
enum { RDX = 1, RBX = 3, RBP = 6, R11 = 11, R12, R13, R14, R15 };
enum { REF_BIAS = 0x8000, SNAP_FRAME = 0x10000 };
enum { CALLS = 256, SLOTS = 224, BACK = 32, TRACES = 4000, CFRAME = 80 };

struct state {
	uint64_t next; uint8_t marked, kind, ffid, status; uint64_t global, list, base, top, last, stack, upvalues, env, cframe;
};
struct function { uint64_t next; uint8_t marked, kind, ffid, upvalues; uint64_t env, list, pc; };
struct proto {
	uint64_t next; uint8_t marked, kind, parameters, registers; uint32_t code_size, pad; uint64_t list, k, upvalues;
	uint32_t kgc_size, kn_size, size; uint8_t upvalue_count, flags; uint16_t trace; uint64_t source;
	uint32_t first_line, lines; uint64_t line_info, upvalue_names, local_names;
};
struct table { uint64_t next; uint8_t marked, kind, nomm, colo; uint64_t array, list, meta, node; uint32_t array_size, mask; };
struct trace {
	uint64_t next; uint8_t marked, kind; uint16_t snaps; uint32_t ins, pad; uint64_t list, ir; uint32_t first_constant, map_size;
	uint64_t snap, map, start_proto, start_pc; uint32_t start_ins, code_size; uint64_t code; uint32_t loop; uint16_t children, adjust, number;
};
struct snap { uint32_t map; uint16_t ref, code; uint8_t slots, top, entries, count; };
_Static_assert(offsetof(struct state, cframe) == 80 && offsetof(struct function, pc) == 32 && sizeof(struct proto) == 104 &&
	       offsetof(struct proto, source) == 64 && offsetof(struct table, mask) == 52 && offsetof(struct trace, code) == 88 &&
	       offsetof(struct trace, number) == 104 && sizeof(struct snap) == 12, "lj_obj.h, lj_jit.h");

/* Offsets of the running lua_State in global_State, and from there to the array of traces; oldest layout first. */
static const struct { uint16_t current, traces; } layouts[] = { { 368, 1112 }, { 368, 1120 }, { 376, 1128 } };
enum { VM_STATE = 184, BASE_BEHIND = 8, INDEX_BEHIND = 56, SIZE_BEHIND = 12, GLOBAL = 1 << 16 };

/* Not inlined, to limit stack use. */
#define APART __attribute__((noinline))

/* One C frame, with the walk that it belongs to. */
struct lua { struct selfwind_walk *walk; struct state state; uint64_t at, cframe; int layout; };


static int get(const struct lua *lua, uint64_t address, void *to, size_t bytes)
{
	return address % 4 == 0 && address >= 4096 && lua->walk->read(lua->walk, address, to, bytes) == 0;
}

/* The object that a value with this tag refers to, or 0. */
static uint64_t object(uint64_t value, int tag) { return (int64_t)value >> 47 == tag ? value & ((1ull << 47) - 1) : 0; }

/* The Lua function in a value, and its prototype. 0 if it is no Lua function; a C function is stored all the same. */
static uint64_t proto_of(const struct lua *lua, uint64_t value, struct function *function, struct proto *proto)
{
	uint64_t at = object(value, FUNCTION);
	function->kind = 0;
	if (!at || !get(lua, at, function, sizeof *function) || function->kind != GC_FUNCTION || function->ffid != 0)
		return 0;
	at = function->pc - sizeof *proto;
	return get(lua, at, proto, sizeof *proto) && proto->kind == GC_PROTO ? at : 0;
}

/* Index of the instruction before `pc`, possibly 0 for the header. -1 if outside the function. */
static int64_t position(const struct function *function, const struct proto *proto, uint64_t pc)
{
	uint64_t bytes = pc - function->pc;
	return bytes % 4 == 0 && bytes / 4 <= proto->code_size ? (bytes ? (int64_t)bytes / 4 - 1 : 0) : -1;
}

static uint32_t line(const struct lua *lua, const struct proto *proto, int64_t position)
{
	uint32_t width = proto->lines < 256 ? 1 : proto->lines < 65536 ? 2 : 4, step = 0;
	uint64_t at = proto->line_info + (position - 1) * width;
	if (!proto->line_info || (int32_t)proto->first_line < 0 || position < 0)
		return 0;
	if (position == 0)
		return proto->first_line;
	return lua->walk->read(lua->walk, at, &step, width) == 0 ? proto->first_line + step : 0;
}

/* The name by which the calling instruction finds a function.
 *
 * LuaJIT keeps no other. After a tail call the calling instruction is that of another function: so a name counts only
 * if it evaluates to the function. */

struct name { uint64_t at; size_t length; };

static struct name text(const struct lua *lua, uint64_t string)
{
	uint32_t length = 0;
	return get(lua, string + 20, &length, 4) ? (struct name){ string + 24, length } : (struct name){ 0, 0 };
}

/* The number of a string among all that were ever made, and its hash. */
static uint64_t identity(const struct lua *lua, uint64_t string)
{
	uint64_t both = 0;
	get(lua, string + 12, &both, 8);
	return both;
}

static uint8_t byte(const struct lua *lua, uint64_t at)
{
	uint8_t value = 0;
	lua->walk->read(lua->walk, at, &value, 1);
	return value;
}

/* A NUL-terminated text. */
static struct name until_zero(const struct lua *lua, uint64_t at)
{
	struct name name = { at, 0 };
	while (name.length < 128 && byte(lua, at + name.length))
		name.length++;
	return name;
}

static uint64_t number(const struct lua *lua, uint64_t *at)
{
	uint64_t value = 0;
	for (int shift = 0; shift < 35; shift += 7) {
		uint8_t part = byte(lua, (*at)++);
		value |= (uint64_t)(part & 127) << shift;
		if (part < 128)
			break;
	}
	return value;
}

/* The local variable in a slot at an instruction. */
static struct name local_name(const struct lua *lua, const struct proto *proto, int64_t position, uint32_t slot)
{
	uint64_t at = proto->local_names, start = 0;
	for (int n = 0; at && n < 256; n++) {
		struct name name = until_zero(lua, at);
		/* The first six are the internal variables of loops, by number; 0 ends the list. */
		if (name.length == 0)
			break;
		if (byte(lua, at) < 7)
			name.length = 0, at++;
		else
			at += name.length + 1;
		start += number(lua, &at);
		uint64_t end = start + number(lua, &at);
		if ((int64_t)start > position)
			break;
		if (position < (int64_t)end && slot-- == 0)
			return name;
	}
	return (struct name){ 0, 0 };
}

/* The value of a table at a string key, or by its metatables. */
APART static uint64_t look_up(const struct lua *lua, uint64_t value, uint64_t string)
{
	struct table table;
	uint64_t index = 0, node[3];
	uint32_t id;
	get(lua, lua->state.global + layouts[lua->layout].current + INDEX_BEHIND, &index, 8);
	for (int n = 0; n < 8; n++) {
		/* Two look-ups per table: the string, then __index in its metatable. */
		uint64_t wanted = n % 2 ? index : string, at = object(value, TABLE), found = 0;
		if (n % 2 && at && get(lua, at, &table, sizeof table))
			at = table.meta;
		if (!at || !get(lua, at, &table, sizeof table) || !get(lua, wanted + 12, &id, 4))
			return 0;
		uint64_t place = table.node + 24ull * (id & table.mask);
		for (int hop = 0; hop < 32 && place && get(lua, place, node, sizeof node); hop++, place = node[2])
			if (object(node[1], STRING) == wanted)
				found = node[0];
		if (found && found != ~0ull && n % 2 == 0)
			return found;
		if (n % 2)
			value = found;
	}
	return 0;
}

/* The caller of a function; `base` is 0 if its variables are not in memory. */
struct caller { uint64_t value, base, pc; };

/* The value of a slot before the instruction, and its name there. */
static uint64_t evaluate(const struct lua *lua, const struct caller *caller, const struct function *function,
			 const struct proto *proto, int64_t position, uint32_t slot, struct name *name, int depth)
{
	uint32_t code;
	uint64_t value = 0, at = 0;
	name->length = 0;
	for (int64_t n = position - 1; n > 0 && n >= position - BACK; n--) {
		if (!get(lua, function->pc + 4 * n, &code, 4))
			return 0;
		uint32_t op = code & 0xff, a = code >> 8 & 0xff, c = code >> 16 & 0xff, b = code >> 24, d = code >> 16;
		int sets = op == 12 || op == 13 || (op >= OP_MOV && op <= 43) || (op >= OP_UGET && op != 55 && op < 60 && (op == OP_UGET || op > 50));
		if ((op == 44 || (op >= OP_CALLM && op <= 72)) && slot >= a)
			break;
		if (!sets || a != slot)
			continue;
		if (op == OP_MOV) {
			*name = local_name(lua, proto, n, d);
			return caller->base && get(lua, caller->base + 8ull * d, &value, 8) ? value : 0;
		}
		if (op == OP_UGET && d < proto->upvalue_count && proto->upvalue_names) {
			uint64_t names = proto->upvalue_names;
			for (uint32_t skip = 0; skip < d; skip++)
				names += until_zero(lua, names).length + 1;
			*name = until_zero(lua, names);
			uint64_t place = object(caller->value, FUNCTION) + 40 + 8ull * d;
			return get(lua, place, &at, 8) && get(lua, at + 32, &at, 8) && get(lua, at, &value, 8) ? value : 0;
		}
		/* A local variable: its slot still has the value. */
		if (op != OP_GGET && op != OP_TGETS)
			break;
		if (!get(lua, proto->k - 8ull * ((op == OP_GGET ? d : c) + 1), &at, 8))
			return 0;
		uint64_t table = function->env | (uint64_t)TABLE << 47;
		if (op == OP_TGETS)
			table = depth ? evaluate(lua, caller, function, proto, n, b, name, depth - 1) : 0;
		value = look_up(lua, table, at);
		*name = text(lua, at);
		return value;
	}
	return caller->base && get(lua, caller->base + 8ull * slot, &value, 8) ? value : 0;
}

APART static struct name name_at_call(const struct lua *lua, uint64_t callee, const struct caller *caller)
{
	struct function function;
	struct proto proto;
	struct name name = { 0, 0 };
	uint32_t code;
	if (!proto_of(lua, caller->value, &function, &proto))
		return name;
	int64_t at = position(&function, &proto, caller->pc);
	if (at < 1 || !get(lua, function.pc + 4 * at, &code, 4) || ((code & 0xff) != OP_CALL && (code & 0xff) != OP_CALLM))
		return name;
	uint64_t found = evaluate(lua, caller, &function, &proto, at, code >> 8 & 0xff, &name, 1);
	if (object(found, FUNCTION) != object(callee, FUNCTION))
		name.length = 0;
	return name;
}
