/* Damage on the real disk: what was flushed and is other bytes now is found, told, and costs nothing beside it. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_bytes.h"
#include "../ignis_store_later.h"
#include "../ignis_store_parts.h"
#include "../ignis_store_salvage.h"

#include <errno.h>

static const ign_store_options small = {.segment_bytes = 1 << 16, .control_reserve = 1 << 27, .checkpoint_bytes = 1 << 16,
                                        .arena_bytes = 1 << 15, .undo_capacity = 512};

static ign_store *open_small(ign_store_io *io)
{
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, &small), IGN_OK);
    return store;
}

static uint32_t declare(ign_store *store)
{
    uint32_t number;
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store, "m", 2, 0, &number, NULL, &mark), IGN_OK);
    return number;
}

static uint64_t load(ign_store *store, uint32_t m, uint32_t count, uint64_t id)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, count, id, 24)};
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    return part.first;
}

static void flush(ign_store *store)
{
    ign_store_mark mark;
    CHECK_EQ(ign_store_mark_now(store, &mark), IGN_OK);
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
}

static ign_store_figures figures(ign_store *store)
{
    ign_store_figures f;
    CHECK_EQ(ign_store_figures_of(store, &f), IGN_OK);
    return f;
}

static ign_slice slice_at(ign_store *store, uint32_t m, uint64_t pointer)
{
    ign_slice slice;
    uint32_t count;
    CHECK_EQ(ign_store_peek(store, m, 0, pointer, pointer, &slice, 1, &count), IGN_OK);
    CHECK_EQ(count, 1);
    return slice;
}

static void flip_batch(ign_store_io *io, const ign_slice *slice, uint64_t at)
{
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, slice->generation, slice->number);
    flip(io, name, slice->file_offset + at);
}

/* Everybody is gone without having closed anything, as by kill -9. */
static void kill_all(ign_store *store)
{
    ign_store_abandon(store);
}

/* -- the last entry -------------------------------------------------------------------------------------------------------- */

/* Two damaged entries, and only behind the second one that knows of a flush. */
static void two_gaps(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    ign_slice slices[9];
    uint32_t m = declare(store);
    for (int i = 0; i < 9; i++)
        slices[i] = slice_at(store, m, load(store, m, 3, 1 + 3 * (uint64_t)i));
    flush(store);
    ign_store_close(store);
    char control[IGN_STORE_NAME_MAX];
    ign_store_file_name(control, "control", 1, 0);
    CHECK_EQ(io->remove(io, control), 0);
    for (uint64_t i = 1; i < 9; i += 2)
        flip_batch(io, &slices[i], slices[i].bytes - 1);
    store = open_small(io);
    ign_store_figures f = figures(store);
    CHECK(f.living_records == 27 && f.damaged_bytes > 0 && f.salvaged_records == 8 && f.damaged_records == 4);
    ign_store_close(store);
    store_dir_close(io);
}

enum { CLOSED, QUIET, COPIED };

/* A flip in the last entry that was flushed: at a clean close, when nothing follows for a moment, and in what an opening wrote again. */
static void the_last_entry(int how)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m = declare(store);
    load(store, m, 3, 1);
    uint64_t first = load(store, m, 3, 4);
    if (how != COPIED)
        flush(store);
    if (how == QUIET)
        for (int i = 0; i < 3; i++)
            CHECK(ign_store_maintain(store) >= 0);
    if (how == COPIED) {
        kill_all(store);
        store = open_small(io);
        CHECK_EQ(figures(store).damaged_bytes, 0);
    }
    ign_slice last = slice_at(store, m, first);
    if (how == CLOSED)
        ign_store_close(store);
    else
        kill_all(store);
    char control[IGN_STORE_NAME_MAX]; /* says what was flushed too, but for a power cut */
    for (uint64_t g = 1; g < 4; g++) {
        ign_store_file_name(control, "control", g, 0);
        io->remove(io, control);
    }
    flip_batch(io, &last, last.bytes - 1);
    store = open_small(io);
    ign_store_figures f = figures(store);
    CHECK(f.damaged_bytes >= last.bytes && f.damaged_bytes < last.bytes + 100u);
    CHECK(f.living_records >= 3);
    ign_store_close(store);
    store_dir_close(io);
}

static void last_entry_closed(void)
{
    the_last_entry(CLOSED);
}

static void last_entry_quiet(void)
{
    the_last_entry(QUIET);
}

static void last_entry_copied(void)
{
    the_last_entry(COPIED);
}

/* What was never flushed is a tail all the same, and no witness stands behind it. */
static void a_tail_is_no_damage(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m = declare(store);
    flush(store);
    uint64_t end = figures(store).end;
    for (int i = 0; i < 3; i++)
        CHECK(ign_store_maintain(store) >= 0);
    CHECK_EQ(figures(store).end, end + ign_entry_size(0)); /* one, and not one each time */
    uint64_t first = load(store, m, 3, 4);
    for (int i = 0; i < 3; i++)
        CHECK(ign_store_maintain(store) >= 0);
    ign_slice last = slice_at(store, m, first);
    end = figures(store).end;
    CHECK_EQ(end, last.position + ign_entry_size(24 + last.bytes));
    kill_all(store);
    flip_batch(io, &last, last.bytes - 1);
    store = open_small(io);
    CHECK_EQ(figures(store).damaged_bytes, 0);
    CHECK_EQ(figures(store).living_records, 0);
    ign_store_close(store);
    store_dir_close(io);
}

static void remove_control(void *arg, const char *name)
{
    ign_store_io *io = arg;
    if (strncmp(name, "control-", 8) == 0)
        io->remove(io, name);
}

static int no_flush(ign_store_io *io, int file)
{
    (void)io, (void)file;
    return 0;
}

/* A few hundred openings: nothing here is about a power cut. */
static ign_store_io *open_without_flushes(void)
{
    ign_store_io *io = store_dir_open();
    io->flush = no_flush;
    return io;
}

/* -- one byte of an entry that loads ------------------------------------------------------------------------------------- */

typedef struct saved {
    char name[IGN_STORE_NAME_MAX];
    uint8_t *bytes;
    uint64_t size;
} saved;

static saved files[64];
static unsigned file_count;
static ign_store_io *saving;

static void save_file(void *arg, const char *name)
{
    (void)arg;
    int file;
    saved *f = &files[file_count];
    if (strncmp(name, "log-", 4) != 0 && strncmp(name, "checkpoint-", 11) != 0 && strncmp(name, "control-", 8) != 0)
        return;
    CHECK(file_count++ < 64);
    strcpy(f->name, name);
    CHECK_EQ(saving->open(saving, name, false, &file), 0);
    CHECK_EQ(saving->size(saving, file, &f->size), 0);
    f->bytes = malloc((size_t)f->size);
    CHECK(f->bytes != NULL);
    CHECK_EQ(saving->read(saving, file, f->bytes, (size_t)f->size, 0), 0);
    saving->close(saving, file);
}

static void save(ign_store_io *io)
{
    saving = io;
    file_count = 0;
    CHECK_EQ(io->list(io, save_file, NULL), 0);
}

static void restore(ign_store_io *io)
{
    io->list(io, store_dir_remove_one, io);
    for (unsigned i = 0; i < file_count; i++) {
        int file;
        CHECK_EQ(io->open(io, files[i].name, true, &file), 0);
        CHECK_EQ(io->write(io, file, files[i].bytes, (size_t)files[i].size, 0), 0);
        io->close(io, file);
    }
}

static void let_go(void)
{
    for (unsigned i = 0; i < file_count; i++)
        free(files[i].bytes);
}

/* Which ids 1..63 are there to be read, a bit each, and how many cannot be. */
static uint64_t readable(ign_store *store, uint32_t m, unsigned *unreadable)
{
    static uint8_t batch[BATCH_MAX];
    ign_slice slices[64];
    uint32_t count, had;
    uint64_t seen = 0;
    ign_segment segment;
    *unreadable = 0;
    for (uint16_t shard = 0; shard < 2; shard++) {
        CHECK_EQ(ign_store_peek(store, m, shard, 1, UINT64_MAX, slices, 64, &count), IGN_OK);
        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQ(ign_store_fetch(store, &slices[i], batch), IGN_OK);
            if (ign_segment_open(batch, slices[i].bytes, &segment) != IGN_OK)
                ign_batch_mend(batch, slices[i].bytes, m, shard, slices[i].first, &had);
            for (uint32_t k = slices[i].from; k < slices[i].to; k++) {
                uint64_t id = batch_read(batch, &slices[i], m, k);
                CHECK(id < 64 && (seen & (uint64_t)1 << id) == 0);
                *unreadable += id == 0;
                seen |= id == 0 ? 0 : (uint64_t)1 << id;
            }
        }
    }
    return seen;
}

static uint64_t bits(unsigned from, unsigned to)
{
    return (((uint64_t)2 << to) - 1) & ~(((uint64_t)1 << from) - 1);
}

typedef enum loaded_as { LOADED, ONCE, CLAIMED, MOVED_ON } loaded_as;

/* A flip in each byte of an entry that loaded ids 5 to 10 to both shards, after which the first was claimed and retired: no more than one
 * record is lost, and nothing but that. */
static void every_byte(loaded_as kind)
{
    static uint8_t first[BATCH_MAX], second[BATCH_MAX], source[BATCH_MAX];
    ign_store_io *io = open_without_flushes();
    ign_store *store = open_small(io);
    uint32_t m = declare(store), other, count;
    ign_store_mark mark;
    ign_slice slices[8];
    uint64_t retired;
    bool expired;
    uint8_t ids[3 * IGN_STORE_ID_BYTES];
    memset(ids, 7, sizeof ids);
    ids[16]++;
    ids[32]--;
    CHECK_EQ(ign_store_declare(store, "other", 1, 0, &other, NULL, &mark), IGN_OK);
    ign_store_part parts[2] = {{.shard = 0, .batch = first, .bytes = batch_make_until(first, 4, 5, 21, UINT64_MAX / 2)},
                               {.shard = 1, .batch = second, .bytes = batch_make(second, 2, 9, 21)}};
    ign_store_part from = {.batch = source, .bytes = batch_make(source, 2, 50, 24)};
    CHECK_EQ(ign_store_load(store, other, &from, 1, NULL, &mark), IGN_OK);
    ign_store_run run = {.first = from.first, .last = from.first + 1};
    switch (kind) {
    case ONCE: CHECK_EQ(ign_store_load_once(store, m, parts, 2, NULL, ids, 3, 9, 1, NULL, &mark), IGN_OK); break;
    case CLAIMED: CHECK_EQ(ign_store_load_claimed(store, m, parts, 2, "me", 1, NULL, &mark), IGN_OK); break;
    case MOVED_ON: CHECK_EQ(ign_store_transfer(store, other, &run, 1, m, parts, 2, false, NULL, &mark), IGN_OK); break;
    default: CHECK_EQ(ign_store_load(store, m, parts, 2, NULL, &mark), IGN_OK);
    }
    uint64_t end = mark.position;
    ign_slice at = slice_at(store, m, parts[0].first);
    if (kind != CLAIMED) {
        CHECK_EQ(ign_store_claim(store, m, 0, 2, 1 << 20, "me", 1, slices, 8, &count, &expired, NULL, &mark), IGN_OK);
        CHECK_EQ(count, 1);
    }
    run = (ign_store_run){.first = parts[0].first, .last = parts[0].first};
    CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
    load(store, m, 3, 20);
    flush(store);
    ign_store_close(store);
    CHECK_EQ(io->list(io, remove_control, io), 0);
    save(io);
    uint64_t sum = 0, stood = 0;
    for (uint64_t byte = at.position; byte < end; byte++) {
        char name[IGN_STORE_NAME_MAX];
        unsigned unreadable;
        ign_shard shard;
        bool known[3];
        restore(io);
        ign_segment_name(name, at.generation, at.number);
        flip(io, name, at.file_offset - at.offset + byte - at.position);
        store = open_small(io);
        ign_store_figures f = figures(store);
        uint64_t seen = readable(store, m, &unreadable), all = bits(6, 10) | bits(20, 22);
        if (f.damaged_bytes == 0) { /* up to a multiple of 8: those bytes mean nothing */
            CHECK(byte >= end - 7 && seen == all);
            continue;
        }
        CHECK_EQ(f.damaged_bytes, end - at.position);
        if (kind == MOVED_ON) { /* it is where it was; where that cannot be told, the better copy stands beside it */
            CHECK_EQ(ign_store_shard(store, other, 0, &shard), IGN_OK);
            CHECK_EQ(shard.living, 2);
            CHECK(unreadable == 0 && f.damaged_records == 0 && f.salvaged_records == ((seen & bits(6, 6)) != 0 ? 6 : 0));
            CHECK(seen == bits(20, 22) || seen == all);
            stood += seen == all;
            kill_all(store);
            continue;
        }
        CHECK((seen & ~all) == 0 && (uint64_t)__builtin_popcountll(all & ~seen) <= 1);
        CHECK(unreadable == (unsigned)__builtin_popcountll(all & ~seen));
        CHECK_EQ(f.salvaged_records + f.damaged_records, 6);
        CHECK(f.damaged_records <= 1 && f.damaged_records >= unreadable);
        sum += f.damaged_records;
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK(shard.living == 3 + 3);
        CHECK(shard.in_flight == (kind == CLAIMED ? 3 : 1) || (kind == CLAIMED && shard.in_flight == 0));
        CHECK_EQ(slice_at(store, m, parts[0].first + 1).expires_at_ms, UINT64_MAX / 2);
        if (kind == ONCE) {
            CHECK_EQ(ign_store_known_ids(store, m, 1, ids, 3, known), IGN_OK);
            CHECK((known[0] + known[1] + known[2]) >= 2);
            CHECK(f.damaged_records == 0 || (known[0] && known[1] && known[2]));
        }
        kill_all(store);
    }
    if (kind == MOVED_ON)
        CHECK(stood >= 16 && stood <= 32); /* the bytes of what was to be retired */
    else
        CHECK(sum >= 6 * 21 && sum <= 6 * 25); /* a record's bytes and its check */
    let_go();
    store_dir_close(io);
}

static void every_byte_of_a_load(void)
{
    every_byte(LOADED);
}

static void every_byte_with_ids(void)
{
    every_byte(ONCE);
}

/* The same of delayed messages with ids: of the messages one is lost at most, and of the ids, which the main magazine knows. Times that do
 * not hold are no longer spoken of. */
static void every_byte_with_ids_and_times(void)
{
    static uint8_t first[BATCH_MAX], second[BATCH_MAX];
    ign_store_io *io = open_without_flushes();
    ign_store *store = open_small(io);
    uint32_t m = declare(store), later;
    ign_store_mark mark;
    uint8_t ids[3 * IGN_STORE_ID_BYTES];
    uint64_t dues[6] = {1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 21, 1 << 21}, next;
    memset(ids, 7, sizeof ids);
    ids[16]++;
    ids[32]--;
    CHECK_EQ(ign_store_declare_later(store, m, "m later", 2, &later, NULL, &mark), IGN_OK);
    ign_store_part parts[2] = {{.shard = 0, .batch = first, .bytes = batch_make(first, 4, 5, 21)},
                               {.shard = 1, .batch = second, .bytes = batch_make(second, 2, 9, 21)}};
    CHECK_EQ(ign_store_load_once(store, later, parts, 2, dues, ids, 3, 9, 1, NULL, &mark), IGN_OK);
    uint64_t end = mark.position;
    ign_slice at = slice_at(store, later, parts[0].first);
    load(store, m, 3, 20);
    flush(store);
    ign_store_close(store);
    CHECK_EQ(io->list(io, remove_control, io), 0);
    save(io);
    unsigned lost = 0, at_once = 0;
    for (uint64_t byte = at.position; byte < end; byte++) {
        char name[IGN_STORE_NAME_MAX];
        unsigned unreadable;
        bool known[3];
        restore(io);
        ign_segment_name(name, at.generation, at.number);
        flip(io, name, at.file_offset - at.offset + byte - at.position);
        store = open_small(io);
        CHECK(readable(store, m, &unreadable) == bits(20, 22) && unreadable == 0);
        uint64_t seen = readable(store, later, &unreadable), all = bits(5, 10);
        CHECK((seen & ~all) == 0 && (uint64_t)__builtin_popcountll(all & ~seen) <= 1);
        lost += seen != all;
        CHECK_EQ(ign_store_known_ids(store, m, 1, ids, 3, known), IGN_OK);
        CHECK((known[0] + known[1] + known[2]) >= 2);
        CHECK_EQ(ign_store_next_due(store, m, &next), IGN_OK);
        CHECK(next == 1 << 20 || next == 0);
        at_once += next == 0;
        kill_all(store);
    }
    CHECK(lost >= 6 * 21 && lost <= 6 * 25);
    CHECK(at_once > 0 && at_once <= 2 * IGN_DUES_BYTES + IGN_DUES_END + 8);
    let_go();
    store_dir_close(io);
}

static void every_byte_with_a_claim(void)
{
    every_byte(CLAIMED);
}

static void every_byte_of_a_transfer(void)
{
    every_byte(MOVED_ON);
}

/* One message alone, which has no neighbour to say that its place is right: whatever byte is another one, it is there to be read, or it
 * stands where it stood and cannot be. A transfer of it did not take place then: it is where it was. */
static void every_byte_of_a_lone_one(loaded_as kind)
{
    static uint8_t batch[BATCH_MAX], source[BATCH_MAX];
    ign_store_io *io = open_without_flushes();
    ign_store *store = open_small(io);
    uint32_t m = declare(store), other;
    ign_store_mark mark;
    uint8_t id[IGN_STORE_ID_BYTES] = {7};
    CHECK_EQ(ign_store_declare(store, "other", 1, 0, &other, NULL, &mark), IGN_OK);
    ign_store_part part = {.shard = 0, .batch = batch, .bytes = batch_make(batch, 1, 5, 21)};
    ign_store_part from = {.batch = source, .bytes = batch_make(source, 1, 50, 24)};
    load(store, m, 2, 1);
    CHECK_EQ(ign_store_load(store, other, &from, 1, NULL, &mark), IGN_OK);
    ign_store_run run = {.first = from.first, .last = from.first}, older = {.first = 1, .last = 2};
    uint64_t retired;
    CHECK_EQ(ign_store_retire(store, m, &older, 1, false, &retired, NULL, &mark), IGN_OK);
    switch (kind) {
    case ONCE: CHECK_EQ(ign_store_load_once(store, m, &part, 1, NULL, id, 1, 9, 1, NULL, &mark), IGN_OK); break;
    case CLAIMED: CHECK_EQ(ign_store_load_claimed(store, m, &part, 1, "me", 1, NULL, &mark), IGN_OK); break;
    case MOVED_ON: CHECK_EQ(ign_store_transfer(store, other, &run, 1, m, &part, 1, false, NULL, &mark), IGN_OK); break;
    default: CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    }
    uint64_t end = mark.position;
    ign_slice at = slice_at(store, m, part.first);
    load(store, m, 3, 20);
    flush(store);
    ign_store_close(store);
    CHECK_EQ(io->list(io, remove_control, io), 0);
    save(io);
    unsigned sum = 0;
    for (uint64_t byte = at.position; byte < end; byte++) {
        char name[IGN_STORE_NAME_MAX];
        unsigned unreadable;
        ign_shard shard, there;
        restore(io);
        ign_segment_name(name, at.generation, at.number);
        flip(io, name, at.file_offset - at.offset + byte - at.position);
        store = open_small(io);
        ign_store_figures f = figures(store);
        uint64_t seen = readable(store, m, &unreadable);
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK_EQ(ign_store_shard(store, other, 0, &there), IGN_OK);
        CHECK((seen & ~(bits(5, 5) | bits(20, 22))) == 0 && (seen & bits(20, 22)) == bits(20, 22));
        bool whole = (seen & bits(5, 5)) != 0;
        if (kind == MOVED_ON && f.damaged_bytes != 0) {
            CHECK(there.living == 1 && unreadable == 0 && shard.living == (whole ? 4 : 3));
            sum += !whole;
        } else {
            CHECK(whole != (unreadable == 1));
            CHECK_EQ(shard.living, 1 + 3);
            CHECK_EQ(f.damaged_records, unreadable);
            CHECK_EQ(there.living, kind == MOVED_ON ? 0 : 1);
            sum += unreadable;
        }
        CHECK(kind != CLAIMED || !whole || shard.in_flight <= 1);
        CHECK(kind != CLAIMED || whole || shard.in_flight == 1);
        kill_all(store);
    }
    if (kind == MOVED_ON)
        CHECK(sum >= 25 && sum > end - at.position - 48); /* but for what was to be retired */
    else
        CHECK_EQ(sum, 25); /* the record's bytes and its check, and no other */
    let_go();
    store_dir_close(io);
}

static void every_byte_of_one(void)
{
    every_byte_of_a_lone_one(LOADED);
}

static void every_byte_of_one_with_an_id(void)
{
    every_byte_of_a_lone_one(ONCE);
}

static void every_byte_of_one_that_is_claimed(void)
{
    every_byte_of_a_lone_one(CLAIMED);
}

static void every_byte_of_one_that_is_moved(void)
{
    every_byte_of_a_lone_one(MOVED_ON);
}

/* Where nothing holds of a message, its place is believed only when it is the next one of its shard: side by side each is found, behind
 * one that is gone without a trace none, and what came later is untouched. */
static void places_that_nothing_vouches_for(void)
{
    for (int gone = 0; gone < 2; gone++) {
        ign_store_io *io = store_dir_open();
        ign_store *store = open_small(io);
        uint32_t m = declare(store);
        ign_slice slices[4];
        unsigned unreadable;
        for (uint64_t i = 0; i < 4; i++)
            slices[i] = slice_at(store, m, load(store, m, 1, 1 + i));
        load(store, m, 3, 20);
        flush(store);
        ign_store_close(store);
        CHECK_EQ(io->list(io, remove_control, io), 0);
        for (unsigned i = 1; i < 4; i++)
            flip_batch(io, &slices[i], slices[i].bytes - 1);
        if (gone == 1) /* the first of them, with the header of its entry */
            flip_batch(io, &slices[1], (uint64_t)-(int64_t)slices[1].offset);
        store = open_small(io);
        CHECK_EQ(readable(store, m, &unreadable), bits(1, 1) | bits(20, 22));
        CHECK_EQ(unreadable, gone == 1 ? 0 : 3);
        ign_store_figures f = figures(store);
        CHECK(f.salvaged_records == 0 && f.damaged_records == 3 && f.damaged_bytes > 0);
        load(store, m, 2, 30);
        ign_store_close(store);
        store = open_small(io);
        CHECK_EQ(readable(store, m, &unreadable), bits(1, 1) | bits(20, 22) | bits(30, 31));
        ign_store_close(store);
        store_dir_close(io);
    }
}

/* -- the head of a part, and what stands around it -------------------------------------------------------------------------- */

enum { HEADS = 3, PER_PART = 6, ZEROS = 0, NOISE = 1, ONES = 2 };

typedef struct headed {
    ign_store_io *io;
    uint32_t m;
    ign_slice at;              /* the entry's first batch */
    uint64_t parts[HEADS + 1]; /* where each part's head is in the file; and the entry's end */
    unsigned count;
    char name[IGN_STORE_NAME_MAX];
} headed;

/* Ids 1 to 3, then an entry of `count` parts of six (10.., 20.., 30..), then 40 to 42 behind it; all in one shard, or in both in turn. */
static headed make_headed(unsigned count, bool both)
{
    static uint8_t batches[HEADS][BATCH_MAX];
    headed h = {.io = open_without_flushes(), .count = count};
    ign_store *store = open_small(h.io);
    ign_store_part parts[HEADS];
    ign_store_mark mark;
    h.m = declare(store);
    load(store, h.m, 3, 1);
    for (unsigned i = 0; i < count; i++)
        parts[i] = (ign_store_part){.shard = both ? (uint16_t)(i % 2) : 0, .batch = batches[i],
                                    .bytes = batch_make(batches[i], PER_PART, 10 + 10 * i, 21 + i)};
    CHECK_EQ(ign_store_load(store, h.m, parts, (uint16_t)count, NULL, &mark), IGN_OK);
    h.at = slice_at(store, h.m, parts[0].first);
    h.parts[0] = h.at.file_offset - 16;
    for (unsigned i = 0; i < count; i++)
        h.parts[i + 1] = h.parts[i] + 16 + ((parts[i].bytes + 7) & ~(uint64_t)7);
    ign_segment_name(h.name, h.at.generation, h.at.number);
    load(store, h.m, 3, 40);
    flush(store);
    ign_store_close(store);
    CHECK_EQ(h.io->list(h.io, remove_control, h.io), 0);
    save(h.io);
    return h;
}

static void end_headed(headed *h)
{
    let_go();
    store_dir_close(h->io);
}

static void overwrite(ign_store_io *io, const char *name, uint64_t at, unsigned bytes, int how)
{
    static uint8_t with[4096];
    static uint32_t random = 1;
    int file;
    for (unsigned i = 0; i < bytes; i++) {
        random = random * 1664525 + 1013904223;
        with[i] = how == NOISE ? (uint8_t)(random >> 24) : how == ONES ? 0xff : 0;
    }
    CHECK_EQ(io->open(io, name, false, &file), 0);
    CHECK_EQ(io->write(io, file, with, bytes, at), 0);
    io->close(io, file);
}

static uint64_t ids_of(const headed *h, unsigned but)
{
    uint64_t all = bits(1, 3) | bits(40, 42);
    for (unsigned i = 0; i < h->count; i++)
        all |= i == but ? 0 : bits(10 + 10 * i, 10 + 10 * i + PER_PART - 1);
    return all;
}

/* `most` of the records may be gone, of that part; all others are there, and what is gone is counted. */
static void check_headed(const headed *h, unsigned part, unsigned most)
{
    unsigned unreadable;
    ign_shard shard;
    ign_store *store = open_small(h->io);
    uint64_t seen = readable(store, h->m, &unreadable), all = ids_of(h, HEADS);
    CHECK_EQ(ign_store_shard(store, h->m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.fire_counter, 0); /* no flag was believed that says otherwise */
    unsigned gone = (unsigned)__builtin_popcountll(all & ~seen);
    CHECK((seen & ~all) == 0 && (seen & ids_of(h, part)) == ids_of(h, part));
    CHECK(gone <= most && unreadable <= gone);
    CHECK_EQ(figures(store).damaged_records, gone);
    CHECK(gone == 0 || figures(store).damaged_bytes != 0);
    load(store, h->m, 2, 50);
    ign_store_close(store);
    store = open_small(h->io);
    CHECK_EQ(readable(store, h->m, &unreadable), seen | bits(50, 51));
    ign_store_close(store);
    restore(h->io);
}

/* Each field of a part's head, and of its batch's, and of both: zeros, noise, ones; first, middle and last part. Nothing at all is lost. */
static void fields_of_a_part(void)
{
    static const struct {
        unsigned at, bytes;
    } fields[] = {{8, 8}, {8, 4}, {12, 4}, {12, 2}, {14, 2}, {0, 2}, {4, 4}, {6, 2}, {16, 8}, {20, 4}, {32, 8}, {0, 16}, {4, 12}, {0, 24}, {4, 36}};
    for (unsigned count = 1; count <= HEADS; count += HEADS - 1)
        for (int both = 0; both < 2; both++) {
            headed h = make_headed(count, both == 1);
            for (unsigned part = 0; part < count; part++)
                for (unsigned f = 0; f < sizeof fields / sizeof *fields; f++)
                    for (int how = ZEROS; how <= ONES; how++) {
                        overwrite(h.io, h.name, h.parts[part] + fields[f].at, fields[f].bytes, how);
                        check_headed(&h, part, 0);
                    }
            end_headed(&h);
        }
}

/* The head of each part, all at once, as far as somebody can be told from another. */
static void pointers_of_all_parts(void)
{
    for (int both = 0; both < 2; both++) {
        headed h = make_headed(HEADS, both == 1);
        for (int how = ZEROS; how <= ONES; how++) {
            for (unsigned part = 0; part < HEADS; part++)
                overwrite(h.io, h.name, h.parts[part] + 8, 8, how);
            check_headed(&h, HEADS, 0);
        }
        end_headed(&h);
    }
}

/* From the entry's own header on, or from the LOAD's, over more and more of it. What stands behind the part in which it ends is there. */
static void the_header_of_an_entry(void)
{
    for (unsigned count = 1; count <= HEADS; count += HEADS - 1) {
        headed h = make_headed(count, false);
        for (unsigned from = 0; from <= 24; from += 24)
            for (unsigned bytes = 4; bytes + from <= h.parts[1] - h.parts[0] + 32; bytes += 4)
                for (int how = ZEROS; how <= ONES; how++) {
                    unsigned heads = 24 + 8 + 16 + 24, over = from + bytes;
                    overwrite(h.io, h.name, h.parts[0] - 32 + from, bytes, how);
                    check_headed(&h, 0, over <= heads ? 0 : PER_PART);
                }
        end_headed(&h);
    }
}

/* A message that has a part in it, with the place that comes next, is a message and nothing else. */
static void a_part_in_a_message(void)
{
    static uint8_t batch[BATCH_MAX], other[BATCH_MAX], inner[256];
    ign_store_io *io = open_without_flushes();
    ign_store *store = open_small(io);
    uint32_t m = declare(store), bytes = batch_make(inner + 16, 1, 60, 24);
    ign_store_mark mark;
    unsigned unreadable;
    load(store, m, 3, 1);
    memset(inner, 0, 16);
    ign_put32(inner + 4, bytes);
    ign_put64(inner + 8, 4 + 2);
    ign_segment_seal(inner + 16, m, 0, 4 + 2);
    uint32_t inside = 16 + ((bytes + 7) & ~7u), at = 24 + 2 * 8;
    ign_segment_begin(batch, 2, 0); /* its second record, at a multiple of 8 as a part would be */
    memset(batch + at, 0, 16);
    batch[at] = 5;
    memset(batch + at + 16, 0, 8);
    batch[at + 16] = 6;
    memcpy(batch + at + 24, inner, inside);
    inside += 8;
    ign_segment_put_index(batch, 0, 16, ign_crc32c(0, batch + at, 16));
    ign_segment_put_index(batch, 1, 16 + inside, ign_crc32c(0, batch + at + 16, inside));
    ign_segment_finish(batch);
    ign_store_part parts[2] = {{.batch = batch, .bytes = at + 16 + inside},
                               {.shard = 1, .batch = other, .bytes = batch_make(other, 2, 20, 24)}};
    CHECK_EQ(ign_store_load(store, m, parts, 2, NULL, &mark), IGN_OK);
    ign_slice slice = slice_at(store, m, parts[0].first);
    load(store, m, 2, 40);
    flush(store);
    ign_store_close(store);
    CHECK_EQ(io->list(io, remove_control, io), 0);
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, slice.generation, slice.number);
    overwrite(io, name, slice.file_offset - 16, 16, ZEROS);
    store = open_small(io);
    uint64_t seen = readable(store, m, &unreadable);
    CHECK(seen == (bits(1, 3) | bits(5, 6) | bits(20, 21) | bits(40, 41)) && unreadable == 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* -- files that are not there --------------------------------------------------------------------------------------------- */

/* Five segments and more, with a checkpoint in the middle if that is asked for; what lives is in all of them. */
static ign_store *fill(ign_store_io *io, uint32_t *m, bool checkpoint)
{
    ign_store *store = open_small(io);
    *m = declare(store);
    for (uint64_t i = 0; i < 320; i++) {
        load(store, *m, 20, 1 + i * 20);
        if (checkpoint && i == 160) {
            flush(store);
            CHECK_EQ(ign_store_checkpoint(store), IGN_OK);
        }
    }
    flush(store);
    CHECK(figures(store).segments >= 4);
    return store;
}

static void damage_file(ign_store_io *io, const char *name, bool zero)
{
    static const uint8_t zeros[1 << 16];
    int file;
    if (!zero) {
        CHECK_EQ(io->remove(io, name), 0);
        return;
    }
    CHECK_EQ(io->open(io, name, false, &file), 0);
    CHECK_EQ(io->write(io, file, zeros, sizeof zeros, 0), 0);
    io->close(io, file);
}

static unsigned names;
static uint64_t names_sum;

static void add_name(void *arg, const char *name)
{
    (void)arg;
    names++;
    for (uint64_t hash = 5381; *name != 0; name++)
        names_sum += hash = hash * 33 + (uint8_t)*name;
}

/* Any one segment gone, zeroed, or without its header, with and without a checkpoint, with and without a control file: an opening says
 * what is missing and changes nothing, and when it is told to pass over it, all else is there. */
static void a_segment_is_missing(void)
{
    ign_store_io *io = open_without_flushes();
    for (int with = 0; with < 4; with++) {
        uint32_t m, found = 0;
        ign_store *store = fill(io, &m, with % 2 == 1);
        uint64_t segments = figures(store).segments;
        ign_store_close(store);
        if (with >= 2)
            CHECK_EQ(io->list(io, remove_control, io), 0);
        for (uint64_t number = 1; number <= segments; number += number == 2 && segments > 3 ? segments - 2 : 1)
            for (int how = 0; how < 3; how++) {
                ign_store_lost lost = {.file = ""};
                ign_store_options options = small;
                char name[IGN_STORE_NAME_MAX];
                options.lost = &lost;
                ign_segment_name(name, 1, number);
                save(io);
                if (how == 2)
                    flip(io, name, 20);
                else
                    damage_file(io, name, how == 1);
                names = 0;
                names_sum = 0;
                io->list(io, add_name, NULL);
                unsigned had = names;
                uint64_t sum = names_sum;
                store = NULL;
                int rc = ign_store_open(&store, io, &options);
                /* Without a control file nobody knows of what came last, unless its header shows that it was there. */
                bool unknown = with >= 2 && number == segments && how < 2;
                CHECK_EQ(rc, unknown ? IGN_OK : IGN_E_LOST);
                if (rc == IGN_OK)
                    ign_store_close(store);
                else {
                    names = 0;
                    names_sum = 0;
                    io->list(io, add_name, NULL);
                    CHECK(names == had && names_sum == sum);
                    CHECK(strcmp(lost.file, name) == 0 || lost.file[0] == 0);
                    CHECK(lost.file[0] != 0 || lost.from < lost.to);
                    options.pass_over = true;
                    rc = ign_store_open(&store, io, &options);
                    CHECK(rc == IGN_OK || (rc == IGN_E_LOST && number == 1 && with % 2 == 0)); /* nothing says how it began */
                    if (rc == IGN_OK) {
                        ign_store_figures f = figures(store);
                        CHECK(f.living_records >= 20 * 320 / segments && f.living_records < 20 * 320);
                        ign_store_close(store);
                        store = open_small(io); /* and from now on */
                        CHECK_EQ(figures(store).living_records, f.living_records);
                        ign_store_close(store);
                    }
                    found++;
                }
                restore(io);
                let_go();
            }
        CHECK(found >= 7);
        io->list(io, store_dir_remove_one, io);
    }
    store_dir_close(io);
}

/* Only one that holds nothing at all goes without a word. */
static void a_segment_that_was_only_begun(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m = declare(store);
    load(store, m, 3, 1);
    ign_store_close(store);
    for (int how = 0; how < 3; how++) {
        static uint8_t bytes[1 << 16];
        char name[IGN_STORE_NAME_MAX];
        int file;
        memset(bytes, 0, sizeof bytes);
        memset(bytes, how > 0 ? 'x' : 0, 200); /* half of a header */
        bytes[sizeof bytes - 1] = how == 2;
        ign_segment_name(name, 1, 9);
        CHECK_EQ(io->open(io, name, true, &file), 0);
        CHECK_EQ(io->write(io, file, bytes, sizeof bytes, 0), 0);
        io->close(io, file);
        int rc = ign_store_open(&store, io, &small);
        CHECK_EQ(rc, how == 2 ? IGN_E_LOST : IGN_OK);
        if (rc == IGN_OK) {
            CHECK_EQ(figures(store).living_records, 3);
            ign_store_close(store);
        }
        CHECK_EQ(io->open(io, name, false, &file), how == 2 ? 0 : ENOENT);
        if (how == 2)
            io->close(io, file);
    }
    store_dir_close(io);
}

/* -- pointers ------------------------------------------------------------------------------------------------------------ */

/* Two copies of one store do not give out the same pointers. */
static void two_copies(void)
{
    ign_store_io *io = store_dir_open();
    uint64_t first[3];
    ign_store *store = open_small(io);
    uint32_t m = declare(store);
    CHECK_EQ(load(store, m, 3, 1), 1);
    ign_store_close(store);
    save(io);
    for (int copy = 0; copy < 3; copy++) {
        restore(io);
        store = open_small(io);
        first[copy] = load(store, m, 1, 4);
        CHECK(first[copy] >= 4 + IGN_STORE_JUMP && first[copy] < 4 + IGN_STORE_JUMP + IGN_STORE_JUMP_MORE);
        ign_store_close(store);
    }
    CHECK(first[0] != first[1] || first[1] != first[2]);
    let_go();
    store_dir_close(io);
}

/* Pointers end: what does not fit any more is refused before it is written, and no opening goes beyond. */
static void the_last_pointers(void)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_io *io = store_dir_open();
    ign_store *store = open_small(io);
    uint32_t m = declare(store);
    ign_generation *g;
    ign_store_mark mark;
    ign_shard shard;
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 3, 1, 24)};
    CHECK_EQ(ign_store_look(store, &g), IGN_OK);
    ign_ctl_put(&g->ctl, &ign_state_shard(&g->ctl, ign_state_magazine(&g->ctl, m), 0)->load_pointer, IGN_POINTER_MAX - 2);
    ign_ctl_commit(&g->ctl, g->ctl.root->applied);
    ign_store_look_end(store, g);
    uint64_t end = figures(store).end;
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_E_NO_ROOM);
    CHECK(errno == EOVERFLOW && figures(store).end == end);
    CHECK_EQ(load(store, m, 2, 1), IGN_POINTER_MAX - 1);
    part.bytes = batch_make(batch, 1, 3, 24);
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_E_NO_ROOM);
    for (int i = 0; i < 2; i++) {
        ign_store_close(store);
        store = open_small(io);
        CHECK_EQ(ign_store_shard(store, m, 0, &shard), IGN_OK);
        CHECK(shard.load_pointer == IGN_POINTER_MAX && shard.living == 2);
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_E_NO_ROOM);
    }
    ign_store_close(store);
    store_dir_close(io);
}

MAIN("store_damage", {
    RUN(last_entry_closed);
    RUN(last_entry_quiet);
    RUN(last_entry_copied);
    RUN(a_tail_is_no_damage);
    RUN(two_gaps);
    RUN(a_segment_is_missing);
    RUN(a_segment_that_was_only_begun);
    RUN(two_copies);
    RUN(the_last_pointers);
    RUN(every_byte_of_a_load);
    RUN(every_byte_with_ids);
    RUN(every_byte_with_ids_and_times);
    RUN(every_byte_with_a_claim);
    RUN(every_byte_of_a_transfer);
    RUN(every_byte_of_one);
    RUN(every_byte_of_one_with_an_id);
    RUN(every_byte_of_one_that_is_claimed);
    RUN(every_byte_of_one_that_is_moved);
    RUN(places_that_nothing_vouches_for);
    RUN(fields_of_a_part);
    RUN(pointers_of_all_parts);
    RUN(the_header_of_an_entry);
    RUN(a_part_in_a_message);
})
