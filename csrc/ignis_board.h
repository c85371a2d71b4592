/* Two small things that processes share through a mapped file: a board of events, and a mutex that survives its
 * holder's death.
 */
#ifndef IGNIS_BOARD_H
#define IGNIS_BOARD_H

#include "ignis_region.h"

#define IGN_BOARD_MAX_EVENTS (1u << 20)

typedef struct ign_board {
    void *memory; /* NULL: closed */
    ign_event *events;
    size_t bytes;
    uint32_t count;
    int fd; /* -1 on the heap */
    uint32_t fork_generation;
    ign_guard *guard;
} ign_board;

/* Opens the file, or makes it; on the heap when path is NULL. Everybody must ask for the same number of events.
 * IGN_OK | IGN_E_INVALID | IGN_E_NOMEM | IGN_E_IO | IGN_E_MAGIC | IGN_E_VERSION | IGN_E_SIZE | IGN_E_TRUNCATED. */
int ign_board_open(ign_board *board, const char *path, uint32_t events);
void ign_board_close(ign_board *board);
int ign_board_check(const ign_board *board); /* IGN_OK | IGN_E_CLOSED | IGN_E_FORKED | IGN_E_TRUNCATED */
static inline uint64_t ign_board_sequence(ign_board *board, uint32_t index)
{
    /* acquire: what was done before the notification is visible to who sees its number */
    return atomic_load_explicit(&board->events[index].sequence, memory_order_acquire);
}

typedef struct ign_mutex {
    void *memory; /* NULL: closed */
    int fd;
    uint32_t fork_generation;
    ign_guard *guard;
    int kind; /* of the lock, as it must be: a word of glibc's */
    _Atomic uint64_t recovered; /* times that a dead holder's lock was taken over */
} ign_mutex;

int ign_mutex_open(ign_mutex *mutex, const char *path);
/* Not while held by the calling process. */
void ign_mutex_close(ign_mutex *mutex);
int ign_mutex_check(const ign_mutex *mutex);
/* IGN_OK | IGN_TIMEOUT | IGN_E_BUSY (this thread holds it) | IGN_E_IO (errno) | IGN_E_TRUNCATED (the file was cut, and may have
 * grown again: it locks nothing) | IGN_E_CORRUPT (it was written over). Also IGN_OK after a holder's death. */
int ign_mutex_acquire(ign_mutex *mutex, uint64_t timeout_ns);
/* By the thread that acquired it: IGN_OK | IGN_E_INVALID (it is not the holder) | IGN_E_TRUNCATED | IGN_E_CORRUPT: then the thread's
 * list of locks may still hold this one, and the mapping must stay. */
int ign_mutex_release(ign_mutex *mutex);
uint32_t ign_mutex_holder(const ign_mutex *mutex); /* pid, 0 = free; a hint for messages */

#endif
