#include "ignis_store_log.h"

#include "ignis_bytes.h"
#include "ignis_record.h"
#include "ignis_store_salvage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t magic[8] = {'I', 'G', 'N', 'S', 'L', 'O', 'G', '1'};

enum { READ_BYTES = 1 << 18 };

void ign_segment_name(char name[IGN_STORE_NAME_MAX], uint64_t generation, uint64_t number)
{
    snprintf(name, IGN_STORE_NAME_MAX, "log-%016" PRIx64 "-%016" PRIx64, generation, number);
}

bool ign_segment_parse_name(const char *name, uint64_t *generation, uint64_t *number)
{
    char again[IGN_STORE_NAME_MAX];
    if (sscanf(name, "log-%16" SCNx64 "-%16" SCNx64, generation, number) != 2)
        return false;
    ign_segment_name(again, *generation, *number);
    return strcmp(again, name) == 0;
}

void ign_segment_put_header(uint8_t sector[IGN_LOG_SECTOR], const ign_segment_info *segment)
{
    memset(sector, 0, IGN_LOG_SECTOR);
    memcpy(sector, magic, sizeof magic);
    uint64_t flushed = segment->flushed > segment->base ? (segment->flushed - segment->base) / 8 : 0;
    ign_put32(sector + 8, IGN_LOG_VERSION);
    ign_put32(sector + 12, flushed < UINT32_MAX ? (uint32_t)flushed : UINT32_MAX);
    ign_put64(sector + 16, segment->generation);
    ign_put64(sector + 24, segment->number);
    ign_put64(sector + 32, segment->base);
    ign_put64(sector + 40, segment->size);
    ign_put64(sector + 48, segment->salt);
    ign_put64(sector + 56, segment->store);
    ign_put32(sector + 64, ign_crc32c(0, sector, 64));
}

int ign_segment_get_header(const uint8_t sector[IGN_LOG_SECTOR], ign_segment_info *segment)
{
    if (memcmp(sector, magic, sizeof magic) != 0)
        return IGN_E_MAGIC;
    if (ign_get32(sector + 64) != ign_crc32c(0, sector, 64))
        return IGN_E_CORRUPT; /* first: half a header is of no version */
    if (ign_get32(sector + 8) != IGN_LOG_VERSION)
        return IGN_E_VERSION;
    *segment = (ign_segment_info){
        .generation = ign_get64(sector + 16), .number = ign_get64(sector + 24), .base = ign_get64(sector + 32),
        .size = ign_get64(sector + 40), .salt = ign_get64(sector + 48), .store = ign_get64(sector + 56),
    };
    segment->flushed = segment->base + 8 * (uint64_t)ign_get32(sector + 12);
    if (segment->size < IGN_LOG_SECTOR || segment->size > INT64_MAX || segment->base > INT64_MAX ||
        segment->base % 8 != 0)
        return IGN_E_SIZE;
    return IGN_OK;
}

/* Of the header alone: a length is believed only with this, and a message full of headers costs nobody a long search. */
static uint32_t header_crc(const uint8_t *bytes, uint64_t salt, uint64_t position)
{
    uint8_t place[28];
    ign_put64(place, salt);
#ifdef IGN_MUTANT_NO_POSITION
    position = 0;
#endif
    ign_put64(place + 8, position);
    memcpy(place + 16, bytes, 4);
    memcpy(place + 20, bytes + 8, 4);
    memcpy(place + 24, bytes + 16, 4);
    return ign_crc32c(0, place, sizeof place);
}

static uint32_t entry_crc(const uint8_t *bytes, uint32_t length, uint64_t salt, uint64_t position)
{
    uint8_t place[20];
    ign_put64(place, salt);
#ifdef IGN_MUTANT_NO_POSITION
    position = 0;
#endif
    ign_put64(place + 8, position);
    memcpy(place + 16, bytes, 4);
    return ign_crc32c(ign_crc32c(0, place, sizeof place), bytes + 8, length - 8);
}

void ign_entry_seal(uint8_t *bytes, uint8_t type, uint32_t payload_bytes, uint64_t salt, uint64_t position,
                    uint64_t durable)
{
    uint32_t length = IGN_ENTRY_HEADER + payload_bytes;
    ign_put32(bytes, length);
    memset(bytes + 8, 0, 8);
    bytes[8] = type;
    bytes[9] = IGN_LOG_VERSION;
    ign_put64(bytes + 16, durable);
    ign_put32(bytes + 12, header_crc(bytes, salt, position));
    memset(bytes + length, 0, (size_t)(ign_entry_size(payload_bytes) - length));
    ign_put32(bytes + 4, entry_crc(bytes, length, salt, position));
}

bool ign_entry_header_holds(const uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, uint64_t *size)
{
    if (available < IGN_ENTRY_HEADER)
        return false;
    uint32_t length = ign_get32(bytes);
    if (length < IGN_ENTRY_HEADER || length > IGN_ENTRY_MAX || bytes[8] == 0 || bytes[8] >= IGN_ENTRY_TYPES ||
        bytes[9] != IGN_LOG_VERSION || ign_get32(bytes + 12) != header_crc(bytes, salt, position))
        return false;
    uint64_t needed = ign_entry_size(length - IGN_ENTRY_HEADER);
    if (needed > available)
        return false;
    *size = needed;
    return true;
}

int ign_entry_check(const uint8_t *bytes, uint64_t available, uint64_t salt, uint64_t position, ign_entry *entry,
                    uint64_t *needed)
{
    *needed = IGN_ENTRY_HEADER;
    if (available < IGN_ENTRY_HEADER)
        return IGN_NEED_MORE;
    uint32_t length = ign_get32(bytes);
    if (length == 0) {
        for (unsigned i = 4; i < IGN_ENTRY_HEADER; i++)
            if (bytes[i] != 0)
                return IGN_E_CORRUPT;
        return IGN_EMPTY;
    }
    if (length < IGN_ENTRY_HEADER || length > IGN_ENTRY_MAX || bytes[8] == 0 || bytes[8] >= IGN_ENTRY_TYPES ||
        bytes[9] != IGN_LOG_VERSION)
        return IGN_E_CORRUPT;
    bool holds = ign_get32(bytes + 12) == header_crc(bytes, salt, position);
#ifdef IGN_MUTANT_NO_CRC
    holds = true;
#endif
    if (!holds)
        return IGN_E_CORRUPT;
    *needed = ign_entry_size(length - IGN_ENTRY_HEADER);
    if (available < *needed)
        return IGN_NEED_MORE;
    holds = ign_get32(bytes + 4) == entry_crc(bytes, length, salt, position);
#ifdef IGN_MUTANT_NO_CRC
    holds = true;
#endif
    if (!holds)
        return IGN_E_CORRUPT;
    *entry = (ign_entry){
        .type = bytes[8], .position = position, .durable = ign_get64(bytes + 16), .payload = bytes + IGN_ENTRY_HEADER,
        .payload_bytes = length - IGN_ENTRY_HEADER, .next = position + *needed,
    };
    return IGN_OK;
}

/* -- reading a segment ----------------------------------------------------------------------------------------- */

void ign_log_reader_open(ign_log_reader *reader, ign_store_io *io, int file, const ign_segment_info *segment,
                         uint64_t position, uint64_t limit)
{
    uint64_t end = ign_segment_end(segment);
    *reader = (ign_log_reader){.io = io, .file = file, .segment = *segment, .position = position,
                               .limit = limit < end ? limit : end};
}

void ign_log_reader_close(ign_log_reader *reader)
{
    free(reader->buffer);
    reader->buffer = NULL;
}

int ign_log_read(ign_log_reader *reader, uint8_t *to, uint64_t bytes, uint64_t position)
{
    const ign_segment_info *info = &reader->segment;
    uint64_t missing;
    int rc = ign_segment_read(reader->io, reader->file, info->generation, info->number, to, bytes, ign_segment_offset(info, position), &missing);
    if (rc == 0)
        return IGN_OK;
    errno = rc;
    return rc == ENOMEM ? IGN_E_NOMEM : rc == ENOENT ? IGN_E_STALE : IGN_E_IO;
}

/* The buffer holds at least `bytes` from the reader's position on, or all there is. */
static int fill(ign_log_reader *reader, uint64_t bytes, const uint8_t **from, uint64_t *available)
{
    uint64_t left = reader->limit - reader->position;
    uint64_t skip = reader->position - reader->filled_at;
    if (reader->filled < skip || reader->filled - skip < (bytes < left ? bytes : left) || reader->position < reader->filled_at) {
        uint64_t want = bytes > READ_BYTES ? bytes : READ_BYTES;
        want = want < left ? want : left;
        if (want > reader->capacity) {
            uint8_t *grown = realloc(reader->buffer, (size_t)want);
            if (grown == NULL)
                return IGN_E_NOMEM;
            reader->buffer = grown;
            reader->capacity = want;
        }
        int rc = ign_log_read(reader, reader->buffer, want, reader->position);
        reader->filled_at = reader->position;
        reader->filled = rc == IGN_OK ? want : 0;
        if (rc != IGN_OK)
            return rc;
        skip = 0;
    }
    *from = reader->buffer + skip;
    *available = reader->filled - skip;
    return IGN_OK;
}

int ign_log_next(ign_log_reader *reader, ign_entry *entry)
{
    if (reader->position >= reader->limit || reader->limit - reader->position < IGN_ENTRY_HEADER)
        return IGN_EMPTY;
    const uint8_t *bytes;
    uint64_t available, needed = IGN_ENTRY_HEADER;
    for (int round = 0; round < 3; round++) {
        int rc = fill(reader, needed, &bytes, &available);
        if (rc != IGN_OK)
            return rc;
        rc = ign_entry_check(bytes, available, reader->segment.salt, reader->position, entry, &needed);
        if (rc == IGN_OK)
            reader->position = entry->next;
        if (rc != IGN_NEED_MORE)
            return rc;
        if (needed > reader->limit - reader->position)
            break;
    }
    return IGN_E_CORRUPT;
}

static bool is_zero(const uint8_t *word)
{
    uint64_t value;
    memcpy(&value, word, sizeof value);
    return value == 0;
}

/* No more is read, or summed, than what is passed over: where a header holds and its entry does not, no entry begins within that one. Its
 * checksum has the salt in it, so nobody writes one into a message. */
int ign_log_resync(ign_log_reader *reader)
{
    uint64_t skip = 8;
    while (reader->position < reader->limit && reader->limit - reader->position >= 8 + IGN_ENTRY_HEADER) {
        ign_entry entry;
        const uint8_t *bytes;
        uint64_t available, needed;
        if (skip == 8) {
            int first = fill(reader, IGN_ENTRY_HEADER, &bytes, &available);
            if (first != IGN_OK)
                return first;
            ign_entry_header_holds(bytes, reader->limit - reader->position, reader->segment.salt, reader->position, &skip);
            if (skip > reader->limit - reader->position - IGN_ENTRY_HEADER)
                break;
        }
        reader->position += skip;
        skip = 8;
        uint64_t at = reader->position;
        int rc = fill(reader, IGN_ENTRY_HEADER, &bytes, &available);
        if (rc != IGN_OK)
            return rc;
        if (is_zero(bytes)) { /* most of a segment was never written to: nothing begins in zeros, and they are many */
            for (; available >= 16 && is_zero(bytes + 8); bytes += 8, available -= 8)
                reader->position += 8;
            continue;
        }
        rc = ign_entry_check(bytes, available, reader->segment.salt, at, &entry, &needed);
        if (rc == IGN_EMPTY || (rc == IGN_E_CORRUPT && needed == IGN_ENTRY_HEADER) || needed > reader->limit - at)
            continue;
        rc = rc == IGN_OK ? IGN_OK : ign_log_next(reader, &entry);
        reader->position = at;
        if (rc == IGN_OK || (rc != IGN_EMPTY && rc != IGN_E_CORRUPT))
            return rc;
    }
    reader->position = reader->limit;
    return IGN_EMPTY;
}
