/* What the tests of the store on a simulated machine share: what processes do, and a small model of who was told what, which must hold whatever
 * was killed, stopped, torn or refused. */
#ifndef IGNIS_TEST_STORE_MODEL_H
#define IGNIS_TEST_STORE_MODEL_H

#include "store_batch.h"
#include "store_sim.h"

#include "../ignis_store_later.h"

#include <malloc.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IDS = 2048, PROCESSES = 3, POINTERS = 4096, KEYS = 24, FORGOTTEN = 8 };

/* What the model knows of one message. */
typedef struct message {
    bool sent;     /* a load was begun */
    bool there;    /* the load returned: it survives kill -9 */
    bool durable;  /* its flush returned: it survives a power cut */
    bool refused;  /* the load or its flush returned an error that says so */
    bool doubt;    /* ... or one that does not */
    bool retiring; /* a retirement was begun */
    bool retired;  /* ... and returned */
    bool retired_durable;
    bool claimed;  /* handed out since the last power cut or failure of the disk */
    bool gone;     /* was not found at an opening, as it may: it must stay so */
    bool never;    /* its load said that nothing happened: it is found by nobody */
    bool left;     /* a retirement was begun, ever */
    uint64_t expires; /* when; 0: never */
    unsigned key;  /* it was loaded once for this, 0: for none */
    uint32_t load; /* the first that was loaded with it */
    uint64_t pointer;
} message;

/* What the model knows of what is loaded once. */
typedef struct once_key {
    unsigned sent; /* loads that were begun */
    bool there, doubt;
    bool durable; /* if not, it goes with the first flush that is refused */
} once_key;

static message model[IDS];
static once_key keys[KEYS];
static unsigned purges;               /* that were begun, and have not returned */
static uint32_t hour;                 /* keys of the first half go with the second hour */
static uint8_t epoch_begun, epoch_set; /* what a change of the fence has begun to set, and has set */
static uint64_t by_pointer[POINTERS][2]; /* pointer, message */
static unsigned pointers;
static uint32_t next_id, magazine;
static bool disk_fails; /* in this history writes or flushes fail */
static bool declared_for_good; /* and that was flushed */
static bool purging;    /* in this one what waits is retired now and then */
static unsigned operations;
static uint64_t seed_now;
static const char *what_now;

static ign_store_options options = {
    .segment_bytes = 4096, .control_reserve = SIM_BYTES, .arena_bytes = 8192, .undo_capacity = 96,
    .stopped_after_ns = 2000000000ull, .busy_after_ns = 60000000000ull, .checkpoint_bytes = 3000,
};

#define REQUIRE(condition)                                                                                        \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            fprintf(stderr, "%s:%d: not true: %s (%s, seed %" PRIu64 ", step %" PRIu64 ")\n", __FILE__, __LINE__,   \
                    #condition, what_now, seed_now, machine.steps);                                                \
            _exit(1);                                                                                             \
        }                                                                                                         \
    } while (0)

/* Errors that a call may end with while the disk fails, and otherwise none. What was declared and not flushed goes with the first flush
 * that is refused. */
static inline bool allowed(int rc)
{
    if (disk_fails && rc == IGN_E_UNKNOWN)
        return !declared_for_good;
    return disk_fails && (rc == IGN_E_FAILED || rc == IGN_E_IN_DOUBT || rc == IGN_E_IO || rc == IGN_E_NO_ROOM || rc == IGN_E_BUSY);
}

static inline bool telling(void)
{
    static int yes = -1;
    if (yes < 0)
        yes = getenv("SIM_TELL") != NULL;
    return yes != 0;
}
#define TELL(...) do { if (telling()) { fprintf(stderr, "%6" PRIu64 " p%d ", machine.steps, machine.now->number); fprintf(stderr, __VA_ARGS__); } } while (0)

static inline void note_pointer(uint64_t pointer, uint64_t id)
{
    TELL("pointer %" PRIu64 " is %" PRIu64 "\n", pointer, id);
    for (unsigned i = 0; i < pointers; i++)
        if (by_pointer[i][0] == pointer)
            REQUIRE(by_pointer[i][1] == id); /* pointers are never used again */
    REQUIRE(pointers < POINTERS);
    by_pointer[pointers][0] = pointer;
    by_pointer[pointers++][1] = id;
}

typedef enum load_kind { PLAIN, AT_ONCE, FENCED, ONCE, CLAIMED } load_kind;

static inline void id_of_key(uint8_t *to, unsigned key)
{
    memset(to, (int)key, IGN_STORE_ID_BYTES);
}

/* What a load of that kind ended with, if it is what the model says. True: it was nothing to complain about, and nothing happened. */
static inline bool refused_as_it_may(load_kind kind, int rc, unsigned key, uint8_t fence, uint8_t begun, uint8_t set)
{
    switch (kind) {
    case AT_ONCE: return rc == IGN_E_BUSY;
    case FENCED:
        REQUIRE(rc != IGN_OK || fence >= set || disk_fails); /* it had another value before we began, and nobody was refused since */
        REQUIRE(rc != IGN_E_MISMATCH || fence != set || begun != set || epoch_begun != begun || disk_fails); /* and it had this one all the time */
        return rc == IGN_E_MISMATCH;
    case ONCE:
        REQUIRE(rc != IGN_E_MISMATCH || keys[key].sent > 1);
        REQUIRE(rc != IGN_OK || !keys[key].there || keys[key].doubt || (disk_fails && !keys[key].durable));
        return rc == IGN_E_MISMATCH;
    case CLAIMED: return rc == IGN_EMPTY;
    default: return false;
    }
}

static inline int load_as(ign_store *store, load_kind kind, ign_store_part *part, unsigned key, uint8_t fence, ign_store_mark *mark)
{
    uint8_t id[IGN_STORE_ID_BYTES];
    ign_store_change change = {.key = "epoch", .key_bytes = 5, .expected = fence == 0 ? NULL : &fence, .expected_bytes = fence != 0};
    id_of_key(id, key);
    switch (kind) {
    case AT_ONCE: return ign_store_load(store, magazine, part, 1, &(ign_store_how){.at_once = true}, mark);
    case FENCED: return ign_store_load(store, magazine, part, 1, &(ign_store_how){.fence = &change}, mark);
    case ONCE: return ign_store_load_once(store, magazine, part, 1, NULL, id, 1, key < FORGOTTEN ? 2 : 1000, hour, NULL, mark);
    case CLAIMED: return ign_store_load_claimed(store, magazine, part, 1, "one", machine.clock, NULL, mark);
    default: return ign_store_load(store, magazine, part, 1, NULL, mark);
    }
}

static inline void load_some_as(ign_store *store, load_kind kind, bool flush)
{
    uint8_t batch[1024];
    uint32_t count = 1 + (uint32_t)sim_below(4), first = next_id;
    unsigned key = kind == ONCE ? 1 + (unsigned)sim_below(KEYS - 1) : 0;
    if (first + count >= IDS || (key != 0 && key < FORGOTTEN && hour > 1))
        return;
    next_id += count;
    uint64_t expires = sim_below(4) == 0 ? machine.clock + sim_below(2000000) : 0;
    uint8_t begun = epoch_begun, set = epoch_set, fence = (uint8_t)(begun - sim_below(2));
    for (uint32_t i = 0; i < count; i++) {
        model[first + i].sent = true;
        model[first + i].retiring = model[first + i].left = purges != 0;
        model[first + i].expires = expires;
        model[first + i].key = key;
        model[first + i].load = first;
    }
    bool knew = key != 0 && keys[key].there;
    if (key != 0)
        keys[key].sent++;
    ign_store_mark mark;
    ign_store_part part = {.shard = 0, .batch = batch, .bytes = batch_make_until(batch, count, first, 8 + (uint32_t)sim_below(64), expires)};
    int rc = load_as(store, kind, &part, key, fence, &mark);
    TELL("load %u x %u as %d key %u knew %d: %d at %" PRIu64 ".%" PRIu64 " first %" PRIu64 "\n", first, count, (int)kind, key, (int)knew, rc,
         mark.generation, mark.position, part.first);
    bool nothing = refused_as_it_may(kind, rc, key, fence, begun, set);
    REQUIRE(rc == IGN_OK || nothing || allowed(rc));
    if (key != 0 && !nothing) {
        keys[key].there = keys[key].there || rc == IGN_OK;
        keys[key].doubt = keys[key].doubt || rc != IGN_OK;
    }
    for (uint32_t i = 0; i < count; i++) {
        message *m = &model[first + i];
        m->there = rc == IGN_OK;
        m->never = nothing;
        m->refused = rc == IGN_E_FAILED || rc == IGN_E_NO_ROOM;
        m->doubt = rc != IGN_OK && !nothing && !m->refused;
        m->pointer = part.first + i;
        if (rc == IGN_OK)
            note_pointer(m->pointer, first + i);
        if (rc == IGN_OK && kind == CLAIMED) {
            REQUIRE(!m->claimed); /* nobody else was handed it */
            m->claimed = true;
        }
    }
    if (rc != IGN_OK || !flush)
        return;
    rc = ign_store_flush(store, &mark, true);
    TELL("flush: %d\n", rc);
    REQUIRE(rc == IGN_OK || allowed(rc));
    for (uint32_t i = 0; i < count; i++) {
        model[first + i].durable = rc == IGN_OK;
        model[first + i].refused = rc == IGN_E_FAILED;
        model[first + i].doubt = rc != IGN_OK && rc != IGN_E_FAILED;
    }
    if (key != 0) {
        keys[key].doubt = keys[key].doubt || rc != IGN_OK;
        keys[key].durable = keys[key].durable || rc == IGN_OK;
    }
}

static inline void load_some(ign_store *store, bool flush)
{
    load_some_as(store, PLAIN, flush);
}

/* Messages that wait for their time, and are where the others are when it is over; with a key, once. */
static inline void put_later(ign_store *store, bool flush)
{
    uint8_t batch[1024], id[IGN_STORE_ID_BYTES];
    uint64_t dues[4];
    uint32_t later;
    unsigned key = sim_below(2) == 0 ? 1 + (unsigned)sim_below(KEYS - 1) : 0;
    ign_store_mark mark;
    int rc = ign_store_declare_later(store, magazine, "m later", 1, &later, NULL, &mark);
    REQUIRE(rc == IGN_OK || allowed(rc));
    uint32_t count = 1 + (uint32_t)sim_below(4), first = next_id; /* behind the declaration: others come in between */
    if (rc != IGN_OK || first + count >= IDS)
        return;
    if (key < FORGOTTEN && hour > 1) /* also the hour may have passed meanwhile */
        key = 0;
    next_id += count;
    for (uint32_t i = 0; i < count; i++) {
        model[first + i].sent = true;
        model[first + i].retiring = model[first + i].left = purges != 0; /* it may be moved in front of what retires all that waits */
        model[first + i].load = first;
        model[first + i].key = key;
        dues[i] = machine.clock + sim_below(sim_below(2) == 0 ? 40 : 4000000);
    }
    ign_store_part part = {.shard = 0, .batch = batch, .bytes = batch_make(batch, count, first, 8 + (uint32_t)sim_below(64))};
    if (key != 0) {
        keys[key].sent++;
        id_of_key(id, key);
        rc = ign_store_load_once(store, later, &part, 1, dues, id, 1, key < FORGOTTEN ? 2 : 1000, hour, NULL, &mark);
    } else
        rc = ign_store_load_later(store, later, &part, 1, dues, NULL, &mark);
    TELL("later %u x %u key %u: %d\n", first, count, key, rc);
    bool nothing = key != 0 && refused_as_it_may(ONCE, rc, key, 0, 0, 0);
    /* The declaration was not flushed: a flush of another process that is refused in between takes it along. */
    REQUIRE(rc == IGN_OK || nothing || allowed(rc) || (disk_fails && rc == IGN_E_UNKNOWN));
    if (key != 0 && !nothing) {
        keys[key].there = keys[key].there || rc == IGN_OK;
        keys[key].doubt = keys[key].doubt || rc != IGN_OK;
    }
    int flushed = rc == IGN_OK && flush ? ign_store_flush(store, &mark, true) : IGN_OK;
    REQUIRE(flushed == IGN_OK || allowed(flushed));
    for (uint32_t i = 0; i < count; i++) {
        message *m = &model[first + i];
        m->there = rc == IGN_OK;
        m->never = nothing;
        m->durable = rc == IGN_OK && flush && flushed == IGN_OK;
        m->refused = rc == IGN_E_FAILED || rc == IGN_E_NO_ROOM || flushed == IGN_E_FAILED;
        m->doubt = !m->refused && !nothing && (rc != IGN_OK || flushed != IGN_OK);
    }
}

static inline void move_due(ign_store *store, uint64_t ms)
{
    ign_store_moved moved;
    ign_store_mark mark;
    int rc = ign_store_move_due(store, magazine, ms, 1 + sim_below(5), 1 << 20, &moved, NULL, &mark);
    TELL("moved %" PRIu64 ": %d\n", moved.moved, rc);
    REQUIRE(rc == IGN_OK || allowed(rc));
}

/* The fence gets its next value. */
static inline void raise_epoch(ign_store *store)
{
    uint8_t had = 0;
    uint32_t bytes;
    int rc = ign_store_get_key(store, "epoch", 5, &had, 1, &bytes);
    REQUIRE(rc == IGN_OK || rc == IGN_EMPTY || allowed(rc));
    uint8_t next = (uint8_t)(had + 1);
    if (rc < 0 || next == 0)
        return;
    ign_store_mark mark;
    ign_store_change change = {.key = "epoch", .key_bytes = 5, .expected = had == 0 ? NULL : &had, .expected_bytes = had != 0,
                               .value = &next, .value_bytes = 1};
    epoch_begun = next > epoch_begun ? next : epoch_begun;
    rc = ign_store_change_keys(store, &change, 1, NULL, &mark);
    REQUIRE(rc == IGN_OK || rc == IGN_E_MISMATCH || allowed(rc));
    if (rc == IGN_OK && epoch_set < next)
        epoch_set = next;
}

/* A claim that was not flushed goes with the first flush that is refused: then what was claimed waits again. */
static inline void note_retiring(uint64_t before_ms)
{
    for (uint32_t id = 1; id < next_id; id++)
        if (before_ms != 0 ? model[id].expires != 0 && model[id].expires <= before_ms : !model[id].claimed || disk_fails)
            model[id].retiring = model[id].left = true;
}

static inline void expire_some(ign_store *store)
{
    uint64_t gone, ms = machine.clock;
    ign_store_mark mark;
    note_retiring(ms);
    int rc = ign_store_expire(store, magazine, 0, ms, 1 + sim_below(5), &gone, NULL, &mark);
    TELL("expire: %d %" PRIu64 "\n", rc, gone);
    REQUIRE(rc == IGN_OK || rc == IGN_EMPTY || allowed(rc));
    REQUIRE(rc == IGN_OK ? gone > 0 && gone <= 5 : gone == 0);
}

static inline void forget_some(ign_store *store)
{
    ign_store_mark mark;
    if (hour == 1 && sim_below(4) == 0) {
        for (unsigned k = 1; k < FORGOTTEN; k++)
            keys[k].doubt = true;
        hour = 2;
    }
    int rc = ign_store_forget_ids(store, magazine, hour, 1 + (uint32_t)sim_below(4), NULL, &mark);
    REQUIRE(rc == IGN_OK || rc == IGN_EMPTY || allowed(rc));
    REQUIRE(rc != IGN_OK || hour == 2);
}

/* All that was never claimed. */
static inline void purge(ign_store *store)
{
    uint64_t retired;
    ign_store_mark mark;
    ign_store_run all = {.first = 1, .last = UINT64_MAX - 1};
    purges++;
    note_retiring(0);
    int rc = ign_store_retire(store, magazine, &all, 1, true, &retired, NULL, &mark);
    purges--;
    REQUIRE(rc == IGN_OK || allowed(rc));
}

/* Of a batch that is fetched: compaction makes one batch of neighbours, up to all that there are. */
enum { FETCHED = 16 << 10 };

static inline void claim_some(ign_store *store, bool retire, bool flush)
{
    static const char *const owners[] = {"one", "two"};
    uint8_t batch[FETCHED];
    ign_slice slices[4];
    uint32_t count;
    bool expired;
    ign_store_mark mark;
    uint64_t ms = machine.clock;
    int rc = ign_store_claim(store, magazine, 0, 1 + (uint32_t)sim_below(6), 1 << 20, owners[sim_below(2)], ms, slices, 4,
                             &count, &expired, NULL, &mark);
    REQUIRE(rc == IGN_OK || rc == IGN_EMPTY || allowed(rc));
    if (rc != IGN_OK)
        return;
    ign_store_run runs[4];
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(slices[i].bytes <= sizeof batch);
        rc = ign_store_fetch(store, &slices[i], batch);
        REQUIRE(rc == IGN_OK || allowed(rc) || rc == IGN_E_STALE);
        runs[i] = (ign_store_run){.first = slices[i].first + slices[i].from, .last = slices[i].first + slices[i].to - 1};
        for (uint32_t k = slices[i].from; rc == IGN_OK && k < slices[i].to; k++) {
            uint64_t id = batch_read(batch, &slices[i], magazine, k);
            REQUIRE(id > 0 && id < next_id && model[id].sent && !model[id].gone && !model[id].never);
            REQUIRE(model[id].expires == 0 || model[id].expires > ms);
            REQUIRE(!model[id].claimed || disk_fails);
            REQUIRE(!model[id].refused || disk_fails); /* seen before it was refused */
            model[id].claimed = true;
            model[id].pointer = slices[i].first + k;
            note_pointer(slices[i].first + k, id);
        }
    }
    if (!retire)
        return;
    for (unsigned i = 0; i < pointers; i++)
        for (uint32_t k = 0; k < count; k++)
            if (by_pointer[i][0] >= runs[k].first && by_pointer[i][0] <= runs[k].last)
                model[by_pointer[i][1]].retiring = model[by_pointer[i][1]].left = true;
    uint64_t retired;
    rc = ign_store_retire(store, magazine, runs, count, false, &retired, NULL, &mark);
    REQUIRE(rc == IGN_OK || allowed(rc));
    if (rc != IGN_OK)
        return;
    TELL("retired %" PRIu64 " of %" PRIu64 "..%" PRIu64 " at %" PRIu64 ".%" PRIu64 "\n", retired, runs[0].first, runs[count - 1].last, mark.generation, mark.position);
    int flushed = flush ? ign_store_flush(store, &mark, true) : IGN_E_BUSY;
    REQUIRE(!flush || flushed == IGN_OK || allowed(flushed));
    for (unsigned i = 0; i < pointers; i++)
        for (uint32_t k = 0; k < count; k++)
            if (by_pointer[i][0] >= runs[k].first && by_pointer[i][0] <= runs[k].last) {
                model[by_pointer[i][1]].retired = !flush || flushed == IGN_OK;
                model[by_pointer[i][1]].retired_durable = flushed == IGN_OK;
            }
}

static inline void work(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    ign_store_mark mark;
    int rc = ign_store_open(&store, io, &options);
    REQUIRE(rc == IGN_OK || allowed(rc));
    if (rc != IGN_OK)
        return;
    rc = ign_store_declare(store, "m", 1, 0, &magazine, NULL, &mark);
    REQUIRE(rc == IGN_OK || allowed(rc));
    if (rc == IGN_OK && sim_below(4) != 0) /* else it may be lost, and what it gave out with it */
        declared_for_good = (rc = ign_store_flush(store, &mark, true)) == IGN_OK || declared_for_good;
    REQUIRE(rc == IGN_OK || allowed(rc));
    for (unsigned i = 0; rc == IGN_OK && i < operations; i++) {
        uint64_t choice = sim_below(16);
        if (choice < 5)
            load_some(store, choice < 3);
        else if (choice < 8)
            load_some_as(store, (load_kind)(AT_ONCE + sim_below(4)), sim_below(2) == 0);
        else if (choice < 14)
            claim_some(store, choice < 12, choice < 10);
        else if (choice == 14 && sim_below(2) == 0)
            switch (sim_below(8)) {
            case 0: raise_epoch(store); break;
            case 1: forget_some(store); break;
            case 2: expire_some(store); break;
            case 3:
            case 4: put_later(store, sim_below(2) == 0); break;
            case 5:
            case 6: move_due(store, machine.clock); break;
            default:
                if (purging)
                    purge(store);
            }
        else if (choice == 14) {
            ign_store_change change = {.key = "k", .key_bytes = 1, .value = "abcdefgh", .value_bytes = 1 + (uint32_t)sim_below(8), .expected_bytes = UINT32_MAX};
            int changed = ign_store_change_keys(store, &change, 1, NULL, &mark);
            TELL("change: %d errno %d\n", changed, errno);
            REQUIRE(changed == IGN_OK || allowed(changed));
        } else {
            int kept = ign_store_maintain(store);
            TELL("maintain: %d errno %d\n", kept, errno);
            REQUIRE(kept == IGN_OK || kept == IGN_EMPTY || kept == IGN_E_STALE || allowed(kept));
        }
    }
    ign_store_close(store);
}

static bool after_cut, checked;

/* What the living see in the end, for comparison with what the log says. */
static struct {
    bool is_known;
    ign_shard shard;
    uint32_t records;
    uint64_t ids; /* a sum over messages and pointers */
    uint32_t known; /* ids */
    uint64_t due, waiting; /* when the next is, and how many are */
} seen_alive;

static inline void look_later(ign_store *store, uint64_t *due, uint64_t *waiting)
{
    uint32_t later;
    ign_shard shard;
    *due = IGN_DUE_NONE;
    *waiting = 0;
    if (ign_store_find(store, "m later", &later) != IGN_OK)
        return;
    REQUIRE(ign_store_next_due(store, later, due) == IGN_OK && ign_store_shard(store, later, 0, &shard) == IGN_OK);
    *waiting = shard.living;
}

static inline void look(ign_store *store, ign_shard *shard, uint32_t *records, uint64_t *ids)
{
    static ign_slice slices[IDS];
    uint8_t batch[FETCHED];
    uint32_t count;
    *records = 0;
    *ids = 0;
    REQUIRE(ign_store_shard(store, magazine, 0, shard) == IGN_OK);
    REQUIRE(ign_store_peek(store, magazine, 0, 1, UINT64_MAX, slices, IDS, &count) == IGN_OK);
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(slices[i].bytes <= sizeof batch && ign_store_fetch(store, &slices[i], batch) == IGN_OK);
        for (uint32_t k = slices[i].from; k < slices[i].to; k++, ++*records)
            *ids += batch_read(batch, &slices[i], magazine, k) * 0x9E3779B97F4A7C15ull ^ (slices[i].first + k);
    }
}

static inline uint32_t known_keys(ign_store *store)
{
    uint8_t ids[KEYS * IGN_STORE_ID_BYTES];
    bool known[KEYS];
    uint32_t bits = 0;
    for (unsigned k = 0; k < KEYS; k++)
        id_of_key(ids + k * IGN_STORE_ID_BYTES, k);
    REQUIRE(ign_store_known_ids(store, magazine, hour, ids, KEYS, known) == IGN_OK);
    for (unsigned k = 0; k < KEYS; k++)
        bits |= (uint32_t)known[k] << k;
    return bits;
}

/* Has the store open all the time, and when all others are done or dead says what there is: the state that they have mended
 * in place. */
static inline void bystander(int process, ign_store_io *io)
{
    ign_store *store;
    ign_store_mark mark;
    uint32_t number;
    _Atomic uint32_t nothing = 0;
    int rc = ign_store_open(&store, io, &options);
    REQUIRE(rc == IGN_OK || allowed(rc));
    if (rc != IGN_OK)
        return;
    for (bool others = true; others;) {
        io->wait(io, &nothing, 0, 500000000);
        others = false;
        for (int i = 0; i < process; i++) {
            const sim_process *p = &machine.processes[i];
            others = others || p->fate == SIM_READY || (p->fate == SIM_STOPPED && p->resume_at < UINT64_MAX / 2);
        }
    }
    machine.plan = (sim_plan){0};
    if (ign_store_find(store, "m", &number) == IGN_OK) {
        magazine = number;
        /* An entry that a writer had whole on its way into a new segment when it died is nobody's until the next write, which
         * takes its place. */
        ign_store_change change = {.key = "b", .key_bytes = 1, .value = "b", .value_bytes = 1, .expected_bytes = UINT32_MAX};
        rc = ign_store_change_keys(store, &change, 1, NULL, &mark);
        REQUIRE(rc == IGN_OK || disk_fails);
        if (rc == IGN_OK)
            rc = ign_store_flush(store, &mark, false);
        REQUIRE(rc == IGN_OK || disk_fails);
        if (rc == IGN_OK) {
            look(store, &seen_alive.shard, &seen_alive.records, &seen_alive.ids);
            seen_alive.known = known_keys(store);
            look_later(store, &seen_alive.due, &seen_alive.waiting);
            seen_alive.is_known = true;
        }
    }
    ign_store_close(store);
}

static inline void compare_with_alive(ign_store *store)
{
    ign_shard shard;
    uint32_t records;
    uint64_t ids;
    look(store, &shard, &records, &ids);
    uint64_t due, waiting;
    look_later(store, &due, &waiting);
    REQUIRE(due == seen_alive.due && waiting == seen_alive.waiting);
    const ign_shard *was = &seen_alive.shard;
    REQUIRE(records == seen_alive.records && ids == seen_alive.ids && shard.living == records);
    REQUIRE(was->living == shard.living && was->in_flight == shard.in_flight && was->load_counter == shard.load_counter &&
            was->fire_counter == shard.fire_counter && was->expired == shard.expired && seen_alive.known == known_keys(store) && shard.load_pointer >= was->load_pointer + IGN_STORE_JUMP &&
            shard.load_pointer < was->load_pointer + IGN_STORE_JUMP + IGN_STORE_JUMP_MORE);
}

/* What is known was loaded, and is there or was retired; what was loaded and is there is known; and nothing was loaded twice. */
static inline void check_keys(ign_store *store, bool declared, const bool *found)
{
    uint32_t known = declared ? known_keys(store) : 0;
    for (unsigned k = 1; k < KEYS; k++) {
        bool is_known = (known >> k & 1) != 0, was_there = false, lives = false;
        uint32_t load = 0;
        for (uint32_t id = 1; id < next_id; id++) {
            if (model[id].key != k)
                continue;
            was_there = was_there || (found[id] || model[id].left);
            lives = lives || found[id];
            if (found[id] && !(k < FORGOTTEN && hour > 1)) {
                REQUIRE(load == 0 || load == model[id].load || disk_fails);
                load = model[id].load;
            }
        }
        REQUIRE(!is_known || was_there);
        REQUIRE(is_known || !lives || (k < FORGOTTEN && hour > 1));
        keys[k].there = keys[k].durable = is_known; /* the opening has flushed it */
        keys[k].doubt = k < FORGOTTEN && hour > 1;
    }
    uint8_t epoch = 0;
    uint32_t bytes;
    int rc = ign_store_get_key(store, "epoch", 5, &epoch, 1, &bytes);
    REQUIRE(rc == IGN_OK || rc == IGN_EMPTY);
    REQUIRE(epoch <= epoch_begun && (epoch >= epoch_set || after_cut || disk_fails));
    epoch_set = epoch_begun = epoch;
    purges = 0;
}

/* Alone, behind whatever happened: what is there, against what was said. */
static inline void check_all(int process, ign_store_io *io)
{
    (void)process;
    ign_store *store;
    static ign_slice slices[IDS];
    static bool found[IDS];
    uint8_t batch[FETCHED];
    uint32_t count;
    int rc = ign_store_open(&store, io, &options);
    TELL("open: %d errno %d\n", rc, errno);
    REQUIRE(rc == IGN_OK);
    ign_store_figures figures;
    REQUIRE(ign_store_figures_of(store, &figures) == IGN_OK && figures.damaged_bytes == 0);
    memset(found, 0, sizeof found);
    uint32_t number;
    rc = ign_store_find(store, "m", &number);
    REQUIRE(rc == IGN_OK || rc == IGN_E_UNKNOWN);
    if (rc == IGN_OK) {
        magazine = number;
        if (seen_alive.is_known)
            compare_with_alive(store);
        uint64_t due, waiting;
        for (look_later(store, &due, &waiting); due != IGN_DUE_NONE; look_later(store, &due, &waiting))
            move_due(store, UINT64_MAX); /* what waits for its time is where the others are */
        REQUIRE(waiting == 0);
        REQUIRE(ign_store_peek(store, magazine, 0, 1, UINT64_MAX, slices, IDS, &count) == IGN_OK);
        for (uint32_t i = 0; i < count; i++) {
            REQUIRE(slices[i].bytes <= sizeof batch && ign_store_fetch(store, &slices[i], batch) == IGN_OK);
            for (uint32_t k = slices[i].from; k < slices[i].to; k++) {
                uint64_t id = batch_read(batch, &slices[i], magazine, k);
                REQUIRE(id > 0 && id < next_id && model[id].sent && !model[id].never); /* nothing is invented */
                REQUIRE(!found[id] && !model[id].gone);            /* nor twice, nor back from the dead */
                REQUIRE(!model[id].retired_durable);
                REQUIRE(!model[id].retired || after_cut || disk_fails);
                REQUIRE(!model[id].refused || after_cut);
                note_pointer(slices[i].first + k, id);
                found[id] = true;
            }
        }
    }
    check_keys(store, rc == IGN_OK, found);
    for (uint32_t id = 1; id < next_id; id++) {
        message *m = &model[id];
        if (!found[id]) {
            REQUIRE(!m->durable || m->retiring);
            REQUIRE(!m->there || m->retiring || after_cut || m->refused || m->doubt || disk_fails);
            m->gone = m->sent;
        }
        m->there = m->durable = found[id]; /* the opening has flushed it */
        m->refused = m->doubt = m->retiring = m->retired = m->claimed = false;
    }
    for (uint32_t id = 1; id < next_id; id++) /* claims that were kept are still claims */
        model[id].claimed = false;
    ign_store_close(store);
    seen_alive.is_known = false;
    checked = true;
}

static inline void check_now(bool cut)
{
    sim_plan kept = machine.plan;
    machine.plan = (sim_plan){0};
    after_cut = cut;
    checked = false;
    sim_start(0, check_all);
    sim_run(1);
    REQUIRE(checked);
    machine.plan = kept;
}

static inline void begin(uint64_t seed)
{
    sim_begin(seed);
    options.repack_bytes = seed % 8 == 3 ? 1 : 0; /* in some, each checkpoint is repacked, and a generation follows that begins from it */
    memset(model, 0, sizeof model);
    memset(keys, 0, sizeof keys);
    pointers = 0;
    purges = 0;
    hour = 1;
    epoch_begun = epoch_set = 0;
    next_id = 1;
    seen_alive.is_known = false;
    disk_fails = declared_for_good = false;
    options.piece_bytes = seed % 4 == 0 ? 512 : 0;
    seed_now = seed;
}

static inline bool open_both(ign_store **store, ign_store_io *io)
{
    ign_store_mark mark;
    int rc = ign_store_open(store, io, &options);
    REQUIRE(rc == IGN_OK || allowed(rc));
    if (rc != IGN_OK)
        return false;
    rc = ign_store_declare(*store, "m", 1, 0, &magazine, NULL, &mark);
    if (rc == IGN_OK)
        rc = ign_store_flush(*store, &mark, true);
    REQUIRE(rc == IGN_OK || allowed(rc));
    if (rc != IGN_OK)
        ign_store_close(*store);
    return rc == IGN_OK;
}

/* -- many of them ------------------------------------------------------------------------------------------------------- */

static uint64_t crashes, from_seed = 1, seed_count = 3000;
static void (*seeded)(uint64_t seed);

static inline void some_seeds(void)
{
    for (uint64_t s = from_seed; s < from_seed + seed_count; s++)
        seeded(s);
}

static inline void run_forked(void (*body)(void))
{
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        body();
        printf("  %-24s %" PRIu64 " crashes\n", what_now, crashes);
        fflush(stdout);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A few thousand histories a child: under a sanitizer killed processes leave their memory behind. */
static inline void in_portions(uint64_t from, uint64_t count)
{
    enum { PORTION = 2000 };
    for (uint64_t s = from; s < from + count; s += PORTION) {
        from_seed = s;
        seed_count = from + count - s < PORTION ? from + count - s : PORTION;
        run_forked(some_seeds);
    }
}

#endif
