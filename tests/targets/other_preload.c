/* A typical preloaded library: it interposes functions that the agent may use or interpose itself, and finds the real ones
 * by dlsym at the first call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define REAL(name)                                                                                 \
	static __typeof__(name) *real;                                                             \
	if (!real)                                                                                 \
		real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);

int dl_iterate_phdr(int (*f)(struct dl_phdr_info *, size_t, void *), void *p)
{
	REAL(dl_iterate_phdr)
	return real(f, p);
}

int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *p)
{
	REAL(pthread_create)
	return real(t, a, f, p);
}

int pthread_key_create(pthread_key_t *k, void (*f)(void *))
{
	REAL(pthread_key_create)
	return real(k, f);
}

int pthread_setspecific(pthread_key_t k, const void *v)
{
	REAL(pthread_setspecific)
	return real(k, v);
}

int sigaction(int s, const struct sigaction *a, struct sigaction *o)
{
	REAL(sigaction)
	return real(s, a, o);
}

int execve(const char *path, char *const argv[], char *const envp[])
{
	REAL(execve)
	return real(path, argv, envp);
}

__attribute__((constructor)) static void start(void)
{
	/* Constructors run in library order: this one may come before the agent's. */
	void (*nothing)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "nobody has this");
	if (nothing)
		nothing();
}
