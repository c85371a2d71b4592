/* The log is applied to a state again: by a recovery, and by each checkpoint. What is damaged is copied aside, and what can be read of it
 * is taken in at its place. */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"
#include "ignis_store_salvage.h"

#include <errno.h>
#include <stdlib.h>

typedef struct replay {
    ign_store *store;
    const ign_chain *chain;
    ign_ctl *ctl;
    uint64_t end, again;
    ign_chain_sink *sink;
    void *arg;
    bool damaged; /* so far; and then, where the log's next records stand */
    ign_places places;
} replay;

static int replay_enter(void *arg, const ign_segment_info *segment)
{
    replay *r = arg;
    ign_root *root = r->ctl->root;
    const ign_state_segment *all = ign_ctl_at(r->ctl, root->segments);
    for (uint64_t i = 0; i < root->segment_count; i++)
        if (all[i].info.generation == segment->generation && all[i].info.number == segment->number)
            return IGN_OK;
    if (segment->base >= r->end)
        return IGN_EMPTY;
    if (segment->base >= r->again)
        return IGN_OK; /* all of it is written again */
    ign_state_add_segment(r->ctl, segment);
    return r->ctl->no_room ? ign_store_error(ENOSPC) : IGN_OK;
}

static void note_damaged(replay *r, uint64_t records)
{
    ign_ctl_begin(r->ctl);
    ign_ctl_add(r->ctl, &r->ctl->root->damaged_records, records);
    ign_ctl_commit(r->ctl, r->ctl->root->applied);
}

/* What went without anything being left of it is counted when the pointers behind it are read. */
static int count_missing(replay *r, const ign_entry *entry)
{
    uint64_t missing = 0;
    int rc = ign_places_see(&r->places, entry->type, entry->payload, entry->payload_bytes, &missing);
    if (missing != 0)
        note_damaged(r, missing);
    return rc;
}

static int replay_visit(void *arg, const ign_entry *entry)
{
    replay *r = arg;
    if (entry->position >= r->end)
        return IGN_EMPTY;
    int rc = r->sink == NULL ? IGN_OK : r->sink(r->arg, entry);
    if (rc == IGN_OK && r->damaged)
        rc = count_missing(r, entry);
    if (rc != IGN_OK)
        return rc;
    ign_ctl_begin(r->ctl);
    rc = ign_state_apply(r->ctl, entry);
    if (rc == IGN_E_MALFORMED)
        rc = IGN_OK; /* of a magazine whose declaration was damaged, say: its checksum holds, so it is no reason to stop */
    ign_ctl_commit(r->ctl, entry->next);
    return rc;
}

/* The end of what stands at `from` of `bytes`: as its header says, or where the next header is that holds. */
static uint64_t piece_end(const uint8_t *bytes, uint64_t count, uint64_t from, uint64_t salt, uint64_t position)
{
    uint64_t size;
    if (ign_entry_header_holds(bytes + from, count - from, salt, position + from, &size))
        return from + size;
    for (uint64_t at = from + 8; at + IGN_ENTRY_HEADER <= count; at += 8)
        if (ign_entry_header_holds(bytes + at, count - at, salt, position + at, &size))
            return at;
    return count;
}

/* All that a damaged transfer was to move is where it was. */
static bool is_unmoved(ign_ctl *ctl, const ign_salvaged *got)
{
    const ign_magazine *magazine = got->runs == 0 ? NULL : ign_state_magazine(ctl, ign_get32(got->retires));
    bool there = magazine != NULL;
    for (uint32_t i = 0; there && i < got->runs; i++) {
        const uint8_t *run = got->retires + 8 + (uint64_t)i * IGN_RUN_BYTES;
        uint64_t first = ign_get64(run + 8), last = ign_get64(run + 16);
        ign_shard *shard = ign_state_shard(ctl, magazine, ign_get16(run));
        there = shard != NULL && first != 0 && last >= first && ign_state_living(ctl, shard, first, last) == last - first + 1;
    }
    return there;
}

static int apply_salvaged(replay *r, const ign_entry *entry, const ign_salvaged *got, uint64_t next)
{
#ifndef IGN_MUTANT_WORSE_COPY
    if (entry->type == IGN_ENTRY_TRANSFER && is_unmoved(r->ctl, got))
        return IGN_OK;
#endif
    ign_ctl_begin(r->ctl);
    int rc = ign_state_apply(r->ctl, entry);
    ign_ctl_add(r->ctl, &r->ctl->root->salvaged_records, got->whole);
    ign_ctl_add(r->ctl, &r->ctl->root->damaged_records, got->damaged);
    ign_ctl_commit(r->ctl, next);
    return rc == IGN_E_MALFORMED ? IGN_OK : rc;
}

/* What holds of the records in a damaged range is taken into the state, at the places where it stands. */
static int salvage(replay *r, uint64_t from, uint64_t next)
{
    const ign_chain_segment *segment = ign_chain_at(r->chain, from);
    ign_log_file *file;
    if (segment == NULL)
        return IGN_OK;
    uint64_t end = ign_segment_end(&segment->info) < next ? ign_segment_end(&segment->info) : next;
    if (end <= from || end - from > 2 * (uint64_t)IGN_ENTRY_MAX)
        return IGN_OK;
    int rc = ign_store_use_file(r->store, segment->info.generation, segment->info.number, NULL, &file);
    if (rc != 0)
        return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc);
    uint8_t *bytes = malloc((size_t)(end - from));
    ign_log_reader reader;
    ign_log_reader_open(&reader, r->store->io, file->file, &segment->info, from, end);
    rc = bytes == NULL ? IGN_E_NOMEM : ign_log_read(&reader, bytes, end - from, from);
    for (uint64_t at = 0, behind; rc == IGN_OK && at < end - from; at = behind) {
        ign_entry entry;
        ign_salvaged got;
        behind = piece_end(bytes, end - from, at, segment->info.salt, from);
        rc = ign_entry_salvage(bytes + at, behind - at, segment->info.salt, from + at, &r->places, &entry, &got);
        if (rc == IGN_OK)
            rc = apply_salvaged(r, &entry, &got, from + behind);
        else if (rc == IGN_EMPTY && got.damaged != 0)
            note_damaged(r, got.damaged);
        rc = rc == IGN_EMPTY ? IGN_OK : rc;
    }
    ign_log_reader_close(&reader);
    ign_store_drop_file(r->store, file);
    free(bytes);
    return rc;
}

static int replay_gap(void *arg, uint64_t from, uint64_t next, ign_log_reader *reader)
{
    replay *r = arg;
    (void)reader;
    if (next > r->end)
        return IGN_EMPTY;
    ign_store_set_aside(r->store, r->chain, from, next);
    int rc = r->damaged ? IGN_OK : ign_places_of_state(&r->places, r->ctl);
    r->damaged = true;
    if (rc == IGN_OK)
        rc = salvage(r, from, next);
    if (rc != IGN_OK)
        return rc;
    ign_ctl_begin(r->ctl);
    ign_ctl_add(r->ctl, &r->ctl->root->damaged_bytes, next - from);
    ign_ctl_commit(r->ctl, next);
    return IGN_OK;
}

int ign_chain_replay(ign_store *store, const ign_chain *chain, ign_ctl *ctl, uint64_t end, uint64_t again, ign_chain_sink *sink,
                     void *arg)
{
    replay r = {.store = store, .chain = chain, .ctl = ctl, .end = end, .again = again, .sink = sink, .arg = arg};
    if (ctl->root->applied >= end)
        return IGN_OK;
    int rc = ign_chain_walk(store, chain, ctl->root->applied,
                &(ign_chain_walker){.enter = replay_enter, .visit = replay_visit, .gap = replay_gap, .arg = &r});
    ign_places_free(&r.places);
    return rc;
}
