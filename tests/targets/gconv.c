/* Converts between character sets for which the C library itself loads a library, bypassing dlopen. */
#include "burn.h"
#include <iconv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char in[1 << 16], out[1 << 18];

__attribute__((noinline)) static int convert(iconv_t how, unsigned ms)
{
	uint64_t end = thread_cpu_ns() + ms * 1000000ull;
	int rounds = 0;
	do {
		char *from = in, *to = out;
		size_t left = sizeof in, room = sizeof out;
		if (iconv(how, &from, &left, &to, &room) == (size_t)-1)
			return -1;
		rounds++;
	} while (thread_cpu_ns() < end);
	return rounds;
}

int main(void)
{
	memset(in, 'x', sizeof in);
	iconv_t how = iconv_open("UTF-16", "ISO-8859-2");
	if (how == (iconv_t)-1) {
		puts("no such conversion");
		return 77;
	}
	int rounds = convert(how, 300);
	puts(rounds > 0 ? "converted" : "failed");
	return rounds > 0 ? 40 : 1;
}
