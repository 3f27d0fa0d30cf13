/* Functions that the compiler inlines into each other, several deep. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tree {
    struct tree *left, *right;
    int value;
};

static inline int mix(int a, int b) {
    for (int i = 0; i < 3; i++)
        a = a * 31 + (b ^ i);
    return a;
}

static inline int twice(int a) {
    int x = mix(a, 1);
    if (x & 1)
        x = mix(x, 2);
    return x;
}

static inline unsigned rotate(unsigned x, int by) { return x << by | x >> (32 - by); }

static inline unsigned stir(unsigned state, const unsigned char *bytes) {
    state ^= rotate(bytes[0] | bytes[1] << 8, twice(bytes[2]) & 15);
    return rotate(state, 7) * 0x9e3779b1u;
}

__attribute__((noinline)) static unsigned checksum(const char *text) {
    unsigned state = 1;
    size_t length = strlen(text);
    for (size_t i = 0; i + 3 <= length; i += 3)
        state = stir(state, (const unsigned char *)text + i);
    return state;
}

static int compare(const void *a, const void *b) {
    return twice(*(const int *)a) - twice(*(const int *)b);
}

__attribute__((noinline)) static void scramble(int *values, int count) {
    for (int i = 0; i < count; i++)
        for (int k = i; k < count; k++)
            values[k] = mix(values[k], twice(values[i]));
}

__attribute__((noinline)) static long walk(const struct tree *tree) {
    if (!tree)
        return 0;
    return walk(tree->left) + mix(tree->value, 3) + walk(tree->right);
}

__attribute__((noinline)) static struct tree *fill(int depth, int seed) {
    if (depth == 0)
        return NULL;
    struct tree *tree = malloc(sizeof *tree);
    if (!tree)
        abort();
    tree->value = twice(seed);
    tree->left = fill(depth - 1, mix(seed, 1));
    tree->right = fill(depth - 1, mix(seed, 2));
    return tree;
}

int main(int argc, char **argv) {
    int values[64];
    for (int i = 0; i < 64; i++)
        values[i] = mix(i, argc);
    scramble(values, 64);
    qsort(values, 64, sizeof *values, compare);
    printf("%u %d %ld\n", checksum(argv[0]), values[3], walk(fill(10, argc)));
    return 0;
}
