// Waits at a std::atomic, whose library calls futex itself. Prints how many, and how long they took.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

using namespace std::chrono;

static std::atomic<int> round{0}, seen{0};

[[gnu::noinline]] static void wait_atomic(int last) { round.wait(last); }
[[gnu::noinline]] static void hold_atomic(int next) {
    std::this_thread::sleep_for(milliseconds(2));
    round.store(next);
    round.notify_one();
    asm volatile("" ::: "memory");
}

int main() {
    constexpr int rounds = 20;
    std::thread other([] {
        for (int next = 1; next <= rounds; next++) {
            while (seen.load() < next)
                std::this_thread::sleep_for(microseconds(50));
            hold_atomic(next);
        }
    });
    long long ns = 0;
    for (int last = 0; last < rounds; last++) {
        seen.store(last + 1);
        auto begun = steady_clock::now();
        wait_atomic(last);
        ns += duration_cast<nanoseconds>(steady_clock::now() - begun).count();
    }
    other.join();
    std::printf("atomic %d %lld\n", rounds, ns);
}
