/* What a program can tell selfwind about itself. Header only: nothing is linked, and without the agent all of it does
 * nothing. For C99 and C++11 and later, GCC and clang, on Linux.
 *
 * - Common: how the agent is found at run time.
 * - Tracepoints: SELFWIND_TRACEPOINT(provider, name, fields...).
 * - Region unwinders: selfwind_add_region(unwinder, start, end). The words of their contract are in docs/plug-ins.md.
 */
#ifndef SELFWIND_H
#define SELFWIND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- Common */

/* The version of what is here: another meaning raises it. An agent that does not know it answers as if it were not there. */
#define SELFWIND_ABI_VERSION 1

struct selfwind_tracepoint;
struct selfwind_unwinder;

/* What the agent does for a program. What is appended raises no version: `size` says how far it goes. */
struct selfwind_abi {
    uint32_t size;
    uint32_t version;
    /* Decides about a tracepoint that runs for the first time: sets its `record`. Non-zero if it is enabled. May be called
     * from any context, a signal handler too. */
    int (*tracepoint)(struct selfwind_tracepoint *tracepoint);
    /* What selfwind_add_region, selfwind_add_symbol, selfwind_remove and selfwind_name call. */
    int (*add_region)(const struct selfwind_unwinder *unwinder, uint64_t start, uint64_t end);
    int (*add_symbol)(const struct selfwind_unwinder *unwinder, const char *symbol);
    int (*remove)(int region);
    uint32_t (*name)(const char *text, size_t bytes);
};

/* What this agent does, or NULL. The agent's one name for programs; not called but through selfwind_agent(). */
typedef const struct selfwind_abi *(*selfwind_abi_function)(uint32_t version);

/* The agent of this process, or NULL. Makes no call of the C library's: a word that the loader has filled, or left 0. */
static inline const struct selfwind_abi *selfwind_agent(void) {
    selfwind_abi_function find;
#if defined(__x86_64__) && !defined(__ILP32__)
    /* Through the global offset table in every kind of code: else a linker may settle in a program that there is none. */
    __asm__(".weak selfwind_abi\n\tmovq selfwind_abi@GOTPCREL(%%rip), %0" : "=r"(find));
#else
    extern const struct selfwind_abi *selfwind_abi(uint32_t) __attribute__((weak));
    find = selfwind_abi;
#endif
    return find ? find(SELFWIND_ABI_VERSION) : (const struct selfwind_abi *)0;
}

/* ----------------------------------------------------------- Tracepoints
 *
 *     SELFWIND_TRACEPOINT(app, request, SELFWIND_STR(path), SELFWIND_U64(bytes));
 *
 * An event, with up to 12 fields that are called by what they are computed from; SELFWIND_U64_AS(size, n * 8) gives
 * another name. Enabled by `selfwind record -e tp:app:request`; disabled, it is a load and a branch that is not taken, and
 * the fields are not computed. Strings end with NUL, are read up to 256 bytes, and may be NULL.
 *
 * It may stand anywhere: in signal handlers, in inline functions and templates, in libraries that are unloaded.
 */

/* One place in the program. The agent's words are none of the program's business. */
struct selfwind_tracepoint {
    /* Records an event; NULL: disabled; SELFWIND_UNDECIDED before it ran for the first time. */
    void (*record)(struct selfwind_tracepoint *tracepoint, const uint64_t *values);
    const char *provider;
    const char *name;
    /* A letter for each field: i, u, f or s; and their names, each ended by NUL. */
    const char *types;
    const char *fields;
    uint32_t count;
    uint32_t fields_size;
    uint64_t agent[2];
};

typedef void (*selfwind_record_function)(struct selfwind_tracepoint *, const uint64_t *);

#define SELFWIND_UNDECIDED ((selfwind_record_function)(uintptr_t)1)

/* The first run of a tracepoint: asks the agent, if there is one. Non-zero if it is enabled. */
__attribute__((cold, noinline, unused)) static int selfwind_tracepoint_first(struct selfwind_tracepoint *tracepoint) {
    const struct selfwind_abi *agent = selfwind_agent();
    if (agent && agent->size >= offsetof(struct selfwind_abi, tracepoint) + sizeof agent->tracepoint)
        return agent->tracepoint(tracepoint);
    __atomic_store_n(&tracepoint->record, (selfwind_record_function)0, __ATOMIC_RELAXED);
    return 0;
}

static inline uint64_t selfwind_i64(int64_t value) { return (uint64_t)value; }
static inline uint64_t selfwind_u64(uint64_t value) { return value; }
static inline uint64_t selfwind_f64(double value) {
    uint64_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline uint64_t selfwind_str(const char *value) { return (uint64_t)(uintptr_t)value; }

/* A field: letter, name, value. */
#define SELFWIND_I64(value) ("i", #value "\0", selfwind_i64(value))
#define SELFWIND_U64(value) ("u", #value "\0", selfwind_u64(value))
#define SELFWIND_F64(value) ("f", #value "\0", selfwind_f64(value))
#define SELFWIND_STR(value) ("s", #value "\0", selfwind_str(value))
#define SELFWIND_I64_AS(name, value) ("i", #name "\0", selfwind_i64(value))
#define SELFWIND_U64_AS(name, value) ("u", #name "\0", selfwind_u64(value))
#define SELFWIND_F64_AS(name, value) ("f", #name "\0", selfwind_f64(value))
#define SELFWIND_STR_AS(name, value) ("s", #name "\0", selfwind_str(value))

/* SELFWIND_TRACEPOINT(provider, name, fields...) */
#define SELFWIND_TRACEPOINT(...)                                                                                       \
    SELFWIND_PICK_(__VA_ARGS__, SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_,        \
                   SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_, SELFWIND_SOME_,     \
                   SELFWIND_SOME_, SELFWIND_NONE_, SELFWIND_BAD_, )                                                    \
    (__VA_ARGS__)

#define SELFWIND_PICK_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, macro, ...) macro
#define SELFWIND_NONE_(provider, name) SELFWIND_AT_(#provider, #name, "", "", 0, 0)
#define SELFWIND_SOME_(provider, name, ...)                                                                            \
    SELFWIND_AT_(#provider, #name, SELFWIND_EACH_(SELFWIND_TYPE_, __VA_ARGS__),                                        \
                 SELFWIND_EACH_(SELFWIND_NAME_, __VA_ARGS__), SELFWIND_EACH_(SELFWIND_VALUE_, __VA_ARGS__))

#define SELFWIND_AT_(provider_, name_, types_, fields_, ...)                                                           \
    do {                                                                                                               \
        static struct selfwind_tracepoint selfwind_site_ = {SELFWIND_UNDECIDED,                                        \
                                                            provider_,                                                 \
                                                            name_,                                                     \
                                                            types_,                                                    \
                                                            fields_,                                                   \
                                                            (uint32_t)(sizeof(types_) - 1),                            \
                                                            (uint32_t)(sizeof(fields_) - 1),                           \
                                                            {0, 0}};                                                   \
        selfwind_record_function selfwind_record_ = __atomic_load_n(&selfwind_site_.record, __ATOMIC_ACQUIRE);         \
        if (__builtin_expect(selfwind_record_ != (selfwind_record_function)0, 0)) {                                    \
            if (selfwind_record_ != SELFWIND_UNDECIDED || selfwind_tracepoint_first(&selfwind_site_)) {                \
                const uint64_t selfwind_values_[] = {__VA_ARGS__};                                                     \
                __atomic_load_n(&selfwind_site_.record, __ATOMIC_ACQUIRE)(&selfwind_site_, selfwind_values_);          \
            }                                                                                                          \
        }                                                                                                              \
    } while (0)

#define SELFWIND_TYPE_(type, name, value) type
#define SELFWIND_NAME_(type, name, value) name
#define SELFWIND_VALUE_(type, name, value) value,

/* `macro` applied to each field. */
#define SELFWIND_EACH_(macro, ...)                                                                                     \
    SELFWIND_PICK_EACH_(__VA_ARGS__, SELFWIND_12_, SELFWIND_11_, SELFWIND_10_, SELFWIND_9_, SELFWIND_8_, SELFWIND_7_,  \
                        SELFWIND_6_, SELFWIND_5_, SELFWIND_4_, SELFWIND_3_, SELFWIND_2_, SELFWIND_1_, )                \
    (macro, __VA_ARGS__)
#define SELFWIND_PICK_EACH_(a, b, c, d, e, f, g, h, i, j, k, l, macro, ...) macro
#define SELFWIND_1_(m, a) m a
#define SELFWIND_2_(m, a, b) SELFWIND_1_(m, a) m b
#define SELFWIND_3_(m, a, b, c) SELFWIND_2_(m, a, b) m c
#define SELFWIND_4_(m, a, b, c, d) SELFWIND_3_(m, a, b, c) m d
#define SELFWIND_5_(m, a, b, c, d, e) SELFWIND_4_(m, a, b, c, d) m e
#define SELFWIND_6_(m, a, b, c, d, e, f) SELFWIND_5_(m, a, b, c, d, e) m f
#define SELFWIND_7_(m, a, b, c, d, e, f, g) SELFWIND_6_(m, a, b, c, d, e, f) m g
#define SELFWIND_8_(m, a, b, c, d, e, f, g, h) SELFWIND_7_(m, a, b, c, d, e, f, g) m h
#define SELFWIND_9_(m, a, b, c, d, e, f, g, h, i) SELFWIND_8_(m, a, b, c, d, e, f, g, h) m i
#define SELFWIND_10_(m, a, b, c, d, e, f, g, h, i, j) SELFWIND_9_(m, a, b, c, d, e, f, g, h, i) m j
#define SELFWIND_11_(m, a, b, c, d, e, f, g, h, i, j, k) SELFWIND_10_(m, a, b, c, d, e, f, g, h, i, j) m k
#define SELFWIND_12_(m, a, b, c, d, e, f, g, h, i, j, k, l) SELFWIND_11_(m, a, b, c, d, e, f, g, h, i, j, k) m l

/* ------------------------------------------------------ Region unwinders
 *
 * An unwinder is asked about every frame whose code is in its region, innermost first, while a thread's stack is walked:
 * in a signal handler, on the thread that was interrupted, at any instruction. It
 *
 * - allocates nothing, takes no lock, waits for nothing, calls no library, and does not touch errno or thread-local storage
 *   that is made on first use;
 * - reads the program's memory through `read` alone;
 * - uses at most SELFWIND_STACK bytes of stack, the calls below included;
 * - always returns: nobody can interrupt it. Each of the calls below costs of a budget per sample, and fails when that is
 *   used up; a loop that calls none of them must have a bound of its own. */

/* The agent is not there. Other results below 0 are -errno. Structures begin with their size, which SELFWIND_INIT sets: a
 * later version only appends. */
#define SELFWIND_NO_AGENT (-38) /* -ENOSYS */

#define SELFWIND_STACK 2048

#if defined(__x86_64__)
/* DWARF numbers: rax rdx rcx rbx rsi rdi rbp rsp r8 ... r15. */
#define SELFWIND_SP 7
#define SELFWIND_FP 6
#define SELFWIND_CALLEE_SAVED 0xf048u /* rbx rbp r12 r13 r14 r15 */
#else
/* x0 ... x30, sp. */
#define SELFWIND_SP 31
#define SELFWIND_FP 29
#define SELFWIND_CALLEE_SAVED 0x7ff80000u /* x19 ... x30 */
#endif

#define SELFWIND_COLUMNS 32

/* Registers of a frame, by DWARF number. */
struct selfwind_registers {
    uint64_t known; /* Bit n: value[n] is what the register held in this frame. */
    uint64_t pc;    /* The next instruction if the frame was interrupted, else the return address. */
    uint64_t value[SELFWIND_COLUMNS];
};

/* A frame of meaning: a function of the program that an interpreter runs, or one that was compiled at run time. */
struct selfwind_frame {
    uint32_t size;
    uint32_t name;       /* An id of `name` or of selfwind_name. */
    uint32_t file;       /* The same, or 0. */
    uint32_t first_line; /* Of the function, or 0. */
    uint32_t line;       /* That is running, up to 16,777,215, or 0. */
};

struct selfwind_walk;

/* What an unwinder says of a frame. SELFWIND_CALLER may be or-ed with the flags below it. */
enum selfwind_result {
    /* I know nothing of it: as if there were no unwinder. What was emitted is forgotten. */
    SELFWIND_NOT_MINE = 0,
    /* `registers` are the caller's now. The frames that were emitted take the place of the native one. */
    SELFWIND_CALLER = 1,
    /* The native frame stays, and its caller is found as if there were no unwinder. What was emitted stands inside it. */
    SELFWIND_BESIDE = 2,
    /* The stack ends here: complete, or with a reason. What was emitted stands inside the native frame. */
    SELFWIND_ROOT = 3,
    SELFWIND_UNREADABLE = 4,
    SELFWIND_LOST_REGISTER = 5,
    SELFWIND_NO_RULE = 6,
    /* The caller did not call but was interrupted: its pc is the next instruction. */
    SELFWIND_INTERRUPTED = 0x100,
    /* The caller is on another stack, whose addresses may be lower; otherwise the stack pointer must rise. */
    SELFWIND_OTHER_STACK = 0x200
};

/* One frame that an unwinder is asked about. The agent's, valid until the unwinder returns. */
struct selfwind_walk {
    uint32_t size;
    uint32_t version;     /* SELFWIND_ABI_VERSION of the agent. */
    uint32_t frame;       /* Number of the native frame, the interrupted one is 0. */
    uint32_t interrupted; /* 1: `pc` is the next instruction, not a return address. */
    struct selfwind_registers registers; /* The frame's; to be made its caller's for SELFWIND_CALLER. */
    uint64_t state[4];    /* The unwinder's own from one frame of a stack to the next; 0 at first. */
    void *data;           /* As registered. */
    /* Copies memory of the process. 0, or -1 if it cannot be read or the budget is used up. */
    int (*read)(struct selfwind_walk *walk, uint64_t address, void *to, size_t bytes);
    /* The id of a text of up to 1024 bytes of UTF-8 at `address`. `key` and `other` tell it from all others of this unwinder,
     * for ever: only where they are met first the text is read. 0 if it cannot be, or there are no bytes and it was not met. */
    uint32_t (*name)(struct selfwind_walk *walk, uint64_t key, uint64_t other, uint64_t address, size_t bytes);
    /* Adds a frame of meaning; the innermost comes first. 0, or -1 if there is no room or no such name. */
    int (*emit)(struct selfwind_walk *walk, const struct selfwind_frame *frame);
    void *agent;
};

struct selfwind_unwinder {
    uint32_t size;
    uint32_t version;     /* SELFWIND_ABI_VERSION. */
    const char *language; /* What marks its frames: "lua" shows as `f (a.lua:1)_[lua]`. 2 to 15 of a-z, 0-9, '+', '-', '_'. */
    int (*unwind)(struct selfwind_walk *walk); /* An enum selfwind_result. */
    void *data;
    /* The registers it wants, as in `known`. With others than the stack and frame pointer among them all are tracked, which
     * costs more; otherwise the frame may come with these two alone, and its callers know no others but what `registers`
     * says. */
    uint64_t wants;
};

/* How an initialiser begins: struct selfwind_unwinder u = { SELFWIND_INIT(u), "lua", unwind, 0, 0 }. */
#define SELFWIND_INIT(object) sizeof(object), SELFWIND_ABI_VERSION

/* The calls below are for ordinary code: not from an unwinder, nor from a signal handler. */

/* Registers an unwinder for code in [start, end). The region's number, from 1 on; -EINVAL for what cannot be, -EEXIST if a
 * part of it has an unwinder, -ENOSPC beyond 1024 regions, -ENOMEM, -EPERM once the program filters its system calls. The
 * structure is copied. */
static inline int selfwind_add_region(const struct selfwind_unwinder *unwinder, uint64_t start, uint64_t end)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->add_region(unwinder, start, end) : SELFWIND_NO_AGENT;
}

/* The same for a function that a loaded object exports with its size; -ENOENT if none does. */
static inline int selfwind_add_symbol(const struct selfwind_unwinder *unwinder, const char *symbol)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->add_symbol(unwinder, symbol) : SELFWIND_NO_AGENT;
}

/* Removes a region. 0: no thread runs its unwinder any more, and none will; code and data may go. -EBUSY: none will, but
 * one may be in it still (it has not returned for a second): they must stay. -ENOENT for no region, -EPERM as above. */
static inline int selfwind_remove(int region)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->remove(region) : SELFWIND_NO_AGENT;
}

/* The id of a text for frames, the same for the same text; 0 without an agent, or where there are too many (131,071 or
 * 4 MiB). It stays good for the life of the process, and in children that it forks. */
static inline uint32_t selfwind_name(const char *text, size_t bytes)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->name(text, bytes) : 0;
}

#ifdef __cplusplus
}
#endif

#endif
