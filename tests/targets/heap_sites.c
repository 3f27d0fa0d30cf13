// Ten allocation sites with known sizes and lifetimes. Prints per site what it allocated in total, and what of that is
// live at the end, in objects and bytes. Only `site_9` always leaks; others hold blocks to the end only on request.
// usage: heap_sites ROUNDS [hold] [wait]
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SITES 10
#define KEPT 4096

static unsigned long objects[SITES], bytes[SITES], held_objects[SITES], held_bytes[SITES];
static void *kept[SITES][KEPT];
static unsigned long kept_size[SITES][KEPT];
static void *volatile sink;
static void *leaked;

#define SITE(n, call)                                                                                                  \
    static __attribute__((noinline, noclone)) void *site_##n(unsigned long size) {                                     \
        void *block = (call);                                                                                          \
        sink = block;                                                                                                  \
        objects[n]++;                                                                                                  \
        bytes[n] += size;                                                                                              \
        return block;                                                                                                  \
    }

static void *aligned(unsigned long size) {
    void *block = NULL;
    return posix_memalign(&block, 64, size) == 0 ? block : NULL;
}

SITE(0, malloc(size))
SITE(1, calloc(1, size))
SITE(2, realloc(NULL, size))
SITE(3, memalign(64, size))
SITE(4, aligned(size))
SITE(5, aligned_alloc(32, size))
SITE(6, reallocarray(NULL, 2, size / 2))
SITE(7, malloc(size))
SITE(8, calloc(size / 16, 16))
SITE(9, malloc(size))

static void *(*const site[SITES])(unsigned long) = {site_0, site_1, site_2, site_3, site_4,
                                                   site_5, site_6, site_7, site_8, site_9};
static const unsigned long sizes[SITES] = {32, 64, 128, 256, 512, 1024, 2048, 4096, 65536, 1024};

// Frees at once, or when its slot in a ring of `life` blocks is reused.
static void use(int n, unsigned long round, unsigned long life) {
    unsigned long place = round % life;
    if (kept[n][place]) {
        free(kept[n][place]);
        held_objects[n]--;
        held_bytes[n] -= kept_size[n][place];
    }
    kept[n][place] = site[n](sizes[n]);
    kept_size[n][place] = sizes[n];
    held_objects[n]++;
    held_bytes[n] += sizes[n];
}

int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    int hold = argc > 2 && strcmp(argv[2], "hold") == 0;
    int wait = argc > 3;
    for (unsigned long round = 0; round < rounds; round++) {
        for (int n = 0; n < SITES - 1; n++) {
            // The smaller the block, the more of them, so that all sites have similar shares of the bytes.
            unsigned long count = n < 8 ? 4096 / sizes[n] : 1;
            for (unsigned long i = 0; i < count; i++)
                use(n, round * count + i, n % 2 ? KEPT : KEPT / 2);
        }
        void **block = site_9(sizes[9]);
        *block = leaked;
        leaked = block;
        held_objects[9]++;
        held_bytes[9] += sizes[9];
    }
    if (!hold)
        for (int n = 0; n < SITES - 1; n++) {
            for (int i = 0; i < KEPT; i++)
                free(kept[n][i]);
            held_objects[n] = held_bytes[n] = 0;
        }
    char text[4096];
    int length = 0;
    for (int n = 0; n < SITES; n++)
        length += snprintf(text + length, sizeof text - length, "site_%d %lu %lu %lu %lu\n", n, objects[n], bytes[n],
                           held_objects[n], held_bytes[n]);
    if (write(1, text, length) != length)
        return 1;
    while (wait)
        pause();
    return 0;
}
