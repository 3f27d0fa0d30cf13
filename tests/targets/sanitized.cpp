// A program with a sanitizer, whose runtime interposes the same functions as the agent.
#include <csignal>
#include <cstdio>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

static std::mutex guard;
static long total;

__attribute__((noinline)) void sanitized_work(int seed) {
  long sum = 0;
  for (int round = 0; round < 600; round++) {
    auto numbers = std::make_unique<std::vector<long>>(20000, seed + round);
    sum += std::accumulate(numbers->begin(), numbers->end(), 0L) % 1000;
  }
  std::lock_guard<std::mutex> held(guard);
  total += sum;
}

int main() {
  std::signal(SIGUSR1, [](int) {});
  std::thread threads[4];
  for (int i = 0; i < 4; i++) threads[i] = std::thread(sanitized_work, i);
  for (auto &thread : threads) thread.join();
  std::raise(SIGUSR1);
  std::printf("total %ld\n", total);
  return 29;
}
