/* LTTng-UST's part: lttng EVENTS. Prints thread CPU nanoseconds per event: a number, 16 frames, 40 frames. */
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "tracepoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STACKS 64
#define DEEPEST 40

static uint64_t stacks[STACKS][DEEPEST];

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int count, char **arguments)
{
    long events = count > 1 ? atol(arguments[1]) : 100000;
    for (int s = 0; s < STACKS; s++)
        for (int f = 0; f < DEEPEST; f++)
            stacks[s][f] = 0x7f0000000000 + 4099 * (f * 7 + (f < 12 ? s % 8 : 0));
    for (int warm = 0; warm < 2; warm++) {
        double begin = cpu();
        for (long i = 0; i < events; i++)
            lttng_ust_tracepoint(ring_bench, number, i);
        double numbers = cpu() - begin;
        double deep[2];
        for (int d = 0; d < 2; d++) {
            size_t depth = d ? 40 : 16;
            begin = cpu();
            for (long i = 0; i < events; i++)
                lttng_ust_tracepoint(ring_bench, stack, stacks[i % STACKS], depth);
            deep[d] = cpu() - begin;
        }
        if (warm)
            printf("%.2f %.2f %.2f\n", numbers / events, deep[0] / events, deep[1] / events);
    }
    return 0;
}
