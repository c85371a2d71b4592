/* A disk that the store itself fills: everything goes on but loads, and nothing is lost. And how much a small store takes. */
#define _GNU_SOURCE
#include "store_dir.h"

#include "store_batch.h"

#include "../ignis_store_later.h"
#include "../ignis_store_parts.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- a small disk ------------------------------------------------------------------------------------------------------- */

enum { DESCRIPTORS = 4096, MOST = 1 << 20 };

static struct {
    ign_store_io real;
    uint64_t bytes, taken;
    bool used[DESCRIPTORS]; /* open, by descriptor: what has no name any more takes room until it is closed */
} disk;

static void add_named(void *arg, const char *name)
{
    char path[sizeof store_dir_path + IGN_STORE_NAME_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", store_dir_path, name);
    if (stat(path, &st) == 0)
        *(uint64_t *)arg += (uint64_t)st.st_blocks * 512;
}

static uint64_t taken(ign_store_io *io)
{
    uint64_t total = 0;
    struct stat st;
    disk.real.list(io, add_named, &total);
    for (int i = 0; i < DESCRIPTORS; i++)
        if (disk.used[i] && fstat(i, &st) == 0 && st.st_nlink == 0)
            total += (uint64_t)st.st_blocks * 512;
    return total;
}

static int small_open(ign_store_io *io, const char *name, bool create, int *file)
{
    int rc = disk.real.open(io, name, create, file);
    if (rc == 0) {
        CHECK(*file < DESCRIPTORS);
        disk.used[*file] = true;
    }
    return rc;
}

static void small_close(ign_store_io *io, int file)
{
    disk.used[file] = false;
    disk.real.close(io, file);
}

static int small_allocate(ign_store_io *io, int file, uint64_t bytes)
{
    uint64_t had = 0;
    struct stat st;
    CHECK_EQ(fstat(file, &st), 0);
    had = (uint64_t)st.st_blocks * 512;
    return bytes > had && taken(io) + bytes - had > disk.bytes ? ENOSPC : disk.real.allocate(io, file, bytes);
}

static int small_room(ign_store_io *io, uint64_t *bytes)
{
    uint64_t now = taken(io);
    *bytes = disk.bytes > now ? disk.bytes - now : 0;
    return 0;
}

/* No time for the disk itself: what is flushed is not looked at here. */
static int no_flush(ign_store_io *io, int file)
{
    (void)io, (void)file;
    return 0;
}

static int no_flush_names(ign_store_io *io)
{
    (void)io;
    return 0;
}

static ign_store_io *small_disk(uint64_t bytes)
{
    ign_store_io *io = store_dir_open();
    memset(disk.used, 0, sizeof disk.used);
    disk.real = *io;
    disk.bytes = bytes;
    io->open = small_open;
    io->close = small_close;
    io->allocate = small_allocate;
    io->room = small_room;
    io->flush = no_flush;
    io->flush_names = no_flush_names;
    return io;
}

/* -- moving everything on a full disk ---------------------------------------------------------------------------------- */

static uint64_t drawn;

static uint64_t draw(uint64_t n)
{
    drawn = drawn * 6364136223846793005ull + 1442695040888963407ull;
    return (drawn >> 33) % n;
}

static uint64_t kib(uint64_t bytes)
{
    return bytes >> 10;
}

static void tell_file(void *arg, const char *name)
{
    char path[sizeof store_dir_path + IGN_STORE_NAME_MAX];
    struct stat st;
    (void)arg;
    snprintf(path, sizeof path, "%s/%s", store_dir_path, name);
    if (stat(path, &st) == 0)
        fprintf(stderr, "  %s: %" PRIu64 " KiB\n", name, kib((uint64_t)st.st_blocks * 512));
}

static ign_store *open_of(ign_store_io *io, uint64_t bytes)
{
    ign_store *store;
    uint64_t most = bytes / 64 < 1 << 20 ? 1 << 20 : bytes / 64; /* as the store above it does */
    int rc = ign_store_open(&store, io, &(ign_store_options){.segment_bytes = most, .control_reserve = 1 << 28});
    if (rc != IGN_OK) {
        uint64_t room;
        small_room(io, &room);
        fprintf(stderr, "cannot be opened, with %" PRIu64 " KiB free\n", room >> 10);
        io->list(io, tell_file, NULL);
    }
    CHECK_EQ(rc, IGN_OK);
    return store;
}

/* What a process does now and then, and what it does when a call is refused. False: nothing changed any more. */
static void upkeep(ign_store *store)
{
    int rc = ign_store_maintain(store);
    CHECK(rc >= 0 || rc == IGN_E_NO_ROOM || rc == IGN_E_STALE);
}

static uint8_t *bytes_of_batch, *fetched;
enum { SHARDS = 4, PATIENCE = 400 };

typedef struct story {
    const char *what;
    uint64_t disk_bytes, seed;
    uint32_t record, loaded_at_a_time, moved_at_a_time, grows;
    bool half; /* every second call is a success: it is retired and not moved */
    bool all_may; /* that all of them grew is no surprise */
} story;

static uint64_t fill(ign_store *store, uint32_t m, const story *s)
{
    uint64_t id = 1, count = 0;
    uint32_t at_a_time = s->loaded_at_a_time;
    for (unsigned refused = 0; refused < 3;) {
        ign_store_mark mark;
        uint32_t records = at_a_time == 1 ? 1 : 1 + (uint32_t)draw(at_a_time);
        ign_store_part part = {.shard = (uint16_t)draw(SHARDS), .batch = bytes_of_batch, .bytes = batch_make(bytes_of_batch, records, id, s->record)};
        int rc = ign_store_load(store, m, &part, 1, NULL, &mark);
        CHECK(rc == IGN_OK || (rc == IGN_E_NO_ROOM && errno == ENOSPC));
        if (rc == IGN_OK) {
            id += records;
            count += records;
        } else
            refused++;
        if (rc != IGN_OK || id * s->record % (1 << 18) < (uint64_t)records * s->record)
            upkeep(store);
    }
    return count;
}

/* Where the room is of a disk on which nothing goes on. */
static void tell_room(ign_store *store, const char *what)
{
    ign_generation *g;
    uint64_t room;
    fprintf(stderr, "stands still: %s\n", what);
    if (getenv("SPACE_TELL") == NULL || ign_store_look(store, &g) != IGN_OK)
        return;
    const ign_state_segment *all = ign_ctl_at(&g->ctl, g->ctl.root->segments);
    small_room(store->io, &room);
    fprintf(stderr, "  free %" PRIu64 ", left %" PRIu64 ", cheapest %" PRIu64 ", next %" PRIu64 ", reserve wanted %" PRIu64 ", short %u, living %" PRIu64
            ", state %" PRIu64 " of %" PRIu64 " KiB\n", kib(room), kib(ign_store_left(g)), kib(ign_store_cheapest(g)), kib(ign_store_next_bytes(store, g)),
            kib(ign_store_reserve_bytes(store, g)), (unsigned)atomic_load(&g->ctl.head->short_of_room), kib(g->ctl.root->living_bytes), kib(g->ctl.root->used),
            kib(atomic_load(&g->ctl.head->arena_bytes)));
    for (uint64_t i = 0; i < g->ctl.root->segment_count; i++)
        fprintf(stderr, "  segment %" PRIu64 " of %" PRIu64 " KiB, living %" PRIu64 ", cost %" PRIu64 "\n", all[i].info.number, kib(all[i].info.size),
                kib(all[i].living), kib(ign_store_cost(&all[i])));
    ign_store_look_end(store, g);
    store->io->list(store->io, tell_file, NULL);
}

/* Calls again until it is not refused, with upkeep between, as often as it takes somebody to say that nothing goes on. */
#define GOES_ON(call)                                                                        \
    do {                                                                                     \
        unsigned turns_ = 0;                                                                 \
        while ((rc = (call)) == IGN_E_NO_ROOM && turns_++ < PATIENCE)                        \
            upkeep(store);                                                                   \
        if (rc == IGN_E_NO_ROOM)                                                             \
            tell_room(store, s->what);                                                       \
        refusals += turns_ != 0;                                                             \
    } while (0)

/* The same messages in a batch of their own. */
static uint32_t batch_of(const uint64_t *ids, uint32_t count, uint32_t size)
{
    uint32_t total = batch_make(bytes_of_batch, count, 1, size);
    uint8_t *data = bytes_of_batch + total - (size_t)count * size;
    for (uint32_t i = 0; i < count; i++) {
        memset(data + (size_t)i * size, (int)(ids[i] * 31), size);
        memcpy(data + (size_t)i * size, &ids[i], sizeof ids[i]);
        ign_segment_put_index(bytes_of_batch, i, (i + 1) * size, ign_crc32c(0, data + (size_t)i * size, size));
    }
    ign_segment_finish(bytes_of_batch);
    return total;
}

/* IGN_E_TOO_LARGE: it may not grow. */
static int transfer_growing(ign_store *store, uint32_t from, const ign_store_run *run, uint32_t to, ign_store_part *part, ign_store_mark *mark)
{
    int rc = ign_store_transfer(store, from, run, 1, to, part, 1, false, NULL, mark);
    return rc == IGN_E_NO_ROOM && errno == E2BIG ? IGN_E_TOO_LARGE : rc;
}

/* All of one magazine into another, by claims of one shard after the other. *gone: how many were retired in their place. */
static uint64_t move_all(ign_store *store, uint32_t from, uint32_t to, const story *s, uint8_t *seen, uint64_t *refusals_out, uint64_t *gone)
{
    uint64_t moved = 0, calls = 0, refusals = 0, grown = 0;
    for (uint16_t shard = 0; shard < SHARDS; shard++)
        for (;;) {
            static ign_slice slices[512];
            static uint64_t ids[MOST / 64];
            uint32_t count;
            bool expired;
            ign_store_mark mark;
            int rc;
            GOES_ON(ign_store_claim(store, from, shard, s->moved_at_a_time == 1 ? 64 : s->moved_at_a_time, 1 << 20, "me", 1, slices, 512, &count,
                                    &expired, NULL, &mark));
            if (rc == IGN_EMPTY)
                break;
            CHECK_EQ(rc, IGN_OK);
            for (uint32_t i = 0; i < count; i++) {
                const ign_slice *slice = &slices[i];
                for (uint32_t k = slice->from, next; k < slice->to; k = next) {
                    static ign_slice where[512];
                    uint32_t found;
                    next = s->moved_at_a_time == 1 ? k + 1 : slice->to;
                    /* It may have been moved by compaction since it was claimed. */
                    CHECK_EQ(ign_store_peek(store, from, shard, slice->first + k, slice->first + next - 1, where, 512, &found), IGN_OK);
                    uint32_t records = 0;
                    for (uint32_t f = 0; f < found; f++) {
                        CHECK_EQ(ign_store_fetch(store, &where[f], fetched), IGN_OK);
                        for (uint32_t j = where[f].from; j < where[f].to; j++) {
                            uint64_t id = batch_read(fetched, &where[f], from, j);
                            CHECK(id != 0);
                            CHECK_EQ(seen[id], 0);
                            seen[id] = 1;
                            ids[records++] = id;
                        }
                    }
                    CHECK_EQ(records, next - k);
                    ign_store_part part = {.shard = (uint16_t)(ids[0] % SHARDS), .batch = bytes_of_batch, .bytes = batch_of(ids, records, s->record + s->grows)};
                    ign_store_run run = {.shard = shard, .first = slice->first + k, .last = slice->first + next - 1};
                    uint64_t retired;
                    bool succeeds = s->half && calls % 2 == 1;
                    if (succeeds) {
                        GOES_ON(ign_store_retire(store, from, &run, 1, false, &retired, NULL, &mark));
                        *gone += records;
                    } else
                        GOES_ON(transfer_growing(store, from, &run, to, &part, &mark));
                    if (s->grows != 0 && rc == IGN_E_TOO_LARGE) { /* what has no room to grow goes as it was */
                        part.bytes = batch_of(ids, records, s->record);
                        GOES_ON(transfer_growing(store, from, &run, to, &part, &mark));
                    } else
                        grown += s->grows != 0 && !succeeds;
                    CHECK_EQ(rc, IGN_OK);
                    moved += records;
                    if (++calls % 100 == 0)
                        upkeep(store);
                }
            }
        }
    CHECK(s->grows == 0 || s->all_may || grown < calls); /* not all could */
    *refusals_out = refusals;
    return moved;
}

static uint64_t delete_all(ign_store *store, uint32_t m, const story *s, uint8_t *seen, uint64_t count)
{
    uint64_t total = 0, refusals = 0, calls = 0;
    memset(seen, 0, count + 1);
    for (uint16_t shard = 0; shard < SHARDS; shard++)
        for (;;) {
            static ign_slice slices[512];
            static ign_store_run runs[512];
            uint32_t found;
            bool expired;
            ign_store_mark mark;
            int rc;
            GOES_ON(ign_store_claim(store, m, shard, 1000, 1 << 20, "me", 1, slices, 512, &found, &expired, NULL, &mark));
            if (rc == IGN_EMPTY)
                break;
            CHECK_EQ(rc, IGN_OK);
            for (uint32_t i = 0; i < found; i++) {
                uint32_t places;
                static ign_slice where[512];
                runs[i] = (ign_store_run){.shard = shard, .first = slices[i].first + slices[i].from, .last = slices[i].first + slices[i].to - 1};
                CHECK_EQ(ign_store_peek(store, m, shard, runs[i].first, runs[i].last, where, 512, &places), IGN_OK);
                for (uint32_t f = 0; f < places; f++) {
                    CHECK_EQ(ign_store_fetch(store, &where[f], fetched), IGN_OK);
                    for (uint32_t j = where[f].from; j < where[f].to; j++) {
                        uint64_t id = batch_read(fetched, &where[f], m, j);
                        CHECK(id != 0 && id <= count);
                        CHECK_EQ(seen[id], 0);
                        seen[id] = 1;
                    }
                }
            }
            uint64_t retired;
            GOES_ON(ign_store_retire(store, m, runs, found, false, &retired, NULL, &mark));
            CHECK_EQ(rc, IGN_OK);
            total += retired;
            if (++calls % 100 == 0)
                upkeep(store);
        }
    (void)refusals; /* GOES_ON counts them */
    return total;
}

static void tell(const story *s)
{
    ign_store_io *io = small_disk(s->disk_bytes);
    ign_store *store = open_of(io, s->disk_bytes);
    ign_store_mark mark;
    ign_store_figures figures;
    uint32_t from, to;
    uint64_t refusals;
    drawn = s->seed;
    CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &from, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "sideline", SHARDS, 0, &to, NULL, &mark), IGN_OK);
    uint64_t count = fill(store, from, s);
    uint8_t *seen = calloc(count + 2, 1);
    CHECK(seen != NULL && count > 0);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    uint64_t filled = figures.living_bytes;
    if (s->seed % 2 == 0) { /* after everybody was killed */
        ign_store_close(store);
        store = open_of(io, s->disk_bytes);
    }
    uint64_t gone = 0;
    CHECK_EQ(move_all(store, from, to, s, seen, &refusals, &gone), count);
    if (s->seed % 3 == 0) {
        ign_store_close(store);
        store = open_of(io, s->disk_bytes);
    }
    CHECK_EQ(delete_all(store, to, s, seen, count), count - gone);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK_EQ(figures.living_records, 0);
    if (getenv("SPACE_TELL") != NULL)
        fprintf(stderr, "%-30s disk %3" PRIu64 " MiB seed %" PRIu64 ": %7" PRIu64 " messages, %2" PRIu64 " %% of the disk, %" PRIu64 " calls refused at first\n", s->what,
                s->disk_bytes >> 20, s->seed, count, filled * 100 / s->disk_bytes, refusals);
    free(seen);
    ign_store_close(store);
    store_dir_close(io);
}

static const struct {
    const char *what;
    uint32_t record, loaded, moved, grows;
} kinds[] = {
    {"100 B, one by one", 100, 500, 1, 0}, {"100 B, loaded one by one", 100, 1, 1, 0}, {"100 B, in batches", 100, 500, 500, 0},
    {"1 KiB, one by one", 1 << 10, 100, 1, 0}, {"1 KiB, in batches", 1 << 10, 100, 100, 0},
    {"20 KiB, one by one", 20 << 10, 10, 1, 0}, {"20 KiB, in batches", 20 << 10, 10, 10, 0},
    {"1 MiB, one by one", 1 << 20, 1, 1, 0},
    {"900 B that grow, one by one", 900, 20, 1, 700}, {"900 B that grow, in batches", 900, 20, 20, 700},
};

static void on_disks_of(const uint64_t *sizes, unsigned count, uint64_t seeds)
{
    bytes_of_batch = malloc(4 * MOST);
    fetched = malloc(4 * MOST);
    CHECK(bytes_of_batch != NULL && fetched != NULL);
    for (unsigned d = 0; d < count; d++)
        for (unsigned k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            for (uint64_t seed = 1; seed <= seeds; seed++) {
                if (getenv("SPACE_SEED") != NULL && strtoul(getenv("SPACE_SEED"), NULL, 10) != seed)
                    continue;
                if (getenv("SPACE_KIND") != NULL && strtoul(getenv("SPACE_KIND"), NULL, 10) != k)
                    continue;
                story s = {.what = kinds[k].what, .disk_bytes = sizes[d] << 20, .seed = seed, .record = kinds[k].record,
                           .loaded_at_a_time = kinds[k].loaded, .moved_at_a_time = kinds[k].moved, .grows = kinds[k].grows};
                tell(&s);
            }
    free(bytes_of_batch);
    free(fetched);
}

/* -- what waits for its time -------------------------------------------------------------------------------------------- */

/* What a consumer takes and acknowledges; returns how many. */
static uint64_t take_out(ign_store *store, uint32_t m)
{
    static ign_slice slices[512];
    static ign_store_run runs[512];
    uint64_t total = 0, refusals = 0;
    const story told = {.what = "claims"}, *s = &told;
    for (uint16_t shard = 0; shard < SHARDS; shard++)
        for (;;) {
            uint32_t found;
            uint64_t retired;
            bool expired;
            ign_store_mark mark;
            int rc;
            GOES_ON(ign_store_claim(store, m, shard, 1000, 1 << 20, "me", 1, slices, 512, &found, &expired, NULL, &mark));
            if (rc == IGN_EMPTY)
                break;
            CHECK_EQ(rc, IGN_OK);
            for (uint32_t i = 0; i < found; i++)
                runs[i] = (ign_store_run){.shard = shard, .first = slices[i].first + slices[i].from, .last = slices[i].first + slices[i].to - 1};
            GOES_ON(ign_store_retire(store, m, runs, found, false, &retired, NULL, &mark));
            CHECK_EQ(rc, IGN_OK);
            total += retired;
        }
    (void)refusals; /* GOES_ON counts them */
    return total;
}

/* A disk that is full of messages that wait, and stays full: all of them are moved when they are due, and consumed. */
static void due_on_a_full_disk(uint64_t bytes, uint32_t record, uint32_t at_a_time)
{
    ign_store_io *io = small_disk(bytes);
    ign_store *store = open_of(io, bytes);
    ign_store_mark mark;
    uint32_t main, later;
    uint64_t waits = 0, moved = 0, taken_out = 0, dues[512];
    const story told = {.what = "messages that are due"}, *s = &told;
    bytes_of_batch = malloc(4 * MOST);
    CHECK(bytes_of_batch != NULL && at_a_time <= 512);
    CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &main, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_declare_later(store, main, "m later", SHARDS, &later, NULL, &mark), IGN_OK);
    for (unsigned refused = 0, loads = 0; refused < 3; loads++) {
        ign_store_part part = {.shard = (uint16_t)(loads % SHARDS), .batch = bytes_of_batch, .bytes = batch_make(bytes_of_batch, at_a_time, waits + 1, record)};
        for (uint32_t i = 0; i < at_a_time; i++)
            dues[i] = 1000 + (waits + i) * 7919 % 60000;
        int rc = ign_store_load_later(store, later, &part, 1, dues, NULL, &mark);
        CHECK(rc == IGN_OK || (rc == IGN_E_NO_ROOM && errno == ENOSPC));
        waits += rc == IGN_OK ? at_a_time : 0;
        refused += rc != IGN_OK;
        if (rc != IGN_OK || loads % 16 == 0)
            upkeep(store);
    }
    disk.bytes = taken(io); /* somebody else takes what was left */
    uint64_t refusals = 0;
    for (uint64_t now = 1000; now < 62000;) {
        ign_store_moved found;
        int rc;
        GOES_ON(ign_store_move_due(store, main, now, IGN_MOVE_RECORDS, IGN_MOVE_BYTES, &found, NULL, &mark));
        CHECK_EQ(rc, IGN_OK);
        moved += found.moved;
        if (now >= 20000)
            taken_out += take_out(store, main);
        if (found.next > now)
            now += now < 40000 ? 200 : 21001; /* a few at a time, and then all the others at once */
    }
    CHECK_EQ(taken_out, waits);
    CHECK_EQ(moved, waits);
    if (getenv("SPACE_TELL") != NULL)
        fprintf(stderr, "due: %" PRIu64 " of %u bytes on %" PRIu64 " MiB, %" PRIu64 " calls refused at first\n", waits, record, bytes >> 20, refusals);
    free(bytes_of_batch);
    ign_store_close(store);
    store_dir_close(io);
}

static void what_is_due_is_moved(void)
{
    due_on_a_full_disk(24 << 20, 100, 100);
    due_on_a_full_disk(24 << 20, 1000, 1);
    due_on_a_full_disk(16 << 20, 4000, 20);
}

/* Messages of 16 bytes to 64 KiB, with up to 12 KiB of history each, one by one and in batches, all of them or every second one; SPACE_GRID is
 * which part of it: number/parts. */
static void a_grid_of_shapes(void)
{
    const char *part = getenv("SPACE_GRID");
    static const uint64_t sizes[] = {8, 12, 16, 24, 32, 48, 64};
    static const uint32_t records[] = {16, 100, 300, 1 << 10, 4 << 10, 20 << 10, 64 << 10}, grows[] = {0, 200, 1 << 10, 4 << 10, 12 << 10};
    unsigned number = 0, mine = 0, parts = 1;
    if (part == NULL || sscanf(part, "%u/%u", &mine, &parts) != 2)
        return;
    bytes_of_batch = malloc(4 * MOST);
    fetched = malloc(4 * MOST);
    for (unsigned r = 0; r < sizeof records / sizeof records[0]; r++)
        for (unsigned w = 0; w < sizeof grows / sizeof grows[0]; w++)
            for (unsigned d = 0; d < sizeof sizes / sizeof sizes[0]; d++)
                for (unsigned how = 0; how < 4; how++) {
                    char what[96];
                    uint32_t at_a_time = how % 2 == 0 ? 1 : records[r] + grows[w] < 8192 ? 50 : 5;
                    uint32_t loaded = records[r] >= 20 << 10 ? 5 : 50;
                    if (number++ % parts != mine)
                        continue;
                    snprintf(what, sizeof what, "%u + %u B, %u at a time, %s, %u MiB", records[r], grows[w], at_a_time, how < 2 ? "all" : "half",
                             (unsigned)sizes[d]);
                    tell(&(story){.what = what, .disk_bytes = sizes[d] << 20, .seed = 1 + number % 6, .record = records[r], .loaded_at_a_time = loaded,
                                  .moved_at_a_time = at_a_time, .grows = grows[w], .half = how >= 2, .all_may = true});
                }
    free(bytes_of_batch);
    free(fetched);
}

static void moved_on_a_full_disk(void)
{
    if (getenv("SPACE_GRID") != NULL)
        return;
    const char *only = getenv("SPACE_DISK"); /* another one, in MiB, and more seeds */
    if (only != NULL)
        on_disks_of((const uint64_t[]){strtoull(only, NULL, 10)}, 1, 5);
    else
        on_disks_of((const uint64_t[]){8}, 1, 2);
}

/* -- opening ------------------------------------------------------------------------------------------------------------ */

/* -- killed again and again on a full disk ------------------------------------------------------------------------------- */

/* One process: takes some messages, gives some of them to another magazine and retires some, and dies, mostly before maintenance did anything. */
static void short_life(ign_store *store, uint32_t m, uint32_t to, uint32_t record)
{
    for (uint64_t calls = draw(40); calls > 0; calls--) {
        static ign_slice slices[64];
        static uint64_t ids[64];
        uint32_t count;
        bool expired;
        ign_store_mark mark;
        uint64_t retired;
        uint16_t shard = (uint16_t)draw(SHARDS);
        int rc = ign_store_claim(store, m, shard, 1 + (uint32_t)draw(20), 1 << 20, "me", 1, slices, 64, &count, &expired, NULL, &mark);
        CHECK(rc == IGN_OK || rc == IGN_EMPTY || rc == IGN_E_NO_ROOM);
        for (uint32_t i = 0; i < count; i++) {
            const ign_slice *slice = &slices[i];
            ign_store_run run = {.shard = shard, .first = slice->first + slice->from, .last = slice->first + slice->to - 1};
            uint32_t records = (uint32_t)(run.last - run.first + 1);
            if (draw(2) == 0)
                rc = ign_store_retire(store, m, &run, 1, false, &retired, NULL, &mark);
            else if (records <= 64 && draw(2) == 0) {
                memset(ids, 1, sizeof ids);
                ign_store_part part = {.shard = shard, .batch = bytes_of_batch, .bytes = batch_of(ids, records, record)};
                rc = ign_store_transfer(store, m, &run, 1, to, &part, 1, false, NULL, &mark);
            }
            CHECK(rc == IGN_OK || rc == IGN_E_NO_ROOM);
        }
        if (draw(20) == 0)
            upkeep(store);
    }
}

static void killed_again_and_again(void)
{
    bytes_of_batch = malloc(4 * MOST);
    fetched = malloc(4 * MOST);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const story told = {.what = "killed again and again", .disk_bytes = (seed % 2 == 0 ? 24ull : 40ull) << 20, .seed = seed, .record = 4000,
                            .loaded_at_a_time = 1};
        ign_store_io *io = small_disk(told.disk_bytes);
        ign_store *store = open_of(io, told.disk_bytes);
        ign_store_mark mark;
        uint32_t m, to;
        drawn = seed;
        CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &m, NULL, &mark), IGN_OK);
        CHECK_EQ(ign_store_declare(store, "sideline", SHARDS, 0, &to, NULL, &mark), IGN_OK);
        fill(store, m, &told);
        for (int life = 0; life < 60; life++) {
            ign_store_abandon(store);
            store = open_of(io, told.disk_bytes);
            short_life(store, m, to, told.record);
        }
        ign_store_figures figures;
        take_out(store, m); /* who lives takes out the rest */
        take_out(store, to);
        CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
        if (getenv("SPACE_TELL") != NULL)
            fprintf(stderr, "seed %" PRIu64 ": %" PRIu64 " left, claimed by the dead\n", seed, figures.living_records);
        ign_store_close(store);
        store_dir_close(io);
    }
    free(bytes_of_batch);
    free(fetched);
}

static void remove_kept(void *arg, const char *name)
{
    ign_store_io *io = arg;
    if (strncmp(name, "tmp-", 4) == 0)
        io->remove(io, name);
}

/* Everybody is gone, nothing is kept ahead any more, and the disk has less room than the state takes: the old one gives up its own. Should
 * that opening fail for another reason, the next one still knows what it knew. */
static void opened_in_the_room_of_the_old_state(void)
{
    ign_store_io *io = small_disk(UINT64_MAX);
    ign_store *store = open_of(io, 8 << 20);
    ign_store_mark mark;
    ign_store_figures before, figures;
    uint32_t m;
    static uint8_t batch[BATCH_MAX];
    CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &m, NULL, &mark), IGN_OK);
    for (uint64_t id = 1; id <= 4000; id++) {
        ign_store_part part = {.shard = (uint16_t)(id % SHARDS), .batch = batch, .bytes = batch_make(batch, 1, id, 100)};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    }
    CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
    CHECK_EQ(ign_store_figures_of(store, &before), IGN_OK);
    CHECK(before.state_bytes > 128 << 10);
    ign_store_close(store);
    CHECK_EQ(disk.real.list(io, remove_kept, io), 0);
    uint64_t full = taken(io), openings = 0;
    for (uint64_t more = 0; more <= 96 << 10; more += 32 << 10) {
        disk.bytes = full + more;
        int rc = ign_store_open(&store, io, &(ign_store_options){.segment_bytes = 1 << 20, .control_reserve = 1 << 28});
        CHECK(rc == IGN_OK || rc == IGN_E_NO_ROOM);
        openings += rc == IGN_OK;
        if (rc == IGN_OK)
            break;
    }
    CHECK_EQ(openings, 1);
    CHECK_EQ(ign_store_figures_of(store, &figures), IGN_OK);
    CHECK(figures.living_records == 4000 && figures.damaged_bytes == 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* -- room that maintenance has in hand --------------------------------------------------------------------------------- */

static struct {
    pthread_t maintainer;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool at_work, laid_out, refused;
} hand = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void hand_set(bool *what)
{
    pthread_mutex_lock(&hand.lock);
    *what = true;
    pthread_cond_broadcast(&hand.changed);
    pthread_mutex_unlock(&hand.lock);
}

static void hand_await(const bool *what)
{
    pthread_mutex_lock(&hand.lock);
    while (!*what)
        pthread_cond_wait(&hand.changed, &hand.lock);
    pthread_mutex_unlock(&hand.lock);
}

static bool is_maintainer(void)
{
    pthread_mutex_lock(&hand.lock);
    bool is = hand.at_work && pthread_equal(pthread_self(), hand.maintainer);
    pthread_mutex_unlock(&hand.lock);
    return is;
}

/* Maintenance has filled the next segment, and is held up before it says so; by then the disk is full. */
static int flush_held_up(ign_store_io *io, int file)
{
    (void)io, (void)file;
    if (is_maintainer() && !hand.laid_out) {
        disk.bytes = taken(io);
        hand_set(&hand.laid_out);
        hand_await(&hand.refused);
    }
    return 0;
}

static int allocate_and_tell(ign_store_io *io, int file, uint64_t bytes)
{
    int rc = small_allocate(io, file, bytes);
    if (rc == ENOSPC && !is_maintainer())
        hand_set(&hand.refused);
    return rc;
}

static void *maintain_held_up(void *arg)
{
    pthread_mutex_lock(&hand.lock);
    hand.maintainer = pthread_self();
    hand.at_work = true;
    pthread_mutex_unlock(&hand.lock);
    CHECK_EQ(ign_store_maintain(arg), IGN_OK);
    return NULL;
}

/* A load that finds no room because maintenance lays out just now what the load looks for waits for it. */
static void room_in_hand(void)
{
    ign_store_io *io = small_disk(UINT64_MAX);
    ign_store *store = open_of(io, 8 << 20);
    ign_store_mark mark;
    uint32_t m;
    pthread_t thread;
    static uint8_t batch[BATCH_MAX];
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 20, 1, 900)};
    CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &m, NULL, &mark), IGN_OK);
    uint64_t written = 0, segment = 1 << 20;
    for (; written < segment / 16; written += part.bytes)
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    io->flush = flush_held_up;
    io->allocate = allocate_and_tell;
    CHECK_EQ(pthread_create(&thread, NULL, maintain_held_up, store), 0);
    hand_await(&hand.laid_out);
    for (; written < segment / 4; written += part.bytes)
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK(hand.refused);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    ign_store_close(store);
    store_dir_close(io);
}

/* -- a small store ------------------------------------------------------------------------------------------------------- */

static void small_store(void)
{
    ign_store_io *io = small_disk(UINT64_MAX);
    ign_store *store;
    ign_store_mark mark;
    uint32_t m;
    static uint8_t batch[BATCH_MAX];
    for (int opening = 0; opening < 10; opening++) {
        CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
        CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &m, NULL, &mark), IGN_OK);
        ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 10, 1 + (uint64_t)opening * 10, 100)};
        CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        while (ign_store_maintain(store) == IGN_OK)
            ;
        if (opening == 0)
            CHECK(taken(io) <= 3 << 20);
        ign_store_close(store);
    }
    store_dir_close(io);
}

static void count_segment(void *arg, const char *name)
{
    *(unsigned *)arg += strncmp(name, "log-", 4) == 0;
}

/* Who looks into a store without doing anything leaves no segment behind. */
static void opened_again_and_again(void)
{
    ign_store_io *io = small_disk(UINT64_MAX);
    ign_store *store;
    ign_store_mark mark;
    ign_store_figures before, after;
    static uint8_t batch[BATCH_MAX];
    uint32_t m;
    for (int checkpoint = 0; checkpoint < 2; checkpoint++) {
        CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
        CHECK_EQ(ign_store_declare(store, "m", SHARDS, 0, &m, NULL, &mark), IGN_OK);
        for (int i = 0; i < 300; i++) { /* more than an opening writes again */
            ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 10, 1 + 10 * (uint64_t)(300 * checkpoint + i), 100)};
            CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
        }
        CHECK_EQ(ign_store_flush(store, &mark, true), IGN_OK);
        if (checkpoint != 0)
            CHECK_EQ(ign_store_checkpoint(store), IGN_OK);
        ign_store_close(store);
        unsigned had = 0, has = 0;
        CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
        CHECK_EQ(ign_store_figures_of(store, &before), IGN_OK);
        ign_store_close(store);
        CHECK_EQ(disk.real.list(io, count_segment, &had), 0);
        uint64_t took = taken(io);
        for (int opening = 0; opening < 300; opening++) {
            CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
            ign_store_close(store);
        }
        CHECK_EQ(disk.real.list(io, count_segment, &has), 0);
        CHECK_EQ(has, had);
        CHECK(taken(io) <= took);
        CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
        CHECK_EQ(ign_store_figures_of(store, &after), IGN_OK);
        CHECK(after.living_records == before.living_records && after.damaged_bytes == 0);
        ign_store_close(store);
    }
    store_dir_close(io);
}

static int ends_here(ign_store_io *io, const char *from, const char *to)
{
    (void)io;
    (void)from;
    (void)to;
    _exit(0);
}

static void count_unborn(void *arg, const char *name)
{
    *(unsigned *)arg += strncmp(name, "tmp-control-", 12) == 0 || strncmp(name, "tmp-log-", 8) == 0;
}

/* Openings that die before they are done leave what the last of them laid out, not what each did. */
static void killed_while_it_opens(void)
{
    ign_store_io *io = small_disk(UINT64_MAX);
    ign_store *store;
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    ign_store_close(store);
    unsigned unborn = 0;
    for (int opening = 0; opening < 20; opening++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            io->link_new = ends_here; /* all is laid out and written, and has no name */
            _exit(ign_store_open(&store, io, &(ign_store_options){0}) == IGN_OK ? 1 : 2);
        }
        int status;
        CHECK_EQ(waitpid(child, &status, 0), child);
        CHECK_EQ(status, 0);
    }
    CHECK_EQ(disk.real.list(io, count_unborn, &unborn), 0);
    CHECK_EQ(unborn, 2);
    unborn = 0;
    CHECK_EQ(ign_store_open(&store, io, &(ign_store_options){0}), IGN_OK);
    CHECK_EQ(disk.real.list(io, count_unborn, &unborn), 0);
    CHECK_EQ(unborn, 0);
    ign_store_close(store);
    store_dir_close(io);
}

MAIN("store_space", {
    RUN(killed_while_it_opens);
    RUN(opened_again_and_again);
    RUN(killed_again_and_again);
    RUN(small_store);
    RUN(room_in_hand);
    RUN(opened_in_the_room_of_the_old_state);
    RUN(moved_on_a_full_disk);
    RUN(what_is_due_is_moved);
    RUN(a_grid_of_shapes);
})
