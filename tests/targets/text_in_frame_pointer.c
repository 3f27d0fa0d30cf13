// A function that keeps the address of text in the frame pointer register, as compilers do by default: what the
// kernel takes for the caller's return address is no address.

#include <string.h>

static char words[16] __attribute__((aligned(16)));

int main(void) {
    memcpy(words + 8, "no caller", 8);
    unsigned left = 400000000;
    __asm__ volatile(
        "push %%rbp\n\t"
        "mov %[words], %%rbp\n"
        "1:\n\t"
        "dec %[left]\n\t"
        "jnz 1b\n\t"
        "pop %%rbp"
        : [left] "+r"(left)
        : [words] "r"(words)
        : "memory", "cc");
    return 0;
}
