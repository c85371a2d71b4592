/* Walking along the log over all its segments, and where it ends: behind the last entry, and what is damaged before that is passed over
 * if it was once on the disk. */
#include "ignis_store_parts.h"

#include <errno.h>

/* -- walking ------------------------------------------------------------------------------------------------------------- */

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

int ign_chain_walk(ign_store *store, const ign_chain *chain, uint64_t position, const ign_chain_walker *w)
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
            if ((rc != IGN_EMPTY && rc != IGN_E_CORRUPT) || reached == segment->limit)
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

/* -- where it ends ------------------------------------------------------------------------------------------------------- */

typedef struct scan {
    ign_store *store;
    const ign_chain *chain;
    uint64_t durable, end;
    uint64_t whole;     /* nothing is passed over behind it */
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
    s->end = s->whole = next;
    return IGN_OK;
}

int ign_chain_scan(ign_store *store, const ign_chain *chain, uint64_t position, uint64_t *whole, uint64_t *durable, uint64_t *end)
{
    scan s = {.store = store, .chain = chain, .durable = position, .end = position, .whole = position};
    int rc = ign_chain_walk(store, chain, position, &(ign_chain_walker){.enter = scan_enter, .visit = scan_visit, .gap = scan_gap, .arg = &s});
    *whole = s.whole;
    *end = s.end;
    *durable = s.durable < s.end ? s.durable : s.end;
    return rc;
}
