// 100 functions with differing frames, four call sites each: one of the libraries whose stacks the bench unwinds.
// LIB is the library's number; the functions of all libraries call each other through one table.
#include <stdint.h>

struct walkway {
    // Called at the innermost frame; returns the number of frames to pop before descending again.
    int (*capture)(struct walkway *);
    const uint32_t *path;     // per depth: function index << 2 | call site of the caller
    int depth;                // frames of this workload on a full stack
    void **truth;             // per depth: the return address that frame really has
    int (**table)(struct walkway *, int, long, long);
    void *frame;              // the innermost frame's frame pointer, if this is built for the frame-pointer walk
    volatile long sink;
};

// Taking the frame's address forces a frame pointer, whatever the compiler options are.
#ifdef FRAME_POINTERS
#define FRAME __builtin_frame_address(0)
#else
#define FRAME 0
#endif

#define BODY(n)                                                                                     \
    __attribute__((noinline)) static int f##n(struct walkway *w, int depth, long a, long b) {       \
        volatile char pad[8 + (n * 37) % 200];                                                      \
        long x = a * (n + 3), y = b ^ (n << 2), z = a + b;                                           \
        pad[n % 8] = (char)x;                                                                        \
        w->truth[depth] = __builtin_return_address(0);                                              \
        for (;;) {                                                                                  \
            int pop;                                                                                \
            if (depth + 1 == w->depth) {                                                            \
                w->frame = FRAME;                                                                   \
                pop = w->capture(w);                                                                \
            } else {                                                                                \
                uint32_t step = w->path[depth + 1];                                                 \
                int (*next)(struct walkway *, int, long, long) = w->table[step >> 2];               \
                switch (step & 3) {                                                                 \
                case 0: pop = next(w, depth + 1, x, y); x += 1; __asm__ volatile("" : "+r"(x)); break;   \
                case 1: pop = next(w, depth + 1, y, z); y += 2; __asm__ volatile("" : "+r"(y)); break;   \
                case 2: pop = next(w, depth + 1, z, x); z += 3; __asm__ volatile("" : "+r"(z)); break;   \
                default: pop = next(w, depth + 1, x + y, z); x ^= z; __asm__ volatile("" : "+r"(x)); break; \
                }                                                                                   \
            }                                                                                       \
            w->sink += x + (n % 3 ? y : 0) + (n % 5 ? z : 0) + pad[n % 8];                           \
            if (pop > 0)                                                                            \
                return pop - 1;                                                                     \
        }                                                                                           \
    }

#define TEN(M, t) M(t##0) M(t##1) M(t##2) M(t##3) M(t##4) M(t##5) M(t##6) M(t##7) M(t##8) M(t##9)
#define HUNDRED(M) TEN(M, 1) TEN(M, 2) TEN(M, 3) TEN(M, 4) TEN(M, 5) TEN(M, 6) TEN(M, 7) TEN(M, 8) TEN(M, 9) TEN(M, 10)
HUNDRED(BODY)

#define ENTRY(n) f##n,
int (*const functions[100])(struct walkway *, int, long, long) = {HUNDRED(ENTRY)};
