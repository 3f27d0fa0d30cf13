// Allocates known amounts on command: each byte on standard input is one step, after which it prints what two sites hold.
// `in_steady` allocates in the first step alone, `in_growing` in all; `in_passing` frees what it allocates.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile sink;
static unsigned long steady, growing;

static __attribute__((noinline, noclone)) void in_steady(void) {
    for (int i = 0; i < 100; i++) {
        sink = malloc(300);
        steady += 300;
    }
}

static __attribute__((noinline, noclone)) void in_growing(void) {
    for (int i = 0; i < 50; i++) {
        sink = malloc(1000);
        growing += 1000;
    }
}

static __attribute__((noinline, noclone)) void in_passing(void) {
    for (int i = 0; i < 50; i++) {
        sink = malloc(2000);
        free(sink);
    }
}

int main(void) {
    char byte;
    for (int step = 0; read(0, &byte, 1) == 1; step++) {
        if (step == 0)
            in_steady();
        in_growing();
        in_passing();
        char line[100];
        int length = snprintf(line, sizeof line, "%lu %lu\n", steady, growing);
        if (write(1, line, length) != length)
            return 1;
    }
    return 0;
}
