/* The store on a simulated machine: histories by chance, and short ones that are cut, killed or stopped at every step.
 *
 *   test_store_sim                      what belongs to every run of the tests
 *   test_store_sim seeds FROM COUNT     long histories; each is one seed, and prints it when it fails
 *   test_store_sim seeds SEED           that one again
 *   test_store_sim storms FROM COUNT    the same where killed processes are followed by others, and many are stopped at once
 */
#include <stdio.h>
#ifndef __GLIBC__ /* no coroutines */
int main(void)
{
    printf("%-14s needs glibc\n", "store_sim");
    return 0;
}
#else
#include "store_model.h"


/* A few epochs, each with several processes, ended by a power cut or by all being killed. */
static void epochs_of(sim_plan plan, unsigned epochs, unsigned most_operations)
{
    plan.writebacks = (uint32_t)sim_below(300000);
    purging = sim_below(3) == 0;
    disk_fails = plan.flush_fails + plan.write_fails + plan.no_room != 0;
    if (getenv("SIM_TELL") != NULL)
        fprintf(stderr, "kills %u stops %u flush %u write %u room %u epochs %u\n", plan.kills, plan.stops, plan.flush_fails, plan.write_fails, plan.no_room, epochs);
    for (unsigned e = 0; e < epochs; e++) {
        bool cut = sim_below(3) != 0;
        operations = 4 + (unsigned)sim_below(most_operations);
        plan.cut_at = cut ? machine.steps + 1 + sim_below(sim_below(2) == 0 ? 300 : 6000) : 0;
        machine.plan = plan;
        unsigned count = plan.restarts != 0 ? PROCESSES : 1 + (unsigned)sim_below(PROCESSES);
        for (unsigned i = 0; i < count; i++)
            sim_start((int)i, work);
        bool watched = !cut && sim_below(2) == 0;
        if (watched)
            sim_start(SIM_BYSTANDER, bystander);
        sim_run(watched ? SIM_PROCESSES : (int)count);
        cut = machine.cut;
        crashes++;
        if (telling())
            fprintf(stderr, "--- %s\n", cut ? "cut" : "all killed");
        if (cut)
            sim_power_cut(sim_below);
        else
            sim_kill_all();
        check_now(cut);
    }
}

/* One long history. */
static void history(uint64_t seed)
{
    begin(seed);
    what_now = "history";
    unsigned epochs = 1 + (unsigned)sim_below(4);
    sim_plan plan = {.switches = (uint32_t)sim_below(100000)};
    switch (sim_below(6)) {
    case 0: break;
    case 1: plan.kills = (uint32_t)sim_below(3000); break;
    case 2: plan.stops = (uint32_t)sim_below(3000); break;
    case 3: plan.kills = (uint32_t)sim_below(1500), plan.stops = (uint32_t)sim_below(1500); break;
    case 4: plan.flush_fails = (uint32_t)sim_below(100000), plan.kills = (uint32_t)sim_below(500), plan.fail_kills = sim_below(2) == 0; break;
    default: plan.write_fails = (uint32_t)sim_below(20000), plan.no_room = (uint32_t)sim_below(20000), plan.stops = (uint32_t)sim_below(500); break;
    }
    epochs_of(plan, epochs, 40);
}

/* One in which who is killed is followed by another, and most of who is stopped wakes about when the others have given up waiting: several of
 * such at once are what it takes for one to act on what another has undone. */
static void storm(uint64_t seed)
{
    begin(seed);
    what_now = "storm";
    sim_plan plan = {
        .switches = (uint32_t)sim_below(100000), .kills = 500 + (uint32_t)sim_below(8000), .stops = 500 + (uint32_t)sim_below(8000),
        .stops_around = options.stopped_after_ns, .restarts = 4 + (uint32_t)sim_below(12),
    };
    if (sim_below(4) == 0)
        plan.flush_fails = (uint32_t)sim_below(100000);
    epochs_of(plan, 1 + (unsigned)sim_below(3), 16);
}

/* -- every step of a short history --------------------------------------------------------------------------------------- */

static void two_of_each(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    ign_store_mark mark;
    REQUIRE(ign_store_open(&store, io, &options) == IGN_OK);
    REQUIRE(ign_store_declare(store, "m", 1, 0, &magazine, NULL, &mark) == IGN_OK);
    REQUIRE(ign_store_flush(store, &mark, true) == IGN_OK);
    load_some(store, true);
    load_some(store, false);
    claim_some(store, true, true);
    REQUIRE(ign_store_checkpoint(store) >= 0);
    load_some_as(store, ONCE, true);
    load_some_as(store, CLAIMED, true);
    expire_some(store);
    put_later(store, true);
    move_due(store, UINT64_MAX);
    claim_some(store, true, false);
    ign_store_close(store);
}

static unsigned tape[64], tape_length, tape_at, tape_of[64];

/* Every choice once: two for a sector, all for names. The tape says what was chosen before; the last is raised. */
static uint64_t draw_all(uint64_t n)
{
    unsigned of = n == 16 ? 2 : (unsigned)n;
    if (tape_at == 64 || (tape_at >= 7 && of > 1)) { /* beyond seven sectors: by chance */
        return n == 16 ? sim_below(2) * 7 : sim_below(n);
    }
    if (tape_at == tape_length) {
        tape[tape_length] = 0;
        tape_of[tape_length++] = of;
    }
    unsigned chosen = tape[tape_at++];
    return n == 16 ? chosen * 7 : chosen;
}

static bool next_tape(void)
{
    while (tape_length > 0 && ++tape[tape_length - 1] >= tape_of[tape_length - 1])
        tape_length--;
    return tape_length > 0;
}

static uint64_t count_steps(void)
{
    begin(1);
    sim_start(0, two_of_each);
    sim_run(1);
    return machine.steps;
}

/* Of the steps each so many-th, and of the seeds one in so many: IGN_TEST_EVERY, 1 where it is not set. */
static unsigned every(void)
{
    const char *said = getenv("IGN_TEST_EVERY");
    unsigned long n = said == NULL ? 1 : strtoul(said, NULL, 10);
    return n == 0 ? 1 : (unsigned)n;
}

static void cut_at_every_step(void)
{
    what_now = "cut at every step";
    uint64_t steps = count_steps();
    for (uint64_t at = 1; at <= steps; at += every()) {
        tape_length = 0;
        do {
            begin(1);
            machine.plan.cut_at = at;
            sim_start(0, two_of_each);
            sim_run(1);
            tape_at = 0;
            sim_power_cut(draw_all);
            check_now(true);
            crashes++;
        } while (next_tape());
    }
}

/* Killed at each step, and whoever goes on killed at each of its first steps; a third finishes. */
static void kill_at_every_step(void)
{
    what_now = "kill at every step";
    uint64_t steps = count_steps();
    for (uint64_t at = 1; at <= steps; at += every())
        for (uint64_t second = 1; second < 400; second += 1 + second / 8) {
            begin(1);
            operations = 3;
            machine.plan.kill_at = at;
            sim_start(0, two_of_each);
            sim_run(1);
            sim_start(0, two_of_each);
            machine.plan.kill_at = machine.steps + second;
            sim_run(1);
            machine.plan.kill_at = 0;
            sim_kill_all();
            check_now(false);
            crashes++;
        }
}

/* Killed at each step while somebody else has the store open: what was half done is mended in place, and is then what the log
 * says. A second one is killed while it mends. */
static void kill_beside_a_bystander(void)
{
    what_now = "kill beside a bystander";
    uint64_t steps = count_steps() + 200;
    for (uint64_t at = 1; at <= steps; at += every())
        for (unsigned second = 0; second < 4; second++) {
            begin(1 + second);
            operations = 2;
            machine.plan.switches = second * 30000;
            sim_start(SIM_BYSTANDER, bystander);
            sim_start(0, two_of_each);
            sim_start(1, work);
            machine.plan.kill_at = at;
            for (int i = 2; i < SIM_BYSTANDER; i++)
                sim_start(i, work);
            sim_run(SIM_PROCESSES);
            sim_kill_all();
            check_now(false);
            crashes++;
        }
}

static uint64_t healed_at, kill_behind;

static void refuse_and_go_on(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    ign_store_mark mark;
    REQUIRE(ign_store_open(&store, io, &options) == IGN_OK);
    REQUIRE(ign_store_declare(store, "m", 1, 0, &magazine, NULL, &mark) == IGN_OK);
    REQUIRE(ign_store_flush(store, &mark, true) == IGN_OK);
    load_some(store, true);
    load_some(store, false);
    machine.plan.flush_fails = 1000000;
    load_some(store, true);
    REQUIRE(model[next_id - 1].refused);
    machine.plan.flush_fails = 0;
    healed_at = machine.steps;
    machine.plan.kill_at = kill_behind == 0 ? 0 : healed_at + kill_behind;
    load_some(store, true);
    ign_store_close(store);
}

/* The disk refuses to flush, and who was refused makes the next generation: killed at each step of that. */
static void killed_behind_a_refusal(void)
{
    what_now = "killed behind a refusal";
    uint64_t steps = UINT64_MAX;
    for (uint64_t at = 0; at <= steps; at++) {
        begin(1);
        disk_fails = true;
        kill_behind = at;
        sim_start(0, refuse_and_go_on);
        sim_run(1);
        if (at == 0)
            steps = machine.steps - healed_at;
        sim_kill_all();
        machine.plan = (sim_plan){0};
        check_now(false);
        crashes++;
    }
}

/* Flushes what the other has loaded, too, and is stopped in that. */
static void flush_and_stop(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    _Atomic uint32_t nothing = 0;
    io->wait(io, &nothing, 0, 300000000ull);
    if (!open_both(&store, io))
        return;
    for (int i = 0; i < 3; i++)
        load_some(store, true);
    ign_store_close(store);
}

/* Loads before the other, and is refused while that is stopped. */
static void refused_meanwhile(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    ign_store_mark mark;
    _Atomic uint32_t nothing = 0;
    if (!open_both(&store, io))
        return;
    uint32_t first = next_id;
    load_some(store, false);
    uint32_t end = next_id;
    int rc = ign_store_mark_now(store, &mark);
    io->wait(io, &nothing, 0, 1000000000ull);
    machine.plan.flush_fails = 1000000;
    if (rc == IGN_OK)
        rc = ign_store_flush(store, &mark, true);
    machine.plan.flush_fails = 0;
    REQUIRE(rc == IGN_OK || allowed(rc));
    for (uint32_t id = first; id < end; id++) {
        model[id].refused = rc == IGN_E_FAILED;
        model[id].doubt = rc != IGN_OK && rc != IGN_E_FAILED;
        model[id].durable = rc == IGN_OK;
    }
    io->wait(io, &nothing, 0, 8000000000ull);
    ign_store_close(store);
}

/* A flush that another process began before one was refused, and that comes back behind it, takes nothing of the refusal back. */
static void refused_beside_a_flush(void)
{
    what_now = "refused beside a flush";
    for (uint64_t at = 1; at <= 200; at++) {
        begin(1);
        disk_fails = true;
        machine.plan.stop_at = at;
        machine.plan.stop_for = 1500000000ull;
        sim_start(0, flush_and_stop);
        sim_start(1, refused_meanwhile);
        sim_run(2);
        sim_kill_all();
        machine.plan = (sim_plan){0};
        check_now(false);
        crashes++;
    }
}

/* Opens, closes and opens again, and then waits until the other has gone on. */
static void open_twice(int process, ign_store_io *io)
{
    ign_store *store;
    for (int i = 0; i < 2; i++) {
        ign_store_mark mark;
        REQUIRE(ign_store_open(&store, io, &options) == IGN_OK);
        REQUIRE(ign_store_declare(store, "m", 1, 0, &magazine, NULL, &mark) == IGN_OK);
        REQUIRE(ign_store_flush(store, &mark, true) == IGN_OK);
        load_some(store, true);
        if (i == 0)
            ign_store_close(store);
    }
    for (int i = 0; i < 3; i++) {
        _Atomic uint32_t nothing = 0;
        io->wait(io, &nothing, 0, 3000000000ull);
        load_some(store, true);
    }
    (void)process;
    ign_store_close(store);
}

/* Stopped at each step, for longer than anybody waits; another works meanwhile and beyond, and the first goes on in between. */
static void stop_at_every_step(void)
{
    what_now = "stop at every step";
    uint64_t steps = count_steps();
    for (uint64_t at = 1; at <= steps; at += every())
        for (unsigned variant = 0; variant < 4; variant++) {
            begin(1 + variant);
            machine.plan.stop_at = at;
            machine.plan.stop_for = variant == 2 ? UINT64_MAX / 2 : variant == 3 ? 5000000000ull : 2100000000ull + variant * 3000000ull;
            machine.plan.switches = variant == 3 ? 0 : 50000 * variant;
            operations = 12;
            sim_start(0, two_of_each);
            sim_start(1, variant == 3 ? open_twice : work);
            sim_run(2);
            REQUIRE(machine.processes[1].fate == SIM_DONE);
            sim_kill_all();
            check_now(false);
            crashes++;
        }
}

/* Long histories that failed once, or that show what a planted mistake does and the first thousands do not. */
static void seeds_that_failed(void)
{
    static const uint64_t seeds[] = {
        601230047, /* who was stopped in a recovery took files that others had removed meanwhile for lost ones */
        1000534623, /* who was stopped in maintenance called it an error that others had removed what was kept for checkpoints */
        80696669, /* who was stopped took another's entry, at the place where its own was to be, for its own */
        11969, 107314, 8534, /* a write that failed is told to another descriptor than the one that is flushed */
        713062431, 713450511, /* who opened a full store looked into a generation that its maintenance had left */
    };
    static const uint64_t storms[] = {
        901240703, /* who was stopped while he made a generation gave its name to it when that was free again */
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++)
        history(seeds[i]);
    for (size_t i = 0; i < sizeof storms / sizeof *storms; i++)
        storm(storms[i]);
}

int main(int argc, char **argv)
{
#ifdef IGN_TEST_TSAN
    printf("%-14s coroutines: not under ThreadSanitizer\n", "store_sim");
    return 0;
#endif
    mallopt(M_PERTURB, 0xa5); /* what was freed looks no more as it did */
    seeded = argc >= 2 && strcmp(argv[1], "storms") == 0 ? storm : history;
    if (argc == 3) {
        seeded(strtoull(argv[2], NULL, 10));
        return 0;
    }
    if (argc == 4) {
        in_portions(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
        return 0;
    }
    run_forked(cut_at_every_step);
    run_forked(kill_at_every_step);
    run_forked(kill_beside_a_bystander);
    run_forked(killed_behind_a_refusal);
    run_forked(refused_beside_a_flush);
    run_forked(stop_at_every_step);
    run_forked(seeds_that_failed);
    seed_count /= every();
    run_forked(some_seeds);
    seeded = storm;
    run_forked(some_seeds);
    printf("%-14s 9 cases\n", "store_sim");
    return 0;
}
#endif
