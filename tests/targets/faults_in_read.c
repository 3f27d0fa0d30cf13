/* A system call with 64 page faults, and 16 MiB in another: both must be complete. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The result is used after the call, so that it is not a tail call. */
__attribute__((noinline)) long one_read(int fd, char *to, size_t n)
{
	long got = read(fd, to, n);
	return got == (long)n ? got : -1;
}

static char *fresh(size_t n)
{
	char *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(p, n, MADV_NOHUGEPAGE);
	return p;
}

int main(void)
{
	int zero = open("/dev/zero", O_RDONLY);
	size_t few = 64 * 4096, many = 16 << 20;
	long first = one_read(zero, fresh(few), few);
	long whole = read(zero, fresh(many), many);
	printf("%ld %ld\n", first, whole);
	return 0;
}
