// Tracepoints in templates, inline functions, lambdas and member functions: each hit is an event.
#include "../../agent/include/selfwind.h"

#include <cstdio>
#include <string>

namespace {

template <typename T> T twice(T value) {
	SELFWIND_TRACEPOINT(cxx, twice, SELFWIND_U64_AS(size, sizeof(T)), SELFWIND_F64(static_cast<double>(value)));
	return value + value;
}

} // namespace

inline int plain(int value) {
	SELFWIND_TRACEPOINT(cxx, plain, SELFWIND_I64(value));
	return value;
}

struct Request {
	std::string path;
	std::size_t bytes;
	void serve() const {
		SELFWIND_TRACEPOINT(cxx, request, SELFWIND_STR_AS(path, path.c_str()), SELFWIND_U64(bytes));
	}
};

int main() {
	auto lambda = [](int value) {
		if (value)
			SELFWIND_TRACEPOINT(cxx, lambda, SELFWIND_I64(value));
		else
			SELFWIND_TRACEPOINT(cxx, zero);
	};
	for (int i = 0; i < 100; i++) {
		twice<char>(1);
		twice<double>(i);
		plain(i);
		lambda(i);
		Request{"/index", static_cast<std::size_t>(i)}.serve();
	}
	std::puts("twice 200\nplain 100\nlambda 99\nzero 1\nrequest 100");
}
