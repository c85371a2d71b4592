/* One block of memory that holds a channel: header, event words, forward ring, return ring, slab.
 *
 * On the heap, or in a file that two processes map. A mapped region is complete before its name appears (it is built
 * under a temporary name and linked), so whoever opens it sees a whole one or none. What a process put there survives
 * its death, kill -9 included; it is not meant to survive the machine.
 *
 *   offset  part
 *        0  header: magic, layout version, sizes, slab classes          (never changes after creation)
 *      512  owner of the producer's side     640  owner of the consumer's side
 *      768  notes: eight words for the users
 *      896  event "items" (a consumer sleeps)   1024  event "space" (a producer sleeps)
 *     2048  label: bytes that the maker wrote there, for whoever finds the file (may be absent)
 *     4096  forward ring: control block, entries
 *        .  return ring: control block, entries
 *        .  slab words (one per slot, written by the producer alone)
 *        .  byte ring, page aligned (may be absent)
 *        .  slab data, page aligned
 *
 * Integers are in host order: both sides are on one machine. A file of the other byte order fails on its magic.
 *
 * A file that shrinks under a mapping turns accesses into SIGBUS. A handler that is installed with the first mapping
 * puts zero pages in the lost range and marks the region as poisoned, and every later call on it answers
 * IGN_E_TRUNCATED; signals on other addresses go to the handler that was there before.
 */
#ifndef IGNIS_REGION_H
#define IGNIS_REGION_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ignis_bytering.h"
#include "ignis_error.h"
#include "ignis_ring.h"
#include "ignis_slab.h"
#include "ignis_wait.h"

#define IGN_REGION_MAGIC 0x314E475253494749ull /* the bytes "IGISRGN1" of a little-endian machine */
#define IGN_REGION_VERSION 1u
#define IGN_REGION_HEADER_BYTES 4096u
#define IGN_REGION_NOTES 8u
#define IGN_REGION_LABEL_OFFSET 2048u
#define IGN_REGION_LABEL_MAX 2048u
#define IGN_REGION_MAX_BYTES (1ull << 40)

typedef enum ign_role { IGN_PRODUCER = 0, IGN_CONSUMER = 1 } ign_role;

enum { IGN_OWNER_NEVER = 0, IGN_OWNER_ATTACHED = 1, IGN_OWNER_DETACHED = 2 };

/* What became of the name of a region's file: it leads there, the file has another one (it or a directory above it was moved,
 * or something hides it), or it has none any more and is gone with its last mapping. */
typedef enum ign_naming { IGN_NAMED = 0, IGN_RENAMED = 1, IGN_UNNAMED = 2 } ign_naming;

typedef struct ign_owner {
    alignas(IGN_LINE_BYTES) _Atomic uint32_t state;
    _Atomic uint32_t pid;
    _Atomic uint64_t start_time;
    _Atomic uint64_t namespaces; /* ign_process_namespaces() */
    _Atomic uint64_t attach_pos; /* forward ring position at which this owner began */
} ign_owner;

typedef struct ign_region_header {
    uint64_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint32_t ring_capacity;
    uint32_t return_capacity;
    uint64_t max_message_bytes;
    uint64_t ring_offset;
    uint64_t return_offset;
    uint64_t words_offset;
    uint64_t data_offset;
    uint32_t class_count;
    uint32_t slot_count;
    uint64_t data_bytes;
    uint64_t bytering_offset;
    uint32_t bytering_bytes;
    uint32_t label_bytes;
    uint32_t reserved[6];
    ign_slab_class classes[IGN_SLAB_MAX_CLASSES];
    ign_owner owners[2];
    alignas(IGN_LINE_BYTES) _Atomic uint64_t notes[IGN_REGION_NOTES];
    alignas(IGN_LINE_BYTES) ign_event items;
    alignas(IGN_LINE_BYTES) ign_event space;
} ign_region_header;
static_assert(offsetof(ign_region_header, classes) == 128, "layout");
static_assert(offsetof(ign_region_header, owners) == 512, "layout");
static_assert(offsetof(ign_region_header, notes) == 768, "layout");
static_assert(offsetof(ign_region_header, items) == 896, "layout");
static_assert(offsetof(ign_region_header, space) == 1024, "layout");
static_assert(sizeof(ign_region_header) <= IGN_REGION_LABEL_OFFSET, "layout");
static_assert(IGN_REGION_LABEL_OFFSET + IGN_REGION_LABEL_MAX <= IGN_REGION_HEADER_BYTES, "layout");

typedef struct ign_region_config {
    uint32_t ring_capacity;      /* power of two */
    uint32_t bytering_bytes;     /* see ign_bytering_size_valid; with one, receivers copy small messages before they advance */
    uint64_t max_message_bytes;  /* at most the largest class */
    uint32_t class_count;
    uint32_t slot_bytes[IGN_SLAB_MAX_CLASSES];
    uint32_t slot_counts[IGN_SLAB_MAX_CLASSES];
    const uint8_t *label; /* copied into the header page before the file's name appears; NULL: none */
    uint32_t label_bytes; /* up to IGN_REGION_LABEL_MAX */
} ign_region_config;

typedef struct ign_guard ign_guard; /* one mapping as the SIGBUS handler knows it */

typedef struct ign_region {
    ign_region_header *header; /* NULL: closed */
    size_t bytes;
    int fd; /* -1 on the heap */
    uint32_t fork_generation;
    ign_guard *guard;
    /* Copies of the checked header: the shared one can be scribbled over at any time. */
    uint32_t ring_capacity;
    uint32_t return_capacity;
    uint64_t max_message_bytes;
    uint64_t ring_offset;
    uint64_t return_offset;
    uint64_t words_offset;
    uint64_t bytering_offset;
    uint32_t bytering_bytes;
    uint64_t data_offset;
    uint32_t label_bytes;
    ign_slab_table table;
} ign_region;

/* Default classes for a ring capacity: 256 B, 1 KiB, 4 KiB, 16 KiB, then by four up to max_message_bytes, with fewer slots
 * the larger they are; a byte ring with 128 bytes for each place in the ring, at most 8 MiB. IGN_OK | IGN_E_INVALID. */
int ign_region_config_default(ign_region_config *config, uint32_t ring_capacity, uint64_t max_message_bytes);

/* IGN_OK | IGN_E_INVALID | IGN_E_NOMEM. */
int ign_region_heap(ign_region *region, const ign_region_config *config);
/* Makes the file (0600) with `role` already taken by this process. IGN_OK | IGN_E_INVALID | IGN_E_IO (errno: EEXIST
 * when the name is taken, ENOSPC: the space is allocated now, so that a full tmpfs is an error here and no SIGBUS). */
int ign_region_create(ign_region *region, const char *path, const ign_region_config *config, ign_role role);
/* Maps an existing file; takes no role. Everything is checked before anything is used.
 * IGN_OK | IGN_E_IO | IGN_E_MAGIC | IGN_E_VERSION | IGN_E_SIZE | IGN_E_TRUNCATED. */
int ign_region_open(ign_region *region, const char *path);
/* Checks a header against a file size; fills the copies in `region`. For ign_region_open and its fuzz target. */
int ign_region_check_header(ign_region *region, const ign_region_header *header, uint64_t file_bytes);
void ign_region_close(ign_region *region); /* unmaps; idempotent; detach first */

/* Takes a role: IGN_OK | IGN_E_BUSY (it has a living owner) | IGN_E_IO. */
int ign_region_attach(ign_region *region, ign_role role, uint64_t attach_pos);
/* Gives it back: the other side will see a clean end. */
void ign_region_detach(ign_region *region, ign_role role);
/* IGN_OK: alive | IGN_EMPTY: nobody was ever there | IGN_E_CLOSED: left cleanly | IGN_E_PEER_DEAD. */
int ign_region_owner_state(ign_region *region, ign_role role);

/* Cheap, for every call: IGN_OK | IGN_E_CLOSED | IGN_E_FORKED | IGN_E_TRUNCATED (poisoned). */
int ign_region_check(const ign_region *region);
/* With a system call, between waits: also notices a file that shrank though nobody touched the lost part. */
int ign_region_check_size(ign_region *region);
/* With two system calls: whether `path` leads to the region's file. What cannot be seen counts as named. */
ign_naming ign_region_naming(const ign_region *region, const char *path);

static inline void *ign_region_at(const ign_region *region, uint64_t offset)
{
    return (uint8_t *)region->header + offset;
}

/* The label, region->label_bytes long. Shared memory like all the rest: copy it once, then check the copy. */
static inline const uint8_t *ign_region_label(const ign_region *region)
{
    return ign_region_at(region, IGN_REGION_LABEL_OFFSET);
}

/* A word for the users' own purposes; index < IGN_REGION_NOTES. What was written before a note is visible to who reads
 * the note: N1 (release) pairs with N2 (acquire). */
static inline void ign_region_set_note(ign_region *region, uint32_t index, uint64_t value)
{
    atomic_store_explicit(&region->header->notes[index], value, memory_order_release); /* N1 */
}

static inline uint64_t ign_region_get_note(ign_region *region, uint32_t index)
{
    return atomic_load_explicit(&region->header->notes[index], memory_order_acquire); /* N2 */
}

/* -- the SIGBUS guard, for other mappings of this library -------------------------------------------------------- */

ign_guard *ign_guard_add(void *base, size_t bytes); /* NULL: out of memory */
/* As that; but on a fault `leave` is called first, in the handler, from which it may jump. */
ign_guard *ign_guard_add_leaving(void *base, size_t bytes, void (*leave)(void));
void ign_guard_remove(ign_guard *guard);            /* before munmap; NULL is fine */
bool ign_guard_poisoned(const ign_guard *guard);    /* NULL: false */

/* Maps `bytes` of a new file that appears under `path` only when `format` has filled it. IGN_OK | IGN_E_IO (errno). */
int ign_file_create(const char *path, size_t bytes, int (*format)(void *memory, void *arg), void *arg, int *fd, void **memory);

#endif
