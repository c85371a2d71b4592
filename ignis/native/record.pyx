# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, autotestdict=False, auto_pickle=False
"""Records, packed batches and their checksum: the Python face of ``csrc/ignis_record.h``.

The functions are pure but for the clock and the generator behind the ids, and every one is safe to call from several
threads. After ``fork()`` the child draws its ids from a state of its own; batches and records made before the fork
stay usable in both processes, each of which has its copy.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_INCREF
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, SIZE_MAX, UINT16_MAX, UINT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport free, malloc, qsort, realloc
from libc.string cimport memcmp, memcpy, memset
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from ignis.errors import CorruptRecordError, MessageTooLargeError, UnreadableMessageError

cdef extern from "ignis_error.h" nogil:
    enum:
        IGN_OK
        IGN_FULL
        IGN_E_INVALID
        IGN_E_NOMEM
        IGN_E_VERSION
        IGN_E_TOO_LARGE
        IGN_E_CORRUPT

cdef extern from *:
    """
    #include <pthread.h>
    #include <sys/random.h>
    #include <unistd.h>
    """
    int pthread_atfork(void *prepare, void *parent, void (*child)() noexcept nogil)
    int getentropy(void *buffer, size_t length) nogil
    int getpid() nogil

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    str PyUnicode_New(Py_ssize_t size, uint32_t maxchar)
    void *PyUnicode_DATA(object text)
    long long PyLong_AsLongLongAndOverflow(object value, int *overflow) except? -1
    # Reads of immutable objects that the caller holds: tuples made here, and the bytes in them. No reference count
    # changes and nothing is called, so they may stand without the GIL.
    PyObject *PyTuple_GET_ITEM(PyObject *items, Py_ssize_t i) nogil
    Py_ssize_t PyTuple_GET_SIZE(PyObject *items) nogil
    char *PyBytes_AS_STRING(PyObject *value) nogil
    Py_ssize_t PyBytes_GET_SIZE(PyObject *value) nogil
    PyObject *Py_None

CODEC_RAW = 0
CODEC_JSON = 1
CODEC_MSGPACK = 2
ANY_SHARD = 0xFFFF

# One less than fits, so that the end of a range is a number too.
cdef long long POINTER_MAX = INT64_MAX - 1

cdef enum:
    FLAGS_MAX = 0x0F
    KEY_MAX_BYTES = 0xFFFF
    SHARDS_MAX = 0xFFFF
    ID_BYTES = 16
    ID_TEXT_CHARS = 36
    # Work on fewer bytes than this keeps the GIL and is done within 0.4 ms at the worst. A thread that gives the GIL up
    # while another one computes gets it back only after a switch interval, 5 ms by default: measured, a checksum over
    # 120 KiB took 8 µs with the GIL and one over 136 KiB without it 2 ms.
    NOGIL_FROM_BYTES = 1024 * 1024
    NOGIL_FROM_RECORDS = 16 * 1024


include "_record_ids.pxi"


# -- arguments ------------------------------------------------------------------------------------------------------

cdef struct Input:
    const uint8_t *data
    size_t size
    bint held
    Py_buffer view


cdef inline int take(object value, Input *taken) except -1:
    """Lends the bytes of a buffer object until `give_back`. Bytes themselves are held by the caller already."""
    taken.held = False
    if PyBytes_CheckExact(value):
        taken.data = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>value)
        taken.size = <size_t>PyBytes_GET_SIZE(<PyObject *>value)
        return 0
    PyObject_GetBuffer(value, &taken.view, PyBUF_SIMPLE)
    taken.held = True
    taken.data = <const uint8_t *>taken.view.buf
    taken.size = <size_t>taken.view.len
    return 0


cdef inline void give_back(Input *taken) noexcept:
    if taken.held:
        PyBuffer_Release(&taken.view)


cdef long long in_range(object value, str name, long long low, long long high) except? -1:
    cdef int overflow = 0
    cdef long long number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow != 0 or number < low or number > high:
        raise ValueError(f"{name} is {value}, allowed are {low}..{high}")
    return number


cdef int refuse_size(size_t key_len, size_t meta_len, size_t body_len) except -1:
    if key_len > KEY_MAX_BYTES:
        raise MessageTooLargeError(key_len, KEY_MAX_BYTES, "key")
    # In Python integers, because the sum may not fit a size_t.
    total = <object>key_len + <object>meta_len + <object>body_len + <object>IGN_RECORD_HEADER_BYTES
    raise MessageTooLargeError(total, UINT32_MAX, "record")


cdef tuple all_bytes(object items, str name, bint allow_none):
    """A tuple of items, which keeps them alive and unchanged, after a look at every type."""
    cdef tuple held = tuple(items)
    cdef PyObject *item
    cdef Py_ssize_t i
    for i in range(PyTuple_GET_SIZE(<PyObject *>held)):
        item = PyTuple_GET_ITEM(<PyObject *>held, i)
        if not PyBytes_CheckExact(<object>item) and not (allow_none and item == Py_None):
            raise TypeError(f"{name}[{i}] is {type(<object>item).__name__}, expected bytes")
    return held


cdef inline const uint8_t *data_at(PyObject *items, Py_ssize_t i, size_t *size) noexcept nogil:
    """Item i of a tuple of `all_bytes`; no tuple and None are empty."""
    cdef PyObject *item = PyTuple_GET_ITEM(items, i) if items != NULL else Py_None
    if item == Py_None:
        size[0] = 0
        return NULL
    size[0] = <size_t>PyBytes_GET_SIZE(item)
    return <const uint8_t *>PyBytes_AS_STRING(item)


def only_bytes(items):
    """Whether a list or tuple has nothing but bytes objects, none of a subclass. False for what is no list or tuple."""
    cdef Py_ssize_t i
    if type(items) is tuple:
        for i in range(PyTuple_GET_SIZE(<PyObject *>items)):
            if not PyBytes_CheckExact(<object>PyTuple_GET_ITEM(<PyObject *>items, i)):
                return False
        return True
    if type(items) is not list:
        return False
    for i in range(PyList_GET_SIZE(items)):
        if not PyBytes_CheckExact(<object>PyList_GET_ITEM(items, i)):
            return False
    return True


def total_bytes(list items not None, Py_ssize_t begin=0, Py_ssize_t end=PY_SSIZE_T_MAX):
    """The lengths of the bytes objects of a list, from ``begin`` to before ``end``, in all. None has no length: it counts as nothing."""
    cdef Py_ssize_t i, total = 0
    cdef PyObject *one
    i = max(begin, 0)
    while i < min(end, PyList_GET_SIZE(items)):
        one = <PyObject *>PyList_GET_ITEM(items, i)
        if PyBytes_CheckExact(<object>one):
            total += PyBytes_GET_SIZE(one)
        elif one != Py_None:
            total += len(<object>one)
        i += 1
    return total


def has_none(list items not None):
    """Whether None is in the list, compared by identity alone: ``None in items`` asks each item whether it is equal."""
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(items)):
        if <PyObject *>PyList_GET_ITEM(items, i) == Py_None:
            return True
    return False


include "_record_columns.pxi"


# -- checksum and routing ---------------------------------------------------------------------------------------------

def crc32c(data, crc=0):
    """CRC32C (RFC 3720) of ``data``, going on from ``crc``: ``crc32c(a + b) == crc32c(b, crc32c(a))``.

    Args:
        data: any contiguous buffer.
        crc: the value for what came before, 0..2**32-1.

    Raises ValueError when ``crc`` is outside its range. Gives the GIL up for large buffers.
    """
    cdef uint32_t value = <uint32_t>in_range(crc, "crc", 0, UINT32_MAX)
    cdef Input taken
    take(data, &taken)
    if taken.size < NOGIL_FROM_BYTES:
        value = ign_crc32c(value, taken.data, taken.size)
    else:
        with nogil:
            value = ign_crc32c(value, taken.data, taken.size)
    give_back(&taken)
    return value


def shard_for_key(bytes key not None, shards):
    """The shard (0..shards-1) that holds the messages of ``key``; the same in every client, for ever.

    Raises ValueError when ``shards`` is outside 1..65535.
    """
    cdef uint16_t among = <uint16_t>in_range(shards, "shards", 1, SHARDS_MAX)
    return ign_shard_for_key(PyBytes_AS_STRING(<PyObject *>key), <size_t>PyBytes_GET_SIZE(<PyObject *>key), among)


# -- one record -------------------------------------------------------------------------------------------------------

cdef size_t record_bytes(size_t key_len, size_t meta_len, size_t body_len) noexcept nogil:
    cdef ign_record rec
    rec.key_len = key_len
    rec.meta_len = meta_len
    rec.body_len = body_len
    return ign_record_size(&rec)


cdef void encode_into(uint8_t *dst, uint8_t flags, const uint8_t *id, uint64_t enqueued_at_us,
                      const uint8_t *key, size_t key_len, const uint8_t *meta, size_t meta_len,
                      const uint8_t *body, size_t body_len) noexcept nogil:
    cdef ign_record rec
    rec.flags = flags
    rec.attempts = 0
    rec.crashes = 0
    rec.enqueued_at_us = enqueued_at_us
    memcpy(rec.id, id, ID_BYTES)
    rec.key = key
    rec.key_len = key_len
    rec.meta = meta
    rec.meta_len = meta_len
    rec.body = body
    rec.body_len = body_len
    ign_record_encode(&rec, dst)


cdef void put_alone(uint8_t *dst, size_t segment_bytes, size_t size, uint64_t expires_at_ms, uint8_t flags, const uint8_t *id,
                    uint64_t enqueued_at_us, const uint8_t *body, size_t body_len) noexcept nogil:
    cdef uint8_t *record = dst + (segment_bytes - size)
    ign_segment_begin(dst, 1, expires_at_ms)
    encode_into(record, flags, id, enqueued_at_us, NULL, 0, NULL, 0, body, body_len)
    ign_segment_put_index(dst, 0, <uint32_t>size, ign_crc32c(0, record, size))
    ign_segment_finish(dst)


cdef bytes encoded(const ign_record *rec):
    cdef size_t size = ign_record_size(rec)
    if size == SIZE_MAX:
        refuse_size(rec.key_len, rec.meta_len, rec.body_len)
    cdef bytes made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    cdef uint8_t *dst = <uint8_t *>PyBytes_AS_STRING(<PyObject *>made)
    if size < NOGIL_FROM_BYTES:
        ign_record_encode(rec, dst)
    else:
        with nogil:
            ign_record_encode(rec, dst)
    return made


def encode_record(body, *, flags=0, bytes key not None=b"", bytes meta not None=b"", bytes id=None,
                  enqueued_at_us=None, attempts=0, crashes=0):
    """The bytes of one record: an envelope and ``body``.

    Args:
        body: any contiguous buffer; may be empty.
        flags: the codec of the body, ``CODEC_*`` (0..15).
        key: what messages of one order share, at most 65,535 bytes; empty = none.
        meta: a MessagePack map, or empty; not looked into.
        id: 16 bytes; None draws a new one.
        enqueued_at_us: microseconds since the Unix epoch; None = now.
        attempts, crashes: deliveries that failed, and that killed their worker; 0..65535 each.

    Raises MessageTooLargeError (key over 65,535 bytes, or record of 4 GiB or more), ValueError (a number outside its
    range, an id that is not 16 bytes long), TypeError.
    """
    cdef ign_record rec
    cdef Input taken
    rec.flags = <uint8_t>in_range(flags, "flags", 0, FLAGS_MAX)
    rec.attempts = <uint16_t>in_range(attempts, "attempts", 0, UINT16_MAX)
    rec.crashes = <uint16_t>in_range(crashes, "crashes", 0, UINT16_MAX)
    if id is not None and len(id) != ID_BYTES:
        raise ValueError(f"id has {len(id)} bytes, expected {ID_BYTES}")
    cdef uint64_t now = now_us() if id is None or enqueued_at_us is None else 0
    rec.enqueued_at_us = now
    if enqueued_at_us is not None:
        rec.enqueued_at_us = <uint64_t>in_range(enqueued_at_us, "enqueued_at_us", 0, INT64_MAX)
    if id is None:
        next_id(now, rec.id)
    else:
        memcpy(rec.id, PyBytes_AS_STRING(<PyObject *>id), ID_BYTES)
    rec.key = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>key)
    rec.key_len = <size_t>PyBytes_GET_SIZE(<PyObject *>key)
    rec.meta = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>meta)
    rec.meta_len = <size_t>PyBytes_GET_SIZE(<PyObject *>meta)
    take(body, &taken)
    rec.body = taken.data
    rec.body_len = taken.size
    try:
        return encoded(&rec)
    finally:
        give_back(&taken)


cdef int refuse_record(int code, bytes data) except -1:
    if code == IGN_E_VERSION:
        raise UnreadableMessageError(
            f"message of version {data[0]} with flags {data[1] if len(data) > 1 else 0:#04x}, "
            f"this build reads version {IGN_RECORD_VERSION} with flags up to {FLAGS_MAX:#04x}"
        )
    raise UnreadableMessageError(
        f"message of {len(data)} bytes is cut short: its envelope needs {IGN_RECORD_HEADER_BYTES} bytes "
        "and the key and meta that it announces"
    )


@cython.final
@cython.freelist(256)
cdef class Record:
    """One record, taken apart. Immutable; keeps a reference to ``data`` and slices it when an attribute is read.

    Args:
        data: the bytes of `encode_record`.

    Raises UnreadableMessageError when they are not a record of this version, or cut short. Safe in threads.
    """

    def __cinit__(self, bytes data not None):
        cdef int code = ign_record_decode(
            <const uint8_t *>PyBytes_AS_STRING(<PyObject *>data), <size_t>PyBytes_GET_SIZE(<PyObject *>data),
            &self._rec)
        if code != IGN_OK:
            refuse_record(code, data)
        self._data = data

    @property
    def id(self):
        """16 bytes, a UUID of version 7."""
        return PyBytes_FromStringAndSize(<char *>self._rec.id, ID_BYTES)

    @property
    def flags(self):
        """The codec of the body, ``CODEC_*``."""
        return self._rec.flags

    @property
    def attempts(self):
        """Deliveries that ended in a failure."""
        return self._rec.attempts

    @property
    def crashes(self):
        """Deliveries that ended with the death of the worker."""
        return self._rec.crashes

    @property
    def enqueued_at_us(self):
        """Microseconds since the Unix epoch."""
        return self._rec.enqueued_at_us

    @property
    def key(self):
        """What messages of one order share; empty = none."""
        return PyBytes_FromStringAndSize(<const char *>self._rec.key, <Py_ssize_t>self._rec.key_len)

    @property
    def meta(self):
        """A MessagePack map, or empty."""
        return PyBytes_FromStringAndSize(<const char *>self._rec.meta, <Py_ssize_t>self._rec.meta_len)

    @property
    def body(self):
        """The message itself, encoded as ``flags`` says."""
        return PyBytes_FromStringAndSize(<const char *>self._rec.body, <Py_ssize_t>self._rec.body_len)

    def replace(self, *, attempts=None, crashes=None, bytes meta=None):
        """The record encoded anew with what is given changed; id, key, body and enqueued_at_us stay.

        Raises ValueError (a count outside 0..65535), MessageTooLargeError (with the new meta 4 GiB or more).
        """
        cdef ign_record rec = self._rec
        if attempts is not None:
            rec.attempts = <uint16_t>in_range(attempts, "attempts", 0, UINT16_MAX)
        if crashes is not None:
            rec.crashes = <uint16_t>in_range(crashes, "crashes", 0, UINT16_MAX)
        if meta is not None:
            rec.meta = <const uint8_t *>PyBytes_AS_STRING(<PyObject *>meta)
            rec.meta_len = <size_t>PyBytes_GET_SIZE(<PyObject *>meta)
        return encoded(&rec)

    def __repr__(self):
        return (f"<Record {self.id.hex()} attempts={self._rec.attempts} crashes={self._rec.crashes} "
                f"key_bytes={self._rec.key_len} body_bytes={self._rec.body_len}>")

    def __reduce__(self):
        return (Record, (self._data,))


include "_record_keys.pxi"
include "_record_batch.pxi"
include "_record_segments.pxi"
include "_record_table.pxi"
