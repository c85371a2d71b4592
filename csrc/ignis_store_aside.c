/* What is damaged is copied aside before anything drops it. */
#include "ignis_store_parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 16 };

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
            uint64_t missing; /* it leaves its place */
            if (ign_segment_read(io, file, segment->info.generation, segment->info.number, piece, part, ign_segment_offset(&segment->info, at),
                                 &missing) != 0)
                memset(piece, 0xff, part);
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
