/* A turn: of many threads that want the same thing one at a time waits for it, and the others sleep until it is theirs.
 *
 * For what is dear to wait for, such as CPython's interpreter lock: each thread that waits for it wakes after every switch
 * interval (5 ms) to ask for it, and with a thousand of them the system does little else. Whoever comes back from C takes
 * the turn first, then the lock, then gives the turn. Nothing is protected by it: after a bound a thread goes on without.
 */
#ifndef IGNIS_TURN_H
#define IGNIS_TURN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* All zero = free. Within one process: a forked child finds it free, whoever had it in the parent. */
typedef struct ign_turn {
    _Atomic uint32_t word; /* 0 free, 1 taken, 2 taken and perhaps awaited */
    _Atomic uint32_t generation;
    _Atomic uint32_t waiting; /* how many wait for it */
} ign_turn;

/* Waits for the turn for at most so long. True when it is ours, to be given; false after the bound. Both keep errno: what the
 * thread comes back with may be a failure that is still to be told. */
bool ign_turn_take(ign_turn *turn, uint64_t timeout_ns);
void ign_turn_give(ign_turn *turn);

/* Whether several wait for it: who lets go of what it is for now gets it back behind them. A hint. */
bool ign_turn_crowded(const ign_turn *turn);

#endif
