/* Makes and reads checkpoints.
 *
 * A checkpoint is the state as of a position that is flushed: the bytes of the arena behind a header of one sector, in a file
 * of its own, which gets its name when all of it is on the disk. The log is replayed from the last checkpoint, without the writers' lock.
 * That is the code of a recovery, so each checkpoint also shows that a recovery would work.
 *
 *   offset size  field                     (the machine's own byte order, which the mark names)
 *        0    8  magic
 *        8    4  version        1
 *       12    4  byte order     0x01020304
 *       16    8  generation
 *       24    8  position
 *       32    8  store
 *       40    8  bytes          of the image
 *       48    4  crc            CRC32C of the image
 *       52    4  version of the arena's layout
 *       56    4  crc            CRC32C of bytes 0..56
 *      512    .  image
 */
#include "ignis_store_parts.h"

#include "ignis_bytes.h"
#include "ignis_record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC 0x31504B43534E4749ull
#define BYTE_ORDER_MARK 0x01020304u

enum { PIECE = 1 << 20, MEMORY = 16 << 20, LARGE = 32 << 20 };

typedef struct header {
    uint64_t magic;
    uint32_t version, byte_order;
    uint64_t generation, position, store, bytes;
    uint32_t image_crc, layout;
    uint32_t crc;
} header;

static uint32_t header_crc(const header *h)
{
    return ign_crc32c(0, h, offsetof(header, crc));
}

static int read_header(ign_store *store, int file, uint64_t generation, uint64_t position, header *h)
{
    uint64_t size;
    int rc = store->io->size(store->io, file, &size);
    if (rc == 0)
        rc = store->io->read(store->io, file, h, sizeof *h, 0);
    if (rc == 0 && h->magic == __builtin_bswap64(MAGIC) && h->byte_order == __builtin_bswap32(BYTE_ORDER_MARK))
        return IGN_E_VERSION; /* written by a machine of the other byte order; a mark that is neither is damage */
    if (rc != 0 || h->magic != MAGIC || h->byte_order != BYTE_ORDER_MARK || h->crc != header_crc(h))
        return IGN_E_CORRUPT;
    if (h->version != 1 || h->layout != IGN_CTL_VERSION)
        return IGN_E_VERSION;
    if (h->generation != generation || h->position != position || size < IGN_LOG_SECTOR ||
        h->bytes > size - IGN_LOG_SECTOR || h->bytes < sizeof(ign_root))
        return IGN_E_CORRUPT;
    return IGN_OK;
}

/* Reads the image, into `to` or only to check it. */
static int read_image(ign_store *store, int file, const header *h, uint8_t *to)
{
    uint8_t *scratch = to != NULL ? NULL : malloc(PIECE);
    if (to == NULL && scratch == NULL)
        return IGN_E_NOMEM;
    uint32_t crc = 0;
    int rc = 0;
    for (uint64_t at = 0; rc == 0 && at < h->bytes; at += PIECE) {
        uint64_t part = h->bytes - at < PIECE ? h->bytes - at : PIECE;
        uint8_t *into = to != NULL ? to + at : scratch;
        rc = store->io->read(store->io, file, into, (size_t)part, IGN_LOG_SECTOR + at);
        crc = ign_crc32c(crc, into, (size_t)part);
    }
    free(scratch);
#ifdef IGN_MUTANT_NO_CHECKPOINT_CRC
    return IGN_OK;
#endif
    return rc != 0 || crc != h->image_crc ? IGN_E_CORRUPT : IGN_OK;
}

static int open_checkpoint(ign_store *store, uint64_t generation, uint64_t position, int *file, header *h)
{
    char name[IGN_STORE_NAME_MAX];
    ign_store_file_name(name, "checkpoint", generation, position);
    int rc = store->io->open(store->io, name, false, file);
    if (rc != 0) /* removed: there are newer ones */
        return rc == ENOENT ? IGN_E_STALE : ign_store_error(rc);
    rc = read_header(store, *file, generation, position, h);
    if (rc != IGN_OK)
        store->io->close(store->io, *file);
    return rc;
}

int ign_checkpoint_check(ign_store *store, uint64_t generation, uint64_t position)
{
    int file;
    header h;
    int rc = open_checkpoint(store, generation, position, &file, &h);
    if (rc != IGN_OK)
        return rc;
    rc = read_image(store, file, &h, NULL);
    store->io->close(store->io, file);
    return rc;
}

int ign_checkpoint_load(ign_store *store, uint64_t generation, uint64_t position, ign_ctl *ctl)
{
    int file;
    header h;
    int rc = open_checkpoint(store, generation, position, &file, &h);
    if (rc != IGN_OK)
        return rc;
    rc = ign_store_error(ign_ctl_make_room(ctl, h.bytes));
    if (rc == IGN_OK)
        rc = read_image(store, file, &h, ctl->arena);
    if (rc == IGN_OK && (ctl->root->used > h.bytes || ctl->root->applied != position))
        rc = IGN_E_CORRUPT;
    store->io->close(store->io, file);
    return rc;
}

/* -- making one -------------------------------------------------------------------------------------------------------- */

static int write_image(ign_store *store, const ign_ctl *ctl, int file, uint64_t generation, uint64_t id)
{
    ign_store_io *io = store->io;
    uint64_t bytes = ctl->root->used;
    header h = {.magic = MAGIC, .version = 1, .byte_order = BYTE_ORDER_MARK, .generation = generation,
                .position = ctl->root->applied, .store = id, .bytes = bytes,
                .image_crc = ign_crc32c(0, ctl->arena, (size_t)bytes), .layout = IGN_CTL_VERSION};
    h.crc = header_crc(&h);
    int rc = io->allocate(io, file, IGN_LOG_SECTOR + bytes);
    if (rc == 0)
        rc = ign_store_write_out(io, file, ctl->arena, bytes, IGN_LOG_SECTOR);
    if (rc == 0)
        rc = io->write(io, file, &h, sizeof h, 0);
#ifndef IGN_MUTANT_CHECKPOINT_UNFLUSHED
    if (rc == 0)
        rc = io->flush(io, file);
#endif
    return rc;
}

int ign_checkpoint_scratch(ign_store *store, ign_ctl *ctl, const char *name, bool in_memory, uint64_t state_bytes)
{
    if (!in_memory)
        return ign_store_error(ign_ctl_create(ctl, store->io, name, store->options.control_reserve, 0, store->options.arena_bytes));
    return ign_store_error(ign_ctl_create_in_memory(ctl, store->io, (4 * state_bytes + MEMORY) / PIECE * PIECE));
}

void ign_checkpoint_drop_scratch(ign_store *store, ign_ctl *ctl, const char *name)
{
    bool named = !ctl->in_memory;
    ign_ctl_close(ctl);
    if (named)
        store->io->remove(store->io, name);
}

static void raise_to(ign_ctl *ctl, uint64_t *word, uint64_t value)
{
    if (*word < value)
        ign_ctl_put(ctl, word, value);
}

/* Copies the shared state for the checkpoint. The log was damaged since it was applied to that state, which lacks nothing. The damage that was
 * found is counted there. */
static int copy_shared(ign_store *store, ign_generation *g, ign_ctl *ctl, uint64_t *position)
{
    const ign_root found = *ctl->root;
    int rc = ign_store_lock(store, g, false);
    if (rc != IGN_OK)
        return rc;
    ign_root *root = g->ctl.root;
    uint64_t behind = *position - found.applied; /* damaged bytes at the end, of which only living processes know that they were written */
    *position = root->applied;
    rc = ign_store_flush_to(store, g, *position);
    if (rc == IGN_OK)
        rc = ign_store_error(ign_ctl_make_room(ctl, root->used));
    if (rc == IGN_OK) {
        ign_ctl_begin(&g->ctl);
        raise_to(&g->ctl, &root->damaged_bytes, found.damaged_bytes + behind);
        raise_to(&g->ctl, &root->salvaged_records, found.salvaged_records);
        raise_to(&g->ctl, &root->damaged_records, found.damaged_records);
        ign_ctl_commit(&g->ctl, *position);
        memcpy(ctl->arena, g->ctl.arena, (size_t)root->used);
    }
    ign_store_unlock(store, g);
    return rc;
}

/* Half of it is free; or it is so large that what is copied says more than what is free: blocks are not full. */
static bool is_loose(const ign_store *store, const ign_ctl *ctl)
{
    uint64_t least = store->options.repack_bytes, used = ctl->root->used;
#ifdef IGN_MUTANT_NO_REPACK
    return false;
#endif
    return !ctl->in_memory && (least == 1 || used >= LARGE || (used >= least && ign_ctl_free_bytes(ctl) >= used / 2));
}

/* A loose state gives way to one without holes. When there is no room for that it stays as it is. */
static int repack(ign_store *store, ign_ctl *ctl, char name[IGN_STORE_NAME_MAX], uint64_t generation)
{
    char other[IGN_STORE_NAME_MAX];
    ign_ctl made;
    if (!is_loose(store, ctl))
        return IGN_OK;
    ign_store_file_name(other, "tmp-control", generation, store->io->random(store->io));
    int rc = ign_checkpoint_scratch(store, &made, other, false, 0);
    if (rc != IGN_OK)
        return rc == IGN_E_NO_ROOM ? IGN_OK : rc;
    rc = ign_state_repack(&made, ctl);
    ign_checkpoint_drop_scratch(store, ctl, name);
    *ctl = made;
    memcpy(name, other, sizeof other);
    return rc;
}

/* Makes the state at a position that is flushed, in a control that no other process sees, and writes it as a checkpoint. */
static int make_checkpoint(ign_store *store, bool in_memory)
{
    ign_store_io *io = store->io;
    ign_generation *g;
    int rc = ign_store_enter_living(store, &g);
    if (rc != IGN_OK)
        return rc;
    uint64_t generation = g->ctl.head->generation, id = g->ctl.head->store;
    uint64_t durable = ign_ctl_durable(g->ctl.head);
    char scratch[IGN_STORE_NAME_MAX], made[IGN_STORE_NAME_MAX], name[IGN_STORE_NAME_MAX];
    uint64_t random = io->random(io);
    ign_store_file_name(scratch, "tmp-control", generation, random);
    ign_store_file_name(made, "tmp-checkpoint", generation, random);
    ign_chain chain;
    rc = ign_chain_read(store, &chain);
    ign_ctl ctl = {.file = -1};
    if (rc == IGN_OK && chain.checkpoint != UINT64_MAX && chain.checkpoint >= durable)
        rc = IGN_EMPTY;
    if (rc == IGN_OK)
        rc = ign_checkpoint_scratch(store, &ctl, scratch, in_memory, atomic_load_explicit(&g->ctl.head->arena_bytes, memory_order_relaxed));
    bool created = rc == IGN_OK;
    if (rc == IGN_OK && chain.checkpoint != UINT64_MAX)
        rc = ign_checkpoint_load(store, chain.checkpoint_generation, chain.checkpoint, &ctl);
    uint64_t damaged = rc == IGN_OK ? ctl.root->damaged_bytes : 0;
    if (rc == IGN_OK)
        rc = ign_chain_replay(store, &chain, &ctl, durable, UINT64_MAX, NULL, NULL);
    ign_chain_free(&chain);
#ifndef IGN_MUTANT_REPLAYED_DAMAGE
    if (rc == IGN_OK && (ctl.root->damaged_bytes != damaged || ctl.root->applied != durable))
        rc = copy_shared(store, g, &ctl, &durable);
#endif
    ign_store_file_name(name, "checkpoint", generation, durable);
    if (rc == IGN_OK && ctl.root->applied != durable)
        rc = ign_store_sealed(g) ? IGN_E_STALE : IGN_E_CORRUPT;
    if (rc == IGN_OK)
        rc = repack(store, &ctl, scratch, generation);
    int file = -1;
    if (rc == IGN_OK)
        rc = ign_store_error(io->open(io, made, true, &file));
    if (rc == IGN_OK) {
        rc = ign_store_error(write_image(store, &ctl, file, generation, id));
        io->close(io, file);
    }
    /* If the generation ended meanwhile, the checkpoint may hold what the next generation does not have. */
    if (rc == IGN_OK && ign_store_sealed(g))
        rc = IGN_E_STALE;
    if (rc == IGN_OK) {
        int linked = io->link_new(io, made, name);
        if (linked == ENOENT) /* removed: a later generation has begun */
            rc = IGN_E_STALE;
        else
            rc = linked == EEXIST ? IGN_OK : ign_store_error(linked == 0 ? io->flush_names(io) : linked);
    }
    if (rc == IGN_OK) {
        store->image_generation = generation;
        store->image_bytes = ctl.root->used;
    }
    if (file >= 0)
        io->remove(io, made);
    if (created)
        ign_checkpoint_drop_scratch(store, &ctl, scratch);
    ign_store_leave(store, g);
    return rc;
}

int ign_store_checkpoint(ign_store *store)
{
    IGN_LANDING(store, );
    int rc = make_checkpoint(store, false);
    return rc == IGN_E_NO_ROOM ? make_checkpoint(store, true) : rc;
}
