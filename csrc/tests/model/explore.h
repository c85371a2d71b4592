/* All executions of two threads under the C11 memory model, one after the other.
 *
 * The threads are coroutines. At each atomic operation on watched memory the explorer chooses which thread goes on, and
 * for a load also which of the stores it reads: every one that the orderings allow. A run is a sequence of such choices;
 * the explorer runs the program again and again until it has made them all. Two prefixes that are the same execution so far
 * (each thread read the same stores, each location has the same order of stores) have the same futures, so the second is
 * dropped: what is left is the number of executions, not of interleavings.
 *
 * The model is the usual one of views. A thread's view says for each location how old a store it may still read; a store
 * with release takes the view along, a load with acquire takes it over, and an exchange or an addition reads the newest
 * store and goes on with its release sequence. A sequentially consistent load does not read past the newest sequentially
 * consistent store before it in the total order, which is the order of the run. Not in the model: loads of stores that
 * come later in the run (no compiler or processor makes those of the code's own positions), fences, data races
 * (ThreadSanitizer looks for those).
 */
#ifndef IGNIS_MODEL_EXPLORE_H
#define IGNIS_MODEL_EXPLORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MODEL_THREADS 2

typedef struct model_program {
    const char *name;
    void (*set_up)(void);                /* before each run, alone; calls model_watch for what the threads share */
    void (*thread[MODEL_THREADS])(void);
    void (*tear_down)(bool complete);    /* after each run; a complete one has an outcome to be checked */
} model_program;

typedef struct model_result {
    uint64_t runs;
    uint64_t states;
    uint64_t stuck; /* runs that ended with a thread asleep and none that would wake it */
} model_result;

#define MODEL_ANYBODY -1

/* An atomic word of the program, with the value it has now; the order of the calls names it. `writer`: the one thread that
 * stores it, or MODEL_ANYBODY. */
void model_watch(const volatile void *at, size_t bytes, int writer);
/* FUTEX_WAIT without a time-out, and FUTEX_WAKE of everybody. */
int model_futex_wait(volatile void *at, uint32_t seen);
void model_futex_wake(volatile void *at);

/* Runs them all, or up to the first that is stuck when `stop_at_stuck`. */
model_result model_explore(const model_program *program, bool stop_at_stuck);

#endif
