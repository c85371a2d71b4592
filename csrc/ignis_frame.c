#include "ignis_frame.h"

#include "ignis_bytes.h"
#include "ignis_error.h"

void ign_frame_put_header(uint8_t *dst, int16_t command, int64_t request_id, size_t payload_len)
{
    ign_put32(dst, (uint32_t)(IGN_FRAME_MIN_LENGTH + payload_len));
    ign_put16(dst + 4, (uint16_t)command);
    ign_put64(dst + 6, (uint64_t)request_id);
}

int ign_frame_decode(const uint8_t *src, size_t len, size_t max_frame_bytes, ign_frame *frame, size_t *consumed)
{
    *consumed = 0;
    if (len < IGN_FRAME_LENGTH_BYTES)
        return IGN_NEED_MORE;
    uint32_t length = ign_get32(src);
    if (length < IGN_FRAME_MIN_LENGTH || length > 0x7FFFFFFFu) /* the sign bit: a negative int32 */
        return IGN_E_MALFORMED;
    size_t total = (size_t)length + IGN_FRAME_LENGTH_BYTES;
    if (total > max_frame_bytes) {
        *consumed = total;
        return IGN_E_TOO_LARGE;
    }
    if (len < total)
        return IGN_NEED_MORE;
    frame->command = (int16_t)ign_get16(src + 4);
    frame->request_id = (int64_t)ign_get64(src + 6);
    frame->payload = src + IGN_FRAME_HEADER_BYTES;
    frame->payload_len = total - IGN_FRAME_HEADER_BYTES;
    *consumed = total;
    return IGN_OK;
}

int ign_frame_decode_many(const uint8_t *src, size_t len, size_t max_frame_bytes, ign_frame *frames, size_t max,
                          size_t *count, size_t *consumed, size_t *announced)
{
    *count = *consumed = *announced = 0;
    while (*count < max) {
        size_t used;
        int rc = ign_frame_decode(src + *consumed, len - *consumed, max_frame_bytes, &frames[*count], &used);
        if (rc == IGN_E_TOO_LARGE)
            *announced = used;
        if (rc != IGN_OK)
            return rc;
        *consumed += used;
        *count += 1;
    }
    return IGN_OK;
}
