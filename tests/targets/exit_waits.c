// Exits while it watches files. The kernel takes some milliseconds to release each watch. Meanwhile /proc still shows the last thread
// in its last system call, although it has no memory any more.
// usage: exit_waits
#include <poll.h>
#include <pthread.h>
#include <sys/inotify.h>
#include <unistd.h>

static int watches[16];

static void *wait_for_changes(void *unused) {
    struct pollfd watched = {.fd = watches[0], .events = POLLIN};
    poll(&watched, 1, -1);
    return unused;
}

int main(void) {
    for (int i = 0; i < 16; i++)
        if ((watches[i] = inotify_init1(IN_CLOEXEC)) < 0 || inotify_add_watch(watches[i], "/", IN_DELETE_SELF) < 0)
            return 1;
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_for_changes, NULL))
        return 1;
    usleep(50000);
    return 0;
}
