#ifdef __linux__
#define _GNU_SOURCE
#endif
#include "explore.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "stdatomic.h"

#define MAX_WORDS 16
#define MAX_STORES 64
#define MAX_CHOICES 4096
#define STACK_BYTES (256u << 10)

typedef struct view {
    uint8_t oldest[MAX_WORDS]; /* by location: the oldest store that may still be read */
} view;

typedef struct store {
    uint64_t value;
    view released; /* what a load with acquire takes over */
} store;

typedef struct word {
    const volatile void *at;
    uint32_t count;
    uint32_t newest_seq_cst; /* sequentially consistent loads read this store or a later one */
    uint64_t made_by;        /* hash of who made which store */
    int writer;
    store stores[MAX_STORES];
} word;

typedef struct thread {
    jmp_buf stands;
    char *stack;
    view sees;
    uint64_t did; /* hash of its operations and of the stores they read */
    bool done;
    const volatile void *asleep_on; /* NULL: awake */
} thread;

static word words[MAX_WORDS];
static uint32_t word_count;
static thread threads[MODEL_THREADS];
static ucontext_t beginning, ground;
static jmp_buf explorer;
static int running = -1; /* -1: the explorer itself, whose operations are not steps */
static const model_program *program;

/* The choices of this run; the first `planned` of them are given. */
static struct {
    uint8_t made, of;
} choices[MAX_CHOICES];
static uint32_t planned, chosen;
static bool known; /* this prefix was explored already */

static uint64_t *seen;
static uint64_t seen_count, seen_room;

static void give_up(const char *why)
{
    fprintf(stderr, "model: %s: %s\n", program->name, why);
    exit(2);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
}

static uint32_t choose(uint32_t of)
{
    if (of == 1)
        return 0;
    if (chosen == MAX_CHOICES)
        give_up("a run without end");
    if (chosen >= planned) {
        choices[chosen].made = 0;
        choices[chosen].of = (uint8_t)of;
    } else if (choices[chosen].of != of) {
        give_up("a run came out otherwise when it was repeated");
    }
    return choices[chosen++].made;
}

/* -- what was explored ---------------------------------------------------------------------------------------------- */

static bool insert(uint64_t state)
{
    uint64_t mask = seen_room - 1;
    for (uint64_t i = state & mask;; i = (i + 1) & mask) {
        if (seen[i] == state)
            return false;
        if (seen[i] == 0) {
            seen[i] = state;
            seen_count++;
            return true;
        }
    }
}

static bool is_new(uint64_t state)
{
    if (seen_count * 2 >= seen_room) {
        uint64_t *old = seen, room = seen_room;
        seen_room = room == 0 ? 1u << 16 : room * 2;
        seen = calloc(seen_room, sizeof *seen);
        if (seen == NULL)
            give_up("out of memory");
        seen_count = 0;
        for (uint64_t i = 0; i < room; i++)
            if (old[i] != 0)
                (void)insert(old[i]);
        free(old);
    }
    return insert(state == 0 ? 1 : state);
}

static uint64_t state_of_run(void)
{
    uint64_t hash = 1;
    for (int t = 0; t < MODEL_THREADS; t++) {
        hash = mix(hash, threads[t].did);
        hash = mix(hash, (uint64_t)threads[t].done * 2 + (threads[t].asleep_on != NULL));
    }
    for (uint32_t w = 0; w < word_count; w++) {
        hash = mix(hash, words[w].made_by);
        hash = mix(hash, words[w].newest_seq_cst);
    }
    return hash;
}

/* -- operations ----------------------------------------------------------------------------------------------------- */

static word *watched(const volatile void *at)
{
    for (uint32_t i = 0; running >= 0 && i < word_count; i++)
        if (words[i].at == at)
            return &words[i];
    return NULL;
}

static uint64_t read_memory(const volatile void *at, size_t bytes)
{
    uint64_t value = 0;
    switch (bytes) {
    case 1: return *(const volatile uint8_t *)at;
    case 4: return *(const volatile uint32_t *)at;
    case 8: return *(const volatile uint64_t *)at;
    default: give_up("a word of another size"); return value;
    }
}

void model_watch(const volatile void *at, size_t bytes, int writer)
{
    if (word_count == MAX_WORDS)
        give_up("too many words");
    word *w = &words[word_count++];
    memset(w, 0, sizeof *w);
    w->at = at;
    w->writer = writer;
    /* Both threads see the value from before they began. */
    w->count = 1;
    w->stores[0].value = read_memory(at, bytes);
}

static void write_memory(volatile void *at, size_t bytes, uint64_t value)
{
    switch (bytes) {
    case 1: *(volatile uint8_t *)at = (uint8_t)value; break;
    case 4: *(volatile uint32_t *)at = (uint32_t)value; break;
    case 8: *(volatile uint64_t *)at = value; break;
    default: give_up("a word of another size");
    }
}

/* Lets the explorer choose who makes the next step. Jumps, because swapcontext makes a system call each time. */
static void step(void)
{
    if (_setjmp(threads[running].stands) == 0)
        _longjmp(explorer, 1);
}

static void go_on(int number)
{
    running = number;
    if (_setjmp(explorer) == 0)
        _longjmp(threads[number].stands, 1);
    running = -1;
}

static void join(view *into, const view *from)
{
    for (uint32_t i = 0; i < MAX_WORDS; i++)
        if (from->oldest[i] > into->oldest[i])
            into->oldest[i] = from->oldest[i];
}

static bool acquires(memory_order order)
{
    return order == memory_order_acquire || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static bool releases(memory_order order)
{
    return order == memory_order_release || order == memory_order_acq_rel || order == memory_order_seq_cst;
}

static uint64_t read_store(word *w, uint32_t index, memory_order order)
{
    thread *me = &threads[running];
    uint32_t number = (uint32_t)(w - words);
    if (index > me->sees.oldest[number])
        me->sees.oldest[number] = (uint8_t)index;
    if (acquires(order))
        join(&me->sees, &w->stores[index].released);
    me->did = mix(mix(me->did, number * 4u + 1), index);
    return w->stores[index].value;
}

static void add_store(word *w, uint64_t value, memory_order order, const view *goes_on)
{
    thread *me = &threads[running];
    uint32_t number = (uint32_t)(w - words);
    if (w->writer >= 0 && w->writer != running)
        give_up("a word has another writer than was said");
    if (w->count == MAX_STORES)
        give_up("too many stores to one word");
    uint32_t index = w->count++;
    me->sees.oldest[number] = (uint8_t)index;
    store *s = &w->stores[index];
    s->value = value;
    memset(&s->released, 0, sizeof s->released);
    s->released.oldest[number] = (uint8_t)index;
    if (releases(order))
        join(&s->released, &me->sees);
    if (goes_on != NULL)
        join(&s->released, goes_on);
    if (order == memory_order_seq_cst)
        w->newest_seq_cst = index;
    me->did = mix(mix(me->did, number * 4u + 2), value);
    w->made_by = mix(w->made_by, me->did);
}

uint64_t model_load(const volatile void *at, size_t bytes, memory_order order)
{
    word *w = watched(at);
    if (w == NULL || w->writer == running)
        return read_memory(at, bytes); /* of its own word a thread reads what it stored last, whoever goes first */
    step();
    uint32_t oldest = threads[running].sees.oldest[w - words];
    if (order == memory_order_seq_cst && w->newest_seq_cst > oldest)
        oldest = w->newest_seq_cst;
    /* The newest first: that is the run without any surprise. */
    return read_store(w, w->count - 1 - choose(w->count - oldest), order);
}

void model_store(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
    word *w = watched(at);
    if (w != NULL) {
        step();
        add_store(w, value, order, NULL);
    }
    write_memory(at, bytes, value);
}

static uint64_t change(volatile void *at, size_t bytes, uint64_t value, bool adds, memory_order order)
{
    word *w = watched(at);
    uint64_t before;
    if (w == NULL) {
        before = read_memory(at, bytes);
    } else {
        step();
        uint32_t newest = w->count - 1;
        before = read_store(w, newest, order);
        add_store(w, adds ? before + value : value, order, &w->stores[newest].released);
    }
    write_memory(at, bytes, adds ? before + value : value);
    return before;
}

uint64_t model_exchange(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
    return change(at, bytes, value, false, order);
}

uint64_t model_add(volatile void *at, size_t bytes, uint64_t value, memory_order order)
{
    return change(at, bytes, value, true, order);
}

/* The kernel compares under its own lock, with the newest value there is, and who comes back from it has seen the store
 * that it compared with, or that woke it. */
int model_futex_wait(volatile void *at, uint32_t expected)
{
    word *w = watched(at);
    step();
    thread *me = &threads[running];
    bool sleeps = (uint32_t)read_store(w, w->count - 1, memory_order_acquire) == expected;
    if (sleeps) {
        me->asleep_on = at;
        me->did = mix(me->did, 3);
        step();
        (void)read_store(w, w->count - 1, memory_order_acquire);
    }
    return sleeps ? 0 : -1;
}

void model_futex_wake(volatile void *at)
{
    if (running < 0)
        return;
    step();
    threads[running].did = mix(threads[running].did, 5);
    for (int t = 0; t < MODEL_THREADS; t++)
        if (threads[t].asleep_on == at) {
            threads[t].asleep_on = NULL;
            threads[t].did = mix(threads[t].did, 6);
        }
}

/* -- runs ----------------------------------------------------------------------------------------------------------- */

static void body(int number)
{
    /* Back to who makes the thread: it begins with the first jump to here. */
    if (_setjmp(threads[number].stands) == 0)
        swapcontext(&beginning, &ground);
    program->thread[number]();
    threads[number].done = true;
    _longjmp(explorer, 1);
}

/* A coroutine that stands before its first instruction. */
static void make_thread(int number)
{
    thread *me = &threads[number];
    char *stack = me->stack != NULL ? me->stack : malloc(STACK_BYTES);
    if (stack == NULL)
        give_up("out of memory");
    memset(me, 0, sizeof *me);
    me->stack = stack;
    me->did = (uint64_t)number + 1;
    getcontext(&beginning);
    beginning.uc_stack.ss_sp = stack;
    beginning.uc_stack.ss_size = STACK_BYTES;
    beginning.uc_link = NULL;
    makecontext(&beginning, (void (*)(void))body, 1, number);
    swapcontext(&ground, &beginning);
}

static bool run_once(void)
{
    chosen = 0;
    known = false;
    word_count = 0;
    running = -1;
    program->set_up();
    for (int t = 0; t < MODEL_THREADS; t++) {
        make_thread(t);
        go_on(t); /* up to its first step */
    }
    for (;;) {
        int ready[MODEL_THREADS], count = 0, done = 0;
        for (int t = 0; t < MODEL_THREADS; t++) {
            done += threads[t].done;
            if (!threads[t].done && threads[t].asleep_on == NULL)
                ready[count++] = t;
        }
        if (count == 0)
            return done == MODEL_THREADS;
        if (chosen >= planned && !is_new(state_of_run())) {
            known = true;
            return true;
        }
        go_on(ready[choose((uint32_t)count)]);
    }
}

model_result model_explore(const model_program *what, bool stop_at_stuck)
{
    model_result result = {0};
    program = what;
    free(seen);
    seen = NULL;
    seen_count = seen_room = 0;
    planned = 0;
    for (;;) {
        bool ended = run_once();
        program->tear_down(ended && !known);
        result.runs += !known;
        result.stuck += !ended;
        result.states = seen_count;
        if (!ended && stop_at_stuck)
            return result;
        /* The last choice that has another answer gets it; all before it stays as it is. */
        while (chosen > 0 && choices[chosen - 1].made + 1 == choices[chosen - 1].of)
            chosen--;
        if (chosen == 0)
            return result;
        choices[chosen - 1].made++;
        planned = chosen;
    }
}
