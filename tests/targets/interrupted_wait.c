/* Waits that a signal interrupts: `interrupted_wait COUNT SIGNAL`. With a handler without SA_RESTART each must end with EINTR,
 * with SA_RESTART none. The signal is sent when the thread sleeps. Prints how many ended, of each. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned long handled, returned, work;
static int ends[2], count, number;
static pid_t reader;
static pthread_t reading;

static void on_signal(int signal)
{
	(void)signal;
	for (int i = 0; i < 2000; i++)
		work += i;
	handled++;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static int is_asleep(void)
{
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", reader);
	int file = open(path, O_RDONLY);
	ssize_t length = read(file, text, sizeof text - 1);
	close(file);
	if (length <= 0)
		return 0;
	text[length] = 0;
	char *name = strrchr(text, ')');
	return name && name[2] == 'S';
}

static void send(char byte)
{
	if (write(ends[1], &byte, 1) != 1)
		abort();
}

static void *send_signals(void *restarts)
{
	for (int i = 0; i < count; i++) {
		unsigned long before = returned, seen = handled;
		while (!is_asleep())
			;
		pthread_kill(reading, number);
		while (handled == seen)
			;
		double since = now();
		while (returned == before && !restarts && now() - since < 0.5)
			;
		/* Otherwise it waits for ever. */
		if (returned == before)
			send('-');
		while (returned == before)
			;
	}
	send('!');
	return NULL;
}

static int wait_and_count(int restarts)
{
	struct sigaction action = {.sa_handler = on_signal, .sa_flags = restarts ? SA_RESTART : 0};
	pthread_t sender;
	int ended = 0;
	char byte = 0;
	sigaction(number, &action, NULL);
	pthread_create(&sender, NULL, send_signals, restarts ? &count : NULL);
	while (byte != '!') {
		ended += read(ends[0], &byte, 1) < 0 && errno == EINTR;
		for (int i = 0; i < 20000; i++)
			work += i;
		returned++;
	}
	pthread_join(sender, NULL);
	return ended;
}

int main(int argc, char **argv)
{
	if (argc < 3 || pipe(ends))
		return 2;
	count = atoi(argv[1]);
	number = atoi(argv[2]);
	reader = (pid_t)syscall(SYS_gettid);
	reading = pthread_self();
	int without = wait_and_count(0);
	printf("%d %d\n", without, wait_and_count(1));
	return 0;
}
