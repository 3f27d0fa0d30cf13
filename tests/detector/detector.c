/* Preloaded with the agent: aborts with a message if the C library's allocator, locks, loader or stdio run while the
 * thread is inside the sampling handler.
 *
 * Detection: the handler runs with all signals blocked, and above it on the stack is the signal frame that the kernel
 * built for it, whose restorer is code of the agent. Both must hold: the C library also blocks all signals now and
 * then, and dead stack may contain old signal frames. The agent's code is located by its file name, from
 * SELFWIND_DETECT.
 *
 * With SELFWIND_DETECT_COUNT it writes, at exit, the number of calls checked and of those made with all signals
 * blocked: a test without any such call proves nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static uintptr_t agent_start, agent_end;
static unsigned long looked, blocked;

/* Reads /proc/self/maps using only system calls and the stack. */
__attribute__((constructor)) static void find_agent(void)
{
	const char *name = getenv("SELFWIND_DETECT");
	if (!name)
		return;
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	static char text[1 << 20];
	size_t length = 0;
	for (ssize_t n; length < sizeof text - 1 && (n = read(fd, text + length, sizeof text - 1 - length)) > 0;)
		length += (size_t)n;
	close(fd);
	for (char *line = strtok(text, "\n"); line; line = strtok(0, "\n")) {
		unsigned long start, end;
		if (!strstr(line, name) || sscanf(line, "%lx-%lx", &start, &end) != 2)
			continue;
		if (!agent_start || start < agent_start)
			agent_start = start;
		if (end > agent_end)
			agent_end = end;
	}
}

__attribute__((destructor)) static void tell(void)
{
	const char *file = getenv("SELFWIND_DETECT_COUNT");
	if (!file)
		return;
	char line[96];
	int n = snprintf(line, sizeof line, "%lu %lu %d\n", looked, blocked, agent_start != 0);
	int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0 && write(fd, line, (size_t)n) < 0)
		_exit(99);
	close(fd);
}

/* A raw system call: the C library's function may be interposed by the agent. */
static long call(long number, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e)
{
	register uintptr_t fourth __asm__("r10") = d, fifth __asm__("r8") = e, sixth __asm__("r9") = 0;
	long result;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	return result;
}

static int all_signals_blocked(void)
{
	uint64_t mask = 0;
	call(SYS_rt_sigprocmask, SIG_SETMASK, 0, (uintptr_t)&mask, 8, 0);
	/* SIGKILL and SIGSTOP are never blocked. */
	return (mask | 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1)) == ~0ull;
}

/* The kernel's signal frame: the restorer's address, then struct ucontext, whose 18th register word holds the
 * segments. Its code segment is 0x33 in 64-bit code, and the interrupted stack pointer lies above the frame. */
struct frame {
	uintptr_t restorer;
	struct ucontext_head {
		uint64_t flags, link, stack[3], registers[23], fpstate, reserved[8], mask;
	} context;
};

/* Copies the readable part of `size` bytes at `from`. Done by the kernel, since mappings above the stack may come and go. */
static size_t copy(void *to, uintptr_t from, size_t size)
{
	struct iovec local = { to, size }, remote = { (void *)from, size };
	long result = call(SYS_process_vm_readv, (uintptr_t)call(SYS_getpid, 0, 0, 0, 0, 0), (uintptr_t)&local, 1,
			   (uintptr_t)&remote, 1);
	return result > 0 ? (size_t)result : 0;
}

static int is_frame(const struct frame *frame, uintptr_t at, uintptr_t here)
{
	uint64_t segments = frame->context.registers[18], sp = frame->context.registers[15];
	uint64_t sigprof = 1ull << (SIGPROF - 1);
	return frame->restorer >= agent_start && frame->restorer < agent_end && (segments & 0xffff) == 0x33 &&
	       (sp > at || sp < here) && !(frame->context.mask & sigprof);
}

/* Searches 32 pages, one page and the beginning of the next at a time. */
__attribute__((noinline)) static int inside_handler(void)
{
	enum { PAGE = 4096 };
	uintptr_t here = (uintptr_t)__builtin_frame_address(0) & ~7ul;
	uintptr_t last = (here & -(uintptr_t)PAGE) + 32 * PAGE;
	uint64_t window[(PAGE + sizeof(struct frame)) / 8];
	for (uintptr_t start = here; start < last; start = (start & -(uintptr_t)PAGE) + PAGE) {
		size_t step = PAGE - start % PAGE, length = copy(window, start, step);
		if (length == step)
			length += copy((char *)window + step, start + step, sizeof(struct frame));
		for (size_t offset = 0; offset < step && offset + sizeof(struct frame) <= length; offset += 8) {
			if (is_frame((const struct frame *)((const char *)window + offset), start + offset, here))
				return 1;
		}
		if (length < step)
			break;
	}
	return 0;
}

static void look(const char *function)
{
	if (!agent_start)
		return;
	__atomic_add_fetch(&looked, 1, __ATOMIC_RELAXED);
	if (!all_signals_blocked())
		return;
	__atomic_add_fetch(&blocked, 1, __ATOMIC_RELAXED);
	if (!inside_handler())
		return;
	static const char text[] = "detector: called inside the sampling handler: ";
	if (write(2, text, sizeof text - 1) < 0 || write(2, function, strlen(function)) < 0 || write(2, "\n", 1) < 0)
		_exit(98);
	signal(SIGABRT, SIG_DFL);
	abort();
}

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

void *malloc(size_t n) { look("malloc"); return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { look("calloc"); return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { look("realloc"); return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { look("memalign"); return __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { look("aligned_alloc"); return __libc_memalign(a, n); }
void free(void *p) { look("free"); __libc_free(p); }

/* The real function, looked up at the first call by dlvsym, which nobody interposes. */
static void *find(const char *name)
{
	void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5");
	return found ? found : dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
}

#define REAL(name)                                                                                 \
	static __typeof__(name) *real;                                                             \
	if (!real)                                                                                 \
		real = (__typeof__(name) *)find(#name);                                            \
	look(#name);

int pthread_mutex_lock(pthread_mutex_t *m) { REAL(pthread_mutex_lock) return real(m); }
int pthread_mutex_trylock(pthread_mutex_t *m) { REAL(pthread_mutex_trylock) return real(m); }
int pthread_mutex_unlock(pthread_mutex_t *m) { REAL(pthread_mutex_unlock) return real(m); }
int pthread_rwlock_rdlock(pthread_rwlock_t *l) { REAL(pthread_rwlock_rdlock) return real(l); }
int pthread_rwlock_wrlock(pthread_rwlock_t *l) { REAL(pthread_rwlock_wrlock) return real(l); }
int pthread_once(pthread_once_t *o, void (*f)(void)) { REAL(pthread_once) return real(o, f); }
int pthread_setspecific(pthread_key_t k, const void *v) { REAL(pthread_setspecific) return real(k, v); }
void *pthread_getspecific(pthread_key_t k) { REAL(pthread_getspecific) return real(k); }
int dl_iterate_phdr(int (*f)(struct dl_phdr_info *, size_t, void *), void *p)
{
	REAL(dl_iterate_phdr)
	return real(f, p);
}
int dladdr(const void *a, Dl_info *i) { REAL(dladdr) return real(a, i); }
int dlclose(void *h) { REAL(dlclose) return real(h); }
void *mmap(void *a, size_t n, int p, int f, int fd, off_t o) { REAL(mmap) return real(a, n, p, f, fd, o); }
int munmap(void *a, size_t n) { REAL(munmap) return real(a, n); }
FILE *fopen(const char *p, const char *m) { REAL(fopen) return real(p, m); }
int fflush(FILE *f) { REAL(fflush) return real(f); }
size_t fwrite(const void *p, size_t n, size_t m, FILE *f) { REAL(fwrite) return real(p, n, m, f); }
int vfprintf(FILE *f, const char *t, va_list l) { REAL(vfprintf) return real(f, t, l); }
int vsnprintf(char *p, size_t n, const char *t, va_list l) { REAL(vsnprintf) return real(p, n, t, l); }
char *getenv(const char *n) { REAL(getenv) return real(n); }
