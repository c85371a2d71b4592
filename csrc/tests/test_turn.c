/* Turns: one at a time has it, whoever sleeps is woken, a bound is kept, and a child finds it free. */
#ifdef __linux__
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "ignis_turn.h"
#include "ignis_wait.h"

#define LONG_NS 60000000000u

typedef struct crowd {
    ign_turn turn;
    _Atomic int holding;
    uint64_t plain; /* written by who has the turn alone: ThreadSanitizer sees whether that is so */
    int rounds;
} crowd;

static void *take_turns(void *arg)
{
    crowd *c = arg;
    for (int i = 0; i < c->rounds; i++) {
        CHECK(ign_turn_take(&c->turn, LONG_NS));
        CHECK_EQ(atomic_fetch_add(&c->holding, 1), 0);
        c->plain++;
        if (i % 8 == 0)
            sched_yield();
        atomic_fetch_sub(&c->holding, 1);
        ign_turn_give(&c->turn);
    }
    return NULL;
}

static void one_at_a_time_has_it(void)
{
    enum { THREADS = 16 };
    static crowd c = {.rounds = 3000};
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, take_turns, &c), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(c.plain, (uint64_t)THREADS * (uint64_t)c.rounds);
}

static void a_bound_is_kept(void)
{
    ign_turn turn = {0};
    CHECK(ign_turn_take(&turn, 0));
    uint64_t began = ign_now_ns();
    errno = EIO;
    CHECK(!ign_turn_take(&turn, 30000000));
    CHECK_EQ(errno, EIO); /* the wait ended with ETIMEDOUT */
    uint64_t took = ign_now_ns() - began;
    CHECK(took >= 29000000 && took < 2000000000);
    ign_turn_give(&turn);
    CHECK(ign_turn_take(&turn, 0));
    ign_turn_give(&turn);
}

static void a_child_finds_it_free(void)
{
    ign_fork_watch();
    ign_turn turn = {0};
    CHECK(ign_turn_take(&turn, 0));
    pid_t child = fork();
    if (child == 0)
        _exit(ign_turn_take(&turn, 0) ? 0 : 1);
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK(!ign_turn_take(&turn, 0));
}

static void *take_one(void *arg)
{
    ign_turn *turn = arg;
    CHECK(ign_turn_take(turn, LONG_NS));
    ign_turn_give(turn);
    return NULL;
}

static void a_crowd_is_seen(void)
{
    enum { THREADS = 2 };
    static ign_turn turn;
    pthread_t threads[THREADS];
    CHECK(ign_turn_take(&turn, 0));
    CHECK(!ign_turn_crowded(&turn)); /* nobody waits */
    CHECK_EQ(pthread_create(&threads[0], NULL, take_one, &turn), 0);
    struct timespec moment = {.tv_nsec = 20000000};
    nanosleep(&moment, NULL);
    CHECK(!ign_turn_crowded(&turn)); /* one */
    CHECK_EQ(pthread_create(&threads[1], NULL, take_one, &turn), 0);
    uint64_t until = ign_now_ns() + LONG_NS;
    while (!ign_turn_crowded(&turn) && ign_now_ns() < until)
        sched_yield();
    CHECK(ign_turn_crowded(&turn));
    pid_t child = fork();
    if (child == 0)
        _exit(ign_turn_crowded(&turn) ? 1 : 0); /* who waits is not in it */
    int status = 1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    ign_turn_give(&turn);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(!ign_turn_crowded(&turn));
}

int main(void)
{
    one_at_a_time_has_it();
    a_bound_is_kept();
    a_child_finds_it_free();
    a_crowd_is_seen();
    printf("%-14s 4 cases\n", "turn");
    return 0;
}
