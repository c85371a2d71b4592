/* The descriptor of a futex word: told by every wake-up, also of another process, and by no other word's. Where this kernel has no such
 * descriptors, that it says so. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "check.h"

#include "ignis_error.h"
#include "ignis_wait.h"
#include "ignis_watch.h"

#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LONG_MS = 20000, ROUNDS = 1000 };

static bool readable(const ign_watch *watch, int timeout_ms)
{
    struct pollfd p = {.fd = ign_watch_descriptor(watch), .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

/* Until the wait is over. */
static void told(ign_watch *watch)
{
    do
        CHECK(readable(watch, LONG_MS));
    while (!ign_watch_take(watch));
}

static _Atomic uint32_t *shared_words(void)
{
    void *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED);
    return made;
}

static void one_word(void)
{
    ign_watch w;
    _Atomic uint32_t *words = shared_words();
    CHECK_EQ(ign_watch_open(&w), IGN_OK);
    CHECK(!readable(&w, 0));
    CHECK_EQ(ign_watch_arm(&w, &words[0], 0), IGN_OK);
    CHECK(!readable(&w, 0));
    ign_futex_wake_all(&words[1]);
    CHECK(!readable(&w, 0));
    CHECK_EQ(ign_watch_arm(&w, &words[0], 0), IGN_OK); /* it goes on */
    atomic_store(&words[0], 1);
    ign_futex_wake_all(&words[0]);
    told(&w);
    CHECK(!readable(&w, 0));
    ign_futex_wake_all(&words[0]);
    CHECK(!readable(&w, 0)); /* nobody waits */
    CHECK_EQ(ign_watch_arm(&w, &words[0], 0), IGN_OK); /* it has another value by now */
    told(&w);
    ign_watch_close(&w);
    ign_watch_close(&w);
    munmap(words, 4096);
}

static void another_word(void)
{
    ign_watch w;
    _Atomic uint32_t *words = shared_words();
    CHECK_EQ(ign_watch_open(&w), IGN_OK);
    for (uint32_t i = 0; i < 100; i++) { /* more than the ring has places */
        CHECK_EQ(ign_watch_arm(&w, &words[i % 2], 0), IGN_OK);
        while (readable(&w, 0))
            CHECK(!ign_watch_take(&w)); /* that a wait was cancelled is no wake-up */
    }
    ign_futex_wake_all(&words[0]);
    CHECK(!readable(&w, 0));
    ign_futex_wake_all(&words[1]);
    told(&w);
    ign_watch_close(&w);
    munmap(words, 4096);
}

/* Two processes hand a number to and fro. A lost wake-up shows as a poll that ends. */
static void hand_overs(void)
{
    _Atomic uint32_t *words = shared_words();
    pid_t child = fork();
    ign_watch w;
    CHECK(child >= 0);
    CHECK_EQ(ign_watch_open(&w), IGN_OK);
    _Atomic uint32_t *mine = &words[child == 0], *other = &words[child != 0];
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (child != 0) {
            atomic_fetch_add(other, 1);
            ign_futex_wake_all(other);
        }
        while (atomic_load(mine) == i) {
            CHECK_EQ(ign_watch_arm(&w, mine, i), IGN_OK);
            told(&w);
        }
        if (child == 0) {
            atomic_fetch_add(other, 1);
            ign_futex_wake_all(other);
        }
    }
    ign_watch_close(&w);
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    munmap(words, 4096);
}

/* Descriptors and mappings are given back, also with a wait under way. */
static void many_openings(void)
{
    _Atomic uint32_t *words = shared_words();
    for (uint32_t i = 0; i < 200; i++) {
        ign_watch w;
        CHECK_EQ(ign_watch_open(&w), IGN_OK);
        CHECK(ign_watch_descriptor(&w) < 64);
        CHECK_EQ(ign_watch_arm(&w, words, 0), IGN_OK);
        ign_watch_close(&w);
    }
    munmap(words, 4096);
}

int main(void)
{
    ign_watch w;
    int rc = ign_watch_open(&w);
    if (rc != IGN_OK) {
        CHECK_EQ(rc, IGN_E_IO);
        CHECK(ign_watch_descriptor(&w) < 0);
        printf("%-14s not on this kernel\n", "watch");
        return 0;
    }
    ign_watch_close(&w);
    int ran_ = 0;
    RUN(one_word);
    RUN(another_word);
    RUN(many_openings);
    RUN(hand_overs);
    printf("%-14s %d cases\n", "watch", ran_);
    return 0;
}
