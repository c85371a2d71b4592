/* Recovery: the one way in which a store's state is made. At an opening by somebody alone, behind a process that is stopped
 * while it holds the lock, and behind a write or flush that failed, a new *generation* is made:
 *
 *   1. the newest checkpoint that is whole, and the log behind it up to the first entry that is none, give the state;
 *   2. what stands behind the last position that is known to be flushed is written again, into a new file, and flushed: of
 *      a file that was written without a flush that succeeded nothing is trusted, and a file that a stopped process may
 *      still write to is not written to by anybody else;
 *   3. a mark follows by which every shard leaves out as many pointers as can have been given out and lost;
 *   4. the control file gets its name: whoever is first has made the generation, and all others join it.
 *
 * Before, the generation that ends is sealed. A writer of it confirms nothing without having looked at the seal after its
 * entry was written, and step 1 reads after the seal was set: so either the entry is found here, or its writer finds the seal
 * (both are sequentially consistent), and asks where this generation began.
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FROZEN IGN_REFUSED_FROZEN

/* Of a generation that begins on a full disk: its first segment, beside what it has to write again; and its state, beside what the checkpoint
 * has. */
enum { LEAST_SEGMENT = 64 << 10, LEAST_ARENA = 32 << 10, LEAST_UNDO = 1024, LOOKS = 2, MOST_AGAIN = 64 << 10, AT_ONCE = 256 << 10, LOOK_PIECES = 4 };

static bool is_frozen(uint64_t refused)
{
    return refused != UINT64_MAX && (refused & FROZEN) != 0;
}

typedef struct copy {
    ign_store *store;
    ign_ctl *ctl;
    ign_segment_info segment;
    int file;
    uint8_t *buffer; /* entries that are written at once, from the position `at` on */
    uint64_t capacity, used, at;
    uint64_t newest, unlooked; /* the generation that this one is to follow; bytes written since it was looked whether it still is */
    bool began, least; /* `least`: no more room than it takes */
} copy;

static void look_for_newer(void *arg, const char *name)
{
    uint64_t a, b, *newest = arg;
    if (ign_store_parse_name(name, "control", &a, &b) && a > *newest)
        *newest = a;
}

static int begin_segment(copy *c)
{
    if (c->began)
        return IGN_OK;
    c->began = true;
    ign_ctl_begin(c->ctl);
    ign_state_add_segment(c->ctl, &c->segment);
    ign_ctl_commit(c->ctl, c->ctl->root->applied);
    return c->ctl->no_room ? IGN_E_NO_ROOM : IGN_OK;
}

static int still_newest(ign_store *store, uint64_t known)
{
    uint64_t newest = 0;
#ifdef IGN_MUTANT_NAME_GIVEN_AGAIN
    return IGN_OK;
#endif
    int rc = ign_store_error(store->io->list(store->io, look_for_newer, &newest));
    return rc != IGN_OK || newest == known ? rc : IGN_E_STALE;
}

static int write_out(copy *c)
{
    ign_store_io *io = c->store->io;
    uint64_t bytes = c->used, offset = ign_segment_offset(&c->segment, c->at), piece = c->store->options.piece_bytes;
    int rc = IGN_OK;
    c->used = 0;
    for (uint64_t done = 0; rc == IGN_OK && done < bytes;) {
        uint64_t part = bytes - done < piece ? bytes - done : piece;
        rc = ign_store_error(io->write(io, c->file, c->buffer + done, (size_t)part, offset + done));
        done += part;
        c->unlooked += part;
        if (rc == IGN_OK && c->unlooked > LOOK_PIECES * piece) { /* whoever is second copies for nothing */
            rc = still_newest(c->store, c->newest);
            c->unlooked = 0;
        }
    }
    return rc;
}

static int write_entry(copy *c, uint8_t type, const uint8_t *payload, uint32_t bytes, uint64_t position, uint64_t durable)
{
    uint64_t size = ign_entry_size(bytes);
    int rc = IGN_OK;
    if (c->used != 0 && (position != c->at + c->used || c->used + size > AT_ONCE))
        rc = write_out(c);
    if (rc != IGN_OK)
        return rc;
    if (c->used + size > c->capacity) {
        uint64_t capacity = size > AT_ONCE ? size : AT_ONCE;
        uint8_t *grown = realloc(c->buffer, (size_t)capacity);
        if (grown == NULL)
            return IGN_E_NOMEM;
        c->buffer = grown;
        c->capacity = capacity;
    }
    if (c->used == 0)
        c->at = position;
    uint8_t *entry = c->buffer + c->used;
    memcpy(entry + IGN_ENTRY_HEADER, payload, bytes);
    ign_entry_seal(entry, type, bytes, c->segment.salt, position, durable);
    c->used += size;
    return IGN_OK;
}

static int copy_entry(void *arg, const ign_entry *entry)
{
    copy *c = arg;
    if (entry->position < c->segment.base)
        return IGN_OK;
    int rc = begin_segment(c);
    return rc != IGN_OK ? rc : write_entry(c, entry->type, entry->payload, entry->payload_bytes, entry->position, c->segment.base);
}

static void temporary_names(const ign_ctl_head *head, char control[IGN_STORE_NAME_MAX], char log[IGN_STORE_NAME_MAX])
{
    ign_store_file_name(control, "tmp-control", head->generation, head->instance);
    ign_store_file_name(log, "tmp-log", head->generation, head->instance);
}

static int make_segment(copy *c, const char *name, uint64_t end)
{
    ign_store_io *io = c->store->io;
    uint8_t sector[IGN_LOG_SECTOR];
    uint64_t bytes = IGN_LOG_SECTOR + (end - c->segment.base) + ign_entry_size(16);
    uint64_t first = c->store->options.first_segment_bytes;
    c->segment.size = c->least ? bytes + LEAST_SEGMENT : bytes > first / 2 ? bytes + first / 4 : first;
    c->segment.salt = io->random(io);
    c->segment.flushed = end + ign_entry_size(16); /* what is copied, and the mark */
    int rc = io->open(io, name, true, &c->file);
    if (rc != 0)
        return ign_store_error(rc);
    rc = io->allocate(io, c->file, c->segment.size);
    if (ign_store_error(rc) == IGN_E_NO_ROOM && first > LEAST_SEGMENT) { /* who comes to make room must get in */
        c->segment.size = bytes + LEAST_SEGMENT;
        rc = io->allocate(io, c->file, c->segment.size);
    }
    ign_segment_put_header(sector, &c->segment);
    /* What is copied is written up to its end: much of it is not filled first. */
    uint64_t copied = ign_segment_offset(&c->segment, end) / IGN_LOG_SECTOR * IGN_LOG_SECTOR;
    if (rc == 0)
        rc = ign_store_fill(io, c->file, copied > c->store->options.piece_bytes ? copied : 0, c->segment.size);
    if (rc == 0)
        rc = io->write(io, c->file, sector, sizeof sector, 0);
    return ign_store_error(rc);
}

/* The mark that a generation begins with; see step 3. */
static int write_mark(copy *c)
{
    uint8_t payload[16];
    ign_put64(payload, c->ctl->root->openings + 1);
    ign_put64(payload + 8, IGN_STORE_JUMP + (c->store->io->random(c->store->io) & (IGN_STORE_JUMP_MORE - 1)));
    uint64_t position = c->ctl->root->applied;
    int rc = write_entry(c, IGN_ENTRY_OPEN, payload, sizeof payload, position, c->segment.base);
    if (rc != IGN_OK)
        return rc;
    ign_entry entry = {.type = IGN_ENTRY_OPEN, .position = position, .payload = payload, .payload_bytes = sizeof payload,
                       .next = position + ign_entry_size(sizeof payload)};
    ign_ctl_begin(c->ctl);
    rc = ign_state_apply(c->ctl, &entry);
    ign_ctl_commit(c->ctl, entry.next);
    return rc;
}

/* Where the new file begins. Small segments before it are written again as a whole: else a store that is opened now and then, by somebody who looks at
 * it, would take another segment each time. What is damaged stays where it is. */
static uint64_t begin_of(const ign_chain *chain, uint64_t whole, uint64_t durable, uint64_t end)
{
    uint64_t begin = durable;
#ifdef IGN_MUTANT_SEGMENT_EACH_TIME
    return begin;
#endif
#ifdef IGN_MUTANT_DAMAGE_AGAIN
    whole = 0;
#endif
    for (uint64_t i = 0; i < chain->count; i++) {
        uint64_t base = chain->segments[i].info.base;
        if (base < chain->segments[i].limit && base >= whole && base < begin && end - base <= MOST_AGAIN)
            begin = base;
    }
    return begin;
}

/* The state and the new file, steps 1 to 3. */
static int fill_generation(ign_store *store, const ign_chain *chain, copy *c, uint64_t refused_from, const char *log_name)
{
    ign_store_io *io = store->io;
    uint64_t whole, durable, end, from = chain->checkpoint == UINT64_MAX ? 0 : chain->checkpoint;
    int rc = ign_chain_scan(store, chain, from, &whole, &durable, &end);
    if (rc != IGN_OK)
        return rc;
    if (refused_from < end && refused_from >= durable)
        end = refused_from;
    c->segment.base = begin_of(chain, whole, durable, end);
#ifdef IGN_MUTANT_TRUST_FILE
    c->segment.base = end; /* as if what is in the file were on the disk */
#endif
    rc = make_segment(c, log_name, end);
    if (rc == IGN_OK && chain->checkpoint != UINT64_MAX)
        rc = ign_checkpoint_load(store, chain->checkpoint_generation, chain->checkpoint, c->ctl);
    if (rc == IGN_OK)
        rc = ign_chain_check_files(store, chain, c->ctl);
    if (rc == IGN_OK)
        rc = ign_chain_replay(store, chain, c->ctl, end, c->segment.base, copy_entry, c);
    if (rc == IGN_OK && c->ctl->root->applied != end)
        rc = IGN_E_STALE; /* a writer that had not seen the seal finished an entry: look again */
    if (rc == IGN_OK)
        rc = begin_segment(c);
    if (rc == IGN_OK)
        rc = ign_chain_check_living(store, chain, c->ctl);
    if (rc == IGN_OK)
        rc = write_mark(c);
    if (rc == IGN_OK)
        rc = write_out(c);
    if (rc == IGN_OK)
        rc = ign_store_error(io->flush(io, c->file));
    return rc;
}

int ign_store_make_ready(ign_store *store, ign_ctl *ctl)
{
    ign_store_io *io = store->io;
    if (atomic_load_explicit(&ctl->head->ready, memory_order_acquire) != 0)
        return IGN_OK;
    char control[IGN_STORE_NAME_MAX], log[IGN_STORE_NAME_MAX], name[IGN_STORE_NAME_MAX];
    temporary_names(ctl->head, control, log);
    ign_segment_name(name, ctl->head->generation, ctl->head->segment_number);
    int rc = io->link_new(io, log, name);
    if (rc == EEXIST || rc == ENOENT) { /* somebody else did it, unless it is not there at all */
        int file;
        rc = io->open(io, name, false, &file);
        if (rc == 0)
            io->close(io, file);
    }
    if (rc == 0)
        rc = io->flush_names(io);
    if (rc != 0)
        return ign_store_error(rc);
    atomic_store_explicit(&ctl->head->ready, 1, memory_order_release);
    io->remove(io, log);
    io->remove(io, control);
    return IGN_OK;
}

/* Whoever was away for long may find the name free, because it was given, followed and removed meanwhile. */
static int check_newest(ign_store *store, ign_ctl *ctl, const char *name)
{
    uint64_t newest = 0;
    int rc = ign_store_error(store->io->list(store->io, look_for_newer, &newest));
#ifndef IGN_MUTANT_LATE_PUBLISH
    if (rc == IGN_OK && newest == ctl->head->generation)
        return IGN_OK;
#else
    return IGN_OK;
#endif
    atomic_store_explicit(&ctl->head->sealed, 1, memory_order_seq_cst);
    store->io->remove(store->io, name);
    return rc != IGN_OK ? rc : IGN_E_STALE;
}

static void inherit(ign_ctl_head *head, const ign_ctl *sealed, uint64_t cut)
{
    if (sealed != NULL) {
        memcpy(head->cuts, sealed->head->cuts, sizeof head->cuts);
        for (unsigned i = 0; i < IGN_STORE_WAKES; i++) /* whoever slept in the old one finds a change */
            atomic_store_explicit(&head->wake[i], atomic_load_explicit(&sealed->head->wake[i], memory_order_relaxed) + 1,
                                  memory_order_relaxed);
        atomic_store_explicit(&head->bell, atomic_load_explicit(&sealed->head->bell, memory_order_relaxed) + 1, memory_order_relaxed);
    }
    head->cuts[head->generation % IGN_CTL_CUTS] = (ign_ctl_cut){.generation = head->generation, .position = cut};
}

/* Up to where the log is taken. A generation whose log has no name yet has told its writers where it began, and perhaps that
 * what is behind is refused: this must hold in the one that follows, though it finds more. */
static uint64_t limit_of(const ign_ctl *sealed, uint64_t refused)
{
    uint64_t limit = is_frozen(refused) ? refused & ~FROZEN : refused;
    if (sealed == NULL || atomic_load_explicit(&sealed->head->ready, memory_order_acquire) != 0)
        return limit;
    const ign_ctl_cut *own = &sealed->head->cuts[sealed->head->generation % IGN_CTL_CUTS];
#ifdef IGN_MUTANT_FORGET_CUT
    return limit;
#endif
    return own->generation == sealed->head->generation && own->position < limit ? own->position : limit;
}

static int rebuild(ign_store *store, uint64_t newest, ign_ctl *sealed, ign_generation *made, bool needs_room, bool least)
{
    ign_store_io *io = store->io;
    uint64_t refused = UINT64_MAX, cut = 0;
    if (sealed != NULL)
        refused = atomic_load_explicit(&sealed->head->refused_from, memory_order_seq_cst);
    ign_chain chain;
    ign_known known = ign_ctl_knows(sealed);
    int rc = ign_chain_read(store, &chain);
    char control[IGN_STORE_NAME_MAX], log[IGN_STORE_NAME_MAX], name[IGN_STORE_NAME_MAX];
    uint64_t generation = chain.newest_generation + 1, instance = io->random(io);
    copy c = {.store = store, .ctl = &made->ctl, .file = -1, .newest = newest, .least = least,
              .segment = {.generation = generation, .number = 1, .store = chain.store != 0 ? chain.store : io->random(io) | 1}};
    bool created = false, published = false;
    ign_store_file_name(control, "tmp-control", generation, instance);
    ign_store_file_name(log, "tmp-log", generation, instance);
    ign_store_file_name(name, "control", generation, 0);
    if (rc == IGN_OK && chain.newest_control != newest)
        rc = IGN_E_STALE; /* one was made meanwhile, and is not sealed */
    if (rc == IGN_OK)
        rc = ign_chain_know(store, &chain, &known);
    if (rc == IGN_OK) {
        ign_before_remove_unborn(store);
        if (needs_room)
            ign_before_give_back(store, sealed, generation);
        uint64_t arena = store->options.arena_bytes, undo = store->options.undo_capacity;
        undo = needs_room && undo > LEAST_UNDO ? LEAST_UNDO : undo; /* should more be undone, another generation follows */
        arena = needs_room && arena > LEAST_ARENA ? LEAST_ARENA : arena;
        rc = ign_store_error(ign_ctl_create(&made->ctl, io, control, store->options.control_reserve, undo, arena));
        created = rc == IGN_OK;
    }
    if (created) /* held by who makes it, and then by who lives in it */
        rc = ign_store_error(io->lock(io, made->ctl.file, 0));
    /* The temporary name of a control file is there. Who sweeps behind a newer one that is published from now on removes it, before any name that it
     * could get is free again; one that is there already is seen here. So nobody gives a name away twice, however long he was away. */
    if (rc == IGN_OK && created)
        rc = still_newest(store, newest);
    if (rc == IGN_OK && created) {
        made->ctl.head->generation = generation;
        made->ctl.head->store = c.segment.store;
        made->ctl.head->instance = instance;
        made->ctl.head->segment_number = c.segment.number;
        rc = fill_generation(store, &chain, &c, limit_of(sealed, refused), log);
    }
    if (rc == IGN_OK && (needs_room || made->ctl.root->segment_count > 1)) /* of one segment there is nothing to remove */
        rc = ign_before_keep_spare(store, made, needs_room);
    if (rc == IGN_OK && needs_room) { /* as much as there is: what is short of it refuses calls */
        ign_ctl_make_room(&made->ctl, store->options.arena_bytes);
        atomic_store_explicit(&made->ctl.head->short_of_room, 1, memory_order_relaxed);
    }
    if (rc == IGN_OK) {
        ign_ctl_head *head = made->ctl.head;
        uint64_t end = made->ctl.root->applied;
        cut = end - ign_entry_size(16);
        inherit(head, sealed, cut);
        atomic_store_explicit(&head->end, end, memory_order_relaxed);
        atomic_store_explicit(&head->written_to, end, memory_order_relaxed);
        atomic_store_explicit(&head->durable, end, memory_order_relaxed);
        atomic_store_explicit(&head->witnessed, end, memory_order_relaxed); /* by the segment's header */
        atomic_store_explicit(&head->log_base, c.segment.base, memory_order_relaxed);
        atomic_store_explicit(&head->next_number, c.segment.number + 1, memory_order_relaxed);
        atomic_store_explicit(&head->log_number, c.segment.number, memory_order_relaxed);
        made->slot = 0;
        made->word = 1u | 1u << 12;
        atomic_store_explicit(&head->incarnation[0], 1, memory_order_relaxed);
    }
    /* Nothing more is refused, then: what is in the log now will be found. */
    if (rc == IGN_OK && sealed != NULL && !is_frozen(refused) &&
        !atomic_compare_exchange_strong_explicit(&sealed->head->refused_from, &refused, refused == UINT64_MAX ? refused - 1 : refused | FROZEN,
                                                 memory_order_seq_cst, memory_order_seq_cst))
        rc = IGN_E_STALE;
    if (rc == IGN_OK) {
        made->ctl.alone = false;
        int linked = io->link_new(io, control, name);
        published = linked == 0;
        rc = linked == EEXIST || linked == ENOENT ? IGN_E_STALE : ign_store_error(linked);
    }
    if (published) {
        rc = check_newest(store, &made->ctl, name);
        published = rc == IGN_OK;
    }
    int error = errno; /* what went wrong, and not what removing its traces says */
    if (published)
        ign_before_remove_strays(store, &chain);
    free(c.buffer);
    if (c.file >= 0)
        io->close(io, c.file);
    if (published && ign_store_make_ready(store, &made->ctl) == IGN_OK) { /* should its log not get its name now, whoever takes the lock tries again */
        ign_before_remove_replaced(store, &chain, c.segment.base);
        ign_before_sweep(store, generation);
    }
    ign_chain_free(&chain);
    if (published)
        return IGN_OK;
    if (created) {
        uint64_t spare = atomic_load_explicit(&made->ctl.head->spare, memory_order_relaxed);
        if (spare != 0)
            ign_store_give(store, made, "tmp-spare", spare);
        ign_ctl_close(&made->ctl);
        io->remove(io, log); /* first: should this process end between the two, the other is what leads to it */
        io->remove(io, control);
    }
    errno = error;
    return rc;
}

int ign_store_rebuild(ign_store *store, uint64_t newest, ign_ctl *sealed, ign_generation *made)
{
    int rc = rebuild(store, newest, sealed, made, false, false);
    if (rc == IGN_E_NO_ROOM)
        rc = rebuild(store, newest, sealed, made, true, false); /* what was kept ahead is given back for it */
    if (rc == IGN_E_NO_ROOM)
        rc = rebuild(store, newest, sealed, made, true, true);
    if (rc == IGN_E_NO_ROOM && ign_store_drop_older(store) == IGN_OK)
        rc = rebuild(store, newest, sealed, made, true, true);
    /* Who was away for long looks at a directory of which others have removed what they do not need: it may be one that a later look finds whole. */
    for (int again = 0; rc == IGN_E_LOST && again < LOOKS; again++)
        rc = rebuild(store, newest, sealed, made, false, false);
    uint64_t now = 0;
    if (rc == IGN_E_LOST && store->io->list(store->io, look_for_newer, &now) == 0 && now != newest)
        rc = IGN_E_STALE;
    return rc;
}
