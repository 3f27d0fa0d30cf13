/* Very early and very late code: before main, at exit, in destructors of thread-specific values, while other threads end. */
#define _GNU_SOURCE
#include "burn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

BURN(constructor_work)
BURN(main_work)
BURN(key_destructor_work)
BURN(atexit_work)
BURN(destructor_work)

static pthread_key_t key;

__attribute__((constructor)) static void early(void) { constructor_work(50); }

__attribute__((destructor)) static void late(void)
{
	destructor_work(50);
	if (write(1, "late\n", 5) != 5)
		_exit(1);
}

static void at_exit(void) { atexit_work(50); }

static void at_thread_end(void *value)
{
	key_destructor_work(50);
	/* Again: destructors may set values, up to four rounds. */
	if (value != (void *)3)
		pthread_setspecific(key, (char *)value + 1);
}

static void *thread(void *value)
{
	pthread_setspecific(key, value);
	return 0;
}

int main(void)
{
	pthread_t other;
	atexit(at_exit);
	pthread_key_create(&key, at_thread_end);
	main_work(50);
	if (pthread_create(&other, 0, thread, (void *)1))
		return 1;
	pthread_join(other, 0);
	return 19;
}
