/* io_uring by its system calls: a ring of a few entries, of which one waits on a futex at a time.
 *
 * DEFER_TASKRUN and an eventfd: the waker raises the eventfd itself, and what is left to do for the ring is done when its thread asks.
 * Without them the kernel would interrupt that thread in whatever system call it is. A wait that is told has two steps, therefore: the
 * eventfd is readable, and `ign_watch_take` fetches the completion. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_watch.h"

#include <errno.h>
#include <string.h>

#include "ignis_error.h"

#ifdef __linux__
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* <linux/io_uring.h>, of which the headers that wheels are built with have none, or one without futexes. */
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#define SYS_io_uring_enter 426
#define SYS_io_uring_register 427
#endif
enum {
    SINGLE_ISSUER = 1u << 12,
    DEFER_TASKRUN = 1u << 13,
    SINGLE_MMAP = 1u << 0, /* a feature */
    GETEVENTS = 1u << 0,
    REGISTER_EVENTFD = 4,
    OP_ASYNC_CANCEL = 14,
    OP_FUTEX_WAIT = 51,
    CANCEL_ANY = 1u << 2,
    FUTEX_SIZE_U32 = 2,
    ENTRIES = 4,
};
#define MATCH_ANY 0xffffffffu
#define AT_SQES 0x10000000
#define IGNORED UINT64_MAX /* the number of what nobody waits for */

struct sq_offsets {
    uint32_t head, tail, ring_mask, ring_entries, flags, dropped, array, resv1;
    uint64_t user_addr;
};
struct cq_offsets {
    uint32_t head, tail, ring_mask, ring_entries, overflow, cqes, flags, resv1;
    uint64_t user_addr;
};
struct params {
    uint32_t sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, resv[3];
    struct sq_offsets sq_off;
    struct cq_offsets cq_off;
};
struct sqe {
    uint8_t opcode, flags;
    uint16_t ioprio;
    int32_t fd;
    uint64_t off, addr;
    uint32_t len, op_flags;
    uint64_t user_data;
    uint16_t buf_index, personality;
    uint32_t splice_fd;
    uint64_t addr3, pad;
};
struct cqe {
    uint64_t user_data;
    int32_t res;
    uint32_t flags;
};
_Static_assert(sizeof(struct params) == 120 && sizeof(struct sqe) == 64 && sizeof(struct cqe) == 16, "the kernel's layout");

static struct sqe *next_entry(ign_watch *w, uint32_t *tail)
{
    uint32_t at = *tail & w->sq_mask;
    struct sqe *entry = (struct sqe *)w->entries + at;
    memset(entry, 0, sizeof *entry);
    w->sq_array[at] = at;
    *tail += 1;
    return entry;
}

/* Submission is done by the kernel within the call, so the entries are free again when it returns. */
static int submit(ign_watch *w, uint32_t tail, uint32_t count)
{
    atomic_store_explicit(w->sq_tail, tail, memory_order_release);
    while (count > 0) {
        long taken = syscall(SYS_io_uring_enter, w->ring, count, 0, 0, NULL, 0);
        if (taken == 0 || (taken < 0 && errno != EINTR))
            return IGN_E_IO;
        if (taken > 0)
            count -= (uint32_t)taken;
    }
    return IGN_OK;
}

/* Waits with a new number; what waited before is cancelled if asked. */
static int wait_on(ign_watch *w, const _Atomic uint32_t *word, uint32_t seen, bool cancel)
{
    uint32_t tail = atomic_load_explicit(w->sq_tail, memory_order_relaxed), count = 1;
    if (cancel) {
        struct sqe *entry = next_entry(w, &tail);
        entry->opcode = OP_ASYNC_CANCEL;
        entry->fd = -1;
        entry->op_flags = CANCEL_ANY;
        entry->user_data = IGNORED;
        count++;
    }
    struct sqe *entry = next_entry(w, &tail);
    entry->opcode = OP_FUTEX_WAIT;
    entry->fd = FUTEX_SIZE_U32; /* shared: the private kind says nothing to other processes */
    entry->addr = (uint64_t)(uintptr_t)word;
    entry->off = seen;
    entry->addr3 = MATCH_ANY;
    entry->user_data = ++w->number;
    w->word = word;
    return submit(w, tail, count);
}

/* Removes what has completed. The latest wait's result goes to *res, if it is among them. */
static bool reap(ign_watch *w, int32_t *res)
{
    bool found = false;
    uint32_t head = atomic_load_explicit(w->cq_head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(w->cq_tail, memory_order_acquire);
    for (; head != tail; head++) {
        const struct cqe *done = (const struct cqe *)w->cqes + (head & w->cq_mask);
        if (done->user_data == w->number) {
            *res = done->res;
            found = true;
        }
    }
    atomic_store_explicit(w->cq_head, head, memory_order_release);
    if (found)
        w->word = NULL;
    return found;
}

/* Lets the kernel do what it has left for this thread. */
static void run_deferred(const ign_watch *w)
{
    syscall(SYS_io_uring_enter, w->ring, 0, 0, GETEVENTS, NULL, 0);
}

static int map(ign_watch *w, const struct params *p)
{
    w->rings_bytes = p->cq_off.cqes + p->cq_entries * sizeof(struct cqe);
    size_t array_end = p->sq_off.array + p->sq_entries * sizeof(uint32_t);
    if (array_end > w->rings_bytes)
        w->rings_bytes = array_end;
    w->entries_bytes = p->sq_entries * sizeof(struct sqe);
    w->rings = mmap(NULL, w->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->ring, 0);
    if (w->rings == MAP_FAILED) {
        w->rings = NULL;
        return IGN_E_IO;
    }
    w->entries = mmap(NULL, w->entries_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, w->ring, AT_SQES);
    if (w->entries == MAP_FAILED) {
        w->entries = NULL;
        return IGN_E_IO;
    }
    char *base = w->rings;
    w->sq_mask = *(uint32_t *)(void *)(base + p->sq_off.ring_mask);
    w->cq_mask = *(uint32_t *)(void *)(base + p->cq_off.ring_mask);
    w->sq_tail = (_Atomic uint32_t *)(void *)(base + p->sq_off.tail);
    w->sq_array = (uint32_t *)(void *)(base + p->sq_off.array);
    w->cq_head = (_Atomic uint32_t *)(void *)(base + p->cq_off.head);
    w->cq_tail = (_Atomic uint32_t *)(void *)(base + p->cq_off.tail);
    w->cqes = base + p->cq_off.cqes;
    return IGN_OK;
}

/* A wait for what is not so must come back with EAGAIN: older kernels know no futexes. */
static int probe(ign_watch *w)
{
    static const _Atomic uint32_t word = 1;
    int32_t res = -EINVAL;
    int rc = wait_on(w, &word, 0, false);
    if (rc != IGN_OK)
        return rc;
    run_deferred(w);
    if (reap(w, &res) && res == -EAGAIN)
        return IGN_OK;
    errno = EOPNOTSUPP;
    return IGN_E_IO;
}

int ign_watch_open(ign_watch *watch)
{
    struct params p = {.flags = SINGLE_ISSUER | DEFER_TASKRUN};
    *watch = (ign_watch){.ring = -1, .event = -1};
    watch->ring = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
    int rc = watch->ring < 0 ? IGN_E_IO : IGN_OK;
    if (rc == IGN_OK && (p.features & SINGLE_MMAP) == 0) {
        errno = EOPNOTSUPP;
        rc = IGN_E_IO;
    }
    if (rc == IGN_OK)
        rc = map(watch, &p);
    if (rc == IGN_OK)
        rc = probe(watch);
    if (rc == IGN_OK && (watch->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0)
        rc = IGN_E_IO;
    if (rc == IGN_OK && syscall(SYS_io_uring_register, watch->ring, REGISTER_EVENTFD, &watch->event, 1) < 0)
        rc = IGN_E_IO;
    if (rc != IGN_OK) {
        int number = errno;
        ign_watch_close(watch);
        errno = number;
    }
    return rc;
}

void ign_watch_close(ign_watch *watch)
{
    if (watch->entries != NULL)
        munmap(watch->entries, watch->entries_bytes);
    if (watch->rings != NULL)
        munmap(watch->rings, watch->rings_bytes);
    if (watch->ring >= 0)
        close(watch->ring);
    if (watch->event >= 0)
        close(watch->event);
    *watch = (ign_watch){.ring = -1, .event = -1};
}

int ign_watch_arm(ign_watch *watch, const _Atomic uint32_t *word, uint32_t seen)
{
    if (watch->word == word)
        return IGN_OK; /* a wake-up that has passed since is in the descriptor */
    return wait_on(watch, word, seen, watch->word != NULL);
}

bool ign_watch_take(ign_watch *watch)
{
    uint64_t count;
    int32_t res;
    /* The eventfd is raised by the waker, and once more by the completion: both are taken off when the wait is over. While it is not, its
     * completion may come at any time: what it raises must not be taken off without it. */
    run_deferred(watch);
    bool over = reap(watch, &res) || watch->word == NULL;
    if (read(watch->event, &count, sizeof count) < 0 || over)
        return over;
    run_deferred(watch);
    return reap(watch, &res);
}

#else

int ign_watch_open(ign_watch *watch)
{
    *watch = (ign_watch){.ring = -1, .event = -1};
    errno = ENOSYS;
    return IGN_E_IO;
}

void ign_watch_close(ign_watch *watch)
{
    (void)watch;
}

int ign_watch_arm(ign_watch *watch, const _Atomic uint32_t *word, uint32_t seen)
{
    (void)watch, (void)word, (void)seen;
    errno = ENOSYS;
    return IGN_E_IO;
}

bool ign_watch_take(ign_watch *watch)
{
    (void)watch;
    return true;
}

#endif
