// The ring of rigtorp::SPSCQueue under the load of csrc/tests/bench_ring.c, one entry at a time: the same entries, capacities, cores and
// pauses, order checked inside the loop. One JSON line per measurement:
//   rigtorp_ring [entries] [core of the producer] [core of the consumer]
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <rigtorp/SPSCQueue.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>

#ifdef __linux__
#include <pthread.h>
#include <sched.h>
#endif

namespace {

struct Entry { // as ign_ring_entry
    uint32_t slot;
    uint32_t generation;
    uint32_t length;
    uint16_t offset;
    uint16_t kind;
};
static_assert(sizeof(Entry) == 16);

int cores[2] = {0, 1};

void pin(int core)
{
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(core), &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof set, &set) != 0)
        std::fprintf(stderr, "could not pin to core %d\n", core);
#else
    (void)core;
#endif
}

void relax()
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

void measure(const char *name, size_t capacity, int pause, uint64_t count)
{
    rigtorp::SPSCQueue<Entry> queue(capacity);
    std::atomic<int> ready{0};
    auto meet = [&] {
        ready++;
        while (ready != 2)
            std::this_thread::yield();
    };
    auto rest = [&] {
        for (int i = 0; i < pause; i++)
            relax();
    };
    std::thread producer([&] {
        pin(cores[0]);
        meet();
        for (uint64_t next = 0; next < count;) {
            if (queue.try_push(Entry{static_cast<uint32_t>(next), 0, 100, 0, 0}))
                next++;
            else
                rest();
        }
    });
    pin(cores[1]);
    meet();
    const auto began = std::chrono::steady_clock::now();
    for (uint64_t next = 0; next < count;) {
        const Entry *entry = queue.front();
        if (entry == nullptr) {
            rest();
            continue;
        }
        if (entry->slot != static_cast<uint32_t>(next)) {
            std::fprintf(stderr, "entry %" PRIu64 " came as %" PRIu32 "\n", next, entry->slot);
            std::exit(1);
        }
        queue.pop();
        next++;
    }
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    producer.join();
    std::printf("{\"bench\": \"%s\", \"bulk\": 1, \"size\": 0, \"n\": %" PRIu64 ", \"per_second\": %.0f}\n", name, count,
                static_cast<double>(count) / took);
}

} // namespace

int main(int argc, char **argv)
{
    const uint64_t count = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 50000000;
    if (argc > 3) {
        cores[0] = std::atoi(argv[2]);
        cores[1] = std::atoi(argv[3]);
    }
    measure("ring", 4096, 64, count);
    measure("ring_always_empty", 4096, 0, count / 4);
    measure("ring_always_full", 16, 0, count / 4);
}
