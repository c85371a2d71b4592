/* The frame: what goes over a wire. Big-endian.
 *
 *   offset size  field
 *        0    4  length       int32: bytes that follow this field = 10 + payload
 *        4    2  command      int16
 *        6    8  request_id   int64
 *       14    .  payload
 *
 * Magic and version are not in every frame; a connection states them once, in its handshake.
 *
 * Decoding answers one of: IGN_OK, IGN_NEED_MORE (a prefix of a frame), IGN_E_MALFORMED (a length that no frame can
 * have), IGN_E_TOO_LARGE (a length over the caller's limit). The last two are known from the first four bytes, before
 * anybody allocates for a payload. The decoder reads nothing beyond `len`, keeps no state, allocates nothing.
 */
#ifndef IGNIS_FRAME_H
#define IGNIS_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define IGN_FRAME_HEADER_BYTES 14u
#define IGN_FRAME_LENGTH_BYTES 4u
#define IGN_FRAME_MIN_LENGTH (IGN_FRAME_HEADER_BYTES - IGN_FRAME_LENGTH_BYTES)
#define IGN_FRAME_MAX_PAYLOAD (0x7FFFFFFFu - IGN_FRAME_MIN_LENGTH)

typedef struct ign_frame {
    int16_t command;
    int64_t request_id;
    const uint8_t *payload;
    size_t payload_len;
} ign_frame;

/* dst has IGN_FRAME_HEADER_BYTES; payload_len <= IGN_FRAME_MAX_PAYLOAD. */
void ign_frame_put_header(uint8_t *dst, int16_t command, int64_t request_id, size_t payload_len);

/* Decodes the frame at the start of src. On IGN_OK *consumed is its size; on IGN_E_TOO_LARGE *consumed is the size it
 * announces; else 0. `max_frame_bytes` limits the whole frame, header included. `frame` points into src. */
int ign_frame_decode(const uint8_t *src, size_t len, size_t max_frame_bytes, ign_frame *frame, size_t *consumed);

/* Decodes up to `max` frames. *count and *consumed cover the complete ones, also when the answer is an error: it then
 * stands behind them. IGN_OK (max reached) | IGN_NEED_MORE (ran out of bytes) | the errors above; *announced is set
 * on IGN_E_TOO_LARGE. */
int ign_frame_decode_many(const uint8_t *src, size_t len, size_t max_frame_bytes, ign_frame *frames, size_t max,
                          size_t *count, size_t *consumed, size_t *announced);

#endif
