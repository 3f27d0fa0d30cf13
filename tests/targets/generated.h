/* Writing machine code and data byte by byte, and the function that generated code calls in the end. */
#ifndef GENERATED_H
#define GENERATED_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint8_t *put(uint8_t *to, const void *bytes, size_t count)
{
	memcpy(to, bytes, count);
	return to + count;
}

static inline uint8_t *put_int(uint8_t *to, uint64_t value, size_t bytes) { return put(to, &value, bytes); }

static volatile unsigned long sink;

__attribute__((noinline)) void burn(void)
{
	for (int i = 0; i < 300; i++)
		sink += (unsigned long)i * sink;
}
#endif
