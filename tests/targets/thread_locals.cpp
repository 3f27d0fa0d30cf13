// Destructors of thread-local objects: at the end of threads, of main, and of threads created by destructors.
#include "burn.h"
#include <cstdio>
#include <thread>
#include <vector>

BURN(local_destructor_work)
BURN(thread_body_work)

static int ended;

struct Last {
	int alive = 1;
	~Last()
	{
		local_destructor_work(20);
		ended += alive;
	}
};

struct First {
	std::vector<int> numbers = std::vector<int>(1000, 7);
	~First()
	{
		// Made while thread-local objects are being destroyed.
		static thread_local Last late;
		late.alive += numbers[999] - 7;
		local_destructor_work(20);
	}
};

static thread_local First first;
static thread_local Last last;

int main()
{
	int sum = 0;
	for (int i = 0; i < 8; i++)
		std::thread([&sum] {
			sum += first.numbers[5] * last.alive;
			thread_body_work(20);
		}).join();
	sum += first.numbers[1] * last.alive;
	std::printf("sum %d, ended %d\n", sum, ended);
	return 21;
}
