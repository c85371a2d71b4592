/* The stored message ("record"), the packed batch ("segment"), and their checksum.
 *
 * One record is an envelope followed by the body. All integers are big-endian.
 *
 *   offset size  field
 *        0    1  version            1
 *        1    1  flags              low 4 bits: codec (0 raw, 1 json, 2 msgpack); others reserved, zero
 *        2    2  attempts           deliveries that ended in a failure
 *        4    2  crashes            deliveries that ended with the death of the worker
 *        6    2  key_len            0..65535
 *        8    4  meta_len
 *       12    8  enqueued_at_us     microseconds since the Unix epoch
 *       20   16  id                 UUID version 7 (RFC 9562 section 5.7)
 *       36    .  key | meta (MessagePack map, may be empty) | body (the rest)
 *
 * The map is what grows: readers skip entries that they do not know, and take one that is missing, or of another type, for
 * not known. Its entries, each absent until there is something to say:
 *
 *   headers       map           the publisher's own
 *   reason        str           of the last failure
 *   error         str           of the last failure, at most 2,000 characters
 *   failed_at_ms  int           when that was, milliseconds since the Unix epoch
 *   handler       str           what failed it
 *   expires_at_ms int           until when a handler may begin with it, milliseconds since the Unix epoch; the first entry
 *   history       array         the last 8 attempts, oldest first, at most 12 KiB in all, each an array
 *                               [at_ms int, reason str, error str, trace str, worker str, took_ms int or nil];
 *                               elements at its end that a reader does not know are ignored, missing ones not known
 *   returns       int           how often the schedule brought it back from the sideline
 *   unread        bin           a map that stood here and could not be read
 *
 * A segment is what one load appends to one shard: records side by side under an index, so that a batch costs the
 * store one write and the sweep of a batch one delete.
 *
 *   offset size  field
 *        0    1  version            1
 *        1    1  reserved           0
 *        2    2  reserved           0
 *        4    4  count              records, 1..IGN_SEGMENT_MAX_RECORDS
 *        8    8  expires_at_ms      milliseconds since the epoch, 0 = never
 *       16    4  index_crc          CRC32C of bytes 0..16 and of the index's end offsets
 *       20    4  reserved           0
 *       24  8*n  index              per record: u32 end offset in the data area, u32 check
 *    24+8n    .  data area          the records
 *
 * check = CRC32C(u32 magazine_id | u16 shard | u64 pointer | u32 CRC32C(record)), so that a record that was moved,
 * swapped or altered by the storage below us is seen. Pointers are consecutive within a segment. Until it is sealed
 * the check field holds CRC32C(record) alone.
 *
 * Pure functions over caller's memory: no allocation, no globals but the CPU dispatch. Thread-safe.
 */
#ifndef IGNIS_RECORD_H
#define IGNIS_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IGN_RECORD_VERSION 1u
#define IGN_RECORD_HEADER_BYTES 36u
/* Of the map in what a stranger sends: headers have 64 KiB at most, and what a failure says of a message has some 24. What cannot be
 * read may stand once more under `unread`; whoever moves a stored message is not held to it. */
#define IGN_RECORD_MAX_META_BYTES (128u << 10)
#define IGN_SEGMENT_VERSION 1u
#define IGN_SEGMENT_HEADER_BYTES 24u
#define IGN_SEGMENT_INDEX_BYTES 8u
#define IGN_SEGMENT_MAX_RECORDS (1u << 20)

uint32_t ign_crc32c(uint32_t crc, const void *data, size_t len);      /* RFC 3720; start with crc = 0 */
/* Of IGN_CRC_SIDE_BY_SIDE pieces that lie one behind the other, each from 0: short ones take half the time of one after the other. */
#define IGN_CRC_SIDE_BY_SIDE 3
void ign_crc32c_side_by_side(const void *data, const size_t sizes[IGN_CRC_SIDE_BY_SIDE], uint32_t crcs[IGN_CRC_SIDE_BY_SIDE]);
uint32_t ign_crc32c_portable(uint32_t crc, const void *data, size_t len); /* table driven; the tests compare the two */

typedef struct ign_record {
    uint8_t flags;
    uint16_t attempts;
    uint16_t crashes;
    uint64_t enqueued_at_us;
    uint8_t id[16];
    const uint8_t *key;  size_t key_len;
    const uint8_t *meta; size_t meta_len;
    const uint8_t *body; size_t body_len;
} ign_record;

/* Bytes that the encoded record takes; SIZE_MAX when a field is over its limit. */
size_t ign_record_size(const ign_record *rec);
/* dst must have ign_record_size(rec) bytes. */
void ign_record_encode(const ign_record *rec, uint8_t *dst);
/* The length that its map has by the record's own word, where that is over IGN_RECORD_MAX_META_BYTES; else 0. */
size_t ign_record_meta_over(const uint8_t *src, size_t len);
/* IGN_OK, or IGN_E_MALFORMED (cut short, lengths beyond the end), IGN_E_VERSION. Views into src. */
int ign_record_decode(const uint8_t *src, size_t len, ign_record *rec);

/* UUIDv7: 48 bit ms, 12 bit fraction of the ms (RFC 9562 method 3), 62 random bits; `random` is from the caller. */
void ign_uuid7(uint64_t now_us, uint64_t random, uint8_t out[16]);
void ign_uuid7_next(const uint8_t *first, uint64_t random, uint8_t out[16]); /* of the time that the first one has */

/* Segment. Building: fill the data area and call _put_index per record, then _finish; sealing: once, in place, when
 * the pointers are known. Reading: _open checks version, bounds, index_crc and that the offsets rise; _get checks one
 * record's check value. */
typedef struct ign_segment {
    const uint8_t *base; size_t len;
    const uint8_t *data; size_t data_len;
    uint32_t count;
    uint64_t expires_at_ms;
} ign_segment;

size_t ign_segment_size(uint32_t count, size_t data_bytes);
void ign_segment_begin(uint8_t *dst, uint32_t count, uint64_t expires_at_ms);
/* After the record's bytes stand in the data area: end offset and CRC32C(record). */
void ign_segment_put_index(uint8_t *dst, uint32_t i, uint32_t end_offset, uint32_t record_crc);
void ign_segment_finish(uint8_t *dst);  /* computes index_crc */
void ign_segment_seal(uint8_t *dst, uint32_t magazine_id, uint16_t shard, uint64_t first_pointer);
int ign_segment_open(const uint8_t *src, size_t len, ign_segment *seg);   /* IGN_OK | IGN_E_MALFORMED | IGN_E_VERSION | IGN_E_CORRUPT */
/* IGN_OK or IGN_E_CORRUPT; *rec and *rec_len are set in both cases (within bounds). */
int ign_segment_get(const ign_segment *seg, uint32_t i, uint32_t magazine_id, uint16_t shard, uint64_t first_pointer,
                    const uint8_t **rec, size_t *rec_len);

/* key -> shard: CRC32C(key) modulo shards. Part of the stored format: every client routes a key alike. */
uint16_t ign_shard_for_key(const void *key, size_t key_len, uint16_t shards);

#endif
