/* What a program can tell selfwind about itself. Header only: nothing is linked, and without the agent all of it does
 * nothing. For C99 and C++11 and later, GCC and clang, on Linux.
 *
 * - Common: how the agent is found at run time.
 * - Tracepoints: SELFWIND_TRACEPOINT(provider, name, fields...).
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

/* What the agent does for a program. What is appended raises no version: `size` says how far it goes. */
struct selfwind_abi {
    uint32_t size;
    uint32_t version;
    /* Decides about a tracepoint that runs for the first time: sets its `record`. Non-zero if it is enabled. May be called
     * from any context, a signal handler too. */
    int (*tracepoint)(struct selfwind_tracepoint *tracepoint);
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

#ifdef __cplusplus
}
#endif

#endif
