# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False
"""The producer's hot path: messages are encoded straight into a slab slot, and a flusher drains them as packed batches.

Messages are numbered from 1 in the order they were sent. The flusher settles them in that order, so a receipt is two words,
the outbox and a number, and completing a batch is one addition, whatever its size; only receipts that somebody waits on
cost anything of their own.

One file for each subject: the receipts (``_outbox_receipts.pxi``), sending (``_outbox_ring.pxi``), and the two kinds, drained by a
thread of this process (``_outbox_heap.pxi``) or by another process (``_outbox_mapped.pxi``). They are one extension, because
a handle remembers the count of forks of the extension that made it.
"""

import heapq
import time
from bisect import bisect_left
from _thread import allocate_lock

from ignis.native._pools import register

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from ignis.native.channel cimport (
    IGN_BYTERING_MAX_BYTES, IGN_BYTERING_SLOT, IGN_CONSUMER, IGN_NAMED, IGN_NOTE_REFUSED, IGN_PRODUCER, IGN_RENAMED,
    ign_bytering_size_valid, ign_channel_advance,
    ign_channel_close, ign_channel_collect, ign_channel_create, ign_channel_depth, ign_channel_flush, ign_channel_give_back,
    ign_channel_heap, ign_channel_interrupt, ign_channel_peek, ign_channel_publish, ign_channel_read_pos,
    ign_channel_reserve, ign_channel_set_small, ign_channel_stage, ign_channel_wait_items, ign_channel_wait_progress, ign_channel_wait_space,
    ign_message, ign_now_ns, ign_prefetch, ign_region_check, ign_region_config, ign_region_config_default,
    ign_region_get_note, ign_region_naming, ign_region_owner_state, ign_region_set_note,
)
from ignis.native.record cimport (
    BatchBuilder, PackedBatch, builder_abort, builder_add, builder_close, builder_open, encode_into, next_id, now_us,
    record_bytes, text_of_id,
)
from ignis.native.slab cimport ign_slab, ign_slab_ref
from ignis.native.wait cimport ign_board_close, ign_board_open, ign_event_advance, ign_event_notify

include "_errors.pxi"
include "_arguments.pxi"
include "_time.pxi"
include "_rising.pxi"
include "_pool.pxi"

cdef extern from *:
    """
    #define NO_TIME UINT64_MAX
    """
    const uint64_t NO_TIME

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "Python.h":
    ctypedef struct PyObject:
        pass
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
    void PyErr_SetObject(object kind, object value)
    void PyErr_WriteUnraisable(object where)

cdef enum:
    MOST_DELAY_S = 3600000000   # beyond that nanoseconds have no room
    CLOSE_NS = 5000000000   # most that close() waits for threads that are inside
    LOOK_NS = 100000000     # between two looks at the name of a mapped outbox's file, while something waits
    LOOK_US = 250000        # the same for who sends, by the clock that the message's id has read
    # What an envelope may add to a body: fixed part, the longest key, the longest headers, and beside them in the meta map
    # a deadline and a due time, of about 20 bytes each.
    ENVELOPE_BYTES = 36 + 65535 + 65536 + 64

MAX_ENVELOPE_BYTES = ENVELOPE_BYTES

include "_packing.pxi"
include "_outbox_receipts.pxi"
include "_outbox_ring.pxi"
include "_outbox_heap.pxi"
include "_outbox_mapped.pxi"
