/* Sites that map memory in known ways. Prints per site the mappings and bytes made, and the mappings that are partly live
 * with their live bytes.
 *   map_sites ROUNDS [wait]
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define NOINLINE __attribute__((noinline, noclone))

enum { RW = PROT_READ | PROT_WRITE, OWN = MAP_PRIVATE | MAP_ANONYMOUS };
static int rounds;
static FILE *file;

static void *must(void *address)
{
	if (address == MAP_FAILED)
		abort();
	return address;
}

static void unmap(void *address, size_t bytes)
{
	if (munmap(address, bytes))
		abort();
}

#define SAY(site, objects, bytes, left, rest) \
	printf("%s %lu %lu %lu %lu\n", #site, (unsigned long)(objects), (unsigned long)(bytes), (unsigned long)(left), \
	       (unsigned long)(rest))

/* All of it is unmapped. */
NOINLINE void site_passing(void)
{
	for (int i = 0; i < rounds; i++)
		unmap(must(mmap(0, 5 * PAGE + 1, RW, OWN, -1, 0)), 5 * PAGE + 1);
	SAY(site_passing, rounds, rounds * 6ul * PAGE, 0, 0);
}

/* All of it is kept. */
NOINLINE void site_kept(void)
{
	for (int i = 0; i < rounds; i++)
		must(mmap64(0, 3 * PAGE, RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	SAY(site_kept, rounds, rounds * 3ul * PAGE, rounds, rounds * 3ul * PAGE);
}

/* The head, a middle part and the tail are unmapped: two parts remain. */
NOINLINE void site_parts(void)
{
	for (int i = 0; i < rounds; i++) {
		char *at = must(mmap(0, 10 * PAGE, RW, OWN, -1, 0));
		unmap(at, PAGE);
		unmap(at + 4 * PAGE, 2 * PAGE);
		unmap(at + 9 * PAGE, PAGE);
	}
	SAY(site_parts, rounds, rounds * 10ul * PAGE, rounds, rounds * 6ul * PAGE);
}

/* Parts of a reservation are mapped over. */
NOINLINE void *site_reserved(void)
{
	void *at = must(mmap(0, (size_t)rounds * 4 * PAGE, PROT_NONE, OWN | MAP_NORESERVE, -1, 0));
	SAY(site_reserved, 1, rounds * 4ul * PAGE, 1, rounds * 2ul * PAGE);
	return at;
}

NOINLINE void site_fixed(char *reserved)
{
	for (int i = 0; i < rounds; i++)
		must(mmap(reserved + (size_t)i * 4 * PAGE + PAGE, 2 * PAGE, RW, OWN | MAP_FIXED, -1, 0));
	SAY(site_fixed, rounds, rounds * 2ul * PAGE, rounds, rounds * 2ul * PAGE);
}

/* Growing makes another mapping; shrinking keeps it. */
NOINLINE void site_shrunk(void)
{
	for (int i = 0; i < rounds; i++)
		must(mremap(must(mmap(0, 8 * PAGE, RW, OWN, -1, 0)), 8 * PAGE, 3 * PAGE, 0));
	SAY(site_shrunk, rounds, rounds * 8ul * PAGE, rounds, rounds * 3ul * PAGE);
}

NOINLINE void *site_small(void)
{
	return must(mmap(0, 2 * PAGE, RW, OWN, -1, 0));
}

NOINLINE void site_grown(void)
{
	for (int i = 0; i < rounds; i++)
		must(mremap(site_small(), 2 * PAGE, 20 * PAGE, MREMAP_MAYMOVE));
	SAY(site_small, rounds, rounds * 2ul * PAGE, 0, 0);
	SAY(site_grown, rounds * 2, rounds * 22ul * PAGE, rounds, rounds * 20ul * PAGE);
}

NOINLINE void site_file(void)
{
	for (int i = 0; i < rounds; i++)
		must(mmap(0, 7 * PAGE, PROT_READ, MAP_PRIVATE, fileno(file), 0));
	SAY(site_file, rounds, rounds * 7ul * PAGE, rounds, rounds * 7ul * PAGE);
}

/* Failed calls change nothing. */
NOINLINE void site_refused(void)
{
	char *at = must(mmap(0, 4 * PAGE, RW, OWN, -1, 0));
	if (mmap(0, 0, RW, OWN, -1, 0) != MAP_FAILED || mmap(at, PAGE, RW, OWN | 0x100000, -1, 0) != MAP_FAILED)
		abort();
	if (!munmap(at + 1, PAGE) || !munmap(at, 0))
		abort();
	if (mremap(at, 4 * PAGE, (size_t)1 << 46, MREMAP_MAYMOVE) != MAP_FAILED)
		abort();
	SAY(site_refused, 1, 4 * PAGE, 1, 4 * PAGE);
}

/* Each thread unmaps what the previous one has mapped. */
#define THREADS 4
#define HANDED 64
static void *handed[THREADS][HANDED];
static pthread_barrier_t barrier;

NOINLINE void *site_threads(void *argument)
{
	long me = (long)argument;
	for (int i = 0; i < rounds; i++) {
		for (int j = 0; j < HANDED; j++)
			handed[me][j] = must(mmap(0, (j % 5 + 1) * PAGE, RW, OWN, -1, 0));
		pthread_barrier_wait(&barrier);
		for (int j = 0; j < HANDED; j++)
			if (i + 1 < rounds || j % 2)
				unmap(handed[(me + 1) % THREADS][j], (j % 5 + 1) * PAGE);
		pthread_barrier_wait(&barrier);
	}
	return 0;
}

static void with_threads(void)
{
	pthread_t threads[THREADS];
	unsigned long bytes = 0, left = 0;
	pthread_barrier_init(&barrier, 0, THREADS);
	for (long i = 0; i < THREADS; i++)
		pthread_create(&threads[i], 0, site_threads, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], 0);
	for (int j = 0; j < HANDED; j++) {
		bytes += THREADS * (j % 5 + 1) * PAGE;
		left += j % 2 ? 0 : THREADS * (j % 5 + 1) * PAGE;
	}
	SAY(site_threads, (unsigned long)rounds * THREADS * HANDED, rounds * bytes, THREADS * HANDED / 2, left);
}

/* A child unmaps inherited memory, which stays mapped in its parent, and maps some of its own. */
NOINLINE void site_child(void)
{
	char *at = must(mmap(0, 9 * PAGE, RW, OWN, -1, 0));
	pid_t child = fork();
	if (!child) {
		unmap(at, 9 * PAGE);
		must(mmap(0, 11 * PAGE, RW, OWN, -1, 0));
		exit(0);
	}
	int status = -1;
	if (waitpid(child, &status, 0) != child || status)
		abort();
	SAY(site_child, 2, 20 * PAGE, 2, 20 * PAGE);
}

int main(int count, char **arguments)
{
	rounds = count > 1 ? atoi(arguments[1]) : 10;
	setvbuf(stdout, 0, _IOLBF, 0);
	file = tmpfile();
	if (!file || ftruncate(fileno(file), 7 * PAGE))
		return 1;
	site_passing();
	site_kept();
	site_parts();
	site_fixed(site_reserved());
	site_shrunk();
	site_grown();
	site_file();
	site_refused();
	with_threads();
	fflush(stdout);
	site_child();
	if (count > 2)
		pause();
	return 0;
}
