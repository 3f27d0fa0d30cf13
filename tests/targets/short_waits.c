// Threads that live for 20 milliseconds each, one after the other, and a library that is loaded, waits for as long, and is
// unloaded again. Prints the microseconds of both, by its own clock.
// usage: short_waits TURNS LIBRARY
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long us(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000 + time.tv_nsec / 1000;
}

static long in_threads, in_library;

static __attribute__((noinline)) void *thread_waits(void *unused) {
    long begun = us();
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    in_threads += us() - begun;
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    for (int turn = 0; turn < atoi(argv[1]); turn++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, thread_waits, NULL) || pthread_join(thread, NULL))
            return 1;
        void *library = dlopen(argv[2], RTLD_NOW);
        void (*library_waits)(void) = library ? (void (*)(void))dlsym(library, "library_waits") : NULL;
        if (!library_waits)
            return 1;
        long begun = us();
        library_waits();
        in_library += us() - begun;
        dlclose(library);
    }
    printf("%ld %ld\n", in_threads, in_library);
    return 0;
}
