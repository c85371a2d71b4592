/* The flush of durability `interval`: every so often, by a thread of its own.
 *
 * The thread needs nothing of its caller: a program that holds the lock of its interpreter for minutes, in a regular expression or in a
 * library, would keep a thread of the interpreter's from flushing what was promised to be flushed meanwhile.
 *
 * The mutex is held for moments, and never over a flush. In a child of fork() there is no thread, and the mutex may be held by one that is
 * gone: there only `ign_store_interval_abandon` is allowed.
 */
#include "ignis_store_parts.h"

#include "ignis_wait.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

enum { STACK_BYTES = 1 << 20 }; /* a flush that fails may lead to a recovery: some 10 KiB. The least that some libraries give is too little */
static const uint64_t longest_ns = 1000000000; /* of one wait; then the thread looks again */

struct ign_store_interval {
    ign_store *store;
    uint64_t every_ns;
    pthread_t thread;
    pthread_mutex_t mutex; /* over what follows */
    pthread_cond_t changed;
    unsigned resting; /* who wants no flush to begin */
    bool flushing, ending, ended, joined;
    ign_store_failure failure;
    _Atomic uint64_t failures; /* failure.times, for who looks without the mutex */
};

static int open_changed(pthread_cond_t *changed)
{
#ifdef __APPLE__
    return pthread_cond_init(changed, NULL);
#else
    pthread_condattr_t attr;
    int rc = pthread_condattr_init(&attr);
    if (rc != 0)
        return rc;
    rc = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    if (rc == 0)
        rc = pthread_cond_init(changed, &attr);
    pthread_condattr_destroy(&attr);
    return rc;
#endif
}

/* Until something changed, or that time is here, or a little while is over: look again. */
static void wait_until(ign_store_interval *i, uint64_t until_ns)
{
    uint64_t now = ign_now_ns(), left = until_ns > now ? until_ns - now : 0;
    left = left < longest_ns ? left : longest_ns;
#ifdef __APPLE__
    struct timespec t = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
    pthread_cond_timedwait_relative_np(&i->changed, &i->mutex, &t);
#else
    struct timespec t = {.tv_sec = (time_t)((now + left) / 1000000000u), .tv_nsec = (long)((now + left) % 1000000000u)};
    pthread_cond_timedwait(&i->changed, &i->mutex, &t);
#endif
}

static uint64_t behind(uint64_t ns)
{
    uint64_t now = ign_now_ns();
    return ns < UINT64_MAX - now ? now + ns : UINT64_MAX;
}

static int flush_all(ign_store *store)
{
    ign_store_mark mark;
    int rc = ign_store_mark_now(store, &mark);
    return rc == IGN_OK ? ign_store_flush(store, &mark, false) : rc;
}

/* With the mutex, which is given back meanwhile. */
static void flush_now(ign_store_interval *i)
{
    i->flushing = true;
    pthread_mutex_unlock(&i->mutex);
    int rc = flush_all(i->store), error = errno;
    pthread_mutex_lock(&i->mutex);
    i->flushing = false;
#ifdef IGN_MUTANT_FAILURE_UNTOLD
    rc = IGN_OK;
#endif
    if (rc < 0) {
        i->failure = (ign_store_failure){.times = i->failure.times + 1, .code = rc, .error = error};
        atomic_store_explicit(&i->failures, i->failure.times, memory_order_release);
    }
    pthread_cond_broadcast(&i->changed);
}

static void *run(void *arg)
{
    ign_store_interval *i = arg;
#ifdef __linux__
    (void)prctl(PR_SET_NAME, "ignis-interval");
#elif defined(__APPLE__)
    pthread_setname_np("ignis-interval");
#endif
    pthread_mutex_lock(&i->mutex);
    uint64_t next = behind(i->every_ns);
    while (!i->ending) {
#ifdef IGN_MUTANT_NO_REST
        if (false)
#else
        if (i->resting != 0)
#endif
            wait_until(i, UINT64_MAX);
        else if (ign_now_ns() < next)
            wait_until(i, next);
        else {
            flush_now(i);
            next = behind(i->every_ns);
        }
    }
    i->ended = true;
    pthread_cond_broadcast(&i->changed);
    pthread_mutex_unlock(&i->mutex);
    return NULL;
}

/* Signals are for the program's own threads. Those that a fault of the thread itself raises have to reach it: SIGBUS is how a call learns
 * that a mapping failed (ignis_store_landing.h), and blocked it would end the process. */
static int start(ign_store_interval *i)
{
    pthread_attr_t attr;
    sigset_t none, before;
    sigfillset(&none);
    sigdelset(&none, SIGBUS);
    sigdelset(&none, SIGSEGV);
    sigdelset(&none, SIGFPE);
    sigdelset(&none, SIGILL);
    int rc = pthread_attr_init(&attr);
    if (rc != 0)
        return rc;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &none, &before); /* the thread inherits it, so there is no moment without */
    rc = pthread_create(&i->thread, &attr, run, i);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

static void free_interval(ign_store_interval *i)
{
    pthread_cond_destroy(&i->changed);
    pthread_mutex_destroy(&i->mutex);
    free(i);
}

int ign_store_interval_open(ign_store_interval **interval, ign_store *store, uint64_t every_ns)
{
    ign_store_interval *i = calloc(1, sizeof *i);
    if (i == NULL)
        return IGN_E_NOMEM;
    i->store = store;
    i->every_ns = every_ns;
    if (pthread_mutex_init(&i->mutex, NULL) != 0) {
        free(i);
        return IGN_E_NOMEM;
    }
    if (open_changed(&i->changed) != 0) {
        pthread_mutex_destroy(&i->mutex);
        free(i);
        return IGN_E_NOMEM;
    }
    int rc = start(i);
    if (rc != 0) {
        free_interval(i);
        errno = rc;
        return IGN_E_IO;
    }
    *interval = i;
    return IGN_OK;
}

uint64_t ign_store_interval_failures(const ign_store_interval *i)
{
    return atomic_load_explicit(&i->failures, memory_order_acquire);
}

void ign_store_interval_failure(ign_store_interval *i, ign_store_failure *failure)
{
    pthread_mutex_lock(&i->mutex);
    *failure = i->failure;
    pthread_mutex_unlock(&i->mutex);
}

int ign_store_interval_rest(ign_store_interval *i, uint64_t timeout_ns)
{
    uint64_t until = behind(timeout_ns);
    pthread_mutex_lock(&i->mutex);
    i->resting++;
    while (i->flushing && ign_now_ns() < until)
        wait_until(i, until);
    bool rests = !i->flushing;
    if (!rests)
        i->resting--;
    pthread_mutex_unlock(&i->mutex);
    return rests ? IGN_OK : IGN_TIMEOUT;
}

void ign_store_interval_go_on(ign_store_interval *i)
{
    pthread_mutex_lock(&i->mutex);
    i->resting--;
    pthread_cond_broadcast(&i->changed);
    pthread_mutex_unlock(&i->mutex);
}

int ign_store_interval_close(ign_store_interval *i, uint64_t timeout_ns)
{
    uint64_t until = behind(timeout_ns);
    pthread_mutex_lock(&i->mutex);
    i->ending = true;
    pthread_cond_broadcast(&i->changed);
    while (!i->ended && ign_now_ns() < until)
        wait_until(i, until);
    bool ended = i->ended, ours = ended && !i->joined;
    i->joined |= ours;
    pthread_mutex_unlock(&i->mutex);
    if (ours)
        pthread_join(i->thread, NULL); /* it has nothing more to do */
    return ended ? IGN_OK : IGN_TIMEOUT;
}

void ign_store_interval_free(ign_store_interval *i)
{
    free_interval(i);
}

void ign_store_interval_abandon(ign_store_interval *i)
{
    free(i);
}
