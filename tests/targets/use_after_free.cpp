// Reads a block after its end, for a sanitizer, whose report says where the block was allocated.
#include <cstdio>

__attribute__((noinline)) char *make_block(int size) {
    char *block = new char[size];
    block[0] = 1;
    return block;
}

int main(int count, char **) {
    char *block = make_block(100 * count);
    delete[] block;
    std::printf("%d\n", block[0]);
    return 0;
}
