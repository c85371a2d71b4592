#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_board.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* What both kinds of file begin with. */
typedef struct file_head {
    uint64_t magic;
    uint32_t version;
    uint32_t count;
    uint64_t bytes;
} file_head;

#define BOARD_MAGIC 0x3154564553494749ull /* "IGISEVT1" */
#define MUTEX_MAGIC 0x3158544D53494749ull /* "IGISMTX1" */
#define FILE_VERSION 1u
#define EVENTS_OFFSET 4096u

typedef struct shared_mutex {
    file_head head;
    alignas(64) _Atomic uint32_t holder_pid;
#ifdef __linux__
    alignas(64) pthread_mutex_t lock;
#endif
} shared_mutex;
static_assert(sizeof(ign_event) == 64, "events must not share a line");

static int check_head(const file_head *head, uint64_t magic, uint32_t count, uint64_t bytes, uint64_t file_bytes)
{
    if (head->magic != magic)
        return IGN_E_MAGIC;
    if (head->version != FILE_VERSION)
        return IGN_E_VERSION;
    if (head->count != count || head->bytes != bytes)
        return IGN_E_SIZE;
    if (file_bytes < bytes)
        return IGN_E_TRUNCATED;
    return file_bytes == bytes ? IGN_OK : IGN_E_SIZE;
}

static int open_existing(const char *path, uint64_t magic, uint32_t count, size_t bytes, int *fd, void **memory)
{
    *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd < 0)
        return IGN_E_IO;
    struct stat st;
    file_head head;
    memset(&head, 0, sizeof head);
    int rc = IGN_E_IO;
    ssize_t got;
    if (fstat(*fd, &st) == 0 && (got = pread(*fd, &head, sizeof head, 0)) >= 0)
        rc = got < (ssize_t)sizeof head ? IGN_E_MAGIC : check_head(&head, magic, count, bytes, (uint64_t)st.st_size);
    if (rc == IGN_OK) {
        *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
        rc = *memory == MAP_FAILED ? IGN_E_IO : IGN_OK;
    }
    if (rc != IGN_OK) {
        int kept = errno;
        close(*fd);
        *fd = -1;
        errno = kept;
    }
    return rc;
}

typedef struct shape {
    uint64_t magic;
    uint32_t count;
    size_t bytes;
} shape;

#ifdef __linux__
static int init_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    int rc = pthread_mutex_init(lock, &attr);
    pthread_mutexattr_destroy(&attr);
    return rc;
}
#endif

static int format_file(void *memory, void *arg)
{
    const shape *s = arg;
    file_head *head = memory;
    *head = (file_head){.magic = s->magic, .version = FILE_VERSION, .count = s->count, .bytes = s->bytes};
#ifdef __linux__
    if (s->magic == MUTEX_MAGIC) {
        int rc = init_lock(&((shared_mutex *)memory)->lock);
        if (rc != 0) {
            errno = rc;
            return IGN_E_IO;
        }
    }
#endif
    return IGN_OK;
}

static int open_or_create(const char *path, shape s, int *fd, void **memory)
{
    /* Another process may make or remove the file between the two steps, so a few rounds. */
    int rc = IGN_E_IO;
    for (int round = 0; round < 8; round++) {
        rc = open_existing(path, s.magic, s.count, s.bytes, fd, memory);
        if (rc != IGN_E_IO || errno != ENOENT)
            return rc;
        rc = ign_file_create(path, s.bytes, format_file, &s, fd, memory);
        if (rc != IGN_E_IO || errno != EEXIST)
            return rc;
    }
    return rc;
}

/* -- events ------------------------------------------------------------------------------------------------------- */

int ign_board_open(ign_board *board, const char *path, uint32_t events)
{
    memset(board, 0, sizeof *board);
    board->fd = -1;
    if (events == 0 || events > IGN_BOARD_MAX_EVENTS)
        return IGN_E_INVALID;
    ign_fork_watch();
    board->count = events;
    board->bytes = ((size_t)EVENTS_OFFSET + (size_t)events * sizeof(ign_event) + 4095u) & ~(size_t)4095u;
    if (path == NULL) {
        void *memory = mmap(NULL, board->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
            return IGN_E_NOMEM;
        board->memory = memory;
    } else {
        shape s = {.magic = BOARD_MAGIC, .count = events, .bytes = board->bytes};
        int rc = open_or_create(path, s, &board->fd, &board->memory);
        if (rc != IGN_OK)
            return rc;
        board->guard = ign_guard_add(board->memory, board->bytes);
        if (board->guard == NULL) {
            ign_board_close(board);
            return IGN_E_NOMEM;
        }
    }
    board->events = (ign_event *)(void *)((char *)board->memory + EVENTS_OFFSET);
    board->fork_generation = ign_fork_generation();
    return IGN_OK;
}

void ign_board_close(ign_board *board)
{
    if (board->memory == NULL)
        return;
    ign_guard_remove(board->guard);
    munmap(board->memory, board->bytes);
    board->memory = NULL;
    if (board->fd >= 0)
        close(board->fd);
}

int ign_board_check(const ign_board *board)
{
    if (board->memory == NULL)
        return IGN_E_CLOSED;
    if (board->fork_generation != ign_fork_generation())
        return IGN_E_FORKED;
    return ign_guard_poisoned(board->guard) ? IGN_E_TRUNCATED : IGN_OK;
}

/* -- the mutex ---------------------------------------------------------------------------------------------------- */

#define MUTEX_BYTES 4096u
static_assert(sizeof(shared_mutex) <= MUTEX_BYTES, "one page");

int ign_mutex_open(ign_mutex *mutex, const char *path)
{
    memset(mutex, 0, sizeof *mutex);
    mutex->fd = -1;
#ifdef __GLIBC__
    pthread_mutex_t like;
    if (init_lock(&like) != 0)
        return IGN_E_NOMEM;
    mutex->kind = like.__data.__kind;
    pthread_mutex_destroy(&like);
#endif
    ign_fork_watch();
    shape s = {.magic = MUTEX_MAGIC, .count = 1, .bytes = MUTEX_BYTES};
    int rc = open_or_create(path, s, &mutex->fd, &mutex->memory);
    if (rc != IGN_OK)
        return rc;
    mutex->guard = ign_guard_add(mutex->memory, MUTEX_BYTES);
    if (mutex->guard == NULL) {
        ign_mutex_close(mutex);
        return IGN_E_NOMEM;
    }
    mutex->fork_generation = ign_fork_generation();
    return IGN_OK;
}

void ign_mutex_close(ign_mutex *mutex)
{
    if (mutex->memory == NULL)
        return;
    ign_guard_remove(mutex->guard);
    munmap(mutex->memory, MUTEX_BYTES);
    mutex->memory = NULL;
    close(mutex->fd);
}

int ign_mutex_check(const ign_mutex *mutex)
{
    if (mutex->memory == NULL)
        return IGN_E_CLOSED;
    if (mutex->fork_generation != ign_fork_generation())
        return IGN_E_FORKED;
    return ign_guard_poisoned(mutex->guard) ? IGN_E_TRUNCATED : IGN_OK;
}

uint32_t ign_mutex_holder(const ign_mutex *mutex)
{
    const shared_mutex *shared = mutex->memory;
    return atomic_load_explicit(&shared->holder_pid, memory_order_relaxed); /* a hint: nothing is ordered by it */
}

/* Is this still the file that was opened? After it was cut the mapping is zeros of our own (the SIGBUS guard), and a file that was
 * cut and grew again is zeros that all see: in both a lock is free for everybody. */
static int check_file(const ign_mutex *mutex)
{
    const shared_mutex *shared = mutex->memory;
    bool ours = *(volatile const uint64_t *)&shared->head.magic == MUTEX_MAGIC; /* touches the page: so the guard knows */
    if (!ours || ign_guard_poisoned(mutex->guard))
        return IGN_E_TRUNCATED;
#ifdef __GLIBC__
    /* Anything else in here, and glibc ends the process. */
    return *(volatile const int *)&shared->lock.__data.__kind == mutex->kind ? IGN_OK : IGN_E_CORRUPT;
#else
    return IGN_OK;
#endif
}

#ifdef __linux__

static int lock_until(pthread_mutex_t *lock, uint64_t timeout_ns)
{
    if (timeout_ns == 0)
        return pthread_mutex_trylock(lock);
    struct timespec until;
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 30)
    clockid_t clock = CLOCK_MONOTONIC;
#else
    clockid_t clock = CLOCK_REALTIME;
#endif
    clock_gettime(clock, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns % 1000000000u;
    until.tv_sec += (time_t)(timeout_ns / 1000000000u + ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 30)
    return pthread_mutex_clocklock(lock, clock, &until);
#else
    return pthread_mutex_timedlock(lock, &until);
#endif
}

int ign_mutex_acquire(ign_mutex *mutex, uint64_t timeout_ns)
{
    shared_mutex *shared = mutex->memory;
    int file = check_file(mutex);
    if (file != IGN_OK)
        return file;
    int rc = lock_until(&shared->lock, timeout_ns);
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&shared->lock); /* it guards nothing in the file itself, so there is nothing to repair */
        atomic_fetch_add_explicit(&mutex->recovered, 1, memory_order_relaxed);
        rc = 0;
    }
    if (rc == 0) {
        file = check_file(mutex); /* cut while we waited: what we locked is ours alone */
        if (file != IGN_OK) {
            pthread_mutex_unlock(&shared->lock);
            return file;
        }
        atomic_store_explicit(&shared->holder_pid, (uint32_t)getpid(), memory_order_relaxed);
        return IGN_OK;
    }
    if (rc == ETIMEDOUT)
        return IGN_TIMEOUT;
    if (rc == EBUSY)
        return IGN_TIMEOUT;
    errno = rc;
    return rc == EDEADLK ? IGN_E_BUSY : IGN_E_IO;
}

int ign_mutex_release(ign_mutex *mutex)
{
    shared_mutex *shared = mutex->memory;
    /* Only the holder may clear the pid, and the lock knows who that is only when it is asked to let go; a wrong
     * caller's clearing is put back. The word is a hint. */
    int file = check_file(mutex);
    if (file != IGN_OK)
        return file;
    uint32_t before = atomic_exchange_explicit(&shared->holder_pid, 0, memory_order_relaxed);
    if (pthread_mutex_unlock(&shared->lock) == 0)
        return IGN_OK;
    atomic_store_explicit(&shared->holder_pid, before, memory_order_relaxed);
    return IGN_E_INVALID;
}

#else

/* No robust mutexes: a lock on the file, which the kernel drops with the process, polled. Threads of one process share
 * the descriptor and so the lock: the binding serialises them. */
int ign_mutex_acquire(ign_mutex *mutex, uint64_t timeout_ns)
{
    shared_mutex *shared = mutex->memory;
    uint64_t until = ign_now_ns() + timeout_ns;
    int file = check_file(mutex);
    if (file != IGN_OK)
        return file;
    while (flock(mutex->fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return IGN_E_IO;
        if (ign_now_ns() >= until)
            return IGN_TIMEOUT;
        struct timespec pause = {.tv_sec = 0, .tv_nsec = 500000};
        nanosleep(&pause, NULL);
    }
    file = check_file(mutex);
    if (file != IGN_OK) {
        flock(mutex->fd, LOCK_UN);
        return file;
    }
    atomic_store_explicit(&shared->holder_pid, (uint32_t)getpid(), memory_order_relaxed);
    return IGN_OK;
}

int ign_mutex_release(ign_mutex *mutex)
{
    shared_mutex *shared = mutex->memory;
    int file = check_file(mutex);
    if (file != IGN_OK)
        return file;
    atomic_store_explicit(&shared->holder_pid, 0, memory_order_relaxed);
    return flock(mutex->fd, LOCK_UN) == 0 ? IGN_OK : IGN_E_IO;
}

#endif
