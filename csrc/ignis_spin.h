/* Looking for what comes next before an event loop sleeps, where that has come soon of late.
 *
 * Who sends one request at a time is back some 50 µs after its answer. A core that sleeps until then has to be woken up: on a virtual
 * machine that takes 30 µs, and 10 to 15 µs of the sender's own time. Looking meanwhile costs less than that in all.
 *
 * It is not done
 *   - while the average time from an answer to what came next is above the limit: nothing is likely to come in time,
 *   - while it is next to nothing: what comes next is there already,
 *   - where what came last was sent from this core: looking would hold up the sender. `SO_INCOMING_CPU` tells it; a sender on another
 *     machine is never on this core, and what counts is its time alone.
 *
 * For one thread, the loop's.
 */
#ifndef IGNIS_SPIN_H
#define IGNIS_SPIN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ign_spin {
    int loop;             /* the descriptor of its epoll, readable when anything is ready; -1: never looks */
    uint64_t limit_ns;    /* so long it looks; 0: never */
    uint64_t answered_ns; /* when the last answer was sent; 0: something has come since */
    uint64_t gap_ns;      /* from an answer to what came next, the newest counting for an eighth */
    uint64_t looked, found;
} ign_spin;

void ign_spin_open(ign_spin *spin, int loop, uint64_t limit_ns);
/* Something has come. */
void ign_spin_arrived(ign_spin *spin, uint64_t now_ns);
/* It was answered, and nothing else is to be done. Whether to look for what comes next: on that socket, or on any other. */
bool ign_spin_wants(ign_spin *spin, uint64_t now_ns);
/* Looks, until anything is ready, or for the limit. True: something is ready. `socket`: that of the answer. Keeps errno. */
bool ign_spin_look(ign_spin *spin, int socket);

#endif
