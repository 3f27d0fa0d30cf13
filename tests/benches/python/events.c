/* events(COUNT): thread CPU nanoseconds per event of a tracepoint, for tests/benches/python/deep.py. */
#include "../../../agent/include/selfwind.h"

#include <time.h>

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

double events(long count)
{
    double least = 1e18;
    for (int turn = 0; turn < 20; turn++) {
        double begin = cpu();
        for (long i = 0; i < count; i++)
            SELFWIND_TRACEPOINT(python_bench, number, SELFWIND_U64_AS(value, (uint64_t)i));
        double each = (cpu() - begin) / (double)count;
        if (each < least)
            least = each;
    }
    return least;
}
