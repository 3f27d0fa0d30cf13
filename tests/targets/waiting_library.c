// The library that short_waits loads.
#include <time.h>

void library_waits(void) {
    nanosleep(&(struct timespec){0, 20000000}, NULL);
    __asm__ volatile("");
}
