/* System calls that take time while all signals are blocked: by the C library around clone, by a signal's mask until its handler has
   returned, and by the program itself. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

extern char **environ;

static volatile sig_atomic_t handled;

static void *nothing(void *argument)
{
	return argument;
}

__attribute__((noinline)) static void creating(int count)
{
	while (count--) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, nothing, NULL) == 0)
			pthread_join(thread, NULL);
	}
	handled++;
}

__attribute__((noinline)) static void spawning(int count)
{
	while (count--) {
		char *arguments[] = { "/bin/true", NULL };
		pid_t child;
		if (posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ) == 0)
			waitpid(child, NULL, 0);
	}
	handled++;
}

static void on_signal(int signal)
{
	handled += signal != 0;
}

__attribute__((noinline)) static void signalling(int count)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigfillset(&action.sa_mask);
	sigaction(SIGUSR1, &action, NULL);
	while (count--)
		raise(SIGUSR1);
	handled++;
}

__attribute__((noinline)) static void *mapped(size_t size)
{
	return mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
}

__attribute__((noinline)) static void blocking(int count)
{
	sigset_t all, before;
	sigfillset(&all);
	while (count--) {
		sigprocmask(SIG_SETMASK, &all, &before);
		munmap(mapped(1 << 16), 1 << 16);
		sigprocmask(SIG_SETMASK, &before, NULL);
	}
	handled++;
}

int main(void)
{
	creating(8000);
	spawning(300);
	signalling(150000);
	blocking(8000);
	return 0;
}
