// Allocates and frees at one site until it is killed.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *volatile sink;

__attribute__((noinline)) static void site(void) { sink = malloc(64); }

int main(void) {
    puts("ready");
    fflush(stdout);
    for (unsigned count = 1;; count++) {
        site();
        free(sink);
        if (count % 1000 == 0)
            usleep(1000);
    }
}
