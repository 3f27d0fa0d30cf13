/* A library with tracepoints that `tracepoints libraries` loads and unloads. */
#include "../../agent/include/selfwind.h"

__attribute__((constructor)) static void constructor(void) { SELFWIND_TRACEPOINT(app, constructor); }

long run(long round)
{
	for (int n = 0; n < 5; n++)
		SELFWIND_TRACEPOINT(app, library, SELFWIND_I64(round), SELFWIND_I64(n));
	return 5;
}
