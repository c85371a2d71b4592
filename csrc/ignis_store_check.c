/* An offline check: every file of a directory, every checksum, whoever wrote it and whether or not it still matters. And what is
 * damaged is copied aside before anything drops it.
 */
#include "ignis_store_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 };

typedef struct check {
    ign_store *store;
    ign_store_check_fn *each;
    void *arg;
    int failed;
} check;

static void tell(const check *c, ign_store_finding finding, const char *file)
{
    finding.file = file;
    c->each(c->arg, &finding);
}

static int check_segment(const check *c, const ign_chain_segment *segment)
{
    ign_store_io *io = c->store->io;
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, segment->info.generation, segment->info.number);
    int file, rc = io->open(io, name, false, &file);
    if (rc != 0)
        return ign_store_error(rc);
    ign_store_finding found = {.kind = IGN_FOUND_SEGMENT, .generation = segment->info.generation, .position = segment->info.base,
                               .offset = IGN_LOG_SECTOR};
    /* Behind the limit another segment holds; what still stands here was never confirmed, or was written again. */
    uint64_t limit = segment->limit < ign_segment_end(&segment->info) ? segment->limit : ign_segment_end(&segment->info);
    bool followed = segment->limit != UINT64_MAX;
    ign_log_reader reader;
    ign_entry entry;
    ign_log_reader_open(&reader, io, file, &segment->info, segment->info.base, segment->limit);
    uint64_t reached = segment->info.base;
    for (;;) {
        rc = ign_log_next(&reader, &entry);
        if (rc == IGN_OK) {
            found.entries++;
            found.bytes += entry.next - reached;
            reached = entry.next;
            continue;
        }
        if (rc == IGN_E_NOMEM || reached >= limit)
            break;
        rc = ign_log_resync(&reader);
        uint64_t next = rc == IGN_OK ? reader.position : limit;
        if (rc == IGN_E_NOMEM || (rc == IGN_EMPTY && !followed))
            break; /* the end of the log: a tail that did not get to the disk is no damage */
        tell(c, (ign_store_finding){.kind = reader.unreadable ? IGN_FOUND_UNREADABLE : IGN_FOUND_DAMAGE, .generation = segment->info.generation,
                                    .position = reached, .offset = ign_segment_offset(&segment->info, reached), .bytes = next - reached}, name);
        found.damaged += next - reached;
        reached = next;
        if (rc == IGN_EMPTY)
            break;
    }
    ign_log_reader_close(&reader);
    io->close(io, file);
    if (rc == IGN_E_NOMEM)
        return rc;
    tell(c, found, name);
    return IGN_OK;
}

static void check_name(void *arg, const char *name)
{
    check *c = arg;
    uint64_t a, b;
    if (c->failed != IGN_OK)
        return;
    if (ign_store_parse_name(name, "checkpoint", &a, &b)) {
        int rc = ign_checkpoint_check(c->store, a, b);
        if (rc == IGN_OK || rc == IGN_E_CORRUPT)
            tell(c, (ign_store_finding){.kind = rc == IGN_OK ? IGN_FOUND_CHECKPOINT : IGN_FOUND_CHECKPOINT_DAMAGED, .generation = a, .position = b}, name);
        else
            c->failed = rc;
    } else if (ign_store_parse_name(name, "control", &a, &b))
        tell(c, (ign_store_finding){.kind = IGN_FOUND_CONTROL, .generation = a}, name);
    else if (strncmp(name, "damaged-", 8) == 0)
        tell(c, (ign_store_finding){.kind = IGN_FOUND_SET_ASIDE}, name);
    else if (strncmp(name, "tmp-", 4) == 0)
        tell(c, (ign_store_finding){.kind = IGN_FOUND_LEFT_OVER}, name);
    else if (!ign_segment_parse_name(name, &a, &b))
        tell(c, (ign_store_finding){.kind = IGN_FOUND_FOREIGN}, name);
}

static void look_for_control(void *arg, const char *name)
{
    uint64_t a, b, *newest = arg;
    if (ign_store_parse_name(name, "control", &a, &b) && a > *newest)
        *newest = a;
}

/* IGN_E_BUSY: somebody lives in it. */
static int nobody_lives(ign_store_io *io)
{
    uint64_t newest = 0;
    char name[IGN_STORE_NAME_MAX];
    int file, rc = io->list(io, look_for_control, &newest);
    if (rc != 0 || newest == 0)
        return ign_store_error(rc);
    ign_store_file_name(name, "control", newest, 0);
    rc = io->open(io, name, false, &file);
    if (rc != 0)
        return ign_store_error(rc);
    bool held = false;
    rc = io->locked(io, file, 0, IGN_STORE_SLOTS, &held);
    io->close(io, file);
    return rc != 0 ? ign_store_error(rc) : held ? IGN_E_BUSY : IGN_OK;
}

int ign_store_check(ign_store_io *io, ign_store_check_fn *each, void *arg)
{
    int rc = nobody_lives(io);
    if (rc != IGN_OK)
        return rc;
    ign_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return IGN_E_NOMEM;
    store->io = io;
    check c = {.store = store, .each = each, .arg = arg};
    ign_chain chain;
    rc = ign_chain_read(store, &chain);
    if (rc == IGN_E_CORRUPT) { /* of two stores, or no checkpoint for a log that does not begin at 0: the files are told of all the same */
        tell(&c, (ign_store_finding){.kind = IGN_FOUND_NO_BEGINNING}, "");
        rc = IGN_OK;
    }
    if (rc == IGN_OK)
        rc = ign_store_error(io->list(io, check_name, &c));
    rc = rc == IGN_OK ? c.failed : rc;
    for (uint64_t i = 0; rc == IGN_OK && i < chain.stray_count; i++) {
        char name[IGN_STORE_NAME_MAX];
        ign_segment_name(name, chain.strays[i].generation, chain.strays[i].number);
        tell(&c, (ign_store_finding){.kind = IGN_FOUND_NO_HEADER, .generation = chain.strays[i].generation}, name);
    }
    for (uint64_t i = 0; rc == IGN_OK && i < chain.count; i++)
        rc = check_segment(&c, &chain.segments[i]);
    /* Positions that no segment has. */
    uint64_t at = chain.checkpoint == UINT64_MAX ? 0 : chain.checkpoint;
    while (rc == IGN_OK) {
        const ign_chain_segment *segment = ign_chain_at(&chain, at);
        uint64_t next = segment != NULL ? segment->limit : ign_chain_next(&chain, at);
        if (segment == NULL && next != UINT64_MAX)
            tell(&c, (ign_store_finding){.kind = IGN_FOUND_MISSING, .position = at, .bytes = next - at}, "");
        if (next == UINT64_MAX)
            break;
        at = next;
    }
    ign_chain_free(&chain);
    free(store);
    return rc;
}

/* -- setting aside ------------------------------------------------------------------------------------------------------- */

void ign_store_set_aside(ign_store *store, const ign_chain *chain, uint64_t from, uint64_t to)
{
    ign_store_io *io = store->io;
    const ign_chain_segment *segment = ign_chain_at(chain, from);
    uint8_t *piece = segment == NULL ? NULL : malloc(PIECE);
    char name[IGN_STORE_NAME_MAX], aside[IGN_STORE_NAME_MAX], made[IGN_STORE_NAME_MAX];
    int file = -1, copy = -1;
    if (piece == NULL)
        return;
    uint64_t end = ign_segment_end(&segment->info) < to ? ign_segment_end(&segment->info) : to;
    ign_segment_name(name, segment->info.generation, segment->info.number);
    ign_store_file_name(aside, "damaged", segment->info.generation, from);
    ign_store_file_name(made, "tmp-damaged", segment->info.generation, io->random(io));
    int rc = io->open(io, aside, false, &copy); /* by an earlier recovery */
    if (rc == 0)
        io->close(io, copy);
    if (rc == ENOENT) {
        rc = io->open(io, name, false, &file);
        if (rc == 0)
            rc = io->open(io, made, true, &copy);
        for (uint64_t at = from; rc == 0 && at < end; at += PIECE) {
            size_t part = end - at < PIECE ? (size_t)(end - at) : PIECE;
            if (io->read(io, file, piece, part, ign_segment_offset(&segment->info, at)) != 0)
                memset(piece, 0, part); /* what cannot be read leaves its place */
            rc = io->write(io, copy, piece, part, at - from);
        }
        if (rc == 0)
            rc = io->link_new(io, made, aside);
        if (copy >= 0) {
            io->close(io, copy);
            io->remove(io, made);
        }
        if (file >= 0)
            io->close(io, file);
    }
    free(piece);
}
