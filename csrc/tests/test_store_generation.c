/* One who makes a generation and is away for so long that others made some meanwhile. */
#define _GNU_SOURCE
#include "check.h"
#include "store_batch.h"
#include "store_dir.h"

#include <errno.h>

static const ign_store_options options = {.segment_bytes = 1 << 18, .control_reserve = 1 << 26};

static ign_store_io *others_io;
static unsigned others_made;
static int (*real_link)(ign_store_io *io, const char *from, const char *to);
static int (*real_remove)(ign_store_io *io, const char *name);

static int leaves_what_has_no_name(ign_store_io *io, const char *name)
{
    return strncmp(name, "tmp-", 4) == 0 ? EIO : real_remove(io, name);
}

static int away_before_the_name(ign_store_io *io, const char *from, const char *to)
{
    for (; strncmp(to, "control-", 8) == 0 && others_made < 2; others_made++) {
        ign_store *store;
        CHECK_EQ(ign_store_open(&store, others_io, &options), IGN_OK);
        ign_store_close(store);
    }
    return real_link(io, from, to);
}

/* The name that he wants is free: two came and went, and his own files, which go before a name is free again, could not be removed. He sees that he is
 * late, and what he loads is in the newest. */
static void late_for_its_name(void)
{
    ign_store_io *io = store_dir_open();
    ign_store *store, *seen;
    ign_store_mark mark;
    uint32_t m;
    uint8_t batch[BATCH_MAX];
    ign_store_part part = {.batch = batch, .bytes = batch_make(batch, 3, 1, 20)};
    CHECK_EQ(ign_store_open(&store, io, &options), IGN_OK);
    CHECK_EQ(ign_store_declare(store, "m", 1, 0, &m, NULL, &mark), IGN_OK);
    ign_store_close(store);
    CHECK_EQ(ign_store_io_open(store_dir_path, &others_io), 0);
    real_remove = others_io->remove;
    others_io->remove = leaves_what_has_no_name;
    real_link = io->link_new;
    io->link_new = away_before_the_name;
    CHECK_EQ(ign_store_open(&store, io, &options), IGN_OK);
    CHECK_EQ(others_made, 2);
    CHECK_EQ(ign_store_load(store, m, &part, 1, NULL, &mark), IGN_OK);
    CHECK_EQ(ign_store_open(&seen, others_io, &options), IGN_OK);
    ign_shard shard;
    CHECK_EQ(ign_store_shard(seen, m, 0, &shard), IGN_OK);
    CHECK_EQ(shard.living, 3);
    ign_store_close(seen);
    ign_store_close(store);
    ign_store_io_close(others_io);
    store_dir_close(io);
}

MAIN("store_generation", { RUN(late_for_its_name); })
