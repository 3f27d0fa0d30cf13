// Loads the library at the given path, by a path or by a name that the loader searches.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  int (*call)(void) = (int (*)(void))dlsym(library, "call");
  return call ? call() : 2;
}
