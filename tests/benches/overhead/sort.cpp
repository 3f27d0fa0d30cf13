// Two threads that allocate, fill and sort: an allocator-heavy program without frame pointers.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

static uint64_t work(uint64_t random) {
  uint64_t sum = 0;
  for (int round = 0; round < 18; round++) {
    std::vector<std::unique_ptr<std::string>> words;
    for (int i = 0; i < 60000; i++) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      words.push_back(std::make_unique<std::string>(std::to_string(random) + "-a-word"));
    }
    std::sort(words.begin(), words.end(), [](const auto &a, const auto &b) { return *a < *b; });
    for (size_t i = 0; i < words.size(); i += 1000) sum += (*words[i])[0];
  }
  return sum;
}

int main() {
  uint64_t sums[2];
  std::thread other([&] { sums[1] = work(2); });
  sums[0] = work(1);
  other.join();
  std::printf("%llu\n", (unsigned long long)(sums[0] + sums[1]));
}
