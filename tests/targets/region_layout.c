/* The structures of selfwind.h, and its results without an agent. Prints the results of registering: with the agent, the
 * errors for each invalid request. Also built as C++. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#include "selfwind.h"

#ifdef __cplusplus
#define SAME(a, b) static_assert((a) == (b), #a)
#else
#define SAME(a, b) _Static_assert((a) == (b), #a)
#endif
SAME(sizeof(struct selfwind_registers), 272);
SAME(sizeof(struct selfwind_frame), 20);
SAME(sizeof(struct selfwind_unwinder), 40);
SAME(sizeof(struct selfwind_walk), 360);
SAME(offsetof(struct selfwind_walk, state), 288);

static int unwind(struct selfwind_walk *walk)
{
	(void)walk;
	return SELFWIND_NOT_MINE;
}

static int add(struct selfwind_unwinder unwinder, uint64_t start, uint64_t end)
{
	return selfwind_add_region(&unwinder, start, end);
}

int main(void)
{
	struct selfwind_unwinder good = { sizeof good, SELFWIND_ABI_VERSION, "layout", unwind, 0, 0 };
	struct selfwind_unwinder bad[6] = { good, good, good, good, good, good };
	int all = 0;
	bad[0].size = 8;
	bad[1].version = 99;
	bad[2].language = "not;one";
	bad[3].language = "k";
	bad[4].language = 0;
	bad[5].unwind = 0;
	printf("agent %d\n", selfwind_agent() != 0);
	int first = add(good, 4096, 8192);
	printf("first %d\n", first > 0 ? 1 : first);
	printf("again %d %d %d\n", add(good, 4096, 8192), add(good, 8191, 9000), add(good, 1, 4097));
	for (int n = 0; n < 6; n++)
		all += add(bad[n], 10000, 20000) == -EINVAL;
	all += add(good, 20000, 10000) == -EINVAL;
	all += add(good, 5, 5) == -EINVAL;
	all += add(good, 5, UINT64_MAX) == -EINVAL;
	all += selfwind_add_region(0, 5, 6) == -EINVAL;
	printf("refused %d\n", all);
	printf("symbols %d %d\n", selfwind_add_symbol(&good, "no_such_function"), selfwind_add_symbol(&good, "qsort") > 0);
	int removed[] = { selfwind_remove(first), selfwind_remove(first), selfwind_remove(-1) };
	printf("removed %d %d %d\n", removed[0], removed[1], removed[2]);
	uint32_t name = selfwind_name("a", 1);
	printf("names %d %d\n", name != 0, name == selfwind_name("a", 1));
	/* As many as permitted. */
	int count = 0, last = 0;
	while ((last = add(good, 100000 + 16 * (uint64_t)count, 100016 + 16 * (uint64_t)count)) > 0)
		count++;
	printf("most %d %d\n", count, last);
	return 0;
}
