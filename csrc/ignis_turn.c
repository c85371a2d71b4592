#include "ignis_turn.h"

#include <errno.h>

#include "ignis_wait.h"

enum { FREE, TAKEN, AWAITED };

#define CROWD 2u

bool ign_turn_take(ign_turn *turn, uint64_t timeout_ns)
{
    uint32_t free = FREE, generation = ign_fork_generation();
    if (atomic_load_explicit(&turn->generation, memory_order_relaxed) != generation) {
        atomic_store_explicit(&turn->generation, generation, memory_order_relaxed);
        atomic_store_explicit(&turn->word, FREE, memory_order_relaxed); /* who had it is not in this process */
        atomic_store_explicit(&turn->waiting, 0, memory_order_relaxed);
    }
    if (atomic_compare_exchange_strong_explicit(&turn->word, &free, TAKEN, memory_order_acquire, memory_order_relaxed))
        return true;
    int kept = errno;
    bool ours = true;
    /* The word says AWAITED from here on as long as anybody may sleep, so that each who gives it wakes the next. */
    uint64_t until = ign_now_ns() + timeout_ns;
    atomic_fetch_add_explicit(&turn->waiting, 1, memory_order_relaxed);
    while (atomic_exchange_explicit(&turn->word, AWAITED, memory_order_acquire) != FREE) {
        uint64_t now = ign_now_ns();
        if (now >= until) {
            ours = false;
            break;
        }
        (void)ign_futex_wait(&turn->word, AWAITED, until - now);
    }
    atomic_fetch_sub_explicit(&turn->waiting, 1, memory_order_relaxed);
    errno = kept;
    return ours;
}

void ign_turn_give(ign_turn *turn)
{
    int kept = errno;
    if (atomic_exchange_explicit(&turn->word, FREE, memory_order_release) == AWAITED)
        ign_futex_wake_one(&turn->word);
    errno = kept;
}

bool ign_turn_crowded(const ign_turn *turn)
{
    return atomic_load_explicit(&turn->waiting, memory_order_relaxed) >= CROWD &&
           atomic_load_explicit(&turn->generation, memory_order_relaxed) == ign_fork_generation();
}
