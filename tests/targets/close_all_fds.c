/* Closes every descriptor it does not know, as daemons do, and continues; descriptor numbers must be as without the agent. */
#define _GNU_SOURCE
#include "burn.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

BURN(before_close)
BURN(after_close)

static void *thread_work(void *p)
{
	after_close(50);
	return p;
}

static void use_everything(const char *step)
{
	int fd = open("/dev/null", O_RDWR);
	int second = open("/dev/null", O_RDWR);
	printf("%s: descriptors %d %d\n", step, fd, second);
	after_close(60);
	pthread_t t;
	pthread_create(&t, 0, thread_work, 0);
	pthread_join(t, 0);
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		after_close(30);
		_exit(3);
	}
	int status;
	waitpid(child, &status, 0);
	/* Nobody else has written to or closed what the program opened. */
	printf("%s: child %d, still ours %d %d\n", step, WEXITSTATUS(status), fcntl(fd, F_GETFD) >= 0,
	       fcntl(second, F_GETFD) >= 0);
	close(fd);
	close(second);
}

int main(void)
{
	before_close(50);
	use_everything("untouched");
	for (int fd = 3; fd < 4096; fd++)
		close(fd);
	use_everything("close loop");
	syscall(SYS_close_range, 3, ~0u, 0);
	use_everything("close_range");
	int open_now = 0;
	DIR *dir = opendir("/proc/self/fd");
	for (struct dirent *entry; (entry = readdir(dir));)
		open_now += entry->d_name[0] != '.' && atoi(entry->d_name) > 2 && atoi(entry->d_name) != dirfd(dir);
	closedir(dir);
	printf("open beyond 2: %d\n", open_now);
	return 29;
}
