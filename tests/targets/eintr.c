/* Blocking calls are not interrupted: pipe reads, nanosleep, poll, epoll, futex, semaphores, sockets, while
 * threads burn CPU. Prints how often each came back early. */
#define _GNU_SOURCE
#include "burn.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

BURN(eintr_work)

static atomic_int stop;
static int pipes[2], sockets[2];
#define FUTEX_WAIT 0 /* musl-gcc has no kernel headers */
#define TOTAL (16 << 20)

static void *burner(void *p)
{
	while (!atomic_load(&stop))
		eintr_work(5);
	return p;
}

/* Writes in small, slow pieces: the reader blocks thousands of times. */
static void *writer(void *p)
{
	static char block[16384];
	memset(block, 'x', sizeof block);
	for (long sent = 0; sent < TOTAL;) {
		ssize_t n = write(pipes[1], block, sizeof block);
		if (n < 0)
			return (void *)(long)errno;
		sent += n;
	}
	close(pipes[1]);
	return p;
}

static void *sender(void *p)
{
	for (int i = 0; i < 100; i++) {
		char c = (char)i;
		if (send(sockets[1], &c, 1, 0) != 1)
			return (void *)1;
		usleep(1000);
	}
	return p;
}

int main(void)
{
	pthread_t burn, write_thread, send_thread;
	if (pipe(pipes) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		return 1;
	pthread_create(&burn, 0, burner, 0);

	pthread_create(&write_thread, 0, writer, 0);
	static char buffer[65536];
	long got = 0, failed = 0;
	for (;;) {
		ssize_t n = read(pipes[0], buffer, sizeof buffer);
		if (n == 0)
			break;
		if (n < 0) {
			failed++;
			continue;
		}
		for (int i = 0; i < 200; i++)
			__asm__ volatile("" ::"r"(buffer[i]));
		got += n;
	}
	void *written;
	pthread_join(write_thread, &written);
	printf("pipe bytes %ld interrupted %ld writer errno %ld\n", got, failed, (long)written);

	pthread_create(&send_thread, 0, sender, 0);
	failed = 0;
	for (int i = 0; i < 100; i++) {
		char c;
		if (recv(sockets[0], &c, 1, 0) != 1)
			failed++;
	}
	pthread_join(send_thread, 0);
	printf("recv interrupted %ld\n", failed);

	long sleeps = 0, polls = 0, epolls = 0, selects = 0, futexes = 0, sems = 0;
	int epoll = epoll_create1(0);
	sem_t sem;
	sem_init(&sem, 0, 0);
	int word = 0;
	for (int i = 0; i < 40; i++) {
		struct timespec ms = { 0, 3000000 };
		sleeps += nanosleep(&ms, 0) != 0;
		polls += poll(0, 0, 3) != 0;
		struct epoll_event event;
		epolls += epoll_wait(epoll, &event, 1, 3) != 0;
		struct timeval tv = { 0, 3000 };
		selects += select(0, 0, 0, 0, &tv) != 0;
		futexes += !(syscall(SYS_futex, &word, FUTEX_WAIT, 0, &ms, 0, 0) == -1 && errno == ETIMEDOUT);
		struct timespec when;
		clock_gettime(CLOCK_REALTIME, &when);
		when.tv_nsec += 3000000;
		if (when.tv_nsec >= 1000000000) {
			when.tv_sec++;
			when.tv_nsec -= 1000000000;
		}
		sems += !(sem_timedwait(&sem, &when) == -1 && errno == ETIMEDOUT);
		eintr_work(3);
	}
	printf("nanosleep %ld poll %ld epoll %ld select %ld futex %ld sem %ld\n", sleeps, polls, epolls, selects,
	       futexes, sems);
	atomic_store(&stop, 1);
	pthread_join(burn, 0);
	return 37;
}
