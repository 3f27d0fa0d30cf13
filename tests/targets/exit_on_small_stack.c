// A handler of SIGSEGV that computes and ends the process by _exit, on an alternate stack with little more room than the
// kernel's frame needs, above a page that cannot be accessed. To the handler that stack must seem to be in use.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

static stack_t stack;

static __attribute__((noinline)) void compute(void) {
    for (volatile uint64_t turn = 0; turn < 100000000; turn++) {
    }
}

static void end(int signal) {
    (void)signal;
    stack_t now;
    char *here = (char *)&now, *low = stack.ss_sp;
    compute();
    int is_on_it = sigaltstack(NULL, &now) == 0 && now.ss_flags == SS_ONSTACK && now.ss_sp == low;
    _exit(is_on_it && here > low && here < low + stack.ss_size ? 7 : 8);
}

int main(void) {
    // The smallest stack that sigaltstack(2) takes, 1 KiB for the handler, and the guard.
    size_t smallest = getauxval(AT_MINSIGSTKSZ) + 1024, bytes = (smallest + 4095) / 4096 * 4096;
    char *pages = mmap(NULL, 4096 + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages, 4096, PROT_NONE);
    stack = (stack_t){.ss_sp = pages + 4096, .ss_size = smallest};
    struct sigaction action = {.sa_handler = end, .sa_flags = SA_ONSTACK};
    if (pages == MAP_FAILED || sigaltstack(&stack, NULL) != 0 || sigaction(SIGSEGV, &action, NULL) != 0)
        return 1;
    puts("computing");
    fflush(stdout);
    for (volatile uint64_t turn = 0; turn < 30000000; turn++) {
    }
    *(volatile char *)pages = 0;
    return 2;
}
