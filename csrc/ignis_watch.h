/* A descriptor that becomes readable when a futex word is woken, for a thread that waits in poll or epoll for other things too.
 *
 * The kernel waits on the word itself (io_uring, Linux 6.7 and later) and raises the descriptor where the waker runs: no thread stands
 * in between. Where the kernel cannot or may not, `ign_watch_open` says so, and a thread has to sleep on the word instead.
 *
 * One thread uses a watch, the one that opened it: the kernel refuses any other. Any thread may close it.
 */
#ifndef IGNIS_WATCH_H
#define IGNIS_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ign_watch {
    int ring, event; /* -1: closed */
    void *rings, *entries;
    size_t rings_bytes, entries_bytes;
    uint32_t sq_mask, cq_mask;
    _Atomic uint32_t *sq_tail, *cq_head, *cq_tail;
    uint32_t *sq_array;
    void *cqes;
    uint64_t number;             /* of the latest wait */
    const _Atomic uint32_t *word; /* on which it waits; NULL: on none */
} ign_watch;

/* IGN_OK; IGN_E_IO: this kernel has it not, or refuses it to this process, or has no descriptors or memory left (errno). */
int ign_watch_open(ign_watch *watch);
/* Idempotent. */
void ign_watch_close(ign_watch *watch);
static inline int ign_watch_descriptor(const ign_watch *watch)
{
    return watch->event;
}
/* The descriptor becomes readable when the word is woken, or at once when it is not `seen` any more. A wait on another word ends; one
 * on this word goes on, also when it began with another value. IGN_OK, IGN_E_IO. */
int ign_watch_arm(ign_watch *watch, const _Atomic uint32_t *word, uint32_t seen);
/* The descriptor is not readable from now on, until the next wake-up. True: the wait is over, arm it again. */
bool ign_watch_take(ign_watch *watch);

#endif
