/* A library that library_churn loads; -DWORK names the function in which it works. */
#include "burn.h"

BURN(WORK)

void churn_run(void)
{
	WORK(100);
}
