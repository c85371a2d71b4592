# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The broker's bulk codec: frames straight out of the receive buffer, batches and claims without a step per message.

The layouts are those of ``docs/protocol.md``. Everything that comes from a peer is checked against its own length before it is
used, and nothing is allocated for a length that was only announced. The functions are pure and safe from any thread; a
:class:`FrameReader` belongs to one connection and one thread.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from ignis.native.frame cimport (
    IGN_FRAME_HEADER_BYTES, ign_frame, ign_frame_decode, ign_frame_put_header,
)
from ignis.native.record cimport (
    BatchBuilder, IGN_RECORD_HEADER_BYTES, IGN_SEGMENT_HEADER_BYTES, IGN_SEGMENT_INDEX_BYTES, IGN_SEGMENT_MAX_RECORDS,
    PackedBatch, builder_abort, builder_add, builder_close, builder_open, ign_crc32c, ign_record, ign_record_decode,
    ign_segment, ign_segment_begin, ign_segment_open, ign_shard_for_key,
)

include "_errors.pxi"

COMMAND_SEND = 10
COMMAND_SEND_BATCH = 11
COMMAND_SEND_ACK = 12
MAX_POINTERS = 1 << 20

cdef enum:
    SEND = 10
    SEND_BATCH = 11
    SEND_ACK = 12
    NO_RECORD = 0xFFFFFFFF      # instead of a length: the record did not match its checksum
    RUN_BYTES = 14              # u16 shard, u64 first, u32 count
    ACK_BYTES = 16              # u16 groups, then one run
    MOST_POINTERS = 1 << 20
    SHARDS = 65536
    FIRST_CARRY = 512


cdef inline uint16_t get16(const uint8_t *at) noexcept nogil:
    return <uint16_t>((at[0] << 8) | at[1])


cdef inline uint32_t get32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>at[0] << 24) | (<uint32_t>at[1] << 16) | (<uint32_t>at[2] << 8) | at[3]


cdef inline uint64_t get64(const uint8_t *at) noexcept nogil:
    return (<uint64_t>get32(at) << 32) | get32(at + 4)


cdef inline void put16(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value


cdef inline void put32(uint8_t *at, uint32_t value) noexcept nogil:
    put16(at, value >> 16)
    put16(at + 2, value & 0xFFFF)


cdef inline void put64(uint8_t *at, uint64_t value) noexcept nogil:
    put32(at, <uint32_t>(value >> 32))
    put32(at + 4, <uint32_t>value)


cdef object malformed(str what):
    return _errors.MalformedFrameError(what)


# -- batches out of payloads ------------------------------------------------------------------------------------------

cdef PackedBatch batch_of_segment(const uint8_t *src, size_t size):
    """A batch with the bytes of an unsealed segment, each record checked against the sender's checksum."""
    cdef ign_segment seg
    cdef int code = ign_segment_open(src, size, &seg)
    cdef uint32_t i, end, begin = 0, bad = 0
    cdef const uint8_t *entry
    cdef BatchBuilder builder
    if code != IGN_OK:
        raise malformed(f"a batch of {size} bytes contradicts its own index")
    with nogil:
        for i in range(seg.count):
            entry = src + IGN_SEGMENT_HEADER_BYTES + <size_t>i * IGN_SEGMENT_INDEX_BYTES
            end = get32(entry)
            if ign_crc32c(0, seg.data + begin, end - begin) != get32(entry + 4):
                bad = i + 1
                break
            begin = end
    if bad:
        raise malformed(f"record {bad - 1} of a batch of {seg.count} does not match its checksum")
    if builder_open(&builder, seg.count, seg.data_len) != IGN_OK:
        raise MemoryError("batch")
    # The index was computed by the sender and is right: it is taken over whole, with the records behind it.
    memcpy(builder.segment, src, size)
    ign_segment_begin(builder.segment, seg.count, 0)
    builder.filled = seg.count
    builder.end = seg.data_len
    try:
        return builder_close(&builder)
    finally:
        builder_abort(&builder)


cdef tuple decode_send_batch(int64_t request_id, const uint8_t *src, size_t size):
    """(SEND_BATCH, request id, (name, ttl_ms, [(shard, batch)]))."""
    cdef size_t at, name_len
    cdef uint16_t groups, i, shard
    cdef uint32_t nbytes
    cdef uint64_t ttl_ms
    cdef list batches = []
    if size < 2:
        raise malformed("SEND_BATCH is cut short")
    name_len = get16(src)
    at = 2 + name_len
    if size < at + 10:
        raise malformed("SEND_BATCH is cut short")
    name = PyBytes_FromStringAndSize(<const char *>src + 2, <Py_ssize_t>name_len)
    ttl_ms = get64(src + at)
    groups = get16(src + at + 8)
    at += 10
    for i in range(groups):
        if size - at < 6:
            raise malformed("SEND_BATCH is cut short")
        shard = get16(src + at)
        nbytes = get32(src + at + 2)
        at += 6
        if nbytes > size - at:
            raise malformed(f"SEND_BATCH announces {nbytes} bytes and has {size - at}")
        batches.append((shard, batch_of_segment(src + at, nbytes)))
        at += nbytes
    if at != size:
        raise malformed(f"SEND_BATCH has {size - at} bytes too many")
    return SEND_BATCH, request_id, (name, ttl_ms, batches)


def unpack_send_batch(data, size_t offset=0):
    """(name, ttl_ms, [(shard, batch)]) of the payload of SEND_BATCH, from ``offset`` to the end of the data.

    Raises MalformedFrameError.
    """
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if offset > <size_t>view.len:
            raise malformed("SEND_BATCH is cut short")
        return decode_send_batch(0, <const uint8_t *>view.buf + offset, <size_t>view.len - offset)[2]
    finally:
        PyBuffer_Release(&view)


# -- SEND: many frames become few batches -------------------------------------------------------------------------------

cdef struct Send:
    int64_t request_id
    const uint8_t *record
    size_t size
    uint16_t shard
    int32_t group


cdef struct Group:
    BatchBuilder builder
    uint32_t count
    uint32_t filled
    size_t data_bytes
    uint16_t shard


cdef bint send_fields(const uint8_t *src, size_t size, size_t *head) noexcept nogil:
    """Whether the payload is a SEND: u16 name length, name, u64 ttl_ms, u16 shard, record. `head` is what precedes the shard."""
    if size < 12:
        return False
    head[0] = <size_t>get16(src) + 10
    return size >= head[0] + 2 + IGN_RECORD_HEADER_BYTES


cdef Py_ssize_t decode_sends(list out, const uint8_t *src, Py_ssize_t size, size_t limit) except -1:
    """SEND frames that stand side by side and name one queue and one time to live; returns the bytes they took.

    Appends (SEND, request id of the first, (name, ttl_ms, [(shard, batch, request ids)])), one batch per shard, records in the order
    of the frames; request ids as int64 big-endian. A payload that is no SEND becomes (SEND, request id, error).
    """
    cdef ign_frame frame
    cdef size_t consumed = 0, head = 0, first_head = 0
    cdef Py_ssize_t used = 0, count = 0, room = 64, i
    cdef const uint8_t *first = NULL
    cdef Send *sends = <Send *>malloc(<size_t>room * sizeof(Send))
    cdef Send *more
    cdef Group *groups = NULL
    cdef Group *group
    cdef int32_t *of_shard = NULL
    cdef Py_ssize_t group_count = 0
    cdef list batches = []
    cdef list ids = []
    cdef bytes packed
    if sends == NULL:
        raise MemoryError("SEND")
    try:
        while count < IGN_SEGMENT_MAX_RECORDS:
            if ign_frame_decode(src + used, <size_t>(size - used), limit, &frame, &consumed) != IGN_OK or frame.command != SEND:
                break
            if not send_fields(frame.payload, frame.payload_len, &head):
                if count:
                    break
                out.append((SEND, frame.request_id, malformed(f"SEND of {frame.payload_len} bytes holds no record")))
                return <Py_ssize_t>consumed
            if first == NULL:
                first, first_head = frame.payload, head
            elif head != first_head or memcmp(first, frame.payload, head) != 0:
                break
            if count == room:
                room *= 4
                more = <Send *>realloc(sends, <size_t>room * sizeof(Send))
                if more == NULL:
                    raise MemoryError("SEND")
                sends = more
            sends[count].request_id = frame.request_id
            sends[count].shard = get16(frame.payload + head)
            sends[count].record = frame.payload + head + 2
            sends[count].size = frame.payload_len - head - 2
            count += 1
            used += <Py_ssize_t>consumed
        groups = <Group *>malloc(<size_t>max(count, 1) * sizeof(Group))
        of_shard = <int32_t *>malloc(SHARDS * sizeof(int32_t)) if count > 1 else NULL
        if groups == NULL or (count > 1 and of_shard == NULL):
            raise MemoryError("SEND")
        if of_shard != NULL:
            memset(of_shard, 0xFF, SHARDS * sizeof(int32_t))
        for i in range(count):
            if of_shard == NULL or of_shard[sends[i].shard] < 0:
                memset(&groups[group_count], 0, sizeof(Group))
                groups[group_count].shard = sends[i].shard
                if of_shard != NULL:
                    of_shard[sends[i].shard] = <int32_t>group_count
                sends[i].group = <int32_t>group_count
                group_count += 1
            else:
                sends[i].group = of_shard[sends[i].shard]
            groups[sends[i].group].count += 1
            groups[sends[i].group].data_bytes += sends[i].size
        for i in range(group_count):
            if builder_open(&groups[i].builder, groups[i].count, groups[i].data_bytes) != IGN_OK:
                raise MemoryError("SEND")
            ids.append(PyBytes_FromStringAndSize(NULL, <Py_ssize_t>groups[i].count * 8))
        for i in range(count):
            group = &groups[sends[i].group]
            packed = <bytes>ids[sends[i].group]
            put64(<uint8_t *>PyBytes_AS_STRING(packed) + <size_t>group.filled * 8, <uint64_t>sends[i].request_id)
            builder_add(&group.builder, sends[i].record, sends[i].size)
            group.filled += 1
        for i in range(group_count):
            batches.append((groups[i].shard, builder_close(&groups[i].builder), ids[i]))
        name = PyBytes_FromStringAndSize(<const char *>first + 2, <Py_ssize_t>first_head - 10)
        out.append((SEND, sends[0].request_id, (name, get64(first + first_head - 8), batches)))
        return used
    finally:
        for i in range(group_count):
            builder_abort(&groups[i].builder)
        free(of_shard)
        free(groups)
        free(sends)


def route_batch(PackedBatch batch not None, int shards, int any_shard, bytes request_ids=None):
    """Splits an unsealed batch by key, for a sender that left the shard to the broker.

    Args:
        batch: records; one without a key goes to ``any_shard``.
        shards: 1..65535. any_shard: 0..shards-1.
        request_ids: int64 big-endian per record, or None.

    Returns [(shard, batch, request ids)], in the order of first records; the order within a shard is kept.

    Raises MalformedFrameError when a record cannot be read.
    """
    cdef ign_segment seg
    cdef ign_record rec
    cdef uint32_t i, begin = 0, end
    cdef Group *groups = NULL
    cdef int32_t *of_shard = NULL
    cdef uint16_t *shard_of = NULL
    cdef Py_ssize_t group_count = 0
    cdef Group *group
    cdef uint16_t shard
    cdef list batches = [], ids = []
    cdef Py_buffer view
    if not 1 <= shards <= 65535 or not 0 <= any_shard < shards:
        raise ValueError(f"any_shard = {any_shard} of {shards} shards")
    if request_ids is not None and len(request_ids) != 8 * batch.count:
        raise ValueError("one request id per record")
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        if ign_segment_open(<const uint8_t *>view.buf, <size_t>view.len, &seg) != IGN_OK:
            raise SystemError("a batch in memory does not match its own index")
        shard_of = <uint16_t *>malloc(seg.count * sizeof(uint16_t))
        of_shard = <int32_t *>malloc(<size_t>shards * sizeof(int32_t))
        groups = <Group *>malloc(<size_t>min(<long long>shards, <long long>seg.count) * sizeof(Group))
        if shard_of == NULL or of_shard == NULL or groups == NULL:
            raise MemoryError("route")
        memset(of_shard, 0xFF, <size_t>shards * sizeof(int32_t))
        for i in range(seg.count):
            end = get32(seg.base + IGN_SEGMENT_HEADER_BYTES + <size_t>i * IGN_SEGMENT_INDEX_BYTES)
            if ign_record_decode(seg.data + begin, end - begin, &rec) != IGN_OK:
                raise malformed(f"record {i} of {seg.count} is not a message of this version")
            shard = <uint16_t>any_shard
            if rec.key_len:
                shard = ign_shard_for_key(rec.key, rec.key_len, <uint16_t>shards)
            shard_of[i] = shard
            if of_shard[shard] < 0:
                of_shard[shard] = <int32_t>group_count
                memset(&groups[group_count], 0, sizeof(Group))
                groups[group_count].shard = shard
                group_count += 1
            groups[of_shard[shard]].count += 1
            groups[of_shard[shard]].data_bytes += end - begin
            begin = end
        for i in range(<uint32_t>group_count):
            if builder_open(&groups[i].builder, groups[i].count, groups[i].data_bytes) != IGN_OK:
                raise MemoryError("route")
            ids.append(None if request_ids is None else PyBytes_FromStringAndSize(NULL, <Py_ssize_t>groups[i].count * 8))
        begin = 0
        for i in range(seg.count):
            end = get32(seg.base + IGN_SEGMENT_HEADER_BYTES + <size_t>i * IGN_SEGMENT_INDEX_BYTES)
            group = &groups[of_shard[shard_of[i]]]
            builder_add(&group.builder, seg.data + begin, end - begin)
            if request_ids is not None:
                memcpy(PyBytes_AS_STRING(ids[of_shard[shard_of[i]]]) + <size_t>group.filled * 8,
                       PyBytes_AS_STRING(request_ids) + <size_t>i * 8, 8)
            group.filled += 1
            begin = end
        for i in range(<uint32_t>group_count):
            batches.append((groups[i].shard, builder_close(&groups[i].builder), ids[i]))
        return batches
    finally:
        PyBuffer_Release(&view)
        for i in range(<uint32_t>group_count):
            builder_abort(&groups[i].builder)
        free(groups)
        free(of_shard)
        free(shard_of)


def encode_send_acks(bytes request_ids not None, int shard, first_pointer):
    """SEND_ACK frames for SENDs that went to one shard side by side: pointers rise by one.

    Args:
        request_ids: int64 big-endian each. shard: 0..65535. first_pointer: of the first.
    """
    cdef Py_ssize_t n = len(request_ids) // 8, i
    cdef uint64_t pointer = first_pointer
    cdef bytes out = PyBytes_FromStringAndSize(NULL, n * (<Py_ssize_t>IGN_FRAME_HEADER_BYTES + ACK_BYTES))
    cdef uint8_t *at = <uint8_t *>PyBytes_AS_STRING(out)
    cdef const uint8_t *ids = <const uint8_t *>PyBytes_AS_STRING(request_ids)
    for i in range(n):
        ign_frame_put_header(at, SEND_ACK, <int64_t>get64(ids + i * 8), ACK_BYTES)
        at += IGN_FRAME_HEADER_BYTES
        put16(at, 1)
        put16(at + 2, <uint32_t>shard)
        put64(at + 4, pointer + <uint64_t>i)
        put32(at + 12, 1)
        at += ACK_BYTES
    return out


# -- pointers -----------------------------------------------------------------------------------------------------------

def pack_pointers(pointers) -> bytes:
    """Shard -> pointers as runs: ``u32 runs``, then ``u16 shard, u64 first, u32 count`` each.

    Args:
        pointers: a mapping of shard (0..65535) to pointers in any order; ranges are quick. A pair (shard, pointers) may come up
            several times in a sequence of pairs.

    Raises ValueError for a number outside its range.
    """
    cdef uint32_t runs = 0
    cdef size_t room = 256, used = 4
    cdef uint8_t *out = <uint8_t *>malloc(room)
    cdef uint8_t *grown
    cdef long long first, end, pointer
    cdef object one
    if out == NULL:
        raise MemoryError("pointers")
    try:
        for shard, many in (pointers.items() if hasattr(pointers, "items") else pointers):
            if not 0 <= shard < SHARDS:
                raise ValueError(f"shard {shard} is outside 0..65535")
            first = end = -1
            if type(many) is range and many.step == 1:
                parts = iter(())
                if len(many):
                    first, end = many.start, many.stop
            else:
                parts = iter(many)
            while True:
                one = next(parts, None)
                pointer = -2 if one is None else one
                if one is not None and (pointer < 0 or pointer >= <long long>0x7FFFFFFFFFFFFFFF):
                    raise ValueError(f"pointer {one} is outside 0..2**63-2")
                if one is not None and pointer == end and end - first < 0x7FFFFFFF:
                    end += 1
                    continue
                if first >= 0:
                    if end - first > 0xFFFFFFFF:
                        raise ValueError(f"a run of {end - first} pointers")
                    if used + RUN_BYTES > room:
                        room *= 2
                        grown = <uint8_t *>realloc(out, room)
                        if grown == NULL:
                            raise MemoryError("pointers")
                        out = grown
                    put16(out + used, <uint32_t>shard)
                    put64(out + used + 2, <uint64_t>first)
                    put32(out + used + 10, <uint32_t>(end - first))
                    used += RUN_BYTES
                    runs += 1
                if one is None:
                    break
                first, end = pointer, pointer + 1
        put32(out, runs)
        return PyBytes_FromStringAndSize(<const char *>out, <Py_ssize_t>used)
    finally:
        free(out)


def unpack_runs(data, size_t offset=0):
    """[(shard, first pointer, behind the last)] of `pack_pointers`, from ``offset`` to the end of the data.

    Raises MalformedFrameError: cut short, too long, or over 1,048,576 pointers in all.
    """
    cdef Py_buffer view
    cdef const uint8_t *at
    cdef size_t size
    cdef uint32_t runs, i, count
    cdef uint64_t first, total = 0
    cdef list out = []
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if offset > <size_t>view.len or <size_t>view.len - offset < 4:
            raise malformed("pointers are cut short")
        at = <const uint8_t *>view.buf + offset
        size = <size_t>view.len - offset - 4
        runs = get32(at)
        if size % RUN_BYTES or size // RUN_BYTES != runs:
            raise malformed(f"{runs} runs of pointers in {size} bytes")
        at += 4
        for i in range(runs):
            first = get64(at + 2)
            count = get32(at + 10)
            total += count
            if total > MOST_POINTERS or first > <uint64_t>0x7FFFFFFF00000000:
                raise malformed(f"over {MOST_POINTERS} pointers in one request, or one beyond 2**63")
            out.append((get16(at), first, first + count))
            at += RUN_BYTES
        return out
    finally:
        PyBuffer_Release(&view)


# -- claims -------------------------------------------------------------------------------------------------------------

def pack_claims(claims) -> bytes:
    """Claims as DELIVER carries them: ``u32 claims``, then per claim ``u16 shard, u32 records, u32 runs``, the runs
    (``u64 first, u32 count``), a ``u32`` length per record (0xFFFFFFFF: corrupt, no bytes follow), and the records.

    Args:
        claims: (shard, pointers, records) each; records are bytes or None.
    """
    cdef list pieces = [None]
    cdef uint32_t count = 0
    cdef list records
    cdef bytes head
    cdef uint8_t *at
    cdef Py_ssize_t i, n
    cdef object record
    for shard, pointers, found in claims:
        records = found if type(found) is list else list(found)
        n = len(records)
        runs = pack_pointers(((0, pointers),))
        head = PyBytes_FromStringAndSize(NULL, 10)
        at = <uint8_t *>PyBytes_AS_STRING(head)
        put16(at, <uint32_t>shard)
        put32(at + 2, <uint32_t>n)
        put32(at + 6, get32(<const uint8_t *>PyBytes_AS_STRING(runs)))
        pieces.append(head)
        pieces.append(runs_without_shard(runs))
        head = PyBytes_FromStringAndSize(NULL, n * 4)
        at = <uint8_t *>PyBytes_AS_STRING(head)
        pieces.append(head)
        for i in range(n):
            record = records[i]
            if record is None:
                put32(at + i * 4, NO_RECORD)
            else:
                put32(at + i * 4, <uint32_t>len(record))
                pieces.append(record)
        count += 1
    head = PyBytes_FromStringAndSize(NULL, 4)
    put32(<uint8_t *>PyBytes_AS_STRING(head), count)
    pieces[0] = head
    return b"".join(pieces)


cdef bytes runs_without_shard(bytes runs):
    cdef Py_ssize_t n = (len(runs) - 4) // RUN_BYTES, i
    cdef bytes out = PyBytes_FromStringAndSize(NULL, n * 12)
    cdef char *to = PyBytes_AS_STRING(out)
    cdef const char *src = PyBytes_AS_STRING(runs) + 4
    for i in range(n):
        memcpy(to + i * 12, src + i * RUN_BYTES + 2, 12)
    return out


def unpack_claims(data, size_t offset=0):
    """[(shard, pointers, records)] of `pack_claims`; pointers are a range where they are one run, else a list.

    Raises MalformedFrameError.
    """
    cdef Py_buffer view
    cdef const uint8_t *base
    cdef const uint8_t *lengths
    cdef size_t size, at = 4
    cdef uint32_t claims, c, n, runs, i, length
    cdef uint64_t first, total
    cdef uint16_t shard
    cdef list out = [], records
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if offset > <size_t>view.len or <size_t>view.len - offset < 4:
            raise malformed("claims are cut short")
        base = <const uint8_t *>view.buf + offset
        size = <size_t>view.len - offset
        claims = get32(base)
        for c in range(claims):
            if size - at < 10:
                raise malformed("claims are cut short")
            shard = get16(base + at)
            n = get32(base + at + 2)
            runs = get32(base + at + 6)
            at += 10
            if <uint64_t>runs * 12 + <uint64_t>n * 4 > size - at:
                raise malformed("claims are cut short")
            total = 0
            pointers = None
            for i in range(runs):
                first = get64(base + at)
                length = get32(base + at + 8)
                total += length
                if total > n or first > <uint64_t>0x7FFFFFFF00000000:
                    raise malformed("a claim has more pointers than records")
                one = range(first, first + length)
                if pointers is None:
                    pointers = one
                else:
                    if type(pointers) is range:
                        pointers = list(pointers)
                    (<list>pointers).extend(one)
                at += 12
            if total != n:
                raise malformed("a claim has more records than pointers")
            lengths = base + at
            at += <size_t>n * 4
            records = []
            for i in range(n):
                length = get32(lengths + <size_t>i * 4)
                if length == NO_RECORD:
                    records.append(None)
                    continue
                if length > size - at:
                    raise malformed("claims are cut short")
                records.append(PyBytes_FromStringAndSize(<const char *>base + at, <Py_ssize_t>length))
                at += length
            out.append((shard, range(0) if pointers is None else pointers, records))
        if at != size:
            raise malformed("claims have bytes too many")
        return out
    finally:
        PyBuffer_Release(&view)


# -- the receiving side of a connection -----------------------------------------------------------------------------------

cdef class ReadArea:
    """Memory that all connections of one event loop read into, one after the other.

    What a connection receives is taken out of it before the next one reads; only the beginning of a frame that is not complete
    yet moves into the connection's own memory. So an idle connection holds no buffer.

    Args:
        size: bytes, 4,096 to 16 MiB.
    """

    def __cinit__(self, Py_ssize_t size=256 * 1024):
        if not 4096 <= size <= 16 * 1024 * 1024:
            raise ValueError(f"a read area of {size} bytes, allowed are 4096..16777216")
        self._data = <uint8_t *>malloc(<size_t>size)
        if self._data == NULL:
            raise MemoryError("read area")
        self._size = size

    def __dealloc__(self):
        free(self._data)


cdef class FrameReader:
    """Frames out of one connection, for ``asyncio.BufferedProtocol``: `get_buffer`, then `received`.

    Args:
        area: shared with other connections of the same thread.
        max_frame_bytes: limit of one frame, header included; may be changed between two reads.
        sends: take SEND and SEND_BATCH apart into packed batches, as a broker does.

    One thread at a time. After an error the stream is lost: every later call raises it again.
    """

    def __cinit__(self, ReadArea area not None, Py_ssize_t max_frame_bytes, bint sends=False):
        self._area = area
        self.max_frame_bytes = max_frame_bytes
        self._sends = sends

    def __dealloc__(self):
        free(self._carry)

    @property
    def buffered_bytes(self):
        """Bytes of a frame that is not complete yet."""
        return self._filled

    def get_buffer(self):
        """Writable memory for the next read: a view that must be released before the one after."""
        cdef uint8_t *grown
        cdef Py_ssize_t want, announced
        if self._error is not None:
            raise self._error
        if self._exports:
            raise BufferError("the last buffer is still in use")
        self._into_carry = self._filled != 0
        if self._into_carry:
            # As much as the frame needs, found out in steps: what is only announced costs nothing.
            want = 2 * self._filled
            if self._filled >= 4:
                announced = <Py_ssize_t>get32(self._carry) + 4
                want = min(want, announced)
            want = max(want, <Py_ssize_t>FIRST_CARRY)
            if want > self._room:
                grown = <uint8_t *>realloc(self._carry, <size_t>want)
                if grown == NULL:
                    raise MemoryError("frame")
                self._carry = grown
                self._room = want
        return memoryview(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self._into_carry:
            PyBuffer_FillInfo(view, self, self._carry + self._filled, self._room - self._filled, 0, flags)
        else:
            PyBuffer_FillInfo(view, self, self._area._data, self._area._size, 0, flags)
        self._exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self._exports -= 1

    def received(self, Py_ssize_t size) -> list:
        """What is complete after ``size`` bytes were written into the buffer: (command, request id, payload) each.

        With ``sends`` neighbouring SENDs to one queue come as one item, (SEND, request id of the first, (name, ttl_ms, [(shard,
        batch, request ids)])), and SEND_BATCH as (SEND_BATCH, request id, (name, ttl_ms, [(shard, batch)])); in place of a
        payload that breaks the rules stands its MalformedFrameError.

        Raises MalformedFrameError, FrameTooLargeError: what follows is no frame. Frames before it were returned first.
        """
        cdef list out = []
        cdef Py_ssize_t used
        cdef uint8_t *whole
        if self._error is not None:
            raise self._error
        if self._into_carry:
            if size < 0 or size > self._room - self._filled:
                raise ValueError(f"{size} bytes were received into {self._room - self._filled}")
            self._filled += size
            whole = self._carry
            used = self._parse(out, whole, self._filled)
            if used:
                size = self._filled - used
                self._filled = 0
                if size == 0 and self._exports == 0:
                    free(self._carry)
                    self._carry = NULL
                    self._room = 0
                elif size:
                    self._carry_over(used, size)
        else:
            if size < 0 or size > self._area._size:
                raise ValueError(f"{size} bytes were received into {self._area._size}")
            used = self._parse(out, self._area._data, size)
            if used < size:
                self._keep(self._area._data + used, size - used)
        if self._error is not None and not out:
            raise self._error
        return out

    def feed(self, data) -> list:
        """`received` for bytes that lie elsewhere: tests, and transports without buffers of their own."""
        cdef list out = []
        cdef memoryview rest = memoryview(data).cast("B")
        while len(rest):
            room = self.get_buffer()
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            room.release()
            try:
                out += self.received(taken)
            except _errors.MalformedFrameError:
                if not out:
                    raise
                return out
            rest = rest[taken:]
        return out

    def _carry_over(self, Py_ssize_t start, Py_ssize_t size):
        """The rest of the carry moves to its front: never while somebody holds a view on memory that would move."""
        cdef Py_ssize_t i
        for i in range(size):
            self._carry[i] = self._carry[start + i]
        self._filled = size

    cdef int _keep(self, const uint8_t *src, Py_ssize_t size) except -1:
        cdef uint8_t *grown
        if size > self._room:
            grown = <uint8_t *>realloc(self._carry, <size_t>max(size, <Py_ssize_t>FIRST_CARRY))
            if grown == NULL:
                raise MemoryError("frame")
            self._carry = grown
            self._room = max(size, <Py_ssize_t>FIRST_CARRY)
        memcpy(self._carry, src, <size_t>size)
        self._filled = size
        return 0

    cdef Py_ssize_t _parse(self, list out, const uint8_t *src, Py_ssize_t size) except -1:
        cdef Py_ssize_t used = 0, taken
        cdef ign_frame frame
        cdef size_t consumed = 0
        cdef int rc
        while used < size:
            rc = ign_frame_decode(src + used, <size_t>(size - used), <size_t>self.max_frame_bytes, &frame, &consumed)
            if rc == IGN_NEED_MORE:
                break
            if rc == IGN_E_TOO_LARGE:
                self._error = _errors.FrameTooLargeError(consumed, self.max_frame_bytes)
                break
            if rc != IGN_OK:
                self._error = error_of(rc, "frame")
                break
            if self._sends and frame.command == SEND:
                used += decode_sends(out, src + used, size - used, <size_t>self.max_frame_bytes)
                continue
            if self._sends and frame.command == SEND_BATCH:
                try:
                    out.append(decode_send_batch(frame.request_id, frame.payload, frame.payload_len))
                except _errors.MalformedFrameError as exc:
                    out.append((SEND_BATCH, frame.request_id, exc))
            else:
                out.append((
                    frame.command, frame.request_id,
                    PyBytes_FromStringAndSize(<const char *>frame.payload, <Py_ssize_t>frame.payload_len),
                ))
            used += <Py_ssize_t>consumed
        return used
