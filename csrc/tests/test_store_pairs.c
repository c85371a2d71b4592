/* Two processes that are killed or stopped, each at some step of what it does, on the simulated machine; a third goes on without them. A mistake
 * that takes two such moments, each one step long, is found by chance in millions of histories, and by these in thousands.
 *
 *   test_store_pairs                  what belongs to every run of the tests
 *   test_store_pairs pairs FROM COUNT more; each is one seed, and prints it when it fails
 *   test_store_pairs pairs SEED       that one again
 */
#include <stdio.h>
#ifndef __GLIBC__ /* no coroutines */
int main(void)
{
    printf("%-14s needs glibc\n", "store_pairs");
    return 0;
}
#else
#include "store_model.h"

/* -- a load behind one that began another segment ------------------------------------------------------------------- */

static unsigned roll_load; /* which of its loads begins another segment; 0: that is to be found out */
static uint64_t roll_steps, load_steps, kill_behind, stop_behind;

/* Loads until it begins another segment, and is killed in that. */
static void roll_and_die(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    REQUIRE(open_both(&store, io));
    for (unsigned i = 1; roll_load == 0 || i <= roll_load; i++) {
        ign_store_figures before, after;
        uint64_t began = machine.steps;
        REQUIRE(ign_store_figures_of(store, &before) == IGN_OK);
        if (i == roll_load)
            machine.plan.kill_at = machine.steps + kill_behind;
        load_some(store, false);
        REQUIRE(ign_store_figures_of(store, &after) == IGN_OK);
        if (roll_load == 0 && after.segments > before.segments) {
            roll_load = i;
            roll_steps = machine.steps - began;
        }
    }
    machine.plan.kill_at = 0;
    ign_store_close(store);
}

/* Loads behind it, and is stopped in that. */
static void mend_and_stop(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    _Atomic uint32_t nothing = 0;
    REQUIRE(open_both(&store, io));
    io->wait(io, &nothing, 0, 300000000ull);
    uint64_t began = machine.steps;
    machine.plan.stop_at = stop_behind == 0 ? 0 : began + stop_behind;
    machine.plan.stop_for = 8000000000ull;
    load_some(store, true);
    machine.plan.stop_at = 0;
    if (stop_behind == 0 && machine.steps - began > load_steps)
        load_steps = machine.steps - began;
    load_some(store, true);
    ign_store_close(store);
}

/* Does not wait for it. */
static void go_on_without(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    _Atomic uint32_t nothing = 0;
    REQUIRE(open_both(&store, io));
    io->wait(io, &nothing, 0, 900000000ull);
    load_some(store, true);
    claim_some(store, false, true);
    ign_store_close(store);
}

static void one_stopped_behind_a_roll(void)
{
    begin(1);
    sim_start(0, mend_and_stop);
    sim_start(1, roll_and_die);
    sim_start(2, go_on_without);
    sim_run(3);
    sim_kill_all();
    machine.plan = (sim_plan){0};
    check_now(false);
    crashes++;
}

/* Killed at each step of a load that begins another segment; who mends that is stopped at each step of a load of its own, and a third goes on
 * in another generation. What the dead one had begun there is not what the stopped one has written. */
static void stopped_behind_a_roll(void)
{
    what_now = "stopped behind a roll";
    roll_load = 0;
    kill_behind = stop_behind = 0;
    one_stopped_behind_a_roll();
    for (kill_behind = 1, stop_behind = 0; kill_behind <= roll_steps; kill_behind++)
        one_stopped_behind_a_roll();
    for (kill_behind = 1; kill_behind <= roll_steps; kill_behind++)
        for (stop_behind = 1; stop_behind <= load_steps; stop_behind++)
            one_stopped_behind_a_roll();
}

/* -- two that end or are stopped at each step, one behind the other ---------------------------------------------------------------- */

typedef enum act { LOADS, LOADS_CLAIMED, LOADS_ONCE, PUTS_OFF, CLAIMS, RETIRES, MOVES, CHANGES, MAINTAINS, COMES, ACTS } act;

static struct {
    act first, second;
    unsigned before;              /* loads, so that one of the acts begins another segment, or makes a checkpoint */
    uint64_t first_at, second_at; /* step of it; 0: it is not disturbed */
    uint64_t first_steps, second_steps; /* undisturbed */
    uint64_t sleeps_for;          /* the first; 0: he is killed */
} pair;

/* `store` is NULL where the act is to open it. */
static void do_act(act what, ign_store *store, ign_store_io *io)
{
    ign_store_change change = {.key = "k", .key_bytes = 1, .value = "abcdefgh", .value_bytes = 8, .expected_bytes = UINT32_MAX};
    ign_store_mark mark;
    switch (what) {
    case LOADS: load_some(store, true); break;
    case LOADS_CLAIMED: load_some_as(store, CLAIMED, true); break;
    case LOADS_ONCE: load_some_as(store, ONCE, true); break;
    case PUTS_OFF: put_later(store, true); break;
    case CLAIMS: claim_some(store, false, true); break;
    case RETIRES: claim_some(store, true, true); break;
    case MOVES: move_due(store, UINT64_MAX); break;
    case CHANGES: REQUIRE(ign_store_change_keys(store, &change, 1, NULL, &mark) == IGN_OK); break;
    case MAINTAINS: {
        int kept = ign_store_maintain(store);
        REQUIRE(kept == IGN_OK || kept == IGN_EMPTY || kept == IGN_E_STALE);
        break;
    }
    default:
        REQUIRE(ign_store_open(&store, io, &options) == IGN_OK);
        load_some(store, true);
        ign_store_close(store);
    }
}

static void ends_first(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    _Atomic uint32_t nothing = 0;
    REQUIRE(open_both(&store, io));
    for (unsigned i = 0; i < pair.before; i++) {
        load_some(store, i % 2 == 0);
        if (i % 3 == 1)
            put_later(store, true);
        if (i % 4 == 3)
            claim_some(store, true, true);
    }
    io->wait(io, &nothing, 0, 300000000ull);
    uint64_t began = machine.steps;
    machine.plan.kill_at = pair.first_at == 0 ? 0 : began + pair.first_at;
    do_act(pair.first, store, io);
    machine.plan.kill_at = 0;
    pair.first_steps = pair.first_at == 0 ? machine.steps - began : pair.first_steps;
    ign_store_close(store);
}

static void is_stopped_behind(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store = NULL;
    _Atomic uint32_t nothing = 0;
    if (pair.second != COMES)
        REQUIRE(open_both(&store, io));
    io->wait(io, &nothing, 0, 600000000ull);
    uint64_t began = machine.steps;
    machine.plan.stop_at = pair.second_at == 0 ? 0 : began + pair.second_at;
    machine.plan.stop_for = 8000000000ull;
    do_act(pair.second, store, io);
    machine.plan.stop_at = 0;
    pair.second_steps = pair.second_at == 0 ? machine.steps - began : pair.second_steps;
    if (store == NULL)
        return;
    load_some(store, true);
    ign_store_close(store);
}

static void goes_on(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    _Atomic uint32_t nothing = 0;
    REQUIRE(open_both(&store, io));
    io->wait(io, &nothing, 0, 900000000ull);
    load_some(store, true);
    claim_some(store, true, true);
    REQUIRE(ign_store_maintain(store) != IGN_E_FAILED);
    load_some(store, true);
    ign_store_close(store);
}

static void one_pair(uint64_t seed)
{
    begin(seed);
    machine.plan.sleeps_for = pair.sleeps_for;
    sim_start(0, is_stopped_behind);
    sim_start(1, ends_first);
    sim_start(2, goes_on);
    sim_run(3);
    bool cut = seed % 2 != 0;
    if (cut)
        sim_power_cut(sim_below);
    else
        sim_kill_all();
    machine.plan = (sim_plan){0};
    check_now(cut);
    crashes++;
}

/* Whoever comes first is killed, or stopped for 5 s, at some step of his act; the second is stopped for 8 s at some step of his; a third goes
 * on. Seeds of one PAIRS share what is done, so that it is known how many steps that takes. */
static void pairs(uint64_t seed)
{
    enum { PAIRS = 100, BEFORE = 12 };
    static uint64_t known = UINT64_MAX;
    what_now = "pairs";
    uint64_t shared = seed / PAIRS;
    if (shared != known) {
        memset(&pair, 0, sizeof pair);
        machine.random_state = known = shared;
        pair.first = (act)sim_below(ACTS);
        pair.second = (act)sim_below(ACTS);
        pair.before = 1 + (unsigned)sim_below(BEFORE);
        pair.sleeps_for = sim_below(3) == 0 ? 5000000000ull : 0;
        one_pair(shared);
    }
    machine.random_state = seed;
    pair.first_at = 1 + sim_below(pair.first_steps);
    pair.second_at = 1 + sim_below(pair.second_steps + pair.second_steps / 2);
    one_pair(shared);
}

int main(int argc, char **argv)
{
#ifdef IGN_TEST_TSAN
    printf("%-14s coroutines: not under ThreadSanitizer\n", "store_pairs");
    return 0;
#endif
    mallopt(M_PERTURB, 0xa5); /* what was freed looks no more as it did */
    seeded = pairs;
    if (argc == 3) {
        pairs(strtoull(argv[2], NULL, 10));
        return 0;
    }
    if (argc == 4) {
        in_portions(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
        return 0;
    }
    run_forked(stopped_behind_a_roll);
    in_portions(1, 6000);
    printf("%-14s 2 cases\n", "store_pairs");
    return 0;
}
#endif
