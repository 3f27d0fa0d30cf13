// Makes the same function twice at one place, and names it in a map, or in a dump that tells when. Then removes
// its traces. usage: jit map|dump DIRECTORY
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

// mov %rdi,%rax; 1: dec %rax; jnz 1b; ret
static const unsigned char code[] = {0x48, 0x89, 0xf8, 0x48, 0xff, 0xc8, 0x75, 0xfb, 0xc3};

static uint64_t now(clockid_t clock) {
  struct timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void spin(void (*function)(long), double seconds) {
  uint64_t end = now(CLOCK_PROCESS_CPUTIME_ID) + (uint64_t)(seconds * 1e9);
  while (now(CLOCK_PROCESS_CPUTIME_ID) < end) function(1000000);
}

static void load(FILE *dump, void *place, uint64_t index, const char *name) {
  struct { uint32_t id, size; uint64_t time; uint32_t pid, tid; uint64_t vma, address, size_of_code, index; } record = {
      0, 0, now(CLOCK_MONOTONIC), getpid(), getpid(), (uintptr_t)place, (uintptr_t)place, sizeof code, index};
  record.size = sizeof record + strlen(name) + 1 + sizeof code;
  fwrite(&record, sizeof record, 1, dump);
  fwrite(name, strlen(name) + 1, 1, dump);
  fwrite(code, sizeof code, 1, dump);
  fflush(dump);
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  int timed = !strcmp(argv[1], "dump");
  void *place = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memcpy(place, code, sizeof code);
  char path[4096];
  if (timed) snprintf(path, sizeof path, "%s/jit-%d.dump", argv[2], getpid());
  else snprintf(path, sizeof path, "/tmp/perf-%d.map", getpid());
  FILE *file = fopen(path, "w+");
  if (!file) return 3;
  if (timed) {
    struct { uint32_t magic, version, size, machine, pad, pid; uint64_t time, flags; } header = {
        0x4A695444, 1, sizeof header, 62, 0, getpid(), now(CLOCK_MONOTONIC), 0};
    fwrite(&header, sizeof header, 1, file);
    fflush(file);
    if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(file), 0) == MAP_FAILED) return 4;
    load(file, place, 1, "first");
    spin(place, 0.5);
    load(file, place, 2, "second");
    spin(place, 0.5);
  } else {
    fprintf(file, "%lx %zx made;by:hand\n", (unsigned long)place, sizeof code);
    fflush(file);
    spin(place, 0.8);
  }
  fclose(file);
  unlink(path);
  return 0;
}
