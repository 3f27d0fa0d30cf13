// CPU time in nanoseconds of a pair of malloc and free of 64 bytes, the minimum of several turns.
// usage: pairs [DEPTH [TURNS [SECONDS]]]: at this depth of nested calls; stops without output after SECONDS
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define PAIRS 2000000

static void *volatile sink;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static double __attribute__((noinline)) turn(void) {
    double begin = now();
    for (int i = 0; i < PAIRS; i++) {
        void *block = malloc(64);
        sink = block;
        free(block);
    }
    return (now() - begin) / PAIRS;
}

static double __attribute__((noinline, noclone)) nested(int depth) {
    double result = depth > 0 ? nested(depth - 1) : turn();
    __asm__ volatile("" ::: "memory");
    return result;
}

int main(int argc, char **argv) {
    double least = 1e18;
    alarm(argc > 3 ? atoi(argv[3]) : 0);
    int turns = argc > 2 ? atoi(argv[2]) : 15;
    for (int i = 0; i < turns; i++) {
        double took = nested(argc > 1 ? atoi(argv[1]) : 0);
        least = took < least ? took : least;
    }
    printf("%.2f\n", least);
    return 0;
}
