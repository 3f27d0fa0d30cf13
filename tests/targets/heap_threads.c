// Threads that allocate with all of the C library's functions, resize, and free each other's blocks. Prints the number and
// bytes of the allocations, and the objects and bytes live at the end, in the slots left occupied.
// usage: heap_threads ROUNDS [wait]    with `wait`: says that it is ready, and goes on at a byte on standard input
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define THREADS 4
#define PLACES 1024

struct block {
    unsigned long size;
};

static _Atomic(struct block *) places[PLACES];
static atomic_ulong objects, bytes;
static unsigned long rounds;

static struct block *allocate(unsigned long size, unsigned kind) {
    void *block;
    switch (kind) {
    case 0:
        return calloc(1, size);
    case 1:
        return posix_memalign(&block, 64, size) ? NULL : block;
    case 2:
        return realloc(NULL, size);
    default:
        return malloc(size);
    }
}

static __attribute__((noinline)) struct block *make(struct block *old, unsigned long size, unsigned kind) {
    struct block *block = old ? realloc(old, size) : allocate(size, kind);
    if (!block)
        abort();
    block->size = size;
    atomic_fetch_add(&objects, 1);
    atomic_fetch_add(&bytes, size);
    return block;
}

static void *run(void *argument) {
    unsigned long state = (unsigned long)argument * 2654435761u + 1;
    for (unsigned long round = 0; round < rounds; round++) {
        state = state * 6364136223846793005ul + 1442695040888963407ul;
        unsigned long place = state >> 33 & (PLACES - 1), size = 16 + (state >> 43 & 4095);
        struct block *mine = make(NULL, size, state >> 55 & 7);
        if (state & 1ul << 20)
            mine = make(mine, size + 1000, 0);
        // Whichever thread finds it frees it.
        struct block *other = atomic_exchange(&places[place], mine);
        if (other && state & 1ul << 21)
            other = make(other, 64, 0);
        free(other);
    }
    return NULL;
}

int main(int argc, char **argv) {
    rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    char byte;
    if (argc > 2 && (write(1, "ready\n", 6) != 6 || read(0, &byte, 1) != 1))
        return 1;
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    unsigned long held = 0, held_bytes = 0;
    for (int i = 0; i < PLACES; i++)
        if (places[i]) {
            held++;
            held_bytes += places[i]->size;
        }
    printf("%lu %lu %lu %lu\n", objects, bytes, held, held_bytes);
    return 0;
}
