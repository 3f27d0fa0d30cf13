// A program that the loader needs some milliseconds to relocate. It starts itself ten times each by fork and exec, by
// vfork and exec, and by posix_spawn, and prints the CPU time of all in nanoseconds.
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define MANY (1 << 19)

static int one;
// A relocation for each.
int *volatile addresses[MANY] = {[0 ... MANY - 1] = &one};

static char *arguments[] = {"slow_start", "child", NULL};

static pid_t started(int how, const char *program) {
    pid_t pid = -1;
    if (how == 0)
        return posix_spawn(&pid, program, NULL, NULL, arguments, environ) == 0 ? pid : -1;
    pid = how == 1 ? vfork() : fork();
    if (pid == 0) {
        execve(program, arguments, environ);
        _exit(9);
    }
    return pid;
}

static long used(int whose) {
    struct rusage usage;
    getrusage(whose, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000L
        + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000L;
}

int main(int count, char **given) {
    if (count > 1)
        return 0;
    for (int number = 0; number < 30; number++) {
        int status = -1;
        pid_t pid = started(number % 3, given[0]);
        if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
            return 1;
    }
    printf("%ld\n", used(RUSAGE_SELF) + used(RUSAGE_CHILDREN));
    return 0;
}
