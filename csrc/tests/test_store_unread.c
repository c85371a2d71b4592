/* Parts of the log that the disk refuses to read: what is certain counts as damaged, and nothing else, and no bytes are thrown away. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_store_fire.h"
#include "../ignis_store_parts.h"
#include "../ignis_store_salvage.h"

#include <errno.h>
#include <sys/stat.h>

static const ign_store_options small = {.segment_bytes = 1 << 16, .control_reserve = 1 << 27, .checkpoint_bytes = 1 << 16,
                                        .arena_bytes = 1 << 15, .undo_capacity = 512};

enum { RECORDS = 5, RECORD = 3000 };

/* -- a disk that refuses ---------------------------------------------------------------------------------------------------- */

static struct {
    ign_store_io real;
    bool gone;               /* nothing is read from the disk itself; the machine still remembers all but the range below */
    bool forgotten;          /* ... and not even that */
    uint64_t inode, from, to; /* of one file these bytes are refused */
    unsigned times;          /* ... so often */
    unsigned probes, refused;
} disk;

static bool is_refused(int file, uint64_t at, uint64_t bytes)
{
    struct stat st;
    CHECK_EQ(fstat(file, &st), 0);
    return st.st_ino == disk.inode && at < disk.to && at + bytes > disk.from;
}

static int refusing_read(ign_store_io *io, int file, void *to, size_t bytes, uint64_t at)
{
    if (disk.forgotten)
        return EIO;
    if (disk.times > 0 && is_refused(file, at, bytes)) {
        disk.times--;
        disk.refused++;
        return EIO;
    }
    return disk.real.read(io, file, to, bytes, at);
}

static int refusing_probe(ign_store_io *io, const char *name)
{
    disk.probes++;
    return disk.gone ? EIO : disk.real.probe(io, name);
}

static ign_store_io *open_disk(void)
{
    ign_store_io *io = store_dir_open();
    memset(&disk, 0, sizeof disk);
    disk.real = *io;
    io->read = refusing_read;
    io->probe = refusing_probe;
    return io;
}

static void refuse(const char *name, uint64_t from, uint64_t bytes, unsigned times)
{
    char path[sizeof store_dir_path + IGN_STORE_NAME_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", store_dir_path, name);
    CHECK_EQ(stat(path, &st), 0);
    disk.inode = st.st_ino;
    disk.from = from;
    disk.to = from + bytes;
    disk.times = times;
}

static void heal(void)
{
    disk.times = 0;
    disk.gone = disk.forgotten = false;
}

/* -- stores ----------------------------------------------------------------------------------------------------------------- */

static ign_store *open_small(ign_store_io *io)
{
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, &small), IGN_OK);
    return store;
}

static uint32_t declare(ign_store *store, const char *name)
{
    uint32_t number;
    ign_store_mark mark;
    CHECK_EQ(ign_store_declare(store, name, 1, 0, &number, NULL, &mark), IGN_OK);
    return number;
}

static uint64_t load(ign_store *store, uint32_t m, uint32_t count, uint64_t id, uint32_t size)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_mark mark;
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, count, id, size)};
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

static void retire(ign_store *store, uint32_t m, uint64_t first, uint64_t last)
{
    uint64_t retired;
    ign_store_mark mark;
    ign_store_run run = {.first = first, .last = last};
    CHECK_EQ(ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark), IGN_OK);
}

/* Ids below 64 that can be read of the magazine, a bit each; *unreadable: how many messages cannot. */
static uint64_t readable(ign_store *store, uint32_t m, unsigned *unreadable)
{
    static uint8_t batch[BATCH_MAX];
    ign_slice slices[64];
    uint32_t count, had;
    uint64_t seen = 0;
    ign_segment segment;
    *unreadable = 0;
    CHECK_EQ(ign_store_peek(store, m, 0, 1, UINT64_MAX, slices, 64, &count), IGN_OK);
    for (uint32_t i = 0; i < count; i++) {
        CHECK_EQ(ign_store_fetch(store, &slices[i], batch), IGN_OK);
        if (ign_segment_open(batch, slices[i].bytes, &segment) != IGN_OK)
            ign_batch_mend(batch, slices[i].bytes, m, 0, slices[i].first, &had);
        for (uint32_t k = slices[i].from; k < slices[i].to; k++) {
            slices[i].shard = 0;
            uint64_t id = batch_read(batch, &slices[i], m, k);
            CHECK(id < 64);
            *unreadable += id == 0;
            seen |= id == 0 ? 0 : (uint64_t)1 << id;
        }
    }
    return seen;
}

#define ALL (bits(1, 3) | bits(10, 14) | bits(20, 21))

static uint64_t bits(unsigned from, unsigned to)
{
    return (((uint64_t)2 << to) - 1) & ~(((uint64_t)1 << from) - 1);
}

static unsigned found_names;

static void count_name(void *arg, const char *name)
{
    found_names += strncmp(name, arg, strlen(arg)) == 0;
}

static unsigned names_with(ign_store_io *io, const char *prefix)
{
    char copy[IGN_STORE_NAME_MAX];
    strcpy(copy, prefix);
    found_names = 0;
    CHECK_EQ(io->list(io, count_name, copy), 0);
    return found_names;
}

/* Batches of which one has large records, and is not in the first block of the file, nor is its end. Returns its slice. */
static ign_slice some_batches(ign_store *store, uint32_t m)
{
    load(store, m, 2, 1, 24);
    load(store, m, 1, 3, 2 * RECORD);
    ign_slice slice = slice_at(store, m, load(store, m, RECORDS, 10, RECORD));
    load(store, m, 2, 20, 24);
    flush(store);
    return slice;
}

/* So that one block of the disk is in it whole, and the batch's head is not. */
static uint64_t block_in(const ign_slice *slice)
{
    return (slice->file_offset + slice->bytes / 2) / 4096 * 4096;
}

static const char *segment_of(const ign_slice *slice)
{
    static char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, slice->generation, slice->number);
    return name;
}

/* -- under an open store ---------------------------------------------------------------------------------------------------- */

/* A sector goes bad: the messages beside it are read, and when it can be read again those in it are, too. */
static void a_bad_sector(void)
{
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    uint32_t m = declare(store, "m");
    ign_slice slice = some_batches(store, m);
    unsigned unreadable;
    refuse(segment_of(&slice), block_in(&slice), 512, UINT32_MAX);
    CHECK_EQ(names_with(io, "damaged-"), 0);
    uint64_t seen = readable(store, m, &unreadable);
    CHECK(unreadable >= 1 && unreadable <= 3 && (unsigned)__builtin_popcountll(ALL & ~seen) == unreadable);
    CHECK((ALL & ~seen & ~bits(10, 14)) == 0);
    CHECK(disk.probes > 0 && ign_store_unread(store) == 1);
    CHECK_EQ(names_with(io, "damaged-log-"), 1);
    CHECK(readable(store, m, &unreadable) == seen && names_with(io, "damaged-log-") == 1);
    heal();
    CHECK(readable(store, m, &unreadable) == ALL && unreadable == 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* The same read by parts, as large batches are. */
static void in_parts(void)
{
    static uint8_t whole[BATCH_MAX], part[BATCH_MAX];
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    ign_slice slice = some_batches(store, declare(store, "m"));
    CHECK_EQ(ign_store_fetch(store, &slice, whole), IGN_OK);
    uint64_t bad = block_in(&slice) - slice.file_offset;
    refuse(segment_of(&slice), slice.file_offset + bad, 4096, UINT32_MAX);
    CHECK_EQ(ign_store_fetch_part(store, &slice, 100, part, slice.bytes - 100), IGN_OK);
    for (uint64_t i = 100; i < slice.bytes; i++)
        CHECK(part[i - 100] == (i >= bad && i < bad + 4096 ? 0xff : whole[i]));
    ign_store_close(store);
    store_dir_close(io);
}

/* What is refused for a moment is read. */
static void refused_for_a_moment(void)
{
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    uint32_t m = declare(store, "m");
    ign_slice slice = some_batches(store, m);
    for (unsigned times = 1; times <= 4; times++) { /* the batch, its block, and that again */
        unsigned unreadable;
        refuse(segment_of(&slice), block_in(&slice), 512, times);
        CHECK_EQ(readable(store, m, &unreadable), ALL);
        CHECK(unreadable == 0 && disk.times == 0);
    }
    CHECK(ign_store_unread(store) == 0 && names_with(io, "damaged-") == 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* The disk as a whole has gone: nothing counts as damaged, whatever the machine remembers of it. */
static void a_disk_that_has_gone(void)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    uint32_t m = declare(store, "m");
    ign_slice slice = some_batches(store, m);
    for (int forgotten = 0; forgotten < 2; forgotten++) {
        refuse(segment_of(&slice), block_in(&slice), 512, UINT32_MAX);
        disk.gone = true;
        disk.forgotten = forgotten == 1;
        CHECK_EQ(ign_store_fetch(store, &slice, batch), IGN_E_IO);
        CHECK(ign_store_unread(store) == 0 && names_with(io, "damaged-") == 0);
        heal();
        unsigned unreadable;
        CHECK_EQ(readable(store, m, &unreadable), ALL);
    }
    ign_store_close(store);
    store_dir_close(io);
}

static int no_link(ign_store_io *io, const char *from, const char *to)
{
    return strncmp(to, "damaged-", 8) == 0 ? EROFS : disk.real.link_new(io, from, to);
}

/* Where the bytes cannot be kept nobody is told that they are damaged. */
static void where_nothing_can_be_kept(void)
{
    static uint8_t batch[BATCH_MAX];
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    ign_slice slice = some_batches(store, declare(store, "m"));
    refuse(segment_of(&slice), block_in(&slice), 512, UINT32_MAX);
    io->link_new = no_link;
    CHECK_EQ(ign_store_fetch(store, &slice, batch), IGN_E_IO);
    io->link_new = disk.real.link_new;
    CHECK_EQ(ign_store_fetch(store, &slice, batch), IGN_OK);
    ign_store_close(store);
    store_dir_close(io);
}

/* A file that was cut within a batch, under an open store and before an opening. */
static void a_file_that_was_cut(void)
{
    for (int opened = 0; opened < 2; opened++) {
        ign_store_io *io = open_disk();
        ign_store *store = open_small(io);
        uint32_t m = declare(store, "m");
        load(store, m, 2, 1, 24);
        ign_slice slice = slice_at(store, m, load(store, m, RECORDS, 10, RECORD));
        flush(store);
        char path[sizeof store_dir_path + IGN_STORE_NAME_MAX];
        snprintf(path, sizeof path, "%s/%s", store_dir_path, segment_of(&slice));
        if (opened == 1)
            ign_store_close(store);
        CHECK_EQ(truncate(path, (off_t)(slice.file_offset + slice.bytes / 2)), 0);
        if (opened == 1)
            store = open_small(io);
        for (int again = 0; again < 2; again++) {
            unsigned unreadable;
            uint64_t seen = readable(store, m, &unreadable);
            CHECK(seen == (bits(1, 2) | bits(10, 11)) && unreadable == 3);
        }
        CHECK(disk.probes == 0 && ign_store_unread(store) != 0); /* that is certain */
        retire(store, m, slice.first, slice.first + RECORDS - 1);
        CHECK_EQ(figures(store).living_records, 2);
        if (opened == 0)
            ign_store_abandon(store);
        else
            ign_store_close(store);
        store_dir_close(io);
    }
}

/* -- at an opening ---------------------------------------------------------------------------------------------------------- */

/* A bad sector in the header of an entry, in that of a batch, among its records: what is beside it is there, the message keeps its place where
 * that can be told, and is read when the sector can be. While the disk has gone nothing is opened, and nothing changed. */
static void at_an_opening(void)
{
    for (unsigned place = 0; place < 2; place++) {
        ign_store_io *io = open_disk();
        ign_store *store = open_small(io);
        uint32_t m = declare(store, "m");
        ign_slice slice = some_batches(store, m);
        unsigned unreadable;
        ign_store_close(store);
        uint64_t at = place == 0 ? block_in(&slice) : slice.file_offset / 512 * 512;
        refuse(segment_of(&slice), at, 512, UINT32_MAX);
        disk.gone = true;
        CHECK_EQ(ign_store_open(&store, io, &small), IGN_E_IO);
        disk.forgotten = true;
        CHECK(ign_store_open(&store, io, &small) < 0);
        CHECK_EQ(names_with(io, "damaged-"), 0);
        heal();
        store = open_small(io);
        CHECK(readable(store, m, &unreadable) == ALL && figures(store).damaged_bytes == 0);
        slice = slice_at(store, m, slice.first); /* written again by that opening */
        at = place == 0 ? block_in(&slice) : slice.file_offset / 512 * 512;
        ign_store_close(store);
        refuse(segment_of(&slice), at, 512, UINT32_MAX);
        store = open_small(io);
        uint64_t seen = readable(store, m, &unreadable);
        CHECK((ALL & ~seen & ~bits(10, 14) & ~bits(3, 3)) == 0);
        CHECK(figures(store).damaged_bytes > 0 && names_with(io, "damaged-log-") == 1);
        if (place == 0) {
            CHECK(unreadable >= 1 && unreadable <= 3 && figures(store).damaged_records == unreadable);
            heal();
            CHECK(readable(store, m, &unreadable) == ALL && unreadable == 0);
        }
        ign_store_close(store);
        store_dir_close(io);
    }
}

/* -- what becomes of the file ----------------------------------------------------------------------------------------------- */

static void upkeep(ign_store *store)
{
    for (int i = 0; i < 200; i++) {
        int rc = ign_store_maintain(store);
        CHECK(rc >= 0);
        if (rc == IGN_EMPTY && i > 8)
            return;
    }
    CHECK(false && "upkeep that ends");
}

/* All is retired, and the segment goes: its bytes stay under their second name. */
static void the_bytes_stay(void)
{
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    uint32_t m = declare(store, "m");
    ign_slice slice = some_batches(store, m);
    unsigned unreadable;
    refuse(segment_of(&slice), block_in(&slice), 512, UINT32_MAX);
    readable(store, m, &unreadable);
    CHECK(unreadable != 0);
    retire(store, m, 1, slice.first + RECORDS + 1);
    CHECK_EQ(figures(store).living_records, 0);
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t first = load(store, m, 4, 1, RECORD);
        retire(store, m, first, first + 3);
        flush(store);
        if (i % 10 == 9)
            upkeep(store);
    }
    CHECK_EQ(names_with(io, segment_of(&slice)), 0);
    char kept[IGN_STORE_NAME_MAX] = "damaged-";
    strcat(kept, segment_of(&slice));
    int file;
    static uint8_t batch[BATCH_MAX];
    heal();
    CHECK_EQ(io->open(io, kept, false, &file), 0);
    CHECK_EQ(io->read(io, file, batch, slice.bytes, slice.file_offset), 0);
    slice.from = 0;
    for (uint32_t i = 0; i < RECORDS; i++)
        CHECK_EQ(batch_read(batch, &slice, m, i), 10 + i);
    io->close(io, file);
    ign_store_close(store);
    store_dir_close(io);
}

/* Compaction does what there is to do beside a segment that it cannot empty, and then it rests. */
static void compaction_goes_on(void)
{
    ign_store_io *io = open_disk();
    ign_store *store = open_small(io);
    uint32_t m = declare(store, "m");
    ign_slice slice = some_batches(store, m);
    refuse(segment_of(&slice), block_in(&slice), 512, UINT32_MAX);
    retire(store, m, 1, slice.first + 1); /* so that none has less alive */
    retire(store, m, slice.first + 3, slice.first + RECORDS + 1);
    for (uint64_t i = 0; i < 120; i++) { /* one of each four stays */
        uint64_t first = load(store, m, 4, 30, RECORD);
        retire(store, m, first + 1, first + 3);
    }
    flush(store);
    uint64_t before = figures(store).segments;
    upkeep(store);
    upkeep(store);
    ign_store_figures f = figures(store);
    CHECK(f.segments < before && f.log_bytes - f.dead_bytes <= 2 * f.living_bytes + (4u << 16));
    CHECK_EQ(f.living_records, 1 + 120);
    CHECK_EQ(names_with(io, segment_of(&slice)), 1);
    heal();
    static uint8_t batch[BATCH_MAX];
    ign_slice still = slice_at(store, m, slice.first + 2);
    CHECK_EQ(ign_store_fetch(store, &still, batch), IGN_OK);
    CHECK_EQ(batch_read(batch, &still, m, (uint32_t)(slice.first + 2 - still.first)), 12);
    ign_store_close(store);
    store_dir_close(io);
}

/* A checkpoint that is made behind damage holds what those who live know: here a magazine, whose declaration is the damaged entry. */
static void a_checkpoint_behind_damage(void)
{
    for (int flipped = 0; flipped < 2; flipped++) {
        ign_store_io *io = open_disk();
        ign_store *store = open_small(io);
        load(store, declare(store, "before"), 2, 1, 2 * RECORD); /* so that it is not in the only block that shows that the disk is there */
        uint64_t at = figures(store).end;
        uint32_t m = declare(store, "m");
        ign_slice slice = slice_at(store, m, load(store, m, RECORDS, 1, 24));
        flush(store);
        const uint64_t in_file = slice.file_offset - slice.offset - (slice.position - at);
        if (flipped == 0)
            refuse(segment_of(&slice), in_file, IGN_ENTRY_HEADER, UINT32_MAX);
        else {
            int file;
            CHECK_EQ(io->open(io, segment_of(&slice), false, &file), 0);
            CHECK_EQ(io->write(io, file, "damage", 6, in_file + 30), 0);
            io->close(io, file);
        }
        CHECK_EQ(ign_store_checkpoint(store), IGN_OK);
        CHECK(figures(store).damaged_bytes > 0);
        heal();
        ign_store_abandon(store);
        store = open_small(io);
        unsigned unreadable;
        CHECK(readable(store, m, &unreadable) == bits(1, 5) && unreadable == 0);
        CHECK(figures(store).damaged_bytes > 0);
        ign_store_close(store);
        store_dir_close(io);
    }
}

MAIN("store_unread", {
    RUN(a_bad_sector);
    RUN(in_parts);
    RUN(refused_for_a_moment);
    RUN(a_disk_that_has_gone);
    RUN(where_nothing_can_be_kept);
    RUN(a_file_that_was_cut);
    RUN(at_an_opening);
    RUN(the_bytes_stay);
    RUN(compaction_goes_on);
    RUN(a_checkpoint_behind_damage);
})
