/* ours: what an event costs. events EVENTS DEPTH: prints thread CPU nanoseconds per event of a number, at so many frames,
 * and what the loop takes without it. */
#include "../../../agent/include/selfwind.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define FRAME __attribute__((noinline, noclone))

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double with, without;
static volatile int sink;

FRAME static void measure(long events)
{
    for (int warm = 0; warm < 2; warm++) {
        double begin = cpu();
        for (long i = 0; i < events; i++)
            SELFWIND_TRACEPOINT(ring_bench, number, SELFWIND_U64_AS(value, (uint64_t)i));
        with = (cpu() - begin) / (double)events;
        begin = cpu();
        for (long i = 0; i < events; i++)
            __asm__ volatile("" : : "r"(i));
        without = (cpu() - begin) / (double)events;
    }
}

FRAME static void deeper(long levels, long events)
{
    if (levels > 0)
        deeper(levels - 1, events);
    else
        measure(events);
    sink++;
}

int main(int count, char **arguments)
{
    long events = count > 1 ? atol(arguments[1]) : 1000000, depth = count > 2 ? atol(arguments[2]) : 0;
    deeper(depth, events);
    printf("%.2f %.2f\n", with, without);
    return 0;
}
