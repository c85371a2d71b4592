# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False
"""The broker's bulk codec: the Python face of ``csrc/ignis_wire.h``.

Frames come straight out of the receive buffer, batches and claims without a step per message. The layouts are those of
``docs/protocol.md``. The functions are pure and safe from any thread; a :class:`ReadArea` belongs to one thread and a
:class:`FrameReader` to one connection of it.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int16_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy, memmove, memset, strerror

from ignis.native.frame cimport IGN_FRAME_HEADER_BYTES, IGN_FRAME_MAX_PAYLOAD, ign_frame, ign_frame_decode, ign_frame_put_header
from ignis.native.record cimport (
    IGN_RECORD_MAX_META_BYTES, IGN_SEGMENT_HEADER_BYTES, IGN_SEGMENT_INDEX_BYTES, BatchBuilder, PackedBatch, builder_abort, builder_close,
    ign_segment, ign_segment_open, ign_segment_size, next_id, now_us, put_alone, record_bytes, text_of_id,
)
from ignis.native.wait cimport ign_now_ns

include "_errors.pxi"
include "_arguments.pxi"

COMMAND_SEND = IGN_WIRE_SEND
COMMAND_SEND_BATCH = IGN_WIRE_SEND_BATCH
COMMAND_SEND_ACK = IGN_WIRE_SEND_ACK
MAX_POINTERS = IGN_WIRE_MAX_POINTERS

cdef enum:
    FIRST_CARRY = 512
    # As in record.pyx: less work than this keeps the GIL, because to get it back takes longer.
    NOGIL_FROM_BYTES = 1024 * 1024


cdef object malformed(str what):
    return _errors.MalformedFrameError(what)


cdef object over_meta(size_t meta_bytes):
    """The exception for a record with a map over what a stranger's may have."""
    return _errors.MessageTooLargeError(
        meta_bytes, IGN_RECORD_MAX_META_BYTES, "the record's format; headers: queue.max_headers_bytes", "metadata")


cdef object damaged(int code, str what):
    """The exception for bytes of a peer that are none of the layout `what` names."""
    if code == IGN_E_NOMEM:
        return MemoryError(what)
    if code == IGN_E_TRUNCATED:
        return malformed(f"{what} cut short")
    if code == IGN_E_TOO_LARGE:
        return malformed(f"{what}: over {IGN_WIRE_MAX_POINTERS} pointers in one request, or one beyond 2**63")
    return malformed(f"{what} whose numbers contradict each other or the bytes that are there")


cdef inline int whole(object data, size_t offset, Py_buffer *view, str what) except -1:
    """The bytes of a buffer object, which hold at least `offset`. What could be changed while it is read is copied first:
    numbers are compared with one another before they are believed."""
    PyObject_GetBuffer(data if PyBytes_CheckExact(data) else bytes(memoryview(data)), view, PyBUF_SIMPLE)
    if offset > <size_t>view.len:
        PyBuffer_Release(view)
        raise damaged(IGN_E_TRUNCATED, what)
    return 0


cdef inline void put_item(list items, Py_ssize_t i, object value) noexcept:
    Py_INCREF(value)            # PyList_SET_ITEM takes a reference over
    PyList_SET_ITEM(items, i, value)


# -- batches ------------------------------------------------------------------------------------------------------------

cdef PackedBatch batch_of(uint8_t *segment, size_t size, size_t data_bytes, uint32_t count):
    """A batch that owns the segment from here on, also when this fails."""
    cdef BatchBuilder builder
    builder.segment = segment
    builder.data = segment + (size - data_bytes)
    builder.count = builder.filled = count
    builder.end = builder.data_bytes = data_bytes
    builder.unchecked = 0
    try:
        return builder_close(&builder)
    finally:
        builder_abort(&builder)


cdef list sorted_batches(ign_wire_sorter *sorter):
    """[(shard, batch, request ids)] of what was sorted."""
    cdef list batches = PyList_New(sorter.group_count)
    cdef ign_wire_group *group
    cdef uint8_t *segment
    cdef uint32_t i
    cdef object ids
    for i in range(sorter.group_count):
        group = &sorter.groups[i]
        ids = None
        if group.request_ids != NULL:
            ids = PyBytes_FromStringAndSize(<const char *>group.request_ids, <Py_ssize_t>group.count * 8)
        segment = group.segment
        group.segment = NULL
        put_item(batches, i, (group.shard, batch_of(segment, group.segment_bytes, group.data_bytes, group.count), ids))
    return batches


cdef PackedBatch batch_of_segment(const uint8_t *src, size_t size):
    """A batch with the records of an unsealed segment, each compared with the sender's checksum."""
    cdef uint32_t count = 0, bad = 0
    cdef size_t data_bytes = 0
    cdef int code
    cdef uint8_t *segment = <uint8_t *>malloc(size if size else 1)
    if segment == NULL:
        raise MemoryError("batch")
    if size < NOGIL_FROM_BYTES:
        code = ign_wire_copy_segment(segment, src, size, &count, &data_bytes, &bad)
    else:
        with nogil:
            code = ign_wire_copy_segment(segment, src, size, &count, &data_bytes, &bad)
    if code == IGN_OK:
        return batch_of(segment, size, data_bytes, count)
    free(segment)
    if code == IGN_E_TOO_LARGE:
        raise over_meta(data_bytes)
    if code == IGN_E_CORRUPT:
        raise malformed(f"record {bad} of a batch of {size} bytes does not match its checksum")
    raise malformed(f"a batch of {size} bytes contradicts its own index")


cdef tuple decode_send_batch(const uint8_t *src, size_t size):
    """(name, ttl_ms, [(shard, batch)])."""
    cdef ign_wire_batches cursor
    cdef const uint8_t *segment = NULL
    cdef size_t nbytes = 0
    cdef uint16_t shard = 0
    cdef list batches = []
    cdef int code = ign_wire_batches_open(&cursor, src, size)
    if code != IGN_OK:
        raise damaged(code, "SEND_BATCH")
    while True:
        code = ign_wire_batches_next(&cursor, &shard, &segment, &nbytes)
        if code == IGN_EMPTY:
            name = PyBytes_FromStringAndSize(<const char *>cursor.name, <Py_ssize_t>cursor.name_len)
            return name, cursor.ttl_ms, batches
        if code != IGN_OK:
            raise damaged(code, "SEND_BATCH")
        batches.append((shard, batch_of_segment(segment, nbytes)))


def unpack_send_batch(data, size_t offset=0):
    """(name, ttl_ms, [(shard, batch)]) of the payload of SEND_BATCH, from ``offset`` to the end of the data.

    Raises MalformedFrameError, MessageTooLargeError: a record's metadata are over 128 KiB.
    """
    cdef Py_buffer view
    whole(data, offset, &view, "SEND_BATCH")
    try:
        return decode_send_batch(<const uint8_t *>view.buf + offset, <size_t>view.len - offset)
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t decode_sends(list out, ign_wire_sorter *sorter, const uint8_t *src, Py_ssize_t size, size_t limit) except -1:
    """SEND frames that stand side by side and name one queue and one time to live; returns the bytes they took.

    Appends (SEND, request id of the first, (name, ttl_ms, [(shard, batch, request ids)])), one batch per shard, records in the order
    of the frames; request ids as int64 big-endian. A payload that is no SEND becomes (SEND, request id, error).
    """
    cdef ign_wire_sends sends
    cdef size_t consumed = 0
    cdef int code
    try:
        if size < NOGIL_FROM_BYTES:
            code = ign_wire_take_sends(sorter, src, <size_t>size, limit, &sends, &consumed)
        else:
            with nogil:
                code = ign_wire_take_sends(sorter, src, <size_t>size, limit, &sends, &consumed)
        if code == IGN_E_MALFORMED:
            out.append((IGN_WIRE_SEND, sends.request_id, malformed(f"SEND in a frame of {consumed} bytes holds no record")))
        elif code == IGN_E_TOO_LARGE:
            out.append((IGN_WIRE_SEND, sends.request_id, over_meta(sends.meta_bytes)))
        elif code != IGN_OK:
            raise_code(code, "SEND")
        else:
            name = PyBytes_FromStringAndSize(<const char *>sends.name, <Py_ssize_t>sends.name_len)
            out.append((IGN_WIRE_SEND, sends.request_id, (name, sends.ttl_ms, sorted_batches(sorter))))
        return <Py_ssize_t>consumed
    finally:
        ign_wire_sorter_clear(sorter)


def route_batch(PackedBatch batch not None, int shards, int any_shard, bytes request_ids=None):
    """Splits an unsealed batch by key, for a sender that left the shard to the broker.

    Args:
        batch: records; one without a key goes to ``any_shard``.
        shards: 1..65535. any_shard: 0..shards-1.
        request_ids: int64 big-endian per record, or None.

    Returns [(shard, batch, request ids)], in the order of first records; the order within a shard is kept.

    Raises MalformedFrameError when a record cannot be read, ValueError for a sealed batch. Gives the GIL up for large batches.
    """
    cdef ign_wire_sorter sorter
    cdef const uint8_t *ids = NULL
    cdef uint32_t bad = 0
    cdef int code
    cdef Py_buffer view
    if not 1 <= shards <= 65535 or not 0 <= any_shard < shards:
        raise ValueError(f"any_shard = {any_shard} of {shards} shards")
    if batch._sealed:
        raise ValueError("the batch is sealed already")
    if request_ids is not None:
        if len(request_ids) != 8 * batch.count:
            raise ValueError("one request id per record")
        ids = <const uint8_t *>PyBytes_AS_STRING(request_ids)
    memset(&sorter, 0, sizeof(sorter))
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        if view.len < NOGIL_FROM_BYTES:
            code = ign_wire_route(&sorter, <const uint8_t *>view.buf, <size_t>view.len, <uint16_t>shards, <uint16_t>any_shard,
                                  ids, &bad)
        else:
            with nogil:
                code = ign_wire_route(&sorter, <const uint8_t *>view.buf, <size_t>view.len, <uint16_t>shards,
                                      <uint16_t>any_shard, ids, &bad)
        if code == IGN_E_MALFORMED:
            raise malformed(f"record {bad} of {batch.count} is not a message of this version")
        if code == IGN_E_CORRUPT:
            raise SystemError("a batch in memory does not match its own index")
        if code != IGN_OK:
            raise_code(code, "route")
        return sorted_batches(&sorter)
    finally:
        PyBuffer_Release(&view)
        ign_wire_sorter_free(&sorter)


def encode_send_acks(bytes request_ids not None, int shard, first_pointer):
    """SEND_ACK frames for SENDs that went to one shard side by side: pointers rise by one.

    Args:
        request_ids: int64 big-endian each. shard: 0..65535. first_pointer: of the first.
    """
    cdef size_t count = <size_t>len(request_ids) // 8
    cdef uint64_t first = first_pointer
    if not 0 <= shard <= 0xFFFF or first > <uint64_t>0x7FFFFFFFFFFFFFFF - count:
        raise ValueError(f"{count} pointers from {first} of shard {shard}: a shard is 0..65535, a pointer below 2**63")
    cdef bytes out = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>(count * IGN_WIRE_ACK_FRAME_BYTES))
    ign_wire_put_acks(<uint8_t *>PyBytes_AS_STRING(out), <const uint8_t *>PyBytes_AS_STRING(request_ids), count,
                      <uint16_t>shard, first)
    return out


include "_call_guard.pxi"
include "_wire_pointers.pxi"
include "_wire_claims.pxi"
include "_wire_reader.pxi"
include "_wire_exchange.pxi"
include "_wire_lone_exchange.pxi"
