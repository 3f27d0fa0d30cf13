/* The program of the documentation: four threads that use 40, 30, 20 and 10 percent of the CPU time, each in a function
 * of its own. */
#include "burn.h"
#include <pthread.h>
#include <stdio.h>

BURN(parse)
BURN(evaluate)
BURN(render)
BURN(write_out)

static void *parser(void *p) { parse(160); return p; }
static void *evaluator(void *p) { evaluate(120); return p; }
static void *renderer(void *p) { render(80); return p; }
static void *writer(void *p) { write_out(40); return p; }

int main(void)
{
	void *(*work[4])(void *) = { parser, evaluator, renderer, writer };
	pthread_t thread[4];
	for (int i = 0; i < 4; i++)
		if (pthread_create(&thread[i], 0, work[i], 0))
			return 1;
	for (int i = 0; i < 4; i++)
		pthread_join(thread[i], 0);
	puts("job done");
	return 0;
}
