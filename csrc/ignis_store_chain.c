/* The files of a directory as one log: which segment holds for which positions, where the log ends, and how it is replayed.
 *
 * A segment of a higher generation, or of a higher number, takes over from its base on: what stands in older files from
 * there on was never confirmed, or was written again. So files that a process left, which was stopped for years and went on
 * to write, change nothing.
 */
#include "ignis_store_parts.h"

#include "ignis_store_salvage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef struct listing {
    ign_store *store;
    ign_chain *chain;
    struct { uint64_t generation, position; } *checkpoints;
    uint64_t checkpoint_count, checkpoint_room;
} listing;

static void *grown(void *items, uint64_t count, uint64_t *room, size_t size)
{
    if (count < *room)
        return items;
    *room = *room == 0 ? 16 : *room * 2;
    return realloc(items, (size_t)*room * size);
}

static void look_at(void *arg, const char *name)
{
    listing *l = arg;
    ign_chain *chain = l->chain;
    uint64_t a, b;
    if (chain->failed != 0)
        return;
    bool segment = ign_segment_parse_name(name, &a, &b);
    if (segment || ign_store_parse_name(name, "checkpoint", &a, &b) || ign_store_parse_name(name, "control", &a, &b)) {
        if (a > chain->newest_generation)
            chain->newest_generation = a;
    } else
        return;
    if (segment) {
        ign_chain_segment *all = grown(chain->segments, chain->count, &chain->capacity, sizeof *all);
        if (all == NULL) {
            chain->failed = ENOMEM;
            return;
        }
        chain->segments = all;
        all[chain->count++] = (ign_chain_segment){.info = {.generation = a, .number = b}, .limit = UINT64_MAX};
    } else if (name[1] == 'h') {
        void *all = grown(l->checkpoints, l->checkpoint_count, &l->checkpoint_room, sizeof *l->checkpoints);
        if (all == NULL) {
            chain->failed = ENOMEM;
            return;
        }
        l->checkpoints = all;
        l->checkpoints[l->checkpoint_count].generation = a;
        l->checkpoints[l->checkpoint_count++].position = b;
    } else if (a > chain->newest_control)
        chain->newest_control = a;
}

static int by_age(const void *a, const void *b)
{
    const ign_segment_info *x = &((const ign_chain_segment *)a)->info, *y = &((const ign_chain_segment *)b)->info;
    if (x->generation != y->generation)
        return x->generation < y->generation ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

/* A header that cannot be read makes a segment that holds nothing; the gap that it leaves is found by whoever replays. */
static int read_header(ign_store *store, ign_segment_info *info)
{
    char name[IGN_STORE_NAME_MAX];
    uint8_t sector[IGN_LOG_SECTOR];
    ign_segment_info got;
    int file;
    ign_segment_name(name, info->generation, info->number);
    int rc = store->io->open(store->io, name, false, &file);
    if (rc == ENOENT)
        return IGN_E_STALE; /* removed since the directory was read: look again */
    if (rc != 0)
        return ign_store_error(rc);
    rc = store->io->read(store->io, file, sector, sizeof sector, 0);
    store->io->close(store->io, file);
    if (rc != 0)
        return IGN_EMPTY;
    rc = ign_segment_get_header(sector, &got);
    if (rc == IGN_E_VERSION)
        return rc;
    if (rc != IGN_OK || got.generation != info->generation || got.number != info->number)
        return IGN_EMPTY;
    *info = got;
    return IGN_OK;
}

static int sort_segments(ign_store *store, ign_chain *chain)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < chain->count; i++) {
        int rc = read_header(store, &chain->segments[i].info);
        if (rc < 0)
            return rc;
        if (rc == IGN_OK) {
            chain->segments[kept++] = chain->segments[i];
            continue;
        }
        void *strays = grown(chain->strays, chain->stray_count, &chain->stray_room, sizeof *chain->strays);
        if (strays == NULL)
            return IGN_E_NOMEM;
        chain->strays = strays;
        chain->strays[chain->stray_count].generation = chain->segments[i].info.generation;
        chain->strays[chain->stray_count++].number = chain->segments[i].info.number;
    }
    chain->count = kept;
    if (kept > 0)
        qsort(chain->segments, (size_t)kept, sizeof *chain->segments, by_age);
    for (uint64_t i = 0; i < kept; i++) {
        const ign_segment_info *info = &chain->segments[i].info;
        if (chain->store == 0)
            chain->store = info->store;
        else if (chain->store != info->store)
            return IGN_E_CORRUPT; /* files of two stores in one directory */
        for (uint64_t k = 0; k < i; k++)
            if (chain->segments[k].limit > info->base)
                chain->segments[k].limit = info->base;
    }
    return IGN_OK;
}

int ign_chain_read(ign_store *store, ign_chain *chain)
{
    *chain = (ign_chain){.checkpoint = UINT64_MAX};
    listing l = {.store = store, .chain = chain};
    int rc = store->io->list(store->io, look_at, &l);
    rc = ign_store_error(rc != 0 ? rc : chain->failed);
    if (rc == IGN_OK)
        rc = sort_segments(store, chain);
    /* The newest checkpoint that is whole, and whose log still holds. */
    while (rc == IGN_OK && l.checkpoint_count > 0) {
        uint64_t best = 0;
        for (uint64_t i = 1; i < l.checkpoint_count; i++)
            if (l.checkpoints[i].position > l.checkpoints[best].position ||
                (l.checkpoints[i].position == l.checkpoints[best].position && l.checkpoints[i].generation > l.checkpoints[best].generation))
                best = i;
        uint64_t generation = l.checkpoints[best].generation, position = l.checkpoints[best].position;
        l.checkpoints[best] = l.checkpoints[--l.checkpoint_count];
        bool holds = true;
        for (uint64_t i = 0; i < chain->count; i++)
            if (chain->segments[i].info.generation > generation && chain->segments[i].info.base < position)
                holds = false;
        int whole = holds ? ign_checkpoint_check(store, generation, position) : IGN_E_CORRUPT;
        if (whole != IGN_OK && whole != IGN_E_CORRUPT)
            rc = whole; /* no damage: another version, no descriptor, or gone since we looked */
        if (whole != IGN_OK)
            continue;
        chain->checkpoint = position;
        chain->checkpoint_generation = generation;
        break;
    }
    free(l.checkpoints);
    if (rc == IGN_OK && chain->checkpoint == UINT64_MAX && chain->count > 0) {
        bool from_start = false;
        for (uint64_t i = 0; i < chain->count; i++)
            from_start = from_start || chain->segments[i].info.base == 0;
        if (!from_start) { /* no checkpoint is whole, and what came before the log is gone: nothing can be passed over */
            ign_store_is_lost(store, "", 0, ign_chain_next(chain, 0));
            rc = IGN_E_LOST;
        }
    }
    return rc;
}

void ign_chain_free(ign_chain *chain)
{
    free(chain->segments);
    free(chain->strays);
    chain->segments = NULL;
    chain->strays = NULL;
    chain->stray_count = chain->stray_room = 0;
    chain->count = chain->capacity = 0;
}

const ign_chain_segment *ign_chain_at(const ign_chain *chain, uint64_t position)
{
    const ign_chain_segment *found = NULL;
    for (uint64_t i = 0; i < chain->count; i++)
        if (chain->segments[i].info.base <= position && position < chain->segments[i].limit)
            found = &chain->segments[i];
    return found;
}

/* -- walking --------------------------------------------------------------------------------------------------------- */

/* Where the next segment behind a position begins; UINT64_MAX: there is none. */
uint64_t ign_chain_next(const ign_chain *chain, uint64_t position)
{
    uint64_t next = UINT64_MAX;
    for (uint64_t i = 0; i < chain->count; i++)
        if (chain->segments[i].info.base > position && chain->segments[i].info.base < chain->segments[i].limit &&
            chain->segments[i].info.base < next)
            next = chain->segments[i].info.base;
    return next;
}

typedef int enter_fn(void *arg, const ign_segment_info *segment);
typedef int visit_fn(void *arg, const ign_entry *entry);
/* Something at `from` is no entry; `next` is where the log goes on, if it does. IGN_OK: go on there. IGN_EMPTY: end. */
typedef int gap_fn(void *arg, uint64_t from, uint64_t next, ign_log_reader *reader);

typedef struct walker {
    enter_fn *enter;
    visit_fn *visit;
    gap_fn *gap;
    void *arg;
} walker;

/* Up to where this segment is known to have been on the disk, whatever its entries say. */
static uint64_t sure_of(const ign_chain *chain, const ign_chain_segment *segment)
{
    const ign_segment_info *info = &segment->info;
    uint64_t sure = info->flushed;
    if (info->generation == chain->known_generation && info->number == chain->known_number && chain->known > sure &&
        chain->known <= ign_segment_end(info))
        sure = chain->known;
    return sure < segment->limit ? sure : segment->limit;
}

static int walk(ign_store *store, const ign_chain *chain, uint64_t position, const walker *w)
{
    int rc = IGN_OK;
    while (rc == IGN_OK) {
        const ign_chain_segment *segment = ign_chain_at(chain, position);
        if (segment == NULL) {
            uint64_t next = ign_chain_next(chain, position);
            rc = next == UINT64_MAX ? IGN_EMPTY : w->gap(w->arg, position, next, NULL);
            position = next;
            continue;
        }
        if (w->enter != NULL && (rc = w->enter(w->arg, &segment->info)) != IGN_OK)
            break;
        ign_log_file *file;
        rc = ign_store_use_file(store, segment->info.generation, segment->info.number, NULL, &file);
        rc = rc == ENOENT ? IGN_E_STALE : ign_store_error(rc); /* removed since the directory was read */
        if (rc != IGN_OK)
            break;
        ign_log_reader reader;
        ign_entry entry;
        uint64_t reached = position;
        ign_log_reader_open(&reader, store->io, file->file, &segment->info, position, segment->limit);
        for (;;) {
            rc = ign_log_next(&reader, &entry);
            if (rc == IGN_OK) {
                reached = entry.next;
                rc = w->visit(w->arg, &entry);
                if (rc == IGN_OK)
                    continue;
                break;
            }
            if (rc == IGN_E_NOMEM || reached == segment->limit)
                break;
            /* Nothing, or damage: does the log go on behind it? */
            rc = ign_log_resync(&reader);
            if (rc == IGN_EMPTY && reached < sure_of(chain, segment)) {
                reader.position = sure_of(chain, segment);
                rc = IGN_OK;
            }
            if (rc == IGN_OK)
                rc = w->gap(w->arg, reached, reader.position, &reader);
            else if (rc == IGN_EMPTY) {
                uint64_t next = ign_chain_next(chain, reached);
                if (next != UINT64_MAX && next != reached)
                    rc = w->gap(w->arg, reached, next, NULL);
                if (rc == IGN_OK)
                    reached = next;
                break;
            }
            if (rc != IGN_OK)
                break;
            reached = reader.position;
        }
        if (reached == segment->limit && rc == IGN_EMPTY)
            rc = IGN_OK;
        ign_log_reader_close(&reader);
        ign_store_drop_file(store, file);
        position = reached;
    }
    return rc == IGN_EMPTY ? IGN_OK : rc;
}

typedef struct scan {
    ign_store *store;
    const ign_chain *chain;
    uint64_t durable, end;
    uint64_t witnessed; /* up to where entries of the last segment know that it was flushed */
    bool looked;
} scan;

static int scan_enter(void *arg, const ign_segment_info *segment)
{
    scan *s = arg;
    uint64_t sure = sure_of(s->chain, ign_chain_at(s->chain, segment->base));
    if (sure > s->durable)
        s->durable = sure;
    return IGN_OK;
}

static int scan_visit(void *arg, const ign_entry *entry)
{
    scan *s = arg;
    if (entry->durable > s->durable && entry->durable <= entry->position)
        s->durable = entry->durable;
    s->end = entry->next;
    return IGN_OK;
}

/* What all that stands behind a gap knows of flushes, further gaps or not. Looked for once: it holds for the gaps to come as well. */
static int look_for_witness(scan *s, const ign_log_reader *from)
{
    if (s->looked)
        return IGN_OK;
    ign_log_reader reader;
    ign_entry entry;
    int rc;
    ign_log_reader_open(&reader, from->io, from->file, &from->segment, from->position, from->limit);
    for (;;) {
        rc = ign_log_next(&reader, &entry);
        if (rc == IGN_OK && entry.durable <= entry.position && entry.durable > s->witnessed)
            s->witnessed = entry.durable;
        if (rc == IGN_EMPTY || rc == IGN_E_CORRUPT)
            rc = ign_log_resync(&reader);
        if (rc != IGN_OK)
            break;
    }
    ign_log_reader_close(&reader);
    s->looked = true;
    return rc == IGN_EMPTY ? IGN_OK : rc;
}

/* Behind `from` the log goes on at `next`, in another segment. Were there others between? */
static int look_between(const scan *s, uint64_t from, uint64_t next)
{
    const ign_chain_segment *segment = ign_chain_at(s->chain, from), *behind = ign_chain_at(s->chain, next);
    if (segment == NULL)
        return ign_store_is_lost(s->store, "", from, next);
    const ign_segment_info *info = &segment->info;
    if (next > ign_segment_end(info))
        return ign_store_is_lost(s->store, "", from > ign_segment_end(info) ? from : ign_segment_end(info), next);
    if (behind->info.generation == info->generation && behind->info.number == info->number + 1)
        return IGN_OK;
    char name[IGN_STORE_NAME_MAX];
    ign_segment_name(name, info->generation, info->number);
    return !ign_chain_is_blank(s->store, name, ign_segment_offset(info, from), ign_segment_offset(info, next))
               ? IGN_OK
               : ign_store_is_lost(s->store, "", from, next);
}

/* Was what is damaged once on the disk? Then the log goes on behind it. If not it is a tail that did not all get there. */
static int scan_gap(void *arg, uint64_t from, uint64_t next, ign_log_reader *reader)
{
    scan *s = arg;
    if (reader == NULL) {
        int rc = look_between(s, from, next);
        if (rc != IGN_OK)
            return rc;
    }
    bool was_durable = reader == NULL || from < sure_of(s->chain, ign_chain_at(s->chain, from));
#ifndef IGN_MUTANT_CUT_AT_DAMAGE
    was_durable = was_durable || ign_chain_next(s->chain, from) != UINT64_MAX; /* a segment is begun when all before it is flushed */
#endif
    if (!was_durable) {
        int rc = look_for_witness(s, reader);
        if (rc != IGN_OK)
            return rc;
        was_durable = s->witnessed > from;
    }
    if (!was_durable)
        return IGN_EMPTY;
    s->durable = s->durable > next ? s->durable : next;
    s->end = next;
    return IGN_OK;
}

int ign_chain_scan(ign_store *store, const ign_chain *chain, uint64_t position, uint64_t *durable, uint64_t *end)
{
    scan s = {.store = store, .chain = chain, .durable = position, .end = position};
    int rc = walk(store, chain, position, &(walker){.enter = scan_enter, .visit = scan_visit, .gap = scan_gap, .arg = &s});
    *end = s.end;
    *durable = s.durable < s.end ? s.durable : s.end;
    return rc;
}

typedef struct replay {
    ign_store *store;
    const ign_chain *chain;
    ign_ctl *ctl;
    uint64_t end;
    ign_chain_sink *sink;
    void *arg;
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
    ign_state_add_segment(r->ctl, segment);
    return r->ctl->no_room ? ign_store_error(ENOSPC) : IGN_OK;
}

static int replay_visit(void *arg, const ign_entry *entry)
{
    replay *r = arg;
    if (entry->position >= r->end)
        return IGN_EMPTY;
    int rc = r->sink == NULL ? IGN_OK : r->sink(r->arg, entry);
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
    if (bytes != NULL)
        ign_log_read(&reader, bytes, end - from, from);
    else
        rc = IGN_E_NOMEM;
    const bool torn = reader.unreadable;
    for (uint64_t at = 0, behind; rc == IGN_OK && at < end - from; at = behind) {
        ign_entry entry;
        ign_salvaged got;
        behind = piece_end(bytes, end - from, at, segment->info.salt, from);
        reader.unreadable = false;
        if (torn)
            ign_log_read(&reader, bytes + at, behind - at, from + at);
        rc = ign_entry_salvage(bytes + at, behind - at, segment->info.salt, from + at, !reader.unreadable, &entry, &got);
        if (rc == IGN_OK) {
            ign_ctl_begin(r->ctl);
            rc = ign_state_apply(r->ctl, &entry);
            if (rc == IGN_E_MALFORMED)
                rc = IGN_OK;
            ign_ctl_add(r->ctl, &r->ctl->root->salvaged_records, got.whole);
            ign_ctl_add(r->ctl, &r->ctl->root->damaged_records, got.damaged);
            ign_ctl_commit(r->ctl, from + behind);
        }
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
    int rc = salvage(r, from, next);
    if (rc != IGN_OK)
        return rc;
    ign_ctl_begin(r->ctl);
    ign_ctl_add(r->ctl, &r->ctl->root->damaged_bytes, next - from);
    ign_ctl_commit(r->ctl, next);
    return IGN_OK;
}

int ign_chain_replay(ign_store *store, const ign_chain *chain, ign_ctl *ctl, uint64_t end, ign_chain_sink *sink, void *arg)
{
    replay r = {.store = store, .chain = chain, .ctl = ctl, .end = end, .sink = sink, .arg = arg};
    if (ctl->root->applied >= end)
        return IGN_OK;
    return walk(store, chain, ctl->root->applied,
                &(walker){.enter = replay_enter, .visit = replay_visit, .gap = replay_gap, .arg = &r});
}
