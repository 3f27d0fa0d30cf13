/* Thousands of short threads that return, call pthread_exit, are cancelled, or are detached. */
#include "burn.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

BURN(churn_work)
BURN(churn_main_work)

static sem_t detached;
static pthread_key_t key;
static int destroyed;

static void destroy(void *p)
{
	(void)p;
	__atomic_add_fetch(&destroyed, 1, __ATOMIC_RELAXED);
}

static void *returns(void *p)
{
	pthread_setspecific(key, p);
	if ((long)p % 50 == 0)
		churn_work(2);
	return p;
}

static void *exits(void *p)
{
	pthread_setspecific(key, p);
	pthread_exit(p);
}

static void *is_cancelled(void *p)
{
	pthread_setspecific(key, p);
	for (;;)
		pause();
	return p;
}

static void *detaches(void *p)
{
	sem_post(&detached);
	return p;
}

int main(void)
{
	sem_init(&detached, 0, 0);
	pthread_key_create(&key, destroy);
	long joined = 0, cancelled = 0, wrong = 0;
	for (long i = 1; i <= 3000; i++) {
		pthread_t t;
		void *result;
		switch (i % 4) {
		case 0:
			if (pthread_create(&t, 0, returns, (void *)i))
				return 1;
			pthread_join(t, &result);
			joined++;
			wrong += result != (void *)i;
			break;
		case 1:
			if (pthread_create(&t, 0, exits, (void *)i))
				return 1;
			pthread_join(t, &result);
			joined++;
			wrong += result != (void *)i;
			break;
		case 2:
			if (pthread_create(&t, 0, is_cancelled, (void *)i))
				return 1;
			pthread_cancel(t);
			pthread_join(t, &result);
			cancelled += result == PTHREAD_CANCELED;
			break;
		default: {
			pthread_attr_t attr;
			pthread_attr_init(&attr);
			pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
			pthread_attr_setstacksize(&attr, 64 * 1024);
			if (pthread_create(&t, &attr, detaches, 0))
				return 1;
			pthread_attr_destroy(&attr);
			sem_wait(&detached);
		}
		}
	}
	/* A thread cancelled before it began never set the key; those that returned or exited all did. */
	printf("joined %ld cancelled %ld wrong %ld destroyed %s\n", joined, cancelled, wrong,
	       destroyed >= joined ? "all" : "too few");
	churn_main_work(100);
	return 25;
}
