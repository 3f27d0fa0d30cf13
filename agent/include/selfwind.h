/* The interface by which programs and plug-ins talk to selfwind's agent. Header only: nothing is linked, and without
 * the agent everything is a no-op. For C99 and C++11 or later, GCC and clang, on Linux.
 *
 * - Common: how the agent is found at run time.
 * - Tracepoints: SELFWIND_TRACEPOINT(provider, name, fields...).
 * - Region unwinders: selfwind_add_region(unwinder, start, end). docs/plug-ins.md is their contract.
 */
#ifndef SELFWIND_H
#define SELFWIND_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- Common */

/* Version of this interface, raised by incompatible changes. An agent that does not support it behaves as if it were
 * absent. */
#define SELFWIND_ABI_VERSION 1

struct selfwind_tracepoint;
struct selfwind_unwinder;

/* The agent's function table. Fields are only ever appended, without a new version: `size` says how many there are. */
struct selfwind_abi {
    uint32_t size;
    uint32_t version;
    /* Decides whether a tracepoint is enabled when it is first hit, and sets its `record`. Returns non-zero if it is
     * enabled. May be called from any context, including signal handlers. */
    int (*tracepoint)(struct selfwind_tracepoint *tracepoint);
    /* Called by selfwind_add_region, selfwind_add_symbol, selfwind_remove and selfwind_name. */
    int (*add_region)(const struct selfwind_unwinder *unwinder, uint64_t start, uint64_t end);
    int (*add_symbol)(const struct selfwind_unwinder *unwinder, const char *symbol);
    int (*remove)(int region);
    uint32_t (*name)(const char *text, size_t bytes);
};

/* Returns the agent's function table, or NULL. The only symbol that the agent exports for programs; call it through
 * selfwind_agent() only. */
typedef const struct selfwind_abi *(*selfwind_abi_function)(uint32_t version);

/* The agent of this process, or NULL. Calls nothing in the C library: reads a word that the loader has filled in, or
 * left 0. */
static inline const struct selfwind_abi *selfwind_agent(void) {
    selfwind_abi_function find;
#if defined(__x86_64__) && !defined(__ILP32__)
    /* Always through the global offset table: otherwise the linker of an executable may resolve the weak symbol to 0. */
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
 * An event with up to 12 fields. A field is named after the expression that computes it; SELFWIND_U64_AS(size, n * 8)
 * gives it another name. Enabled by `selfwind record -e tp:app:request`; when disabled, it costs a load and a branch
 * that is not taken, and the fields are not computed. Strings are NUL-terminated, truncated to 256 bytes, and may be
 * NULL.
 *
 * Allowed anywhere: in signal handlers, in inline functions and templates, in libraries that are unloaded.
 */

/* A tracepoint in the program. The words in `agent` are private to the agent. */
struct selfwind_tracepoint {
    /* Records an event; NULL if disabled; SELFWIND_UNDECIDED before the first hit. */
    void (*record)(struct selfwind_tracepoint *tracepoint, const uint64_t *values);
    const char *provider;
    const char *name;
    /* One letter per field: i, u, f or s; and the names of the fields, each terminated by NUL. */
    const char *types;
    const char *fields;
    uint32_t count;
    uint32_t fields_size;
    uint64_t agent[2];
};

typedef void (*selfwind_record_function)(struct selfwind_tracepoint *, const uint64_t *);

#define SELFWIND_UNDECIDED ((selfwind_record_function)(uintptr_t)1)

/* The first hit of a tracepoint: asks the agent, if there is one. Returns non-zero if it is enabled. */
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
 * An unwinder is called for every frame whose code is in its region, innermost first, while a thread's stack is
 * walked: in a signal handler, on the interrupted thread, at any instruction. It must
 *
 * - not allocate, lock, wait, call a library, or touch errno or thread-local storage that is allocated on first use;
 * - read the program's memory through `read` only;
 * - use at most SELFWIND_STACK bytes of stack, including the calls below;
 * - always return: nothing can interrupt it. Each of the calls below takes from a budget per sample and fails once
 *   that is used up; a loop that makes none of these calls must be bounded by itself. */

/* There is no agent. Other results below 0 are -errno. Structures begin with their size, which SELFWIND_INIT sets:
 * later versions only append fields. */
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
    uint64_t known; /* Bit n: value[n] is the register's value in this frame. */
    uint64_t pc;    /* The next instruction if the frame was interrupted, else the return address. */
    uint64_t value[SELFWIND_COLUMNS];
};

/* An interpreted frame: a function that an interpreter runs, or that was compiled at run time. */
struct selfwind_frame {
    uint32_t size;
    uint32_t name;       /* An id returned by `name` or selfwind_name. */
    uint32_t file;       /* The same, or 0. */
    uint32_t first_line; /* Of the function, or 0. */
    uint32_t line;       /* The current line, up to 16,777,215, or 0. */
};

struct selfwind_walk;

/* Result of an unwinder for a frame. SELFWIND_CALLER may be combined with the flags at the end. */
enum selfwind_result {
    /* Declined: unwind as if there were no unwinder. Emitted frames are discarded. */
    SELFWIND_NOT_MINE = 0,
    /* `registers` are now the caller's. Emitted frames replace the native one. */
    SELFWIND_CALLER = 1,
    /* The native frame stays, and its caller is found as if there were no unwinder. Emitted frames are placed inside
     * it. */
    SELFWIND_BESIDE = 2,
    /* The stack ends here: complete, or for the given reason. Emitted frames are placed inside the native frame. */
    SELFWIND_ROOT = 3,
    SELFWIND_UNREADABLE = 4,
    SELFWIND_LOST_REGISTER = 5,
    SELFWIND_NO_RULE = 6,
    /* The caller was interrupted instead of making a call: its pc is the next instruction. */
    SELFWIND_INTERRUPTED = 0x100,
    /* The caller is on another stack, possibly at lower addresses; otherwise the stack pointer must increase. */
    SELFWIND_OTHER_STACK = 0x200
};

/* The frame to unwind. Owned by the agent, valid until the unwinder returns. */
struct selfwind_walk {
    uint32_t size;
    uint32_t version;     /* SELFWIND_ABI_VERSION of the agent. */
    uint32_t frame;       /* Number of the native frame; the interrupted one is 0. */
    uint32_t interrupted; /* 1: `pc` is the next instruction, not a return address. */
    struct selfwind_registers registers; /* The frame's; to be replaced by its caller's for SELFWIND_CALLER. */
    uint64_t state[4];    /* For the unwinder, kept from frame to frame of a stack; 0 at first. */
    void *data;           /* As registered. */
    /* Copies memory of the process. Returns 0, or -1 if it is unreadable or the budget is used up. It must not be memory
     * that another thread may unmap during the walk: each page is asked for once. */
    int (*read)(struct selfwind_walk *walk, uint64_t address, void *to, size_t bytes);
    /* Returns the id of a text of up to 1024 bytes of UTF-8 at `address`. `key` and `other` identify it uniquely
     * among all texts of this unwinder, forever: the text is read only when they are first seen. (Addresses alone do
     * not: memory is reused.) Returns 0 if it is unreadable, or if `bytes` is 0 and they have not been seen. */
    uint32_t (*name)(struct selfwind_walk *walk, uint64_t key, uint64_t other, uint64_t address, size_t bytes);
    /* Emits an interpreted frame, innermost first. Returns 0, or -1 if there is no space or no such name. */
    int (*emit)(struct selfwind_walk *walk, const struct selfwind_frame *frame);
    void *agent;
};

struct selfwind_unwinder {
    uint32_t size;
    uint32_t version;     /* SELFWIND_ABI_VERSION. */
    const char *language; /* Tag of its frames: "lua" shows as `f (a.lua:1)_[lua]`. 2 to 15 of a-z, 0-9, '+', '-', '_'. */
    int (*unwind)(struct selfwind_walk *walk); /* An enum selfwind_result. */
    void *data;
    /* The registers that it needs, as in `known`. If these include others than the stack and frame pointer, all
     * registers are tracked, which costs more; otherwise frames may have only these two, and callers only what
     * `registers` gives. */
    uint64_t wants;
};

/* The first part of an initialiser: struct selfwind_unwinder u = { SELFWIND_INIT(u), "lua", unwind, 0, 0 }. */
#define SELFWIND_INIT(object) sizeof(object), SELFWIND_ABI_VERSION

/* The functions below are for ordinary code: not for unwinders or signal handlers. */

/* Registers an unwinder for code in [start, end). Returns the region's number, from 1 on; -EINVAL for invalid
 * arguments, -EEXIST if part of the range has an unwinder, -ENOSPC beyond 1024 regions, -ENOMEM, or -EPERM once the
 * program has installed a seccomp filter. The structure is copied. */
static inline int selfwind_add_region(const struct selfwind_unwinder *unwinder, uint64_t start, uint64_t end)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->add_region(unwinder, start, end) : SELFWIND_NO_AGENT;
}

/* The same for an exported function of a loaded object, by name; -ENOENT if no object exports it with its size. */
static inline int selfwind_add_symbol(const struct selfwind_unwinder *unwinder, const char *symbol)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->add_symbol(unwinder, symbol) : SELFWIND_NO_AGENT;
}

/* Removes a region. 0: no thread runs its unwinder any more, and none will; code and data may be freed. -EBUSY: no
 * thread will enter it, but one may still be inside (it has not returned for a second): they must stay. -ENOENT if
 * there is no such region, -EPERM once the program has installed a seccomp filter. */
static inline int selfwind_remove(int region)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->remove(region) : SELFWIND_NO_AGENT;
}

/* The id of a text for frames; equal texts have equal ids. 0 without an agent, or if there are too many (131,071 or 4
 * MiB). Valid for the life of the process, and in its forked children. */
static inline uint32_t selfwind_name(const char *text, size_t bytes)
{
    const struct selfwind_abi *agent = selfwind_agent();
    return agent ? agent->name(text, bytes) : 0;
}

#ifdef __cplusplus
}
#endif

#endif
