/* SEND, SEND_BATCH and routing by key. The byte maps are in ignis_wire.h. */
#include <stdlib.h>
#include <string.h>

#include "ignis_bytes.h"
#include "ignis_error.h"
#include "ignis_frame.h"
#include "ignis_record.h"
#include "ignis_wire.h"

#define FIRST_PIECES 16u
#define SHARDS 65536u
/* What a sorter keeps between two uses. A read buffer of 256 KiB holds fewer than 4,000 SENDs; only a frame run that
 * arrived in a large buffer needs more, and that is not held on to. */
#define KEEP_PIECES 4096u

/* -- sorting by shard --------------------------------------------------------------------------------------------- */

static int need_pieces(ign_wire_sorter *s, uint32_t count)
{
    if (count <= s->piece_room)
        return IGN_OK;
    uint32_t room = s->piece_room != 0 ? s->piece_room : FIRST_PIECES;
    while (room < count)
        room *= 4; /* at most IGN_SEGMENT_MAX_RECORDS is asked for: no overflow */
    ign_wire_piece *grown = realloc(s->pieces, room * sizeof *grown);
    if (grown == NULL)
        return IGN_E_NOMEM;
    s->pieces = grown;
    s->piece_room = room;
    return IGN_OK;
}

static int need_ids(ign_wire_sorter *s, size_t bytes)
{
    if (bytes <= s->ids_room)
        return IGN_OK;
    uint8_t *grown = realloc(s->ids, bytes);
    if (grown == NULL)
        return IGN_E_NOMEM;
    s->ids = grown;
    s->ids_room = bytes;
    return IGN_OK;
}

static int need_table(ign_wire_sorter *s, uint32_t shards)
{
    if (shards <= s->shards)
        return IGN_OK;
    /* Zeroed pages that are never touched cost nothing, so the whole range is asked for. */
    uint32_t *table = calloc(shards, sizeof *table);
    if (table == NULL)
        return IGN_E_NOMEM;
    free(s->group_of);
    s->group_of = table;
    s->shards = shards;
    return IGN_OK;
}

/* A new group for the shard; its index in *index. */
static int new_group(ign_wire_sorter *s, uint16_t shard, uint32_t *index)
{
    if (s->group_count == s->group_room) {
        uint32_t room = s->group_room != 0 ? s->group_room * 2 : 4;
        ign_wire_group *grown = realloc(s->groups, room * sizeof *grown);
        if (grown == NULL)
            return IGN_E_NOMEM;
        s->groups = grown;
        s->group_room = room;
    }
    *index = s->group_count++;
    s->groups[*index] = (ign_wire_group){.shard = shard};
    return IGN_OK;
}

/* Says of each piece which group it belongs to. */
static int assign_groups(ign_wire_sorter *s)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->piece_count; i++) {
        ign_wire_piece *piece = &s->pieces[i];
        /* Neighbours mostly go to one shard: the table is looked at when they do not. */
        if (i == 0 || piece->shard != s->pieces[i - 1].shard) {
            if (s->piece_count == 1) {
                int code = new_group(s, piece->shard, &last);
                if (code != IGN_OK)
                    return code;
            } else if (s->group_of[piece->shard] != 0) {
                last = s->group_of[piece->shard] - 1;
            } else {
                int code = new_group(s, piece->shard, &last);
                if (code != IGN_OK)
                    return code;
                s->group_of[piece->shard] = last + 1;
            }
        }
        piece->group = last;
        s->groups[last].count++;
        s->groups[last].data_bytes += piece->record_bytes;
    }
    return IGN_OK;
}

static int open_segments(ign_wire_sorter *s, bool with_ids)
{
    size_t ids = 0;
    int code = with_ids ? need_ids(s, (size_t)s->piece_count * 8) : IGN_OK;
    for (uint32_t g = 0; g < s->group_count && code == IGN_OK; g++) {
        ign_wire_group *group = &s->groups[g];
        group->segment_bytes = ign_segment_size(group->count, group->data_bytes);
        group->segment = group->segment_bytes == SIZE_MAX ? NULL : malloc(group->segment_bytes);
        if (group->segment == NULL)
            return IGN_E_NOMEM;
        ign_segment_begin(group->segment, group->count, 0);
        group->request_ids = with_ids ? s->ids + ids : NULL;
        ids += (size_t)group->count * 8;
    }
    return code;
}

/* Copies the pieces into the segments of their groups, in order. */
static int distribute(ign_wire_sorter *s, bool with_ids, bool crc_known)
{
    int code = assign_groups(s);
    if (code == IGN_OK)
        code = open_segments(s, with_ids);
    if (code != IGN_OK)
        return code;
    for (uint32_t i = 0; i < s->piece_count; i++) {
        const ign_wire_piece *piece = &s->pieces[i];
        ign_wire_group *group = &s->groups[piece->group];
        uint8_t *dst = group->segment + (group->segment_bytes - group->data_bytes) + group->end;
        if (piece->record_bytes != 0)
            memcpy(dst, piece->record, piece->record_bytes);
        uint32_t crc = crc_known ? piece->crc : ign_crc32c(0, dst, piece->record_bytes);
        group->end += piece->record_bytes;
        ign_segment_put_index(group->segment, group->filled, (uint32_t)group->end, crc);
        if (with_ids)
            ign_put64(group->request_ids + (size_t)group->filled * 8, (uint64_t)piece->request_id);
        group->filled++;
    }
    return IGN_OK;
}

void ign_wire_sorter_clear(ign_wire_sorter *s)
{
    for (uint32_t g = 0; g < s->group_count; g++) {
        free(s->groups[g].segment);
        if (s->groups[g].shard < s->shards) /* a single piece needs no table */
            s->group_of[s->groups[g].shard] = 0;
    }
    s->group_count = 0;
    s->piece_count = 0;
    if (s->piece_room > KEEP_PIECES) {
        free(s->pieces);
        free(s->groups);
        free(s->ids);
        s->pieces = NULL;
        s->groups = NULL;
        s->ids = NULL;
        s->piece_room = s->group_room = 0;
        s->ids_room = 0;
    }
}

void ign_wire_sorter_free(ign_wire_sorter *s)
{
    ign_wire_sorter_clear(s);
    free(s->pieces);
    free(s->groups);
    free(s->group_of);
    free(s->ids);
    *s = (ign_wire_sorter){0};
}

/* -- SEND ----------------------------------------------------------------------------------------------------------- */

/* Bytes that precede the shard; 0 when the payload is no SEND. */
static size_t head_of(const uint8_t *payload, size_t len)
{
    if (len < 2)
        return 0;
    size_t head = (size_t)ign_get16(payload) + 10;
    return len >= head + 2 + IGN_RECORD_HEADER_BYTES ? head : 0;
}

int ign_wire_take_sends(ign_wire_sorter *s, const uint8_t *src, size_t len, size_t max_frame_bytes,
                        ign_wire_sends *sends, size_t *consumed)
{
    const uint8_t *first = NULL;
    size_t first_head = 0, used = 0, total = 0;

    *consumed = 0;
    while (s->piece_count < IGN_SEGMENT_MAX_RECORDS) {
        ign_frame frame;
        size_t size;
        if (ign_frame_decode(src + used, len - used, max_frame_bytes, &frame, &size) != IGN_OK
            || frame.command != IGN_WIRE_SEND)
            break;
        size_t head = head_of(frame.payload, frame.payload_len);
        if (first == NULL) {
            sends->request_id = frame.request_id;
            if (head == 0) {
                *consumed = size;
                return IGN_E_MALFORMED;
            }
            first = frame.payload;
            first_head = head;
        } else if (head != first_head || memcmp(first, frame.payload, head) != 0) {
            break;
        }
        size_t record_bytes = frame.payload_len - head - 2;
        size_t over = ign_record_meta_over(frame.payload + head + 2, record_bytes);
        if (over != 0) {
            if (s->piece_count != 0) /* it is the first of the next run */
                break;
            *consumed = size;
            sends->meta_bytes = over;
            return IGN_E_TOO_LARGE;
        }
        if (record_bytes > UINT32_MAX - total) /* more than one segment can hold */
            break;
        int code = need_pieces(s, s->piece_count + 1);
        if (code != IGN_OK)
            return code;
        s->pieces[s->piece_count++] = (ign_wire_piece){
            .record = frame.payload + head + 2,
            .record_bytes = record_bytes,
            .request_id = frame.request_id,
            .shard = ign_get16(frame.payload + head),
        };
        total += record_bytes;
        used += size;
    }
    if (first == NULL) /* the caller promised a SEND */
        return IGN_E_INVALID;
    if (s->piece_count > 1) {
        int code = need_table(s, SHARDS);
        if (code != IGN_OK)
            return code;
    }
    sends->name = first + 2;
    sends->name_len = first_head - 10;
    sends->ttl_ms = ign_get64(first + first_head - 8);
    *consumed = used;
    return distribute(s, true, false);
}

/* -- routing by key -------------------------------------------------------------------------------------------------- */

int ign_wire_route(ign_wire_sorter *s, const uint8_t *segment, size_t len, uint16_t shards, uint16_t any_shard,
                   const uint8_t *request_ids, uint32_t *bad)
{
    ign_segment seg;
    if (ign_segment_open(segment, len, &seg) != IGN_OK)
        return IGN_E_CORRUPT;
    int code = need_pieces(s, seg.count);
    if (code == IGN_OK && seg.count > 1)
        code = need_table(s, shards);
    if (code != IGN_OK)
        return code;

    const uint8_t *entry = seg.base + IGN_SEGMENT_HEADER_BYTES;
    uint32_t begin = 0;
    for (uint32_t i = 0; i < seg.count; i++, entry += IGN_SEGMENT_INDEX_BYTES) {
        uint32_t end = ign_get32(entry);
        ign_record rec;
        if (ign_record_decode(seg.data + begin, end - begin, &rec) != IGN_OK) {
            *bad = i;
            return IGN_E_MALFORMED;
        }
        s->pieces[i] = (ign_wire_piece){
            .record = seg.data + begin,
            .record_bytes = end - begin,
            .request_id = request_ids != NULL ? (int64_t)ign_get64(request_ids + (size_t)i * 8) : 0,
            .crc = ign_get32(entry + 4), /* of an unsealed segment: the record's own */
            .shard = rec.key_len != 0 ? ign_shard_for_key(rec.key, rec.key_len, shards) : any_shard,
        };
        begin = end;
    }
    s->piece_count = seg.count;
    return distribute(s, request_ids != NULL, true);
}

/* -- SEND_BATCH ------------------------------------------------------------------------------------------------------ */

int ign_wire_batches_open(ign_wire_batches *batches, const uint8_t *src, size_t len)
{
    if (len < 2)
        return IGN_E_TRUNCATED;
    size_t name_len = ign_get16(src);
    if (len < name_len + 12)
        return IGN_E_TRUNCATED;
    batches->name = src + 2;
    batches->name_len = name_len;
    batches->ttl_ms = ign_get64(src + 2 + name_len);
    batches->groups = ign_get16(src + 10 + name_len);
    batches->at = src + 12 + name_len;
    batches->left = len - 12 - name_len;
    return IGN_OK;
}

int ign_wire_batches_next(ign_wire_batches *batches, uint16_t *shard, const uint8_t **segment, size_t *len)
{
    if (batches->groups == 0)
        return batches->left == 0 ? IGN_EMPTY : IGN_E_MALFORMED;
    if (batches->left < 6)
        return IGN_E_TRUNCATED;
    uint32_t bytes = ign_get32(batches->at + 2);
    if (bytes > batches->left - 6)
        return IGN_E_TRUNCATED;
    *shard = ign_get16(batches->at);
    *segment = batches->at + 6;
    *len = bytes;
    batches->at += 6 + (size_t)bytes;
    batches->left -= 6 + (size_t)bytes;
    batches->groups--;
    return IGN_OK;
}

int ign_wire_copy_segment(uint8_t *dst, const uint8_t *src, size_t len, uint32_t *count, size_t *data_bytes,
                          uint32_t *bad)
{
    ign_segment seg;
    if (ign_segment_open(src, len, &seg) != IGN_OK)
        return IGN_E_MALFORMED;
    /* The sender computed the index and it is right: it is taken over whole. The header is written anew, so that the
     * expiry and whatever a later version may put there are ours. One copy of it all: a copy per record took twice as
     * long. */
    memcpy(dst, src, len);
    ign_segment_begin(dst, seg.count, 0);
    uint32_t begin = 0;
    for (uint32_t i = 0; i < seg.count; i++) {
        const uint8_t *entry = src + IGN_SEGMENT_HEADER_BYTES + (size_t)i * IGN_SEGMENT_INDEX_BYTES;
        uint32_t end = ign_get32(entry);
        if (ign_crc32c(0, seg.data + begin, end - begin) != ign_get32(entry + 4)) {
            *bad = i;
            return IGN_E_CORRUPT;
        }
        size_t over = ign_record_meta_over(seg.data + begin, end - begin);
        if (over != 0) {
            *bad = i;
            *data_bytes = over;
            return IGN_E_TOO_LARGE;
        }
        begin = end;
    }
    *count = seg.count;
    *data_bytes = seg.data_len;
    return IGN_OK;
}
