// Allocates at the end of every path through a binary tree of calls, so often each time that the stack is known before the
// program goes on to the next one, with which it shares most callers. No stack comes back.
// usage: heap_new_stacks DEPTH TIMES
#include <stdio.h>
#include <stdlib.h>

static void *volatile sink;
static int times;

static void left(int depth);
static void right(int depth);

// Two functions, so that a path has a name. Nothing is a tail call, and the comment keeps them from being merged.
#define NODE(name)                                                                                                     \
    static __attribute__((noinline, noclone)) void name(int depth) {                                                   \
        if (depth > 0) {                                                                                               \
            left(depth - 1);                                                                                           \
            right(depth - 1);                                                                                          \
        } else {                                                                                                       \
            for (int time = 0; time < times; time++) {                                                                 \
                sink = malloc(200);                                                                                    \
                free(sink);                                                                                            \
            }                                                                                                          \
        }                                                                                                              \
        __asm__ volatile("# " #name);                                                                                          \
    }

NODE(left)
NODE(right)

// Callers that all paths have in common.
static __attribute__((noinline)) void enter(int callers, int depth) {
    if (callers > 0)
        enter(callers - 1, depth);
    else
        left(depth);
    __asm__ volatile("");
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    int depth = atoi(argv[1]);
    times = atoi(argv[2]);
    enter(40, depth);
    printf("%lu\n", (1UL << depth) * times);
    return 0;
}
