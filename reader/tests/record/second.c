// Maps its own code once more and works there, as V8 does with its built-in functions. usage: second MILLISECONDS
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// Refers to nothing, so that it works at any place.
__attribute__((noinline, noclone)) unsigned toil(unsigned x) {
  for (volatile unsigned i = 0; i < 100000; i++) x = x * 2654435761u ^ x >> 15;
  return x;
}

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return time.tv_sec * 1000ull + time.tv_nsec / 1000000;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  FILE *maps = fopen("/proc/self/maps", "r");
  char line[4096];
  unsigned long start = 0, end = 0, offset = 0, here = (unsigned long)toil;
  while (fgets(line, sizeof line, maps))
    if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && start <= here && here < end) break;
  fclose(maps);
  int file = open("/proc/self/exe", O_RDONLY);
  char *place = mmap(0, end - start, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, offset);
  close(file);
  if (place == MAP_FAILED) return 3;
  unsigned (*moved)(unsigned) = (unsigned (*)(unsigned))(place + (here - start));
  uint64_t until = now() + atoi(argv[1]);
  volatile unsigned x = 1;
  while (now() < until) x = moved(x);
  return 0;
}
