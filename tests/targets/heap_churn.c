/* Hazard: threads that allocate and end, again and again, while others live on.
 * usage: heap_churn MS [US]: for so long, two threads allocate, and every 2 ms, or US us, one is started, allocates and ends. */
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static volatile int is_over;

__attribute__((noinline)) static void churn(int count)
{
	for (int i = 0; i < count; i++) {
		void *volatile block = malloc(48);
		free(block);
	}
}

static void *lives(void *p)
{
	while (!is_over) {
		churn(100);
		usleep(1000);
	}
	return p;
}

static void *ends(void *p)
{
	churn(5);
	return p;
}

int main(int argc, char **argv)
{
	pthread_t living[2], ending;
	for (int i = 0; i < 2; i++)
		pthread_create(&living[i], 0, lives, 0);
	int pause = argc > 2 ? atoi(argv[2]) : 2000;
	for (int left = argc > 1 ? atoi(argv[1]) * 1000 : 0; left > 0; left -= pause) {
		pthread_create(&ending, 0, ends, 0);
		pthread_join(ending, 0);
		usleep(pause);
	}
	is_over = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(living[i], 0);
	return 0;
}
