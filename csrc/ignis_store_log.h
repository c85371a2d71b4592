/* The store's log: segments of entries, and how they are read back.
 *
 * A position counts the bytes of entries ever written, over all segments; it names one entry for ever. All integers of
 * a segment are big-endian.
 *
 * Segment header, one sector of 512 bytes:
 *
 *   offset size  field
 *        0    8  magic           "IGNSLOG1"
 *        8    4  version         1
 *       12    4  flushed         so many times 8 bytes of entries were on the disk before the file got its name
 *       16    8  generation      who wrote it; see ignis_store_recovery.h
 *       24    8  number          rises within a generation
 *       32    8  base            position of the first entry
 *       40    8  size            bytes of the file, this header included
 *       48    8  salt            random
 *       56    8  store           the store's own number, the same in all its files
 *       64    4  crc             CRC32C of bytes 0..64, in every version
 *       68    .  zeros
 *
 * Entry, at a multiple of 8:
 *
 *        0    4  length          header and payload, without padding; 0 = nothing was written here
 *        4    4  crc             CRC32C of salt, position, bytes 0..4 and 8..length
 *        8    1  type
 *        9    1  version         1
 *       10    2  reserved        0
 *       12    4  header crc      CRC32C of salt, position, and bytes 0..4, 8..12 and 16..20
 *       16    8  durable         the log was flushed up to this position when the entry was written
 *       24    .  payload, then zeros up to a multiple of 8
 *
 * The salt and the position are in the checksum so that what a file held before, or what a message holds, never passes
 * for an entry. The header has a checksum of its own: a length is believed only with it. A segment is valid up to the base of the segment that follows it: of two that claim a position, the one
 * of the higher generation, and then of the higher number, holds.
 */
#ifndef IGNIS_STORE_LOG_H
#define IGNIS_STORE_LOG_H

#include "ignis_error.h"
#include "ignis_store_io.h"

#define IGN_LOG_VERSION 1u
#define IGN_LOG_SECTOR 512u
#define IGN_ENTRY_HEADER 24u
#define IGN_ENTRY_MAX (1u << 30)

typedef enum ign_entry_type {
    IGN_ENTRY_OPEN = 1,     /* the store was opened by somebody alone, or a generation began */
    IGN_ENTRY_CATALOGUE,    /* a magazine is declared, gets more shards, or is dropped */
    IGN_ENTRY_LOAD,
    IGN_ENTRY_CLAIM,
    IGN_ENTRY_RETIRE,
    IGN_ENTRY_TRANSFER,     /* loads and retires in one */
    IGN_ENTRY_RENEW,
    IGN_ENTRY_MOVE,         /* compaction: living records written again */
    IGN_ENTRY_KEY,          /* a key gets a value, or none */
    IGN_ENTRY_SEGMENT,      /* a segment is gone */
    IGN_ENTRY_EXPIRE,       /* pending records are retired, and counted as expired */
    IGN_ENTRY_CLAIMED,      /* a load and the claim of its records in one */
    IGN_ENTRY_ONCE,         /* a load and the ids that become known by it */
    IGN_ENTRY_FORGET,       /* ids whose hour is here go */
    IGN_ENTRY_WITNESS,      /* says nothing but that what is before it was flushed: by its `durable` */
    IGN_ENTRY_TYPES,
} ign_entry_type;

typedef struct ign_segment_info {
    uint64_t generation, number, base, size, salt, store;
    uint64_t flushed; /* position up to which it was on the disk before it got its name */
} ign_segment_info;

typedef struct ign_entry {
    uint8_t type;
    uint64_t position;
    uint64_t durable;
    const uint8_t *payload;
    uint32_t payload_bytes;
    uint64_t next; /* position of what follows */
} ign_entry;

static inline uint64_t ign_entry_size(uint64_t payload_bytes)
{
    return (IGN_ENTRY_HEADER + payload_bytes + 7u) & ~(uint64_t)7u;
}

/* Where a position stands in its segment's file. */
static inline uint64_t ign_segment_offset(const ign_segment_info *segment, uint64_t position)
{
    return position - segment->base + IGN_LOG_SECTOR;
}

static inline uint64_t ign_segment_end(const ign_segment_info *segment)
{
    return segment->base + segment->size - IGN_LOG_SECTOR;
}

void ign_segment_name(char name[IGN_STORE_NAME_MAX], uint64_t generation, uint64_t number);
bool ign_segment_parse_name(const char *name, uint64_t *generation, uint64_t *number);
void ign_segment_put_header(uint8_t sector[IGN_LOG_SECTOR], const ign_segment_info *segment);
/* IGN_OK | IGN_E_MAGIC | IGN_E_VERSION | IGN_E_CORRUPT | IGN_E_SIZE. */
int ign_segment_get_header(const uint8_t sector[IGN_LOG_SECTOR], ign_segment_info *segment);

/* `bytes` has ign_entry_size(payload_bytes) bytes with the payload in place; fills in the rest. */
void ign_entry_seal(uint8_t *bytes, uint8_t type, uint32_t payload_bytes, uint64_t salt, uint64_t position,
                    uint64_t durable);
/* IGN_OK, IGN_EMPTY (nothing was written here), IGN_NEED_MORE (longer than `available`; *needed says how long) or
 * IGN_E_CORRUPT. */
int ign_entry_check(const uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, ign_entry *entry,
                    uint64_t *needed);

/* ignis_store_unread.c. Bytes of a segment's file; those that are missing, or that the disk refuses, are ones, and *missing says how many.
 * 0; ENOENT: the file has no name any more; another errno: what can be read cannot be told now. */
int ign_segment_read(ign_store_io *io, int file, uint64_t generation, uint64_t number, uint8_t *to, uint64_t bytes, uint64_t at, uint64_t *missing);

/* Reads one segment's entries in order. Allocates one buffer, as large as the largest entry. Not thread-safe. */
typedef struct ign_log_reader {
    ign_store_io *io;
    int file;
    ign_segment_info segment;
    uint64_t position; /* of the next entry */
    uint64_t limit;    /* entries from here on are another segment's */
    uint8_t *buffer;
    uint64_t capacity, filled_at, filled; /* the buffer holds `filled` bytes from position filled_at on */
} ign_log_reader;

void ign_log_reader_open(ign_log_reader *reader, ign_store_io *io, int file, const ign_segment_info *segment,
                         uint64_t position, uint64_t limit);
void ign_log_reader_close(ign_log_reader *reader);
/* IGN_OK: *entry is valid until the next call. IGN_EMPTY: nothing more was written, or the limit is reached.
 * IGN_E_CORRUPT: what stands here is no entry. IGN_E_NOMEM, IGN_E_IO: the disk gives nothing, IGN_E_STALE: the file is gone. */
int ign_log_next(ign_log_reader *reader, ign_entry *entry);
/* Bytes as they stand in the segment, from a position on that it has; what is missing of them is ones. IGN_OK or an error as above. */
int ign_log_read(ign_log_reader *reader, uint8_t *to, uint64_t bytes, uint64_t position);
/* Behind something that is no entry: goes on at the next entry whose checksum holds. IGN_OK | IGN_EMPTY | an error as above. */
int ign_log_resync(ign_log_reader *reader);

#endif
