// Allocates at the end of every path through a binary tree of calls, again and again: more stacks than can be remembered.
// Each time one block is freed at once, and in the last round another one, of 48 bytes, is kept. The sizes of the former
// are the same (the third argument is 0), or change from call to call. In the end a thread called "late" loads LIBRARY, and
// has it allocate 1000 times.
// usage: heap_many_paths DEPTH ROUNDS CHANGES [LIBRARY]
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *volatile sink;
static void **volatile kept;
static unsigned long bytes, random_state = 1;
static int is_last, changes;

static void left(int depth);
static void right(int depth);

static unsigned long next_size(void) {
    random_state = random_state * 6364136223846793005UL + 1442695040888963407UL;
    return changes ? 16 + (random_state >> 33) % 3000 : 200;
}

// Two functions, so that a path has a name. Nothing is a tail call, and the comment keeps them from being merged.
#define NODE(name)                                                                                                     \
    static __attribute__((noinline, noclone)) void name(int depth) {                                                   \
        if (depth > 0) {                                                                                               \
            left(depth - 1);                                                                                           \
            right(depth - 1);                                                                                          \
        } else {                                                                                                       \
            unsigned long size = next_size();                                                                          \
            bytes += size;                                                                                             \
            sink = malloc(size);                                                                                       \
            free(sink);                                                                                                \
            if (is_last) {                                                                                             \
                void **block = malloc(48);                                                                             \
                *block = kept;                                                                                         \
                kept = block;                                                                                          \
            }                                                                                                          \
        }                                                                                                              \
        __asm__ volatile("# " #name);                                                                                          \
    }

NODE(left)
NODE(right)

static void *load(void *path) {
    pthread_setname_np(pthread_self(), "late");
    void *library = dlopen(path, RTLD_NOW);
    void (*allocate)(int) = library ? (void (*)(int))dlsym(library, "allocate") : 0;
    if (!allocate) {
        puts(dlerror());
        return path;
    }
    allocate(1000);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4)
        return 2;
    int depth = atoi(argv[1]), rounds = atoi(argv[2]);
    changes = atoi(argv[3]);
    for (int round = 0; round < rounds; round++) {
        is_last = round == rounds - 1;
        left(depth);
    }
    void *failed = NULL;
    pthread_t thread;
    if (argc > 4 && (pthread_create(&thread, NULL, load, argv[4]) || pthread_join(thread, &failed)))
        return 1;
    printf("%lu\n", bytes);
    return failed != NULL;
}
