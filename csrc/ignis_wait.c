#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "ignis_wait.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ignis_error.h"

#ifdef __linux__
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <libproc.h>
#include <sys/proc_info.h>
#endif

uint64_t ign_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#ifdef __linux__

int ign_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    struct timespec t = {.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    if (syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, seen, &t, NULL, 0) == 0)
        return IGN_OK;
    return errno == ETIMEDOUT ? IGN_TIMEOUT : IGN_OK; /* EAGAIN, EINTR, EFAULT: the caller looks again, in a bounded loop */
}

void ign_futex_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void ign_futex_wake_one(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

#else

/* Where no public cross-process futex can be relied on (macOS before 14.4): short sleeps that grow to 200 us. */
int ign_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    uint64_t until = ign_now_ns() + timeout_ns;
    long pause_ns = 5000;
    while (atomic_load_explicit(word, memory_order_seq_cst) == seen) {
        if (ign_now_ns() >= until)
            return IGN_TIMEOUT;
        struct timespec t = {.tv_sec = 0, .tv_nsec = pause_ns};
        nanosleep(&t, NULL);
        if (pause_ns < 200000)
            pause_ns *= 2;
    }
    return IGN_OK;
}

void ign_futex_wake_all(_Atomic uint32_t *word)
{
    (void)word; /* sleepers poll */
}

void ign_futex_wake_one(_Atomic uint32_t *word)
{
    (void)word;
}

#endif

void ign_event_wake(ign_event *event)
{
    /* Clear, then raise: see the header for why not the other way round. */
    if (atomic_exchange_explicit(&event->waiting, 0, memory_order_seq_cst) == 0)
        return; /* another notifier has it */
    atomic_fetch_add_explicit(&event->wake, 1, memory_order_seq_cst);
#ifndef IGN_MUTANT_NO_WAKE
    ign_futex_wake_all(&event->wake);
#endif
}

void ign_event_advance(ign_event *event)
{
    atomic_fetch_add_explicit(&event->sequence, 1, memory_order_seq_cst); /* S1 */
    ign_event_notify(event);
}

int ign_event_wait_sequence(ign_event *event, uint64_t seen, uint64_t timeout_ns, uint64_t *now)
{
    uint64_t until = ign_now_ns() + timeout_ns;
    for (;;) {
        uint32_t announced = ign_event_announce(event);
        *now = atomic_load_explicit(&event->sequence, memory_order_seq_cst); /* S4 */
        if (*now != seen)
            return IGN_OK;
        uint64_t t = ign_now_ns();
        if (t >= until)
            return IGN_TIMEOUT;
        (void)ign_event_sleep(event, announced, until - t);
    }
}

#ifdef __linux__

uint64_t ign_process_start_time(int64_t pid)
{
    if (pid <= 0 || pid > INT_MAX)
        return 0;
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    /* Field 2 is the program's name in parentheses and may hold anything; count from the last one. */
    char *p = strrchr(text, ')');
    if (p == NULL || p[1] == '\0')
        return 0;
    p += 2;
    if (*p == 'Z' || *p == 'X')
        return 0; /* dead, waiting to be reaped: it will never do anything again */
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (p == NULL)
            return 0;
        p++;
    }
    uint64_t start = strtoull(p, NULL, 10);
    return start == 0 ? 1 : start; /* pid 1 of a machine can have started at tick 0 */
}

enum { FIRST_TIME_NAMESPACE = 0xEFFFFFFAu }; /* PROC_TIME_INIT_INO */

uint64_t ign_process_namespaces(void)
{
    struct stat st;
    uint64_t pid = stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
    uint64_t time = stat("/proc/self/ns/time", &st) == 0 ? (uint32_t)st.st_ino : FIRST_TIME_NAMESPACE;
    return pid | (time ^ FIRST_TIME_NAMESPACE) << 32;
}

#elif defined(__APPLE__)

uint64_t ign_process_start_time(int64_t pid)
{
    struct proc_bsdinfo info;
    if (pid <= 0 || pid > INT_MAX || proc_pidinfo((int)pid, PROC_PIDTBSDINFO, 0, &info, sizeof info) != (int)sizeof info)
        return 0;
    if (info.pbi_status == 5) /* SZOMB */
        return 0;
    return info.pbi_start_tvsec * 1000000u + info.pbi_start_tvusec;
}

uint64_t ign_process_namespaces(void) { return 0; }

#else
#error "process start times are not known on this system"
#endif

_Atomic uint32_t ign_fork_counter;

static void in_child(void)
{
    atomic_fetch_add_explicit(&ign_fork_counter, 1, memory_order_relaxed);
}

static void register_fork_handler(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void ign_fork_watch(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_fork_handler);
}
