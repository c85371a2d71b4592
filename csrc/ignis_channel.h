/* One direction of messages: a region's slab, forward ring, return ring and events put together.
 *
 *   producer                                         consumer
 *     reserve: slot from the slab      forward ring    peek: references, checked against the geometry
 *     write the bytes                  ------------>   read the bytes
 *     stage, publish (+ wake)                          advance, give_back in batches (+ wake)
 *     release what came home           <------------
 *                                      return ring
 *
 * The handle of a mapped region plays one role, that of a heap region both. The functions of one role are for one
 * thread at a time (the language binding may serialise several); the two roles never touch each other's fields.
 *
 * What a dead process leaves behind is taken up by the next one in its role. A new consumer starts at the published
 * read position and notes it; slots that were sent before it and never came home were lost with the dead one, and the
 * producer takes them back. A new producer takes back the slots that its predecessor had filled but not published.
 */
#ifndef IGNIS_CHANNEL_H
#define IGNIS_CHANNEL_H

#include "ignis_region.h"

#define IGN_CHANNEL_PENDING_MAX 64u
#define IGN_CHANNEL_AHEAD 64u
#define IGN_CHANNEL_SPIN_NS 20000u
#define IGN_CHANNEL_SLICE_NS 100000000u
#define IGN_LACKED_SLOTS 1u /* a slot, not a place in the ring */
#define IGN_LACKED_BYTES 2u /* room in the byte ring: any move of the read position may bring some */
#define IGN_NOTE_REFUSED 7u /* the note of a region whose consumer will take no more of it: not 0 */

typedef struct ign_message {
    const uint8_t *bytes;
    uint32_t length;
    uint32_t slot;
    uint32_t generation;
    uint16_t kind;
    int16_t code; /* IGN_OK, or IGN_E_FOREIGN: the reference points outside slab and byte ring, bytes is NULL */
} ign_message;

typedef struct ign_channel {
    ign_region region;
    bool produces;
    bool consumes;
    _Atomic bool closing; /* ends waits of this handle */

    /* producer */
    ign_ring_producer forward_out;
    ign_ring_consumer back_in;
    ign_slab slab;
    ign_bytering bytering;
    uint32_t small_bytes; /* messages up to this size go into the byte ring */
    bool small_waits;     /* and wait for room there; otherwise they go into the slab when it is full */
    uint32_t until_free;  /* small messages that go into the slab until the full byte ring is looked at again */
    uint32_t staged;      /* entries written behind the write position */
    uint32_t until_drain; /* reservations until returned buffers are looked for */
    /* Written by reserve, read by waits that may go on in other threads meanwhile: relaxed, each a word of its own. */
    _Atomic uint64_t swept_pos;     /* orphans of consumers that began at or before this were taken back */
    _Atomic uint32_t lacked;        /* what the last IGN_FULL was for want of: IGN_LACKED_* */
    _Atomic uint64_t full_read_pos; /* and the consumer's position that it had seen by then */
    uint64_t sent;
    uint64_t bad_returns; /* references that came home wrong: refused, counted */

    /* consumer */
    ign_ring_consumer forward_in;
    ign_ring_producer back_out;
    uint32_t pending;  /* given back, not published yet: entries behind back_out's write position */
    uint32_t ahead_at; /* peeked entries, checked, in private memory */
    uint32_t ahead_count;
    uint64_t received;
    ign_message ahead[IGN_CHANNEL_AHEAD];
} ign_channel;

/* IGN_OK, or what ign_region_heap / _create / _open / _attach answer, or IGN_E_CORRUPT. */
int ign_channel_heap(ign_channel *channel, const ign_region_config *config);
int ign_channel_create(ign_channel *channel, const char *path, const ign_region_config *config, ign_role role);
int ign_channel_open(ign_channel *channel, const char *path, ign_role role);
/* For tests of hostile memory: takes a role on a region that is mapped already. The region is moved in on IGN_OK. */
int ign_channel_adopt(ign_channel *channel, ign_region *region, ign_role role);
/* Publishes what is pending, detaches, unmaps. Nobody may be inside a wait or hold a message. Idempotent. */
void ign_channel_close(ign_channel *channel);
/* Ends waits on this handle (IGN_E_CLOSED) from any thread. */
void ign_channel_interrupt(ign_channel *channel);

/* -- producer ----------------------------------------------------------------------------------------------------- */

/* Room for `size` bytes, in the byte ring or in a slot of the slab, and a place in the ring for it. *at is where to write.
 * IGN_OK | IGN_FULL (ring or size class; wait for space) | IGN_E_TOO_LARGE | IGN_E_CORRUPT | IGN_E_THREAD. */
int ign_channel_reserve(ign_channel *channel, size_t size, ign_slab_ref *ref, uint8_t **at);
/* For a consumer that takes messages in order and holds none beyond its read position: those of up to `size` bytes go into
 * the byte ring and nowhere else. Its room is then every size's, and what does not fit waits (reserve: IGN_FULL) until the
 * read position has moved on. At most a quarter of the byte ring; before the first message. false: `size` is out of range. */
bool ign_channel_set_small(ign_channel *channel, uint32_t size);
/* Takes home all buffers that the consumer is done with, and those that a dead one lost. IGN_OK | IGN_E_CORRUPT | IGN_E_THREAD. */
int ign_channel_collect(ign_channel *channel);
/* Queues a written slot behind those already staged. */
void ign_channel_stage(ign_channel *channel, const ign_slab_ref *ref, uint16_t kind);
/* Gives an unstaged slot back. */
void ign_channel_abort(ign_channel *channel, const ign_slab_ref *ref);
/* Publishes all staged entries with one store and wakes a sleeping consumer. */
void ign_channel_publish(ign_channel *channel);

/* -- consumer ----------------------------------------------------------------------------------------------------- */

/* Messages that are there, not taken yet: *got of them at *messages (1..IGN_CHANNEL_AHEAD on IGN_OK), valid until the
 * next peek. IGN_OK | IGN_EMPTY | IGN_E_CORRUPT | IGN_E_THREAD. */
int ign_channel_peek(ign_channel *channel, const ign_message **messages, uint32_t *got);
/* Takes the first `count` of what was peeked. The bytes of those in the slab stay valid until given back; those of the
 * others (slot == IGN_BYTERING_SLOT) until here. */
void ign_channel_advance(ign_channel *channel, uint32_t count);
/* For who must see to the messages before it takes them: up to `max` of those that are there, behind the first `skip` from
 * the read position on, at *messages; `entries` is room for as many. They stay where they are, for this consumer and for one that follows it.
 * *got is set in every case. IGN_OK | IGN_EMPTY | IGN_E_CORRUPT | IGN_E_THREAD. Not to be mixed with peek and advance. */
int ign_channel_survey(
    ign_channel *channel, uint32_t skip, ign_ring_entry *entries, ign_message *messages, uint32_t max, uint32_t *got);
/* Takes the first `count` surveyed messages. Only then may their slots be given back: in the other order a slot could be
 * written anew while an entry that a successor would read still names it. */
void ign_channel_take(ign_channel *channel, uint32_t count);
/* Sends a slot home; published in batches. Nothing to do for IGN_BYTERING_SLOT. IGN_OK | IGN_E_CORRUPT (more than there are slots). */
int ign_channel_give_back(ign_channel *channel, uint32_t slot, uint32_t generation);
/* Publishes what was given back and the read position, wakes a sleeping producer. */
void ign_channel_flush(ign_channel *channel);

/* -- waiting; no other call of the role is needed or made, so a binding may drop its lock ------------------------- */

/* One slice: until there is something, or for at most timeout_ns (cut to IGN_CHANNEL_SLICE_NS).
 * IGN_OK (look again) | IGN_TIMEOUT | IGN_E_PEER_DEAD and IGN_E_CLOSED (nothing is left and nobody will send: the peer
 * died, or closed, or this handle was interrupted) | IGN_E_TRUNCATED | IGN_E_FORKED.
 * Before the first slice of a wait pass spin = true. */
int ign_channel_wait_items(ign_channel *channel, uint64_t timeout_ns, bool spin);
/* The same for what the last IGN_FULL lacked: a place in the ring, room in the byte ring, or with `slots` a slot that comes
 * home. Without `slots` no slot is waited for, whatever was lacking. */
int ign_channel_wait_space(ign_channel *channel, uint64_t timeout_ns, bool spin, bool slots);

/* For a producer whose messages must survive the consumer: waits until the read position is not `seen`, or with `slots`
 * until a slot came home, whether a consumer is there or not. IGN_OK (look again) | IGN_TIMEOUT | IGN_E_CLOSED (this
 * handle was interrupted) | IGN_E_TRUNCATED | IGN_E_FORKED. */
int ign_channel_wait_progress(ign_channel *channel, uint64_t seen, bool slots, uint64_t timeout_ns);

/* For a consumer of many channels whose producers ring one bell (an event of their own) after publishing: one slice of
 * sleep until one of the channels has something or the bell's sequence is not *seen, which is then brought up to date.
 * IGN_OK (look again) | IGN_TIMEOUT. */
int ign_channel_wait_any(ign_event *bell, uint64_t *seen, ign_channel *const *channels, uint32_t count, uint64_t timeout_ns);

/* How far the consumer is: everything sent before this position was taken. */
static inline uint64_t ign_channel_read_pos(ign_channel *channel)
{
    ign_ring_control *ring = ign_region_at(&channel->region, channel->region.ring_offset);
    /* Acquire: what the consumer did before it took those messages has happened. */
    return atomic_load_explicit(&ring->read_pos, memory_order_acquire);
}

static inline uint64_t ign_channel_depth(ign_channel *channel)
{
    uint64_t depth = ign_ring_depth(ign_region_at(&channel->region, channel->region.ring_offset));
    return depth <= channel->region.ring_capacity ? depth : channel->region.ring_capacity;
}

#endif
