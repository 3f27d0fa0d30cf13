// Joins a memory cgroup and allocates until the OOM killer ends it. It counts its live memory in a file that survives it:
// objects and bytes of each site, in the order of the sites here.
// usage: heap_until_killed COUNTS CGROUP_PROCS
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))

static volatile unsigned long (*held)[2];

static void *counted(int site, void *block, unsigned long bytes) {
    if (!block)
        abort();
    held[site][0]++;
    held[site][1] += bytes;
    return block;
}

KEEP static void *held_small(void) { return counted(0, malloc(100), 100); }
KEEP static void *held_large(void) { return counted(1, malloc(100000), 100000); }
KEEP static void *held_cleared(void) { return counted(2, calloc(30, 1000), 30000); }
KEEP static void *passing(void) { return malloc(5000); }
KEEP static void *hog(void) {
    // Counted before it is touched, which may kill the process.
    return memset(counted(3, malloc(1 << 20), 1 << 20), 1, 1 << 20);
}

static void *volatile sink;

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    int counts = open(argv[1], O_RDWR), group = open(argv[2], O_WRONLY);
    if (counts < 0 || group < 0 || write(group, "0", 1) != 1)
        return 3;
    close(group);
    held = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, counts, 0);
    if ((void *)held == MAP_FAILED)
        return 4;
    for (int i = 0; i < 3000; i++) {
        sink = held_small();
        if (i % 20 == 0)
            sink = held_large();
        if (i % 30 == 0)
            sink = held_cleared();
        void *block = passing();
        sink = block;
        free(block);
    }
    for (;;)
        sink = hog();
}
