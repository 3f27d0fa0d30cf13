// Two threads that pass a byte back and forth, each waiting for it in poll, which SA_RESTART does not restart. Prints
// the number of waits, and how many of them ended with EINTR.
// usage: wall_waits WAITS
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static long rounds, interrupted;
static int there[2], back[2];

static void take(int from) {
    struct pollfd wait = {from, POLLIN, 0};
    char byte;
    while (poll(&wait, 1, -1) < 0) {
        if (errno != EINTR)
            abort();
        __atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
    }
    if (read(from, &byte, 1) != 1)
        abort();
}

static void give(int to) {
    if (write(to, "", 1) != 1)
        abort();
}

static void *answers(void *argument) {
    (void)argument;
    for (long round = 0; round < rounds; round++) {
        take(there[0]);
        give(back[1]);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    rounds = (argc > 1 ? atol(argv[1]) : 1000) / 2;
    if (pipe(there) || pipe(back) || pthread_create(&thread, NULL, answers, NULL))
        return 1;
    for (long round = 0; round < rounds; round++) {
        give(there[1]);
        take(back[0]);
    }
    pthread_join(thread, NULL);
    printf("%ld %ld\n", 2 * rounds, interrupted);
    return 0;
}
