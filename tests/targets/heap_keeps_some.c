// For so many seconds: allocates blocks of one size at one site, keeps every hundredth and frees the others.
// usage: heap_keeps_some SECONDS
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void **kept;

static __attribute__((noinline, noclone)) void *site(void) {
    void **block = malloc(100);
    *block = kept;
    return block;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    double end = now() + (argc > 1 ? atof(argv[1]) : 1);
    while (now() < end) {
        for (int i = 0; i < 1000; i++) {
            void **block = site();
            if (i % 100 == 0)
                kept = block;
            else
                free(block);
        }
        usleep(2000);
    }
    return 0;
}
