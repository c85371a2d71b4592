/* Pointers, claims and acknowledgements. The byte maps are in ignis_wire.h. */
#include "ignis_wire.h"

#include <stdlib.h>

#include "ignis_bytes.h"
#include "ignis_error.h"

#define FIRST_RUNS 8u

/* -- acknowledgements -------------------------------------------------------------------------------------------- */

void ign_wire_put_acks(uint8_t *dst, const uint8_t *request_ids, size_t count, uint16_t shard, uint64_t first)
{
    for (size_t i = 0; i < count; i++, dst += IGN_WIRE_ACK_FRAME_BYTES) {
        uint8_t *payload = dst + IGN_FRAME_HEADER_BYTES;
        ign_frame_put_header(dst, IGN_WIRE_SEND_ACK, (int64_t)ign_get64(request_ids + 8 * i),
                             IGN_WIRE_ACK_FRAME_BYTES - IGN_FRAME_HEADER_BYTES);
        ign_put16(payload, 1);
        ign_put16(payload + 2, shard);
        ign_put64(payload + 4, first + i);
        ign_put32(payload + 12, 1);
    }
}

/* -- pointers ------------------------------------------------------------------------------------------------------ */

int ign_wire_runs_add(ign_wire_runs *runs, uint16_t shard, uint64_t first, uint32_t count)
{
    if (count == 0)
        return IGN_OK;
    if (runs->count != 0 && !runs->closed) {
        ign_wire_run *last = &runs->run[runs->count - 1];
        if (last->shard == shard && last->first + last->count == first && count <= UINT32_MAX - last->count) {
            last->count += count;
            return IGN_OK;
        }
    }
    if (runs->count == runs->room) {
        if (runs->room > UINT32_MAX / 4)
            return IGN_E_NOMEM;
        uint32_t room = runs->room != 0 ? runs->room * 2 : FIRST_RUNS;
        ign_wire_run *grown = realloc(runs->run, room * sizeof *grown);
        if (grown == NULL)
            return IGN_E_NOMEM;
        runs->run = grown;
        runs->room = room;
    }
    runs->run[runs->count++] = (ign_wire_run){.first = first, .count = count, .shard = shard};
    runs->closed = false;
    return IGN_OK;
}

void ign_wire_runs_break(ign_wire_runs *runs)
{
    runs->closed = true;
}

void ign_wire_runs_put(const ign_wire_runs *runs, uint8_t *dst)
{
    ign_put32(dst, runs->count);
    dst += 4;
    for (uint32_t i = 0; i < runs->count; i++, dst += IGN_WIRE_RUN_BYTES) {
        ign_put16(dst, runs->run[i].shard);
        ign_put64(dst + 2, runs->run[i].first);
        ign_put32(dst + 10, runs->run[i].count);
    }
}

void ign_wire_runs_put_bare(const ign_wire_runs *runs, uint8_t *dst)
{
    for (uint32_t i = 0; i < runs->count; i++, dst += IGN_WIRE_CLAIM_RUN_BYTES) {
        ign_put64(dst, runs->run[i].first);
        ign_put32(dst + 8, runs->run[i].count);
    }
}

void ign_wire_runs_free(ign_wire_runs *runs)
{
    free(runs->run);
    *runs = (ign_wire_runs){0};
}

int ign_wire_pointers_open(const uint8_t *src, size_t len, uint32_t *count)
{
    if (len < 4)
        return IGN_E_TRUNCATED;
    uint32_t runs = ign_get32(src);
    size_t whole = (len - 4) / IGN_WIRE_RUN_BYTES;
    if (whole < runs)
        return IGN_E_TRUNCATED;
    if (whole > runs || (len - 4) % IGN_WIRE_RUN_BYTES != 0)
        return IGN_E_MALFORMED;

    uint64_t total = 0;
    for (uint32_t i = 0; i < runs; i++) {
        ign_wire_run run;
        ign_wire_pointers_get(src, i, &run);
        if (run.count == 0) /* would cost the reader memory and mean nothing */
            return IGN_E_MALFORMED;
        total += run.count;
        if (total > IGN_WIRE_MAX_POINTERS || run.first > IGN_WIRE_POINTER_MAX)
            return IGN_E_TOO_LARGE;
    }
    *count = runs;
    return IGN_OK;
}

void ign_wire_pointers_get(const uint8_t *src, uint32_t i, ign_wire_run *run)
{
    const uint8_t *at = src + 4 + (size_t)i * IGN_WIRE_RUN_BYTES;
    run->shard = ign_get16(at);
    run->first = ign_get64(at + 2);
    run->count = ign_get32(at + 10);
}

/* -- claims -------------------------------------------------------------------------------------------------------- */

int ign_wire_claims_open(ign_wire_claims *claims, const uint8_t *src, size_t len)
{
    if (len < 4)
        return IGN_E_TRUNCATED;
    claims->claims = ign_get32(src);
    claims->at = src + 4;
    claims->left = len - 4;
    return IGN_OK;
}

/* The runs of a claim name as many pointers as it has records, and every one is a pointer. */
static bool runs_fit(const ign_wire_claim *claim)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < claim->runs; i++) {
        ign_wire_run run;
        ign_wire_claim_run(claim, i, &run);
        total += run.count;
        if (run.count == 0 || total > claim->records || run.first > IGN_WIRE_POINTER_MAX)
            return false;
    }
    return total == claim->records;
}

int ign_wire_claims_next(ign_wire_claims *claims, ign_wire_claim *claim)
{
    if (claims->claims == 0)
        return claims->left == 0 ? IGN_EMPTY : IGN_E_MALFORMED;
    if (claims->left < IGN_WIRE_CLAIM_BYTES)
        return IGN_E_TRUNCATED;
    claim->shard = ign_get16(claims->at);
    claim->records = ign_get32(claims->at + 2);
    claim->runs = ign_get32(claims->at + 6);
    claims->at += IGN_WIRE_CLAIM_BYTES;
    claims->left -= IGN_WIRE_CLAIM_BYTES;

    /* In 64 bits: neither product nor sum can overflow. */
    uint64_t tables = (uint64_t)claim->runs * IGN_WIRE_CLAIM_RUN_BYTES + (uint64_t)claim->records * 4;
    if (tables > claims->left)
        return IGN_E_TRUNCATED;
    claim->run = claims->at;
    claim->lengths = claims->at + (size_t)claim->runs * IGN_WIRE_CLAIM_RUN_BYTES;
    claim->data = claims->at + (size_t)tables;
    if (!runs_fit(claim))
        return IGN_E_MALFORMED;

    size_t left = claims->left - (size_t)tables;
    const uint8_t *at = claim->data;
    for (uint32_t i = 0; i < claim->records; i++) {
        uint32_t length = ign_get32(claim->lengths + 4 * (size_t)i);
        if (length == IGN_WIRE_NO_RECORD)
            continue;
#ifndef IGN_MUTANT_NO_LENGTH /* known-bad build: the tests must catch it */
        if (length > left)
            return IGN_E_TRUNCATED;
#endif
        left -= length;
        at += length;
    }
    claims->at = at;
    claims->left = left;
    claims->claims--;
    return IGN_OK;
}

void ign_wire_claim_run(const ign_wire_claim *claim, uint32_t i, ign_wire_run *run)
{
    const uint8_t *at = claim->run + (size_t)i * IGN_WIRE_CLAIM_RUN_BYTES;
    run->shard = claim->shard;
    run->first = ign_get64(at);
    run->count = ign_get32(at + 8);
}

const uint8_t *ign_wire_claim_take(ign_wire_claim *claim, uint32_t *len)
{
    uint32_t length = ign_get32(claim->lengths);
    const uint8_t *record = claim->data;

    claim->lengths += 4;
    if (length == IGN_WIRE_NO_RECORD) {
        *len = 0;
        return NULL;
    }
    claim->data += length;
    *len = length;
    return record;
}

void ign_wire_put_claim(uint8_t *dst, uint16_t shard, uint32_t records, uint32_t runs)
{
    ign_put16(dst, shard);
    ign_put32(dst + 2, records);
    ign_put32(dst + 6, runs);
}
