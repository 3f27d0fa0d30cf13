/* Takes the place of an agent that breaks the rules: its SIGPROF handler, with all signals blocked and a restorer of its
 * own, makes the call that SELFWIND_OFFENCE names. The detector must catch each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

struct kernel_sigaction {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

void offender_restorer(void);
__asm__(".text\n.globl offender_restorer\n.hidden offender_restorer\n.type offender_restorer,@function\n"
	"offender_restorer:\n\tmov $15, %eax\n\tsyscall\n.size offender_restorer, .-offender_restorer\n");

static char offence[32];
static void *volatile kept;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int visit(struct dl_phdr_info *info, size_t size, void *p)
{
	(void)info, (void)size, (void)p;
	return 1;
}

static void on_prof(int sig)
{
	(void)sig;
	if (!strcmp(offence, "malloc"))
		kept = malloc(10);
	else if (!strcmp(offence, "lock"))
		pthread_mutex_trylock(&mutex);
	else if (!strcmp(offence, "dl_iterate_phdr"))
		dl_iterate_phdr(visit, 0);
	else if (!strcmp(offence, "getspecific"))
		pthread_getspecific(0);
	else if (!strcmp(offence, "deep")) {
		/* From far below the frame. */
		volatile char deep[20000];
		deep[0] = 1;
		kept = malloc(10 + (size_t)deep[0]);
	}
}

__attribute__((constructor)) static void start(void)
{
	const char *what = getenv("SELFWIND_OFFENCE");
	strncpy(offence, what ? what : "", sizeof offence - 1);
	struct kernel_sigaction action = { on_prof, SA_RESTART | SA_ONSTACK | 0x04000000, offender_restorer, ~0ull };
	syscall(SYS_rt_sigaction, SIGPROF, &action, (void *)0, 8L);
	struct itimerval timer = { { 0, 2000 }, { 0, 2000 } };
	setitimer(ITIMER_PROF, &timer, 0);
}
