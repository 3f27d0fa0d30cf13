// Frees NULL while a block lies in the first page of a GiB, whose number is that of NULL in a filter of 2^18 pages.
// `site` leaves no block behind.
// usage: heap_frees_null
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define GIB (1ul << 30)
#define NEAR (1ul << 17)
#define BLOCKS 1000

static void *volatile nothing, *volatile sink;

static __attribute__((noinline, noclone)) void *site(void) {
    void *volatile block = malloc(1024);
    return block;
}

static void *first_page_of_gib(void) {
    for (int i = 0; i < 200000; i++) {
        // Large blocks up to the neighbourhood, then small ones, none of which is touched.
        sink = malloc(64);
        if ((uintptr_t)sink % GIB < GIB - NEAR) {
            sink = malloc(1 << 16);
            continue;
        }
        void *others[BLOCKS], *block = NULL;
        int count = 0;
        while (count < BLOCKS && !block) {
            void *next = site();
            if ((uintptr_t)next % GIB < 4096)
                block = next;
            else
                others[count++] = next;
        }
        while (count > 0)
            free(others[--count]);
        if (block)
            return block;
    }
    return NULL;
}

int main(void) {
    void *block = first_page_of_gib();
    if (!block) {
        fprintf(stderr, "no block lies in the first page of a GiB\n");
        return 3;
    }
    for (int i = 0; i < 100; i++)
        free(nothing);
    free(block);
    return 0;
}
