// The single-step workload of C++: throw and catch through cleanups, rethrow, from callbacks and virtual calls.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

static volatile long sink;

static void on_outside(int) { sink = sink + 1; }

struct Base {
	virtual ~Base() = default;
	virtual int act(int n) = 0;
};

struct Thrower : Base {
	std::string text = "a text too long for the small string buffer of the library";
	__attribute__((noinline)) int act(int n) override
	{
		if (n == 0)
			throw std::runtime_error(text);
		std::unique_ptr<Base> next(new Thrower);
		return next->act(n - 1) + 1;
	}
};

__attribute__((noinline)) static int rethrow(int n)
{
	try {
		return Thrower().act(n);
	} catch (const std::logic_error &) {
		return 1;
	} catch (...) {
		sink = sink + 1;
		throw;
	}
}

__attribute__((noinline)) static int catches(int n)
{
	try {
		return rethrow(n);
	} catch (const std::exception &e) {
		return e.what()[0];
	}
}

int main()
{
	std::signal(SIGUSR1, on_outside);
	long sum = 0;
	for (int n = 0; n < 3; n++)
		sum += catches(n);
	std::vector<std::string> words{"pear", "apple", "fig", "a word beyond the small buffer"};
	try {
		std::sort(words.begin(), words.end(), [](const std::string &a, const std::string &b) {
			if (a == "fig" || b == "fig")
				throw 5;
			return a < b;
		});
	} catch (int n) {
		sum += n;
	}
	std::printf("sum %ld\n", sum);
	return 62;
}
