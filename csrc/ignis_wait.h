/* Sleeping until another thread or process has done something: spin a little, then a futex, always with a bound.
 *
 * An event is two words: `wake` is what a sleeper sleeps on, `waiting` says that there is one. It carries no condition
 * of its own; the condition (a ring position, a sequence number) is an atomic elsewhere. The protocol is
 *
 *   sleeper                                        notifier
 *     w = load wake                                  store condition, seq_cst                    (S1)
 *     store waiting = 1, seq_cst        (S2)         if load waiting, seq_cst                    (S3)
 *     load condition, seq_cst           (S4)             exchange waiting = 0
 *     if it does not hold: sleep while wake == w         wake += 1
 *                                                        wake up all sleepers
 *
 * S1 < S3 and S2 < S4 in the single total order of sequentially consistent operations, so either the notifier sees the
 * flag or the sleeper sees the condition; acquire and release alone would allow both to miss. `wake` is read before
 * the flag is set and raised after it is cleared: whoever's flag was cleared, then, finds `wake` changed and does not
 * sleep. Clearing the flag means that a burst of notifications costs one system call, not one each. Several sleepers
 * may share an event (all wake and look again). A sleeper that was killed leaves its flag: one needless wake-up.
 *
 * The futex is always the shared kind: the private one silently does nothing between processes.
 */
#ifndef IGNIS_WAIT_H
#define IGNIS_WAIT_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct ign_event {
    alignas(64) _Atomic uint32_t wake;
    _Atomic uint32_t waiting;
    _Atomic uint64_t sequence; /* for event boards: the condition itself; unused by channels */
} ign_event;

/* Nanoseconds of a clock that never jumps. */
uint64_t ign_now_ns(void);

/* Sleeps while *word == seen: IGN_OK when woken, changed or interrupted (look again), IGN_TIMEOUT after timeout_ns. */
int ign_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns);
void ign_futex_wake_all(_Atomic uint32_t *word);
void ign_futex_wake_one(_Atomic uint32_t *word);

/* Sleeper: announce, then look at the condition with seq_cst, then sleep on the returned value. */
static inline uint32_t ign_event_announce(ign_event *event)
{
    uint32_t wake = atomic_load_explicit(&event->wake, memory_order_acquire);
    atomic_store_explicit(&event->waiting, 1, memory_order_seq_cst); /* S2 */
    return wake;
}

static inline int ign_event_sleep(ign_event *event, uint32_t announced, uint64_t timeout_ns)
{
    return ign_futex_wait(&event->wake, announced, timeout_ns);
}

void ign_event_wake(ign_event *event); /* the slow half of notify: unconditional */

/* Notifier: after the condition was stored with seq_cst. */
static inline void ign_event_notify(ign_event *event)
{
    if (atomic_load_explicit(&event->waiting, memory_order_seq_cst) != 0) /* S3 */
        ign_event_wake(event);
}

/* Is somebody asleep? Relaxed: a hint, for callers that announce in batches and may be wrong for a moment. */
static inline bool ign_event_has_sleeper(ign_event *event)
{
    return atomic_load_explicit(&event->waiting, memory_order_relaxed) != 0;
}

/* Raises the event's own sequence number and wakes whoever waits for that. */
void ign_event_advance(ign_event *event);
/* Waits until the sequence is not `seen`; *now is set in every case. IGN_OK | IGN_TIMEOUT. */
int ign_event_wait_sequence(ign_event *event, uint64_t seen, uint64_t timeout_ns, uint64_t *now);

/* A short pause of the core between two looks. */
static inline void ign_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* When the process started, in the kernel's own unit; with the pid it names one process for ever. 0: no such process. */
uint64_t ign_process_start_time(int64_t pid);
/* Of the process: the inode of its pid namespace, and above it what tells its time namespace from the machine's own, 0 there.
 * 0 where there are none. Pids of another pid namespace, and start times of another time namespace, say nothing here. */
uint64_t ign_process_namespaces(void);

/* Rises by one in every child after fork(): handles remember it and refuse. Call ign_fork_watch() once before. */
extern _Atomic uint32_t ign_fork_counter;
void ign_fork_watch(void);
static inline uint32_t ign_fork_generation(void)
{
    return atomic_load_explicit(&ign_fork_counter, memory_order_relaxed);
}

#endif
