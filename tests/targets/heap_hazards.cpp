// Allocations at unusual times: in constructors and destructors of the program, in a signal handler, after exit(), in a
// forked child, and by operator new, including when it throws (without an argument).
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/wait.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static void *volatile sink;

KEEP static void *in_constructor() {
    void *block = malloc(100);
    sink = block;
    return block;
}
KEEP static void in_destructor() {
    sink = malloc(200);
    free(sink);
}
KEEP static void in_exit_handler() {
    sink = malloc(300);
    free(sink);
}
KEEP static void in_handler(int) {
    void *block = malloc(400);
    sink = block;
}
KEEP static void in_main() {
    void *block = calloc(10, 50);
    block = realloc(block, 5000);
    sink = block;
    free(block);
}
KEEP static void in_child() {
    void *block = malloc(600);
    sink = block;
    free(block);
}
// 100 blocks, of which one stays.
KEEP static void in_new() {
    for (int i = 0; i < 100; i++) {
        int *block = new int[i + 1];
        sink = block;
        if (i)
            delete[] block;
    }
}
KEEP static bool in_throwing_new() {
    try {
        volatile size_t huge = ~size_t(0) >> 2;
        sink = operator new(huge);
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static void *early;
__attribute__((constructor)) static void begin() { early = in_constructor(); }
__attribute__((destructor)) static void end() {
    free(early);
    in_destructor();
}

int main(int argc, char **) {
    atexit(in_exit_handler);
    signal(SIGUSR1, in_handler);
    raise(SIGUSR1);
    in_main();
    // Some allocators abort instead.
    for (int i = 0; i < 3 && argc == 1; i++)
        if (!in_throwing_new())
            return 1;
    in_new();
    pid_t child = fork();
    if (child == 0) {
        in_child();
        // Blocks allocated by the parent.
        free(early);
        early = nullptr;
        exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%d\n", status);
    return status ? 1 : 0;
}
