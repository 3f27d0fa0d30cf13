// C++ exceptions through many frames, out of a thread's start and across destructors, while sampled.
extern "C" {
#include "burn.h"
}
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

extern "C" {
BURN(throw_work)
}

struct Guard {
	long &count;
	~Guard() { count++; }
};

__attribute__((noinline)) static int climb(int n, long &count)
{
	Guard guard{count};
	if (n == 0)
		throw std::runtime_error("at the bottom " + std::to_string(count));
	return climb(n - 1, count) + 1;
}

static long rounds(int ms)
{
	long caught = 0, destroyed = 0;
	uint64_t until = thread_cpu_ns() + ms * 1000000ull;
	while (thread_cpu_ns() < until) {
		for (int i = 0; i < 20; i++) {
			try {
				climb(30, destroyed);
			} catch (const std::exception &e) {
				caught++;
			}
		}
	}
	throw_work(100);
	return destroyed - caught * 31;
}

int main()
{
	long other = -1;
	std::thread thread([&] { other = rounds(300); });
	long mine = rounds(300);
	thread.join();
	std::printf("unbalanced %ld %ld\n", mine, other);
	return 50;
}
