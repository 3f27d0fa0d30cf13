/* A function's frame is so large that its prologue touches page by page; meanwhile another register than the stack pointer,
 * which points below it, locates the frame. In a thread, because little lies above its frames. */
#include <pthread.h>
#include <stdio.h>
#include <time.h>

static volatile unsigned long sink;

__attribute__((noinline)) static void large(unsigned long i)
{
	volatile char frame[24000];
	frame[i % sizeof frame] = 1;
	sink += (unsigned long)frame[i % sizeof frame];
}

static double cpu_seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void *work(void *nothing)
{
	while (cpu_seconds() < 1)
		for (unsigned long i = 0; i < 10000; i++)
			large(i);
	return nothing;
}

int main(void)
{
	pthread_t thread;
	if (pthread_create(&thread, 0, work, 0) || pthread_join(thread, 0))
		return 1;
	puts(sink ? "worked" : "nothing done");
	return 38;
}
