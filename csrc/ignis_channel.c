#include "ignis_channel.h"

#include <string.h>

#define DRAIN_EVERY 64u /* reservations between two looks at the return ring */

/* -- opening ------------------------------------------------------------------------------------------------------ */

static int open_producer(ign_channel *ch)
{
    ign_region *r = &ch->region;
    int rc = ign_ring_producer_open(&ch->forward_out, ign_region_at(r, r->ring_offset), r->ring_capacity);
    if (rc == IGN_OK)
        rc = ign_ring_consumer_open(&ch->back_in, ign_region_at(r, r->return_offset), r->return_capacity);
    if (rc != IGN_OK)
        return rc;
    ign_slab_word *words = ign_region_at(r, r->words_offset);
    /* What a predecessor had allocated and not published nobody else knows of: it is free. */
    for (uint32_t slot = 0; slot < r->table.slot_count; slot++) {
        bool published = words[slot].sent_pos != IGN_SLAB_HELD && ch->forward_out.write_pos - words[slot].sent_pos - 1 < INT64_MAX;
        if ((words[slot].generation & 1u) != 0 && !published)
            words[slot].generation++;
    }
    bool unused = ch->back_in.read_pos == 0 && ch->forward_out.write_pos == 0;
    atomic_store_explicit(&ch->swept_pos, unused ? 0 : UINT64_MAX, memory_order_relaxed);
    ch->until_drain = DRAIN_EVERY;
    ch->until_free = 1;
    ch->small_bytes = IGN_BYTERING_MAX_MESSAGE;
    ch->small_waits = false;
    ch->produces = true;
    rc = ign_bytering_open(&ch->bytering, ign_region_at(r, r->bytering_offset), r->bytering_bytes, &ch->forward_out);
    if (rc != IGN_OK)
        return rc;
    return ign_slab_open(&ch->slab, &r->table, words, ign_region_at(r, r->data_offset));
}

static int open_consumer(ign_channel *ch)
{
    ign_region *r = &ch->region;
    int rc = ign_ring_consumer_open(&ch->forward_in, ign_region_at(r, r->ring_offset), r->ring_capacity);
    if (rc == IGN_OK)
        rc = ign_ring_producer_open(&ch->back_out, ign_region_at(r, r->return_offset), r->return_capacity);
    ch->consumes = rc == IGN_OK;
    return rc;
}

static int finish(ign_channel *ch, int rc)
{
    if (rc != IGN_OK) {
        ign_slab_close(&ch->slab);
        ign_bytering_close(&ch->bytering);
        ign_region_close(&ch->region);
    }
    return rc;
}

int ign_channel_heap(ign_channel *ch, const ign_region_config *config)
{
    memset(ch, 0, sizeof *ch);
    int rc = ign_region_heap(&ch->region, config);
    if (rc != IGN_OK)
        return rc;
    rc = open_producer(ch);
    return finish(ch, rc == IGN_OK ? open_consumer(ch) : rc);
}

int ign_channel_create(ign_channel *ch, const char *path, const ign_region_config *config, ign_role role)
{
    memset(ch, 0, sizeof *ch);
    int rc = ign_region_create(&ch->region, path, config, role);
    if (rc != IGN_OK)
        return rc;
    return finish(ch, role == IGN_PRODUCER ? open_producer(ch) : open_consumer(ch));
}

int ign_channel_adopt(ign_channel *ch, ign_region *region, ign_role role)
{
    memset(ch, 0, sizeof *ch);
    ign_ring_control *control = ign_region_at(region, region->ring_offset);
    uint64_t attach_pos = role == IGN_CONSUMER ? atomic_load_explicit(&control->read_pos, memory_order_acquire)
                                               : atomic_load_explicit(&control->write_pos, memory_order_acquire);
    int rc = ign_region_attach(region, role, attach_pos);
    if (rc != IGN_OK)
        return rc;
    ch->region = *region;
    rc = role == IGN_PRODUCER ? open_producer(ch) : open_consumer(ch);
    if (rc != IGN_OK) {
        ign_slab_close(&ch->slab);
        ign_bytering_close(&ch->bytering);
        ign_region_detach(region, role);
    }
    return rc;
}

int ign_channel_open(ign_channel *ch, const char *path, ign_role role)
{
    memset(ch, 0, sizeof *ch);
    ign_region region;
    int rc = ign_region_open(&region, path);
    if (rc != IGN_OK)
        return rc;
    rc = ign_channel_adopt(ch, &region, role);
    if (rc != IGN_OK) {
        memset(ch, 0, sizeof *ch);
        ign_region_close(&region);
    }
    return rc;
}

void ign_channel_interrupt(ign_channel *ch)
{
    atomic_store_explicit(&ch->closing, true, memory_order_seq_cst);
    if (ch->region.header == NULL)
        return;
    ign_event_notify(&ch->region.header->items);
    ign_event_notify(&ch->region.header->space);
}

void ign_channel_close(ign_channel *ch)
{
    if (ch->region.header == NULL)
        return;
    /* A child after fork() holds a copy of a handle whose roles are its parent's: it only unmaps. */
    if (ch->region.fork_generation == ign_fork_generation()) {
        if (ch->consumes) {
            ign_channel_flush(ch);
            ign_region_detach(&ch->region, IGN_CONSUMER);
        }
        if (ch->produces)
            ign_region_detach(&ch->region, IGN_PRODUCER);
    }
    ign_slab_close(&ch->slab);
    ign_bytering_close(&ch->bytering);
    ign_region_close(&ch->region);
}

/* -- producer ----------------------------------------------------------------------------------------------------- */

int ign_channel_collect(ign_channel *ch)
{
    ch->until_drain = DRAIN_EVERY;
    /* O1: acquire, pairs with the release in take_role (ignis_region.c): all that earlier consumers published to the
     * return ring is visible to the drain that follows. So of what was sent before the present consumer began, what is
     * still out after the drain was lost with a consumer that died. */
    uint64_t began = atomic_load_explicit(&ch->region.header->owners[IGN_CONSUMER].attach_pos, memory_order_acquire);
    ign_ring_entry entries[64];
    uint32_t got;
    int rc;
    while ((rc = ign_ring_try_pop_many_spsc(&ch->back_in, entries, 64, &got)) == IGN_OK)
        for (uint32_t i = 0; i < got; i++)
            if (ign_slab_release(&ch->slab, entries[i].slot, entries[i].generation) != IGN_OK)
                ch->bad_returns++; /* a hostile or broken peer; the slab is unharmed */
    if (rc != IGN_EMPTY)
        return rc;
    if (began == atomic_load_explicit(&ch->swept_pos, memory_order_relaxed))
        return IGN_OK;
    if (ch->forward_out.write_pos - began > INT64_MAX)
        return IGN_E_CORRUPT; /* a consumer that began where nothing was ever sent */
    for (uint32_t slot = 0; slot < ch->slab.table.slot_count; slot++) {
        const ign_slab_word *word = &ch->slab.words[slot];
        if ((word->generation & 1u) != 0 && word->sent_pos != IGN_SLAB_HELD && began - word->sent_pos - 1 < INT64_MAX)
            (void)ign_slab_release(&ch->slab, slot, word->generation);
    }
    atomic_store_explicit(&ch->swept_pos, began, memory_order_relaxed);
    return IGN_OK;
}

bool ign_channel_set_small(ign_channel *ch, uint32_t size)
{
    if (size == 0 || size > ch->bytering.bytes / 4)
        return false;
    ch->small_bytes = size;
    ch->small_waits = true;
    return true;
}

/* IGN_FULL, and for the wait that follows what was lacking when the consumer was at `read_pos`. */
static int full(ign_channel *ch, uint32_t lacked, uint64_t read_pos)
{
    atomic_store_explicit(&ch->lacked, lacked, memory_order_relaxed);
    atomic_store_explicit(&ch->full_read_pos, read_pos, memory_order_relaxed);
    return IGN_FULL;
}

/* UINT32_MAX: it goes into the slab, or waits. *read_pos: where the consumer was, if that was looked at. */
static uint32_t reserve_small(ign_channel *ch, uint32_t size, uint64_t *read_pos)
{
    uint32_t offset = ign_bytering_reserve(&ch->bytering, size);
    if (offset == UINT32_MAX && --ch->until_free == 0) {
        /* Not at every message: while the consumer is far behind, this line is the other core's. */
        ch->until_free = ch->small_waits ? 1 : DRAIN_EVERY;
        *read_pos = atomic_load_explicit(&ch->forward_out.control->read_pos, memory_order_acquire); /* R2 */
        uint64_t next_pos = ch->forward_out.write_pos + ch->staged;
        if (next_pos - *read_pos <= ch->region.ring_capacity) {
            ign_bytering_free(&ch->bytering, *read_pos, next_pos);
            uint32_t limit;
            do { /* a lap grows by less than a message may need */
                limit = ch->bytering.limit;
                ign_bytering_turn(&ch->bytering, size);
                offset = ign_bytering_reserve(&ch->bytering, size);
            } while (offset == UINT32_MAX && ch->bytering.limit > limit);
        }
        if (offset != UINT32_MAX)
            ch->until_free = 1;
    }
    return offset;
}

static void reserved_small(const ign_channel *ch, uint32_t offset, size_t size, ign_slab_ref *ref, uint8_t **at)
{
    *ref = (ign_slab_ref){.slot = IGN_BYTERING_SLOT, .generation = offset, .length = (uint32_t)size};
    *at = ch->bytering.data + offset;
}

int ign_channel_reserve(ign_channel *ch, size_t size, ign_slab_ref *ref, uint8_t **at)
{
    if (size > ch->region.max_message_bytes)
        return IGN_E_TOO_LARGE;
    uint32_t room;
    int rc = ign_ring_reserve_spsc(&ch->forward_out, ch->staged + 1, &room);
    if (rc < 0)
        return rc;
    if (rc == IGN_FULL || room <= ch->staged)
        return full(ch, 0, ch->forward_out.cached_read_pos);
    bool small = ch->bytering.bytes != 0 && size <= ch->small_bytes;
    uint64_t read_pos = 0;
    if (ch->bytering.bytes != 0)
        ign_bytering_mark(&ch->bytering, ch->forward_out.write_pos + ch->staged);
    if (small) {
        uint32_t offset = reserve_small(ch, (uint32_t)size, &read_pos);
        if (offset != UINT32_MAX) {
            reserved_small(ch, offset, size, ref, at);
            return IGN_OK;
        }
        if (ch->small_waits)
            return full(ch, IGN_LACKED_BYTES, read_pos);
    }
    if (--ch->until_drain == 0) {
        /* Now and then, not only when a class is empty: the buffers that came home last are the ones to use next, and
         * a walk through all of the slab would miss every cache. */
        rc = ign_channel_collect(ch);
        if (rc != IGN_OK)
            return rc;
    }
    rc = ign_slab_allocate(&ch->slab, size, ref);
    if (rc == IGN_E_EXHAUSTED) {
        rc = ign_channel_collect(ch);
        if (rc == IGN_OK)
            rc = ign_slab_allocate(&ch->slab, size, ref);
        if (rc == IGN_E_EXHAUSTED && small) {
            ch->until_free = 1; /* neither: now the other core's line is worth its price, here and when it is tried again */
            uint32_t offset = reserve_small(ch, (uint32_t)size, &read_pos);
            ch->until_free = 1;
            if (offset != UINT32_MAX) {
                reserved_small(ch, offset, size, ref, at);
                return IGN_OK;
            }
        }
        if (rc == IGN_E_EXHAUSTED)
            return full(ch, small ? IGN_LACKED_SLOTS | IGN_LACKED_BYTES : IGN_LACKED_SLOTS, read_pos);
    }
    if (rc != IGN_OK)
        return rc;
    uint32_t c = ign_slab_class_of(&ch->slab.table, ref->slot);
    const ign_slab_class *cls = &ch->slab.table.classes[c];
    *at = ch->slab.data + cls->data_offset + (uint64_t)(ref->slot - cls->first_slot) * cls->slot_bytes;
    return IGN_OK;
}

void ign_channel_stage(ign_channel *ch, const ign_slab_ref *ref, uint16_t kind)
{
    *ign_ring_reserved(&ch->forward_out, ch->staged) = (ign_ring_entry){
        .slot = ref->slot, .generation = ref->generation, .length = ref->length, .offset = (uint16_t)ref->offset, .kind = kind};
    if (ref->slot != IGN_BYTERING_SLOT)
        ch->slab.words[ref->slot].sent_pos = ch->forward_out.write_pos + ch->staged;
    ch->staged++;
}

void ign_channel_abort(ign_channel *ch, const ign_slab_ref *ref)
{
    if (ref->slot != IGN_BYTERING_SLOT)
        (void)ign_slab_release(&ch->slab, ref->slot, ref->generation);
}

void ign_channel_publish(ign_channel *ch)
{
    if (ch->staged == 0)
        return;
    ign_ring_commit_ordered_spsc(&ch->forward_out, ch->staged); /* S1 */
    ch->sent += ch->staged;
    ch->staged = 0;
    ign_event_notify(&ch->region.header->items); /* S3 */
}

/* -- consumer ----------------------------------------------------------------------------------------------------- */

/* The bytes are in the other core's cache. Asking for those of a later message while this one is handled hides most
 * of that way; more than a few at a time would only wait for each other. */
#define PREFETCH_AHEAD 4u

static void prefetch_message(const ign_message *message)
{
    if (message->length != 0) {
        __builtin_prefetch(message->bytes, 0);
        if (message->length > 64)
            __builtin_prefetch(message->bytes + 64, 0);
    }
}

/* Where a message's bytes are, checked against what we know of the geometry. */
static int resolve(const ign_channel *ch, const ign_ring_entry *entry, const uint8_t **at)
{
    if (entry->slot == IGN_BYTERING_SLOT) {
        uint32_t bytes = ch->region.bytering_bytes;
        if (entry->generation >= bytes || entry->length > bytes - entry->generation)
            return IGN_E_FOREIGN;
        *at = (const uint8_t *)ign_region_at(&ch->region, ch->region.bytering_offset) + entry->generation;
        return IGN_OK;
    }
    uint64_t offset;
    int rc = ign_slab_resolve(&ch->region.table, entry->slot, entry->offset, entry->length, &offset);
    if (rc == IGN_OK)
        *at = (const uint8_t *)ign_region_at(&ch->region, ch->region.data_offset) + offset;
    return rc;
}

static ign_message located(const ign_channel *ch, const ign_ring_entry *entry)
{
    const uint8_t *at = NULL;
    int code = resolve(ch, entry, &at);
    return (ign_message){.bytes = at,
                         .length = code == IGN_OK ? entry->length : 0,
                         .slot = entry->slot,
                         .generation = entry->generation,
                         .kind = entry->kind,
                         .code = (int16_t)code};
}

int ign_channel_survey(
    ign_channel *ch, uint32_t skip, ign_ring_entry *entries, ign_message *messages, uint32_t max, uint32_t *got)
{
    int rc = ign_ring_peek_behind_spsc(&ch->forward_in, skip, entries, max, got);
    for (uint32_t i = 0; i < *got; i++)
        messages[i] = located(ch, &entries[i]);
    return rc;
}

void ign_channel_take(ign_channel *ch, uint32_t count)
{
    ign_ring_release_spsc(&ch->forward_in, count);
    ch->received += count;
}

static int look_ahead(ign_channel *ch)
{
    ign_ring_entry entries[IGN_CHANNEL_AHEAD];
    uint32_t got;
    int rc = ign_ring_peek_spsc(&ch->forward_in, entries, IGN_CHANNEL_AHEAD, &got);
    if (rc != IGN_OK)
        return rc;
    for (uint32_t i = 0; i < got; i++)
        ch->ahead[i] = located(ch, &entries[i]);
    for (uint32_t i = 0; i < got && i < PREFETCH_AHEAD; i++)
        prefetch_message(&ch->ahead[i]);
    ch->ahead_at = 0;
    ch->ahead_count = got;
    return IGN_OK;
}

int ign_channel_peek(ign_channel *ch, const ign_message **messages, uint32_t *got)
{
    *got = 0;
    if (ch->ahead_at == ch->ahead_count) {
        int rc = look_ahead(ch);
        if (rc != IGN_OK)
            return rc;
    }
    *messages = &ch->ahead[ch->ahead_at];
    *got = ch->ahead_count - ch->ahead_at;
    return IGN_OK;
}

void ign_channel_advance(ign_channel *ch, uint32_t count)
{
    ign_ring_release_spsc(&ch->forward_in, count);
    ch->received += count;
    ch->ahead_at += count;
    if (ch->ahead_at + PREFETCH_AHEAD <= ch->ahead_count)
        prefetch_message(&ch->ahead[ch->ahead_at + PREFETCH_AHEAD - 1]);
}

/* How many buffers may be held back before they go home: few enough never to hold up a small class. */
static uint32_t pending_limit(const ign_channel *ch, uint32_t slot)
{
    uint32_t c = ign_slab_class_of(&ch->region.table, slot);
    uint32_t limit = c < IGN_SLAB_MAX_CLASSES ? ch->region.table.classes[c].count / 8 : 1;
    return limit < IGN_CHANNEL_PENDING_MAX ? limit : IGN_CHANNEL_PENDING_MAX;
}

int ign_channel_give_back(ign_channel *ch, uint32_t slot, uint32_t generation)
{
    if (slot == IGN_BYTERING_SLOT) {
        if (ign_event_has_sleeper(&ch->region.header->space))
            ign_channel_flush(ch);
        return IGN_OK;
    }
    uint32_t room;
    int rc = ign_ring_reserve_spsc(&ch->back_out, ch->pending + 1, &room);
    if (rc == IGN_OK && room > ch->pending) {
        *ign_ring_reserved(&ch->back_out, ch->pending) = (ign_ring_entry){.slot = slot, .generation = generation};
        ch->pending++;
    } else if (rc == IGN_OK || rc == IGN_FULL) {
        /* It has a place for every slot there is: only a peer that does not keep to the protocol can fill it. */
        rc = IGN_E_CORRUPT;
    }
    /* A relaxed look at the sleeper's flag on every buffer: if it lies for a moment, the next buffer, the next flush or
     * the sleeper's own slice puts it right. Only the flush below is the ordered half of the protocol. */
    if (ch->pending >= pending_limit(ch, slot) || ign_event_has_sleeper(&ch->region.header->space))
        ign_channel_flush(ch);
    return rc;
}

void ign_channel_flush(ign_channel *ch)
{
    if (ch->pending != 0) {
#ifdef IGN_MUTANT_RETURN_RELEASE
        ign_ring_commit_spsc(&ch->back_out, ch->pending);
#else
        /* W1 of the return ring, and S1 of it: a producer that sleeps for slots looks at this position (S4) and at no other,
         * so a release here and S1 below would order nothing between that look and our look at the flag. */
        ign_ring_commit_ordered_spsc(&ch->back_out, ch->pending);
#endif
        ch->pending = 0;
    }
    ign_ring_announce_spsc(&ch->forward_in); /* S1 of the forward ring */
    ign_event_notify(&ch->region.header->space); /* S3 */
}

/* -- waiting ------------------------------------------------------------------------------------------------------ */

/* The shared positions, not the handles' own: those belong to whoever holds the role at this moment. */
static bool has_items(ign_channel *ch)
{
    ign_ring_control *ring = ign_region_at(&ch->region, ch->region.ring_offset);
    /* S4: after the flag (S2). The write position is what the other side stores; ours cannot change meanwhile. */
    return atomic_load_explicit(&ring->write_pos, memory_order_seq_cst) !=
           atomic_load_explicit(&ring->read_pos, memory_order_relaxed);
}

static bool has_space(ign_channel *ch, bool slots)
{
    ign_region *r = &ch->region;
    ign_ring_control *ring = ign_region_at(r, r->ring_offset), *back = ign_region_at(r, r->return_offset);
    uint32_t lacked = atomic_load_explicit(&ch->lacked, memory_order_relaxed);
    if (slots && atomic_load_explicit(&back->write_pos, memory_order_seq_cst) != /* S4 for the slots */
                     atomic_load_explicit(&back->read_pos, memory_order_relaxed))
        return true;
    if (slots && (lacked & IGN_LACKED_BYTES) == 0)
        return false;
    uint64_t read_pos = atomic_load_explicit(&ring->read_pos, memory_order_seq_cst); /* S4 for the ring and the byte ring */
    if ((lacked & IGN_LACKED_BYTES) != 0)
        return read_pos != atomic_load_explicit(&ch->full_read_pos, memory_order_relaxed);
    return atomic_load_explicit(&ring->write_pos, memory_order_relaxed) - read_pos < r->ring_capacity;
}

/* Orphans are space too, but nobody announces them: a new consumer's start position is the sign. */
static bool has_orphans(ign_channel *ch)
{
    return atomic_load_explicit(&ch->region.header->owners[IGN_CONSUMER].attach_pos, memory_order_acquire) !=
           atomic_load_explicit(&ch->swept_pos, memory_order_relaxed);
}

typedef struct wait_request {
    ign_channel *ch;
    ign_event *event;
    ign_role peer;
    bool for_items;
    bool slots;
} wait_request;

static bool ready(const wait_request *w)
{
    return w->for_items ? has_items(w->ch) : has_space(w->ch, w->slots) || (w->slots && has_orphans(w->ch));
}

static bool peer_left(ign_channel *ch, ign_role peer)
{
    return atomic_load_explicit(&ch->region.header->owners[peer].state, memory_order_seq_cst) == IGN_OWNER_DETACHED;
}

static int wait_slice(const wait_request *w, uint64_t timeout_ns, bool spin)
{
    ign_channel *ch = w->ch;
    int rc = ign_region_check(&ch->region);
    if (rc != IGN_OK)
        return rc;
    if (ready(w))
        return IGN_OK;
    uint64_t now = ign_now_ns();
    uint64_t until = now + (timeout_ns < IGN_CHANNEL_SLICE_NS ? timeout_ns : IGN_CHANNEL_SLICE_NS);
    if (spin) {
        uint64_t spin_until = now + IGN_CHANNEL_SPIN_NS < until ? now + IGN_CHANNEL_SPIN_NS : until;
        do {
            for (int i = 0; i < 32; i++) {
                if (ready(w))
                    return IGN_OK;
                ign_cpu_relax();
            }
            now = ign_now_ns();
        } while (now < spin_until);
    }
    uint32_t announced = ign_event_announce(w->event); /* S2 */
    if (ready(w)) /* S4 */
        return IGN_OK;
    if (atomic_load_explicit(&ch->closing, memory_order_seq_cst))
        return IGN_E_CLOSED;
    /* A peer that closed says so in the region; whether it died costs a look at the process table, once per slice.
     * In both cases the ring is looked at once more afterwards: what the peer published comes first. */
    if (peer_left(ch, w->peer))
        return ready(w) ? IGN_OK : IGN_E_CLOSED;
    now = ign_now_ns();
    if (now >= until) {
        rc = ign_region_check(&ch->region); /* a lost file reads as zeros, which look like an empty ring */
        return rc == IGN_OK ? IGN_TIMEOUT : rc;
    }
    (void)ign_event_sleep(w->event, announced, until - now);
    if (ready(w))
        return IGN_OK;
    if (atomic_load_explicit(&ch->closing, memory_order_seq_cst))
        return IGN_E_CLOSED;
    rc = ign_region_check_size(&ch->region);
    if (rc != IGN_OK || ch->region.fd < 0)
        return rc != IGN_OK ? rc : IGN_TIMEOUT;
    int peer = ign_region_owner_state(&ch->region, w->peer);
    if (peer < 0)
        return ready(w) ? IGN_OK : peer;
    return IGN_TIMEOUT;
}

/* Not what the caller makes of the ring's depth: by the time it looks, the consumer has made room in the ring, and a sleep for
 * slots would be one that nothing ends. */
static bool lacks_slots(const ign_channel *ch)
{
    return (atomic_load_explicit(&ch->lacked, memory_order_relaxed) & IGN_LACKED_SLOTS) != 0;
}

int ign_channel_wait_items(ign_channel *ch, uint64_t timeout_ns, bool spin)
{
    wait_request w = {.ch = ch, .event = &ch->region.header->items, .peer = IGN_PRODUCER, .for_items = true};
    return wait_slice(&w, timeout_ns, spin);
}

int ign_channel_wait_space(ign_channel *ch, uint64_t timeout_ns, bool spin, bool slots)
{
    wait_request w = {.ch = ch, .event = &ch->region.header->space, .peer = IGN_CONSUMER, .slots = slots && lacks_slots(ch)};
    return wait_slice(&w, timeout_ns, spin);
}

static bool progressed(ign_channel *ch, uint64_t seen, bool slots)
{
    if (slots)
        return has_space(ch, true) || has_orphans(ch);
    ign_ring_control *ring = ign_region_at(&ch->region, ch->region.ring_offset);
    return atomic_load_explicit(&ring->read_pos, memory_order_seq_cst) != seen; /* S4 */
}

int ign_channel_wait_progress(ign_channel *ch, uint64_t seen, bool slots, uint64_t timeout_ns)
{
    ign_event *event = &ch->region.header->space;
    int rc = ign_region_check(&ch->region);
    slots = slots && lacks_slots(ch);
    if (rc != IGN_OK || progressed(ch, seen, slots))
        return rc;
    uint32_t announced = ign_event_announce(event); /* S2 */
    if (progressed(ch, seen, slots)) /* S4 */
        return IGN_OK;
    if (atomic_load_explicit(&ch->closing, memory_order_seq_cst))
        return IGN_E_CLOSED;
    if (timeout_ns != 0)
        (void)ign_event_sleep(event, announced, timeout_ns < IGN_CHANNEL_SLICE_NS ? timeout_ns : IGN_CHANNEL_SLICE_NS);
    rc = ign_region_check_size(&ch->region); /* a lost file reads as zeros: a position that changed */
    if (rc != IGN_OK)
        return rc;
    if (progressed(ch, seen, slots))
        return IGN_OK;
    return atomic_load_explicit(&ch->closing, memory_order_seq_cst) ? IGN_E_CLOSED : IGN_TIMEOUT;
}

static bool any_ready(ign_event *bell, uint64_t *seen, ign_channel *const *channels, uint32_t count)
{
    uint64_t sequence = atomic_load_explicit(&bell->sequence, memory_order_seq_cst); /* S4 */
    bool rung = sequence != *seen;
    *seen = sequence;
    for (uint32_t i = 0; i < count && !rung; i++)
        rung = has_items(channels[i]); /* S4 */
    return rung;
}

int ign_channel_wait_any(ign_event *bell, uint64_t *seen, ign_channel *const *channels, uint32_t count, uint64_t timeout_ns)
{
    if (any_ready(bell, seen, channels, count))
        return IGN_OK;
    uint32_t announced = ign_event_announce(bell); /* S2 */
    if (any_ready(bell, seen, channels, count))
        return IGN_OK;
    if (timeout_ns != 0)
        (void)ign_event_sleep(bell, announced, timeout_ns < IGN_CHANNEL_SLICE_NS ? timeout_ns : IGN_CHANNEL_SLICE_NS);
    return any_ready(bell, seen, channels, count) ? IGN_OK : IGN_TIMEOUT;
}
