// Prints which file each of some functions is bound to, one a line: NAME FILE.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define SHOW(name) show(#name, (void *)&name)

static void show(const char *name, void *function) {
    Dl_info info;
    printf("%s %s\n", name, dladdr(function, &info) != 0 ? info.dli_fname : "?");
}

int main(void) {
    SHOW(malloc);
    SHOW(free);
    SHOW(pthread_mutex_lock);
    SHOW(pthread_cond_wait);
    SHOW(sem_wait);
    SHOW(mmap);
    SHOW(munmap);
    return 0;
}
