// Has the kernel's workers read for it (io_uring), which takes CPU time of its process, but runs none of its code.

#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENTRIES 4
#define READS 60
#define BYTES (64u << 20)

static void *map(int ring, size_t bytes, off_t what)
{
	return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
}

int main(void)
{
	struct io_uring_params parameters;
	memset(&parameters, 0, sizeof parameters);
	int ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &parameters);
	int zeros = open("/dev/zero", O_RDONLY);
	if (ring < 0 || zeros < 0) {
		puts("unsupported");
		return 0;
	}
	char *submissions = map(ring, parameters.sq_off.array + ENTRIES * sizeof(uint32_t), IORING_OFF_SQ_RING);
	char *completions = map(ring, parameters.cq_off.cqes + 2 * ENTRIES * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
	struct io_uring_sqe *entry = map(ring, ENTRIES * sizeof *entry, IORING_OFF_SQES);
	void *buffer = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (submissions == MAP_FAILED || completions == MAP_FAILED || entry == MAP_FAILED || buffer == MAP_FAILED)
		return 1;
	int failed = 0;
	for (int i = 0; i < READS; i++) {
		uint32_t *tail = (uint32_t *)(submissions + parameters.sq_off.tail);
		uint32_t *array = (uint32_t *)(submissions + parameters.sq_off.array);
		memset(entry, 0, sizeof *entry);
		entry->opcode = IORING_OP_READ;
		entry->flags = IOSQE_ASYNC;
		entry->fd = zeros;
		entry->addr = (uintptr_t)buffer;
		entry->len = BYTES;
		array[*tail % ENTRIES] = 0;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		uint32_t *head = (uint32_t *)(completions + parameters.cq_off.head);
		struct io_uring_cqe *done = (struct io_uring_cqe *)(completions + parameters.cq_off.cqes);
		failed += done[*head % parameters.cq_entries].res != (int)BYTES;
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	}
	printf("%d of %d failed\n", failed, READS);
	return 0;
}
