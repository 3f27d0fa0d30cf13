/* A hundred functions that call each other, each in a page of its own, with only a frame pointer to find its caller: to be
 * compiled without call frame information. */
#include "burn.h"
#include <stdio.h>

BURN(innermost)

#define PAGE(name, callee)                                                                        \
	__attribute__((noipa, aligned(4096))) static int name(int n) { return callee(n + 1) + n; }
#define TEN(ten, first)                                                                           \
	PAGE(ten##0, first) PAGE(ten##1, ten##0) PAGE(ten##2, ten##1) PAGE(ten##3, ten##2)        \
	PAGE(ten##4, ten##3) PAGE(ten##5, ten##4) PAGE(ten##6, ten##5) PAGE(ten##7, ten##6)       \
	PAGE(ten##8, ten##7) PAGE(ten##9, ten##8)

__attribute__((noinline)) static int last(int n)
{
	innermost(400);
	return n;
}

TEN(page_0, last)
TEN(page_1, page_09)
TEN(page_2, page_19)
TEN(page_3, page_29)
TEN(page_4, page_39)
TEN(page_5, page_49)
TEN(page_6, page_59)
TEN(page_7, page_69)
TEN(page_8, page_79)
TEN(page_9, page_89)

int main(void)
{
	printf("%d\n", page_99(0));
	return 35;
}
