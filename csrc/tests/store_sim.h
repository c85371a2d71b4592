/* A simulated machine for the store: a disk that keeps what was flushed and anything of what was not, and processes that are
 * stopped and killed between any two steps. One thread, deterministic: the same seed is the same run.
 *
 * Disk. A file has what processes see (the cache) and what a power cut leaves (the disk). Writes mark sectors of 512 bytes
 * dirty. At a power cut each dirty sector is as before, as now, or torn in the middle, each on its own; of the changes of names since they
 * were flushed, some first ones were made. A flush that fails forgets which sectors were dirty: the cache has them, the
 * disk has some of them or none. As on Linux each descriptor that was open hears of it once, and one that is opened after
 * somebody has heard hears nothing.
 *
 * Processes are coroutines. Each call of the disk and each store to shared memory is a step; before a step the machine may
 * let another go on, stop or kill this one, or cut the power. Killing gives back descriptors and locks and nothing else.
 */
#ifndef IGNIS_TEST_STORE_SIM_H
#define IGNIS_TEST_STORE_SIM_H

#include "check.h"
#include "sim_heap.h"

#include "../ignis_store_io.h"

#include <errno.h>
#include <setjmp.h>
#include <string.h>
#include <ucontext.h>

enum {
    SIM_SECTOR = 512, SIM_PAGE = 4096, SIM_FILES = 192, SIM_BYTES = 1 << 19, SIM_NAMES = 96, SIM_OPS = 256, SIM_DESCRIPTORS = 256,
    SIM_PROCESSES = 4, SIM_BYSTANDER = 3, /* is never killed or stopped */
    SIM_STACK = 1 << 18, SIM_LOCKS = 64,
};

typedef struct sim_file {
    bool used;
    uint8_t *cache, *disk;          /* NULL: nobody can reach this one any more */
    uint64_t size, disk_size, high; /* `high`: no byte beyond it was ever written */
    uint8_t dirty[SIM_BYTES / SIM_SECTOR];
    uint32_t errors, told;
    unsigned mapped;
    bool stored_to; /* it was mapped: anything within its size may have been stored to */
} sim_file;

/* Memory of files that are gone, all zero: the next file takes what was used last, which the processor still has in its caches. */
typedef struct sim_memory {
    uint8_t cache[SIM_BYTES], disk[SIM_BYTES]; /* first: as aligned as the whole is, and mapped as it lies */
    struct sim_memory *next;
} sim_memory;

typedef struct sim_name {
    char name[IGN_STORE_NAME_MAX];
    int file; /* -1: none */
} sim_name;

typedef struct sim_descriptor {
    bool used;
    int file, process;
    uint32_t errors;
    uint64_t locks[SIM_LOCKS];
    unsigned lock_count;
} sim_descriptor;

typedef enum sim_fate { SIM_READY, SIM_DONE, SIM_KILLED, SIM_STOPPED } sim_fate;

typedef struct sim_process {
    ign_store_io io; /* first */
    int number;
    sim_fate fate;
    uint64_t resume_at, wake_at;
    _Atomic uint32_t *word;
    uint32_t seen;
    void (*body)(int process, ign_store_io *io);
    ucontext_t context;
    jmp_buf at;
    bool begun;
    uint8_t *stack;
} sim_process;

/* What the machine does by itself, in events of so many per million steps. */
typedef struct sim_plan {
    uint32_t switches, stops, kills, write_fails, flush_fails, no_room, writebacks;
    bool fail_kills;  /* who is told of a failed flush may be killed before it tells anybody */
    uint64_t cut_at;  /* step at which the power goes; 0: never */
    uint64_t kill_at; /* step at which who runs is killed; 0: never */
    uint64_t sleeps_for; /* then he is stopped for so long instead; 0: killed */
    uint64_t stop_at, stop_for; /* step at which who runs is stopped, and for how long */
    uint64_t stops_around; /* most of the stops by chance last about as long as this; 0: up to 8 s */
    uint32_t restarts;     /* of killed processes, so many are followed by another */
} sim_plan;

typedef struct sim {
    sim_file files[SIM_FILES];
    sim_memory *memory;
    sim_name names[SIM_NAMES], disk_names[SIM_NAMES];
    struct { char name[IGN_STORE_NAME_MAX]; int file; } ops[SIM_OPS]; /* changes of names that are not flushed */
    unsigned op_count;
    sim_descriptor descriptors[SIM_DESCRIPTORS];
    sim_process processes[SIM_PROCESSES];
    ucontext_t ground;
    jmp_buf ground_at;
    sim_process *now;
    uint64_t clock, steps, random_state;
    sim_plan plan;
    bool cut, lies; /* the power is gone; the disk says flushed and is not (a mutant of the machine) */
    uint64_t failed_flushes;
} sim;

static sim machine;

static inline uint64_t sim_random(void)
{
    uint64_t x = machine.random_state += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static inline uint64_t sim_below(uint64_t n)
{
    return n == 0 ? 0 : sim_random() % n;
}

static inline bool sim_chance(uint32_t per_million)
{
    return per_million != 0 && sim_below(1000000) < per_million;
}

/* -- processes --------------------------------------------------------------------------------------------------------- */

static inline void sim_release(int process)
{
    for (int i = 0; i < SIM_DESCRIPTORS; i++)
        if (machine.descriptors[i].used && machine.descriptors[i].process == process)
            machine.descriptors[i].used = false;
}

/* swapcontext asks the kernel for the mask of signals, twice a switch, which was a third of a crash; a jump between stacks that are there does not.
 * The sanitizers know the former alone. */
static inline void sim_yield(void)
{
    sim_process *p = machine.now;
#ifdef SIM_SANITIZED
    swapcontext(&p->context, &machine.ground);
#else
    if (setjmp(p->at) == 0)
        longjmp(machine.ground_at, 1);
#endif
}

static inline void sim_jump_to(sim_process *p)
{
#ifdef SIM_SANITIZED
    swapcontext(&machine.ground, &p->context);
#else
    if (setjmp(machine.ground_at) != 0)
        return;
    if (p->begun)
        longjmp(p->at, 1);
    p->begun = true;
    setcontext(&p->context);
#endif
}

/* Lets one go on, until it yields. */
static inline void sim_go_on(sim_process *p)
{
    machine.now = p;
    sim_heap_marks = true;
    sim_jump_to(p);
    sim_heap_marks = false;
}

static void sim_step(ign_store_io *io)
{
    sim_process *p = (sim_process *)io;
    machine.steps++;
    machine.clock += 200;
    const sim_plan *plan = &machine.plan;
    if (machine.steps == plan->cut_at)
        machine.cut = true;
    else if (p->number == SIM_BYSTANDER)
        return;
    else if ((plan->kill_at != 0 && machine.steps >= plan->kill_at) || sim_chance(plan->kills)) {
        p->fate = plan->kill_at != 0 && plan->sleeps_for != 0 ? SIM_STOPPED : SIM_KILLED;
        p->resume_at = machine.clock + plan->sleeps_for;
        machine.plan.kill_at = 0;
    }
    else if (plan->stop_at != 0 && machine.steps >= plan->stop_at && p->number == 0) {
        machine.plan.stop_at = 0;
        p->fate = SIM_STOPPED;
        p->resume_at = machine.clock + plan->stop_for;
    } else if (sim_chance(plan->stops)) {
        p->fate = SIM_STOPPED;
        if (plan->stops_around != 0 && sim_below(4) != 0)
            p->resume_at = machine.clock + plan->stops_around / 2 + sim_below(plan->stops_around);
        else
            p->resume_at = machine.clock + (sim_below(4) == 0 ? UINT64_MAX / 2 : sim_below(8000000000ull));
    } else if (!sim_chance(plan->switches))
        return;
    sim_yield();
}

static void sim_enter(int process)
{
    machine.processes[process].body(process, &machine.processes[process].io);
    machine.processes[process].fate = SIM_DONE;
    sim_release(process);
    sim_yield();
}

static inline bool sim_can_run(sim_process *p)
{
    if (p->fate == SIM_STOPPED && machine.clock >= p->resume_at)
        p->fate = SIM_READY;
    if (p->fate != SIM_READY)
        return false;
    if (p->word != NULL && atomic_load(p->word) == p->seen && machine.clock < p->wake_at)
        return false;
    return true;
}

static inline void sim_start(int process, void (*body)(int process, ign_store_io *io));

/* Runs until all are done, killed or stopped for ever, or the power goes. */
static inline void sim_run(int count)
{
    while (!machine.cut) {
        int ready[SIM_PROCESSES], found = 0;
        uint64_t next = UINT64_MAX;
        for (int i = 0; i < count; i++) {
            sim_process *p = &machine.processes[i];
            if (sim_can_run(p))
                ready[found++] = i;
            else if (p->fate == SIM_READY && p->wake_at < next)
                next = p->wake_at;
            else if (p->fate == SIM_STOPPED && p->resume_at < next)
                next = p->resume_at;
        }
        if (found == 0) {
            if (next >= UINT64_MAX / 2)
                return;
            machine.clock = next;
            continue;
        }
        sim_process *p = &machine.processes[ready[sim_below((uint64_t)found)]];
        p->word = NULL;
        sim_go_on(p);
        if (p->fate == SIM_KILLED) {
            sim_release(p->number);
            if (machine.plan.restarts != 0) {
                machine.plan.restarts--;
                sim_start(p->number, p->body);
            }
        }
    }
}

static inline void sim_start(int process, void (*body)(int process, ign_store_io *io))
{
    sim_process *p = &machine.processes[process];
    if (p->stack == NULL)
        p->stack = malloc(SIM_STACK);
    CHECK(p->stack != NULL);
    p->body = body;
    p->fate = SIM_READY;
    p->word = NULL;
    p->begun = false;
    getcontext(&p->context);
    p->context.uc_stack = (stack_t){.ss_sp = p->stack, .ss_size = SIM_STACK};
    p->context.uc_link = NULL;
    makecontext(&p->context, (void (*)(void))sim_enter, 1, process);
}

/* -- the disk ---------------------------------------------------------------------------------------------------------- */

static inline int sim_look_up(const sim_name *names, const char *name)
{
    for (int i = 0; i < SIM_NAMES; i++)
        if (names[i].file >= 0 && strcmp(names[i].name, name) == 0)
            return i;
    return -1;
}

static inline void sim_set_name(sim_name *names, const char *name, int file)
{
    int at = sim_look_up(names, name);
    for (int i = 0; at < 0 && i < SIM_NAMES; i++)
        if (names[i].file < 0)
            at = i;
    CHECK(at >= 0);
    strcpy(names[at].name, name);
    names[at].file = file;
}

static inline void sim_note_name(const char *name, int file)
{
    sim_set_name(machine.names, name, file);
    if (machine.op_count == SIM_OPS) { /* the oldest was made by now */
        sim_set_name(machine.disk_names, machine.ops[0].name, machine.ops[0].file);
        memmove(&machine.ops[0], &machine.ops[1], sizeof machine.ops[0] * (SIM_OPS - 1));
        machine.op_count--;
    }
    strcpy(machine.ops[machine.op_count].name, name);
    machine.ops[machine.op_count++].file = file;
}

/* How much of a file may be something else than zero. */
static inline uint64_t sim_span(const sim_file *f)
{
    uint64_t size = f->size > f->disk_size ? f->size : f->disk_size;
    size = (size + SIM_SECTOR - 1) / SIM_SECTOR * SIM_SECTOR;
    return !f->stored_to || size < f->high ? f->high : size < SIM_BYTES ? size : SIM_BYTES;
}

static inline void sim_give_back(sim_file *f)
{
    if (f->cache == NULL)
        return;
    sim_memory *memory = (sim_memory *)(void *)f->cache;
    memset(f->cache, 0, sim_span(f));
    memset(f->disk, 0, sim_span(f));
    f->cache = f->disk = NULL;
    memory->next = machine.memory;
    machine.memory = memory;
}

/* Takes back the memory of files that nobody can reach; with `numbers` their numbers as well. */
static inline void sim_collect(bool numbers)
{
    bool needed[SIM_FILES];
    for (int f = 0; f < SIM_FILES; f++)
        needed[f] = machine.files[f].mapped > 0;
    for (int i = 0; i < SIM_NAMES; i++) {
        if (machine.names[i].file >= 0)
            needed[machine.names[i].file] = true;
        if (machine.disk_names[i].file >= 0)
            needed[machine.disk_names[i].file] = true;
    }
    for (unsigned i = 0; i < machine.op_count; i++)
        if (machine.ops[i].file >= 0)
            needed[machine.ops[i].file] = true;
    for (int i = 0; i < SIM_DESCRIPTORS; i++)
        if (machine.descriptors[i].used)
            needed[machine.descriptors[i].file] = true;
    for (int f = 0; f < SIM_FILES; f++) {
        if (needed[f])
            continue;
        sim_give_back(&machine.files[f]);
        if (numbers)
            machine.files[f].used = false;
    }
}

static inline int sim_new_file(void)
{
    if (machine.memory == NULL)
        sim_collect(false);
    if (machine.memory == NULL) {
        machine.memory = aligned_alloc(SIM_PAGE, (sizeof *machine.memory + SIM_PAGE - 1) / SIM_PAGE * SIM_PAGE);
        CHECK(machine.memory != NULL);
        memset(machine.memory, 0, sizeof *machine.memory);
    }
    for (int round = 0; round < 2; round++) {
        for (int f = 0; f < SIM_FILES; f++) {
            if (machine.files[f].used)
                continue;
            sim_memory *memory = machine.memory;
            machine.memory = memory->next;
            machine.files[f] = (sim_file){.used = true, .cache = memory->cache, .disk = memory->disk};
            return f;
        }
        sim_collect(true);
    }
    CHECK(false && "room for another file");
    return -1;
}

static int sim_list(ign_store_io *io, ign_store_name_fn *each, void *arg)
{
    char all[SIM_NAMES][IGN_STORE_NAME_MAX];
    int count = 0;
    sim_step(io);
    for (int i = 0; i < SIM_NAMES; i++)
        if (machine.names[i].file >= 0)
            strcpy(all[count++], machine.names[i].name);
    for (int i = 0; i < count; i++)
        each(arg, all[i]);
    return 0;
}

static int sim_open(ign_store_io *io, const char *name, bool create, int *file)
{
    sim_step(io);
    int at = sim_look_up(machine.names, name), found;
    if (create ? at >= 0 : at < 0)
        return create ? EEXIST : ENOENT;
    if (create) {
        found = sim_new_file();
        sim_note_name(name, found);
    } else
        found = machine.names[at].file;
    for (int i = 0; i < SIM_DESCRIPTORS; i++)
        if (!machine.descriptors[i].used) {
            machine.descriptors[i] = (sim_descriptor){.used = true, .file = found, .process = ((sim_process *)io)->number,
                                                      .errors = machine.files[found].told};
            *file = i;
            return 0;
        }
    return EMFILE;
}

static void sim_close(ign_store_io *io, int file)
{
    (void)io;
    machine.descriptors[file].used = false;
}

static sim_file *sim_file_of(int descriptor)
{
    CHECK(machine.descriptors[descriptor].used);
    return &machine.files[machine.descriptors[descriptor].file];
}

static int sim_size(ign_store_io *io, int file, uint64_t *bytes)
{
    (void)io;
    *bytes = sim_file_of(file)->size;
    return 0;
}

static int sim_named(ign_store_io *io, int file, bool *yes)
{
    (void)io;
    *yes = false;
    for (int i = 0; i < SIM_NAMES; i++)
        *yes = *yes || (machine.names[i].file == machine.descriptors[file].file);
    return 0;
}

static int sim_read(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at)
{
    sim_step(io);
    sim_file *f = sim_file_of(file);
    if (at > f->size || bytes > f->size - at)
        return EIO;
    CHECK(at + bytes <= SIM_BYTES);
    memcpy(to, f->cache + at, bytes);
    return 0;
}

static inline void sim_put(sim_file *f, const uint8_t *from, size_t bytes, uint64_t at)
{
    memcpy(f->cache + at, from, bytes);
    for (uint64_t s = at / SIM_SECTOR; s <= (at + bytes - 1) / SIM_SECTOR; s++)
        f->dirty[s] = 1;
    if (at + bytes > f->high)
        f->high = (at + bytes + SIM_SECTOR - 1) / SIM_SECTOR * SIM_SECTOR;
    if (at + bytes > f->size)
        f->size = at + bytes;
}

/* In two parts with a step between, as large writes are. */
static int sim_write(ign_store_io *io, int file, const void *from, size_t bytes, uint64_t at)
{
    sim_step(io);
    sim_file *f = sim_file_of(file);
    CHECK(at + bytes <= SIM_BYTES);
    if (bytes == 0)
        return 0;
    bool fails = sim_chance(machine.plan.write_fails);
    size_t first = sim_below(bytes + 1);
    if (first > 0)
        sim_put(f, from, first, at);
    if (sim_chance(machine.plan.no_room))
        return ENOSPC;
    if (fails)
        return EIO;
    sim_step(io);
    if (first < bytes)
        sim_put(f, (const uint8_t *)from + first, bytes - first, at + first);
    if (sim_chance(machine.plan.writebacks))
        for (uint64_t s = 0; s * SIM_SECTOR < f->high; s++)
            if (f->dirty[s] && sim_below(2) == 0)
                memcpy(f->disk + s * SIM_SECTOR, f->cache + s * SIM_SECTOR, SIM_SECTOR);
    return 0;
}

static int sim_flush(ign_store_io *io, int file)
{
    sim_step(io);
    sim_file *f = sim_file_of(file);
    sim_descriptor *d = &machine.descriptors[file];
    bool fails = sim_chance(machine.plan.flush_fails);
    for (uint64_t s = 0; s * SIM_SECTOR < f->high; s++) {
        if (!f->dirty[s])
            continue;
        if (machine.lies || (fails && sim_below(2) == 0))
            continue;
        memcpy(f->disk + s * SIM_SECTOR, f->cache + s * SIM_SECTOR, SIM_SECTOR);
    }
    if (!machine.lies) {
        memset(f->dirty, 0, sizeof f->dirty); /* also of what was not written */
        f->disk_size = f->size;
    }
    if (fails) {
        f->errors++;
        machine.failed_flushes++;
    }
    sim_step(io);
    if (d->errors != f->errors) {
        d->errors = f->told = f->errors;
        if (machine.plan.fail_kills && sim_below(2) == 0) {
            ((sim_process *)io)->fate = SIM_KILLED;
            sim_yield();
        }
        return EIO;
    }
    return 0;
}

static int sim_allocate(ign_store_io *io, int file, uint64_t bytes)
{
    sim_step(io);
    sim_file *f = sim_file_of(file);
    if (bytes > 4 * SIM_BYTES || sim_chance(machine.plan.no_room)) /* what is only kept is never written to */
        return ENOSPC;
    if (bytes > f->size)
        f->size = bytes;
    return 0;
}

static int sim_link_new(ign_store_io *io, const char *from, const char *to)
{
    sim_step(io);
    int at = sim_look_up(machine.names, from);
    if (at < 0)
        return ENOENT;
    if (sim_look_up(machine.names, to) >= 0)
        return EEXIST;
    sim_note_name(to, machine.names[at].file);
    sim_step(io);
    return 0;
}

static int sim_remove(ign_store_io *io, const char *name)
{
    sim_step(io);
    if (sim_look_up(machine.names, name) < 0)
        return ENOENT;
    sim_note_name(name, -1);
    return 0;
}

static int sim_flush_names(ign_store_io *io)
{
    sim_step(io);
    if (sim_chance(machine.plan.flush_fails))
        return EIO;
    for (unsigned i = 0; i < machine.op_count; i++)
        sim_set_name(machine.disk_names, machine.ops[i].name, machine.ops[i].file);
    machine.op_count = 0;
    sim_step(io);
    return 0;
}

static int sim_same_place(ign_store_io *io)
{
    (void)io;
    return 0;
}

static int sim_map(ign_store_io *io, int file, uint64_t reserve, void **memory)
{
    (void)io;
    sim_file *f = sim_file_of(file);
    CHECK(reserve <= SIM_BYTES);
    f->mapped++;
    f->stored_to = true;
    *memory = f->cache;
    return 0;
}

static void sim_unmap(ign_store_io *io, void *memory, uint64_t reserve)
{
    (void)io, (void)reserve;
    for (int i = 0; i < SIM_FILES; i++)
        if (machine.files[i].used && machine.files[i].cache == memory)
            machine.files[i].mapped--;
}

static int sim_locked(ign_store_io *io, int file, uint64_t byte, uint64_t count, bool *by_other)
{
    (void)io;
    *by_other = false;
    for (int i = 0; i < SIM_DESCRIPTORS; i++) {
        const sim_descriptor *d = &machine.descriptors[i];
        if (!d->used || i == file || d->file != machine.descriptors[file].file)
            continue;
        for (unsigned k = 0; k < d->lock_count; k++)
            *by_other = *by_other || (d->locks[k] >= byte && d->locks[k] < byte + count);
    }
    return 0;
}

static int sim_lock(ign_store_io *io, int file, uint64_t byte)
{
    bool taken;
    sim_step(io);
    sim_locked(io, file, byte, 1, &taken);
    if (taken)
        return EAGAIN;
    sim_descriptor *d = &machine.descriptors[file];
    CHECK(d->lock_count < SIM_LOCKS);
    d->locks[d->lock_count++] = byte;
    sim_step(io);
    return 0;
}

static uint64_t sim_now_ns(ign_store_io *io)
{
    (void)io;
    return machine.clock += 1000;
}

static uint64_t sim_random_for(ign_store_io *io)
{
    (void)io;
    return sim_random();
}

static void sim_wait(ign_store_io *io, _Atomic uint32_t *word, uint32_t seen, uint64_t timeout_ns)
{
    sim_process *p = (sim_process *)io;
    p->word = word;
    p->seen = seen;
    p->wake_at = machine.clock + timeout_ns;
    sim_yield();
}

static void sim_wake(ign_store_io *io, _Atomic uint32_t *word)
{
    sim_step(io);
    for (int i = 0; i < SIM_PROCESSES; i++)
        if (machine.processes[i].word == word)
            machine.processes[i].wake_at = 0;
}

/* A machine with an empty disk. */
static inline void sim_begin(uint64_t seed)
{
    for (int i = 0; i < SIM_FILES; i++) {
        sim_give_back(&machine.files[i]);
        machine.files[i].used = false;
    }
    sim_heap_clear();
    for (int i = 0; i < SIM_NAMES; i++)
        machine.names[i].file = machine.disk_names[i].file = -1;
    memset(machine.descriptors, 0, sizeof machine.descriptors);
    machine.op_count = 0;
    machine.clock = 1000000;
    machine.steps = 0;
    machine.random_state = seed;
    machine.plan = (sim_plan){0};
    machine.cut = machine.lies = false;
    machine.failed_flushes = 0;
    for (int i = 0; i < SIM_PROCESSES; i++) {
        machine.processes[i].number = i;
        machine.processes[i].fate = SIM_DONE;
        machine.processes[i].io = (ign_store_io){
            .list = sim_list, .open = sim_open, .close = sim_close, .size = sim_size, .named = sim_named, .read = sim_read, .write = sim_write,
            .flush = sim_flush, .allocate = sim_allocate, .link_new = sim_link_new, .remove = sim_remove,
            .flush_names = sim_flush_names, .same_place = sim_same_place, .map = sim_map, .unmap = sim_unmap,
            .lock = sim_lock, .locked = sim_locked, .now_ns = sim_now_ns, .random = sim_random_for, .wait = sim_wait,
            .wake = sim_wake, .step = sim_step,
        };
    }
}

/* Nobody lives any more. The machine, and the cache, go on. */
static inline void sim_kill_all(void)
{
    for (int i = 0; i < SIM_PROCESSES; i++) {
        machine.processes[i].fate = SIM_DONE;
        sim_release(i);
    }
    for (int i = 0; i < SIM_FILES; i++)
        machine.files[i].mapped = 0;
    machine.cut = false;
}

/* `keep`: what becomes of a dirty sector, drawn for each: 0 as before, 1 as now, 2 torn. */
static inline void sim_power_cut(uint64_t (*draw)(uint64_t n))
{
    sim_kill_all();
    unsigned made = (unsigned)draw(machine.op_count + 1u);
    for (unsigned i = 0; i < made; i++)
        sim_set_name(machine.disk_names, machine.ops[i].name, machine.ops[i].file);
    machine.op_count = 0;
    memcpy(machine.names, machine.disk_names, sizeof machine.names);
    sim_collect(true);
    for (int i = 0; i < SIM_FILES; i++) {
        sim_file *f = &machine.files[i];
        if (!f->used)
            continue;
        f->errors = f->told = 0;
        uint64_t span = sim_span(f); /* of the size that it has now */
        for (uint64_t s = 0; s * SIM_SECTOR < f->high; s++) {
            uint8_t *disk = f->disk + s * SIM_SECTOR, *cache = f->cache + s * SIM_SECTOR;
            if (f->dirty[s] && memcmp(disk, cache, SIM_SECTOR) != 0) {
                uint64_t fate = draw(16);
                size_t kept = fate == 15 ? SIM_SECTOR / 2 : fate >= 7 ? SIM_SECTOR : 0;
                memcpy(disk, cache, kept);
            }
            f->dirty[s] = 0;
        }
        if (f->size != f->disk_size)
            f->disk_size = draw(2) == 0 ? f->disk_size : f->size;
        f->size = f->disk_size;
        memset(f->disk + f->size, 0, span > f->size ? span - f->size : 0);
        memcpy(f->cache, f->disk, span);
    }
}

#endif
