/* Functions and USDT probes that are hit a known number of times; prints whether the program sees that a probe is traced. The
 * notes of the probes are as in sdt.h; one has two locations and a semaphore.
 *
 *   probes ROUNDS           in main and a second thread
 *   probes ROUNDS blocked   with all signals blocked meanwhile
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
	".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
	"_.stapsdt.base: .space 1\n.size _.stapsdt.base,1\n.popsection\n");

unsigned short gated_semaphore __attribute__((section(".probes"), used));

#define PROBE(name, semaphore, value)                                                       \
	__asm__ volatile("990: nop\n"                                                           \
			 ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"                            \
			 ".4byte 992f-991f,994f-993f,3\n"                                                  \
			 "991: .asciz \"stapsdt\"\n992: .balign 4\n"                                       \
			 "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte " semaphore "\n"                 \
			 ".asciz \"app\"\n.asciz \"" name "\"\n.asciz \"-8@%0\"\n"                         \
			 "994: .balign 4\n.popsection\n" ::"r"((long)(value)))

static long watched;

/* Begins with a push. */
__attribute__((noinline, noipa)) long pushes(long n)
{
	char text[32];
	snprintf(text, sizeof text, "%ld", n);
	PROBE("inside", "0", n);
	return atol(text);
}

/* Begins with arithmetic, which the kernel single-steps out of line. */
__attribute__((noinline, noipa)) long computes(long n)
{
	long result = 3 * n + 1;
	PROBE("gated", "gated_semaphore", n);
	if (__atomic_load_n(&gated_semaphore, __ATOMIC_RELAXED))
		__atomic_fetch_add(&watched, 1, __ATOMIC_RELAXED);
	return result;
}

/* Begins by allocating stack for its variables. */
__attribute__((noinline, noipa)) long makes_room(long n)
{
	volatile char room[8192];
	room[n % 8192] = 1;
	PROBE("gated", "gated_semaphore", -n);
	return room[n % 8192] + n;
}

__attribute__((noinline, noipa)) long way(long n)
{
	return pushes(n) + computes(n) + makes_room(n) + (getppid() > 0);
}

static void *rounds(void *count)
{
	for (long n = 0; n < (long)count; n++)
		watched += 0 * way(n);
	return 0;
}

int main(int argc, char **argv)
{
	long count = atol(argv[1]);
	sigset_t all, before;
	pthread_t thread;
	sigfillset(&all);
	if (argc > 2)
		pthread_sigmask(SIG_BLOCK, &all, &before);
	pthread_create(&thread, 0, rounds, (void *)count);
	rounds((void *)count);
	pthread_join(thread, 0);
	if (argc > 2)
		pthread_sigmask(SIG_SETMASK, &before, 0);
	printf("watched %d\n", watched > 0);
	return 0;
}
