/* Threads without space below their stack pointer, and programs that check where their handlers run. `stack_end MODE`:
 *   thread     a thread's stack is used to its last 100 bytes
 *   main       the main thread's, as far as its limit lets it grow
 *   coroutine  stacks of one and of two pages, with guards below
 *   small      an alternate stack of the program's own, hardly larger than the kernel needs
 *   belief     sigaltstack and uc_stack report what the program set, nothing else
 *   handlers   handlers run on the stack they would run on, use much of it, and leave by a jump */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

/* Spins with the stack pointer at `sp`. */
__attribute__((noinline)) void spin_at(char *sp, unsigned long turns)
{
	__asm__ volatile("mov %%rsp, %%r12\n\tmov %0, %%rsp\n1:\tdec %1\n\tjnz 1b\n\tmov %%r12, %%rsp"
			 : "+r"(sp), "+r"(turns)
			 :
			 : "r12", "memory", "cc");
}

#define TURNS 300000000ul

static char *stack_low(void)
{
	pthread_attr_t attr;
	void *low;
	size_t size;
	pthread_getattr_np(pthread_self(), &attr);
	pthread_attr_getstack(&attr, &low, &size);
	pthread_attr_destroy(&attr);
	return low;
}

static void *thread(void *p)
{
	char *end = stack_low() + 100;
	*end = 1;
	spin_at((char *)((uintptr_t)end & ~15ul), TURNS);
	return p;
}

static char *guarded(size_t size)
{
	char *base = mmap(0, 4096 + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mprotect(base, 4096, PROT_NONE);
	return base + 4096;
}

static void coroutine(void)
{
	for (size_t size = 4096; size <= 8192; size += 4096) {
		char *low = guarded(size);
		spin_at(low + size - 64, TURNS / 3);
		spin_at(low + 64, TURNS / 3);
	}
}

static void spin(void) { spin_at(__builtin_frame_address(0) - 256, TURNS / 30); }

static volatile int wrong, hits, normal;
static char *low, *high;
static stack_t seen;

static void look(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	char here;
	hits++;
	normal += &here < low || &here >= high;
	seen = uc->uc_stack;
	wrong += info->si_signo != sig;
}

static int disabled(const stack_t *s) { return s->ss_flags == SS_DISABLE && !s->ss_sp && !s->ss_size; }

static void set(int sig, int flags)
{
	struct sigaction action = { .sa_sigaction = look, .sa_flags = SA_SIGINFO | flags }, old;
	sigaction(sig, &action, 0);
	sigaction(sig, 0, &old);
	wrong += old.sa_sigaction != look || (old.sa_flags & ~0x04000000) != (int)(SA_SIGINFO | flags);
}

static void *belief(void *p)
{
	stack_t old, own = { .ss_sp = guarded(65536), .ss_size = 65536 };
	stack_t off = { .ss_flags = SS_DISABLE };
	spin();
	sigaltstack(0, &old);
	printf("at first %d\n", disabled(&old));
	set(SIGUSR1, 0);
	raise(SIGUSR1);
	printf("in a handler %d\n", !seen.ss_sp && !seen.ss_size);
	spin();
	sigaltstack(0, &old);
	printf("after it %d\n", disabled(&old));
	printf("set %d\n", sigaltstack(&own, &old));
	printf("before %d\n", disabled(&old));
	spin();
	raise(SIGUSR1);
	sigaltstack(&off, &old);
	printf("own %d %d\n", old.ss_sp == own.ss_sp && old.ss_size == 65536 && !old.ss_flags,
	       seen.ss_sp == own.ss_sp && seen.ss_size == 65536);
	spin();
	sigaltstack(0, &old);
	printf("off %d\n", disabled(&old));
	old = (stack_t){ .ss_flags = 77 };
	printf("refused %d\n", sigaltstack(&old, 0));
	return p;
}

static sigjmp_buf back;

__attribute__((noinline)) static int eat(int n)
{
	volatile char frame[1024];
	frame[0] = (char)n;
	return n == 0 ? frame[0] : eat(n - 1) + frame[0];
}

static volatile int leave;
static char *frame_of_main_low, *frame_of_main_high;
static volatile int switched;
#ifdef __GLIBC__
static ucontext_t interrupted, scheduler;
#endif

static void deep(int sig, siginfo_t *info, void *context)
{
	char here;
	(void)sig, (void)info, (void)context;
	hits++;
	normal += &here > frame_of_main_low && &here < frame_of_main_high;
	eat(400);
	if (leave == 1)
		siglongjmp(back, 1);
#ifdef __GLIBC__
	if (leave == 2) {
		switched++;
		swapcontext(&interrupted, &scheduler);
		switched++;
	}
#endif
}

static void *handlers(void *p)
{
	/* The profiler uses SIGPROF and SIGTRAP; 0 represents a handler without SA_ONSTACK. */
	static const int signals[] = { SIGUSR1, SIGPROF, SIGTRAP, SIGALRM };
	static const int flags[] = { 0, SA_ONSTACK, SA_ONSTACK | SA_NODEFER | SA_RESTART };
	frame_of_main_low = stack_low();
	frame_of_main_high = __builtin_frame_address(0);
	for (int alternate = 0; alternate < 2; alternate++) {
		low = high = 0;
		if (alternate) {
			low = guarded(1 << 20), high = low + (1 << 20);
			stack_t own = { .ss_sp = low, .ss_size = 1 << 20 };
			sigaltstack(&own, 0);
		}
		for (unsigned s = 0; s < 4; s++)
			for (unsigned f = 0; f < 3; f++) {
				struct sigaction action = { .sa_sigaction = deep, .sa_flags = SA_SIGINFO | flags[f] };
				sigaction(signals[s], &action, 0);
				hits = normal = 0;
				for (int i = 0; i < 50; i++) {
					volatile int before = hits, tries = 0;
					leave = i % 10 == 9;
					/* The kernel merges it with a tick of the same number. */
					do
						if (!leave || !sigsetjmp(back, 1))
							raise(signals[s]);
					while (hits == before && ++tries < 5);
				}
				spin();
				int expected = alternate && (flags[f] & SA_ONSTACK) ? 0 : 50;
				printf("%d %d %u: hits %d on its own stack %d\n", alternate, signals[s], f, hits,
				       normal == expected);
			}
		stack_t off = { .ss_flags = SS_DISABLE };
		sigaltstack(&off, 0);
	}
	return p;
}

#ifdef __GLIBC__
static void resume_later(void)
{
	raise(SIGUSR1);
	setcontext(&scheduler);
}

/* A handler without a stack of its own is left by a context switch, and resumed after other work. */
static void switching(void)
{
	static ucontext_t worker;
	struct sigaction action = { .sa_sigaction = deep, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	sigaction(SIGUSR1, &action, 0);
	leave = 2;
	char *stack = guarded(1 << 20);
	getcontext(&worker);
	worker.uc_stack.ss_sp = stack, worker.uc_stack.ss_size = 1 << 20;
	makecontext(&worker, resume_later, 0);
	for (int i = 0; i < 20; i++) {
		getcontext(&worker);
		worker.uc_stack.ss_sp = stack, worker.uc_stack.ss_size = 1 << 20;
		makecontext(&worker, resume_later, 0);
		swapcontext(&scheduler, &worker);
		spin();
		static ucontext_t again;
		memcpy(&again, &interrupted, sizeof again);
		again.uc_mcontext.fpregs = &again.__fpregs_mem;
		swapcontext(&scheduler, &again);
		spin();
	}
	printf("switched %d\n", switched);
}
#else
static void switching(void) {}
#endif

static void run(void *(*body)(void *))
{
	pthread_t t;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	/* musl's default is 128 KiB, which is less than some modes need. */
	pthread_attr_setstacksize(&attr, 8 << 20);
	pthread_create(&t, &attr, body, 0);
	pthread_attr_destroy(&attr);
	pthread_join(t, 0);
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	setvbuf(stdout, 0, _IOLBF, 0);
	if (!strcmp(mode, "thread")) {
		for (int i = 0; i < 3; i++)
			run(thread);
	} else if (!strcmp(mode, "main")) {
		char *end = stack_low() + 128;
		*(volatile char *)end = 1;
		spin_at((char *)((uintptr_t)end & ~15ul), TURNS);
	} else if (!strcmp(mode, "coroutine")) {
		coroutine();
	} else if (!strcmp(mode, "small")) {
		/* The size of a frame without tile data, which nobody here has requested, plus a margin. */
		size_t size = 4096;
		stack_t own = { .ss_sp = guarded(size), .ss_size = size };
		printf("set %d\n", sigaltstack(&own, 0));
		for (int i = 0; i < 20; i++)
			spin();
	} else if (!strcmp(mode, "belief")) {
		belief(0);
		run(belief);
		printf("wrong %d\n", wrong);
	} else if (!strcmp(mode, "handlers")) {
		handlers(0);
		run(handlers);
		switching();
	} else {
		return 98;
	}
	puts("alive");
	return 39;
}
