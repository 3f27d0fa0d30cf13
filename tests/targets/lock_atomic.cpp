// Waits on a std::atomic, whose library calls futex directly. Prints each wait as lock_sites does: all are taken for blocked.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

static std::atomic<int> round{0}, seen{0};

extern "C" [[gnu::noinline]] void wait_atomic(int last) {
    round.wait(last);
    asm volatile("" ::: "memory");
}
extern "C" [[gnu::noinline]] void hold_atomic(int next) {
    std::this_thread::sleep_for(200ms);
    round.store(next);
    round.notify_one();
    asm volatile("" ::: "memory");
}

static long long ns(std::chrono::nanoseconds time) { return time.count(); }

int main() {
    constexpr int rounds = 5;
    std::thread other([] {
        for (int next = 1; next <= rounds; next++) {
            while (seen.load() < next)
                std::this_thread::sleep_for(50us);
            hold_atomic(next);
        }
    });
    for (int last = 0; last < rounds; last++) {
        seen.store(last + 1);
        auto start = Clock::now();
        wait_atomic(last);
        auto took = Clock::now() - start;
        std::printf("atomic %lld %lld 0 1\n", ns(start.time_since_epoch()), ns(took));
    }
    other.join();
}
