/* Burns CPU time in threads: spin SECONDS THREADS. Without arguments: one thread, for ever. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

static double seconds = 1e9;

static double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((noinline)) void burn(void)
{
    volatile unsigned long sink = 0;
    while (cpu() < seconds)
        for (int i = 0; i < 100000; i++)
            sink += i;
}

static void *thread(void *argument)
{
    burn();
    return argument;
}

int main(int count, char **arguments)
{
    pthread_t threads[64];
    int n = count > 2 ? atoi(arguments[2]) : 1;
    if (count > 1)
        seconds = atof(arguments[1]);
    for (int i = 1; i < n; i++)
        pthread_create(&threads[i], 0, thread, 0);
    burn();
    for (int i = 1; i < n; i++)
        pthread_join(threads[i], 0);
    return 5;
}
