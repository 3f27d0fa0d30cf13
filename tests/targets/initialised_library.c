// A library that computes while it is loaded: in the resolver of an indirect function, and in a constructor. In an indirect
// function's resolver other libraries may not be called yet, so the work is counted, not timed.
#define STEPS 300000000u

__attribute__((noinline)) static void in_resolver(void) {
  for (volatile unsigned step = 0; step < STEPS; step++)
    ;
}

__attribute__((noinline)) static void in_constructor(void) {
  for (volatile unsigned step = 1; step < STEPS; step++)
    ;
}

static int answer(void) { return 0; }

static void *resolve(void) {
  in_resolver();
  return (void *)answer;
}

int indirect(void) __attribute__((ifunc("resolve")));

__attribute__((constructor)) static void construct(void) { in_constructor(); }

int call(void) { return indirect(); }
